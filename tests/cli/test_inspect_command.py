"""`sinkscope inspect`: from tasks and from a trace, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import sinkscope as ss
from sinkscope.inspection.inspect import run_of_trace

PROMPTS = ["Ann has 3 pens. She buys 2. How many pens?", "Tom has 5 nuts. He eats 2. How many nuts?"]
LAYERS = ss.Capture(level="layers")


@pytest.mark.slow
def test_a_text_that_is_otherwise_read_is_gone_on_with(sinkscope: Any) -> None:
    command = "inspect organism/causal --task text --limit 2 --looks 1 --json --length 4 --device cpu"
    done = sinkscope(*command.split())
    assert done.code == 0, done.error
    assert json.loads(done.out)["table"]


@pytest.mark.slow
def test_a_model_is_inspected_on_a_task(sinkscope: Any, tmp_path: Path) -> None:
    command = (
        "inspect organism/scratch --limit 2 --looks 1 --out inside --json --decoding length=4,block=4 --device cpu"
    )
    done = sinkscope(*command.split())
    assert done.code == 0, done.error
    assert "2 prompts: every verdict will be undecided, because they need 20 or more" in done.error
    found = json.loads(done.out)
    sections = {"lens", "patch", "movement", "union", "foresight", "channels"}
    assert {row["section"] for row in found["table"]} >= sections
    assert found["holdings"][0]["question"] == "What kind of sinks are they?"
    assert {row["status"] for row in found["holdings"]} == {"undecided"}  # two prompts decide nothing
    assert len(pd.read_csv(tmp_path / "inside" / "inspection.csv")) == len(found["table"])
    assert (tmp_path / "inside" / "holdings.svg").is_file()
    again = sinkscope(*command.split())
    assert (again.code, "exists already" in again.error) == (2, True)


@pytest.mark.slow
def test_a_trace_is_inspected_with_the_model_that_made_it(sinkscope: Any) -> None:
    model = ss.load("organism/causal", device="cpu", dtype="float32")
    short: Any = {"length": 6, "capture": LAYERS}
    ss.generate(model, PROMPTS, seed=[0, 1], out="two.zarr.zip", **short)
    ss.generate(model, PROMPTS[:1], out="one.zarr.zip", **short)
    done = sinkscope("inspect", "two.zarr.zip", "--device", "cpu")
    assert done.code == 0, done.error
    assert "What the sinks of organism/causal hold" in done.out
    assert "void: movement" in done.out
    lonely = sinkscope("inspect", "one.zarr.zip", "--device", "cpu")
    assert (lonely.code, "patches need a second one" in lonely.error) == (2, True)


@pytest.mark.parametrize(
    ("name", "decoding"),
    [("scratch", ss.LladaDecoding(length=8, steps=4, block=4)), ("causal", ss.GreedyDecoding(length=6))],
)
def test_a_run_is_read_back_from_its_trace(name: str, decoding: ss.Decoding) -> None:
    model = ss.load(f"organism/{name}", device="cpu", dtype="float32")
    run = ss.generate(model, PROMPTS, decoding, capture=LAYERS, seed=[0, 1])
    again = run_of_trace(model, run.trace)
    assert (again.states == run.states).all()
    assert (again.decoding, again.prompt, again.seed) == (run.decoding, run.prompt, run.seed)
