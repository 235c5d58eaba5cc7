"""A study that reads texts: tables of likelihoods beside accuracies, claims on both, and the report's section."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from tests.study.small import run_here, write_blocks

BLOCKS = """
[decodings.reading]
causal = { length = 40, scored = 12 }
llada = { length = 40, share = 0.5, masks = 2 }
[decodings.grammar]
causal = { length = 24, scored = 16 }
llada = { length = 24, masks = 4 }
[[evaluate]]
task = "text"
decodings = ["reading"]
samples = 3
policies = ["none", "top:1", "random(top:1)", "top:1,effect=silence"]
[[evaluate]]
task = "blimp"
decodings = ["grammar"]
samples = 3
policies = ["none", "top:1"]
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("read")
    path = write_blocks(folder, ("llada", "llama"), BLOCKS)
    return folder / "out", run_here(path, folder / "out")


@pytest.mark.slow
def test_tables_of_likelihoods_stand_beside_accuracies(study: tuple[Path, str]) -> None:
    out, printed = study
    frames = {
        name: pd.read_parquet(out / "tables" / f"{name}.parquet")
        for name in ("results", "records", "likelihood", "passages")
    }
    assert set(frames["results"]["task"]) == set(frames["records"]["task"]) == {"blimp"}
    assert set(frames["likelihood"]["task"]) == set(frames["passages"]["task"]) == {"text"}
    nats = frames["likelihood"].set_index(["model", "policy"])
    for (model, policy), own in frames["passages"].groupby(["model", "policy"]):
        if not str(policy).startswith("random"):
            assert nats.loc[(model, policy), "nll"] == pytest.approx(own["nll"].mean())
            assert len(own) == 3
    top = nats.loc[("llama", "top:1")]
    assert top["difference_low"] <= top["difference"] <= top["difference_high"]
    assert top["control_nll"] == pytest.approx(nats.loc[("llama", "random(top:1)"), "nll"])
    assert 0 < top["hidden_share"] < 1
    assert "nats per token" in printed


@pytest.mark.slow
def test_the_report_shows_them(study: tuple[Path, str]) -> None:
    out, _ = study
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Likelihood of text" in page
    assert json.loads((out / "manifest.json").read_text())["models"]["llama"]["family"] == "causal"
