"""Tables of studies: settings are left out, and passages become rows."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from lab import study_tables
from sinkscope.statistics import Estimate
from sinkscope.verdicts import Measure, Status, Verdict


def test_tables_of_studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = tmp_path / "study" / "tables"
    tables.mkdir(parents=True)
    row = {"model": "twin", "policy": "top:1", "nll": 4.5, "cell": "0123", "empty": None}
    pd.DataFrame([row]).to_parquet(tables / "likelihood.parquet")
    read = {"model": "twin", "decoding_name": "half", "seed": 0, "document": "a"}
    pd.DataFrame([{**read, "policy": "none", "nll": 4.0}, {**read, "policy": "top:1", "nll": 4.5}]).to_parquet(
        tables / "passages.parquet"
    )
    out = tmp_path / "out"
    change = {
        "model": "twin",
        "decoding_name": "short",
        "policy": "top:1",
        "measure": "delay",
        "unit": "steps",
        "task": "t",
    }
    documents = pd.DataFrame(
        [{**change, "document": name, "value": value} for name, value in zip("abcd", (1, 2, 3, None), strict=True)]
    )
    documents.to_parquet(tables / "pairs.parquet")
    names = ("likelihood", "passages", "claims", "pairs", "calibration")
    words = ["tables", str(tmp_path / "study"), "--out", str(out), "--tables", *names]
    monkeypatch.setattr(sys, "argv", words)
    estimate = Estimate(0.94, 0.93, 0.95)
    verdict = Verdict("present", "twin", "text, half", Status.SUPPORTED, measure=Measure.WITH, estimate=estimate)
    judged = {"present": {"twin": (verdict,), "causal": ()}}
    monkeypatch.setattr(study_tables, "read", lambda folder: SimpleNamespace(judged=judged))
    study_tables.main()
    assert list(pd.read_csv(out / "likelihood.csv")) == ["model", "policy", "nll"]
    assert pd.read_csv(out / "passages.csv.gz").to_dict("records") == [{**read, "none": 4.0, "top:1": 4.5}]
    (delay,) = pd.read_csv(out / "pairs.csv").to_dict("records")
    assert (delay["measure"], delay["n"], delay["value"]) == ("delay", 3, 2.0)
    assert delay["low"] < 0 < delay["high"]  # Student's t of three numbers: 2 ± 2.5
    assert not (out / "calibration.csv").exists()  # the study has none
    told = {"claim": "present", "model": "twin", "about": "text, half"}
    assert pd.read_csv(out / "claims.csv.gz").to_dict("records") == [
        {**told, "status": "supported", "evidence": "94 % (93 to 95) of heads and steps have a sink"}
    ]
