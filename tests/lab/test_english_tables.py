"""Tables of the English experiment: settings are left out, runs become rows, costs come with intervals."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd
import pytest

from lab import english_tables


def test_tables_of_studies_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables, run = tmp_path / "study" / "tables", tmp_path / "runs" / "twin-random-0"
    tables.mkdir(parents=True)
    run.mkdir(parents=True)
    row = {"model": "twin", "policy": "top:1", "nll": 4.5, "cell": "0123", "empty": None}
    pd.DataFrame([row]).to_parquet(tables / "likelihood.parquet")
    read = {"model": "twin", "decoding_name": "half", "seed": 0, "document": "a"}
    pd.DataFrame(
        [{**read, "policy": "none", "nll": 4.0}, {**read, "policy": "top:1", "nll": 4.5}]
    ).to_parquet(tables / "passages.parquet")
    common = {"group": "twins", "task": "text", "decoding_name": "half", "policy": "top:1", "models": 3}
    spread = {"value": 0.5, "low": 0.4, "high": 0.6}
    measured = [{**common, **spread, "measure": name} for name in ("nll", "difference")]
    traced = {**common, **spread, "decoding_name": "writing", "policy": "none", "measure": "sinks per head"}
    pd.DataFrame([*measured, traced]).to_parquet(tables / "replicates.parquet")
    levels = {"0.5": {"sink_heads": 0.9, "by_layer": {}, "value_ratio": None}}
    points = [{"step": 2, "tokens": 64, "loss": None, "levels": levels}]
    (run / "emergence.json").write_text(json.dumps({"points": points}))
    about = {
        "source": "/somewhere/start-0", "adaptation": {"source": "/somewhere/start-0"}, "held_out": {}, "seconds": 1.0,
        "hardware": "CPU",
    }  # fmt: skip
    (run / "training.json").write_text(json.dumps(about))
    out = tmp_path / "out"
    words = ["tables", str(tmp_path / "study"), "--runs", str(tmp_path / "runs"), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    english_tables.main()
    assert list(pd.read_csv(out / "likelihood.csv")) == ["model", "policy", "nll"]
    assert pd.read_csv(out / "passages.csv").to_dict("records") == [{**read, "none": 4.0, "top:1": 4.5}]
    emergence = pd.read_csv(out / "emergence.csv.gz")
    assert emergence.to_dict("records") == [
        {
            "run": "twin-random-0",
            "step": 2,
            "tokens": 64,
            "masked share": 0.5,
            "measure": "sink_heads",
            "value": 0.9,
        }
    ]
    assert json.loads((out / "training.json").read_text())["twin-random-0"]["source"] == "start-0"
    printed = capsys.readouterr().out
    assert "| `top:1` | nll 0.500 [0.400, 0.600]; difference 0.500 [0.400, 0.600] |" in printed
    assert "text, writing\n| | twins |\n|---|---|\n| sinks per head | 0.500 [0.400, 0.600] |" in printed
