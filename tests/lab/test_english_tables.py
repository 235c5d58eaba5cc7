"""Tables of the English experiment: settings are left out, runs become rows, costs come with intervals."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from lab import english_tables
from sinkscope.report.study.rules import Judgement


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
    kinds = {
        "mask": {"share": 0.25, "base": 0.5, "ratio": 0.5},
        "end": {"share": 0.0, "base": 0.0, "ratio": None},
    }
    measured_now = {
        "sink_heads": 0.9,
        "value_ratio": None,
        "enrichment": kinds,
        "by_layer": {"gu_first": [0.5, 0.0]},
    }
    points = [
        {"step": step, "tokens": 32 * step, "loss": None, "levels": {"0.5": measured_now}} for step in (0, 2)
    ]
    (run / "emergence.json").write_text(json.dumps({"points": points}))
    about = {
        "source": "/somewhere/start-0", "adaptation": {"source": "/somewhere/start-0"}, "held_out": {}, "seconds": 1.0,
        "hardware": "CPU",
    }  # fmt: skip
    (run / "training.json").write_text(json.dumps(about))
    out = tmp_path / "out"
    words = ["tables", str(tmp_path / "study"), "--runs", str(tmp_path / "runs"), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    judgement = Judgement("supported", "94 % of them", "text, half (points: per cent)")
    judged = {"present": {"twin": (judgement,), "causal": ()}}
    monkeypatch.setattr(english_tables, "read", lambda folder: SimpleNamespace(judged=judged))
    english_tables.main()
    assert list(pd.read_csv(out / "likelihood.csv")) == ["model", "policy", "nll"]
    assert pd.read_csv(out / "passages.csv").to_dict("records") == [{**read, "none": 4.0, "top:1": 4.5}]
    emergence = pd.read_csv(out / "emergence.csv.gz")
    place = {"run": "twin-random-0", "masked share": 0.5}
    both = {"sink_heads": 0.9, "share of sinks: mask": 0.25}
    last = {**both, "gu_first: layer 0": 0.5, "gu_first: layer 1": 0.0}
    assert emergence.to_dict("records") == [
        {**place, "step": step, "tokens": 32 * step, "measure": name, "value": value}
        for step, measures in ((0, both), (2, last))
        for name, value in measures.items()
    ]
    told = {"claim": "present", "model": "twin", "about": "text, half"}
    assert pd.read_csv(out / "claims.csv").to_dict("records") == [
        {**told, "status": "supported", "evidence": "94 % of them"}
    ]
    assert json.loads((out / "training.json").read_text())["twin-random-0"]["source"] == "start-0"
    printed = capsys.readouterr().out
    assert "| `top:1` | nll 0.500 [0.400, 0.600]; difference 0.500 [0.400, 0.600] |" in printed
    assert "text, writing\n| | twins |\n|---|---|\n| sinks per head | 0.500 [0.400, 0.600] |" in printed
