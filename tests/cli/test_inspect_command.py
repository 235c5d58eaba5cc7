"""`sinkscope inspect`: from tasks and from a trace, as text and as JSON; bad input is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

import sinkscope as ss
from sinkscope import cli

SHORT = ["--length", "4", "--steps", "4", "--block", "4", "--device", "cpu"]
PROMPTS = ["Ann has 3 pens. She buys 2. How many pens?", "Tom has 5 nuts. He eats 2. How many nuts?"]


def main(arguments: list[str]) -> int:
    """The exit code of a command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["sinkscope", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    return int(ended.value.code or 0)


@pytest.mark.slow
def test_a_text_that_is_otherwise_read_is_gone_on_with(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["inspect", "organism/causal", "--task", "text", "--limit", "2", "--looks", "1", "--json"]
    assert main([*command, "--length", "4", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["table"]


@pytest.mark.slow
def test_a_model_is_inspected_on_a_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "inside"
    command = [
        "inspect",
        "organism/scratch",
        "--limit",
        "2",
        "--looks",
        "1",
        "--out",
        str(out),
        "--json",
        *SHORT,
    ]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["section"] for row in found["table"]} >= {
        "lens",
        "patch",
        "movement",
        "union",
        "foresight",
        "channels",
        "dormant",
    }
    assert found["holdings"][0]["question"] == "What kind of sinks are they?"
    assert {row["answer"] for row in found["holdings"]} == {"not shown"}  # two prompts decide nothing
    table = pd.read_csv(out / "inspection.csv")
    assert len(table) == len(found["table"])
    assert (out / "holdings.svg").is_file()
    assert main(command) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.slow
def test_a_trace_is_inspected_with_the_model_that_made_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ss.load("organism/causal", device="cpu", dtype="float32")
    path = tmp_path / "two.zarr.zip"
    ss.generate(
        model, PROMPTS, ss.GreedyDecoding(length=6), capture=ss.Capture(level="layers"), seed=[0, 1], out=path
    )
    assert main(["inspect", str(path), "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "What the sinks of organism/causal hold" in said
    assert "void: movement" in said
    lonely = tmp_path / "one.zarr.zip"
    ss.generate(
        model, PROMPTS[:1], ss.GreedyDecoding(length=4), capture=ss.Capture(level="layers"), out=lonely
    )
    assert main(["inspect", str(lonely), "--device", "cpu"]) == 2
    assert "patches need a second one" in capsys.readouterr().err


def test_a_run_is_read_back_from_its_trace(tmp_path: Path) -> None:
    from sinkscope.inspection.inspect import run_of_trace

    for name, decoding in (
        ("scratch", ss.LladaDecoding(length=8, steps=4, block=4)),
        ("causal", ss.GreedyDecoding(length=6)),
    ):
        model = ss.load(f"organism/{name}", device="cpu", dtype="float32")
        run = ss.generate(model, PROMPTS, decoding, capture=ss.Capture(level="layers"), seed=[0, 1])
        assert run.trace is not None
        again = run_of_trace(model, run.trace)
        assert (again.states == run.states).all()
        assert again.decoding == run.decoding
        assert again.prompt == run.prompt
        assert again.seed == run.seed


def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "organism/scratch", "--limit", "1"]) == 2
    assert "at least 2" in capsys.readouterr().err
    assert main(["inspect", "nowhere.zarr.zip"]) == 2
    assert "Traceback" not in capsys.readouterr().err
