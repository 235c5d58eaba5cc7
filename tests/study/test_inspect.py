"""The block [[inspect]]: measured document by document, resumable, in tables, figures and the report."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from tests.study import small

from sinkscope.base.errors import InputError
from sinkscope.study import spec
from sinkscope.study.store import load_part

BLOCK = """[decodings.short]
llada = { length = 8, steps = 4, block = 4 }
[[inspect]]
task = "word_problems"
decodings = ["short"]
samples = 3
looks = 1
"""


@pytest.mark.slow
def test_a_study_inspects(tmp_path: Path) -> None:
    study = small.write_blocks(tmp_path, ("llada",), BLOCK)
    out = tmp_path / "out"
    small.run_here(study, out)
    inspection, holdings = (pd.read_parquet(out / "tables" / f"{name}.parquet") for name in ("inspection", "holdings"))
    assert set(inspection["section"]) >= {"lens", "patch", "movement", "union", "foresight", "channels"}
    assert inspection["n"].max() == 3
    assert set(holdings["answer"]) == {"undecided"}  # three prompts decide nothing
    report = (out / "report.html").read_text(encoding="utf-8")
    assert "What they hold" in report
    assert "Is content read there?" in report
    assert "What the sinks of llada hold" in report, "the picture has a title"
    parts = sorted((out / "traces").glob("*/*.analysis.npz"))
    assert len(parts) == 3
    before = load_part(parts[0])
    parts[0].unlink()  # what was lost is made again, and is the same
    small.run_here(study, out)
    after = load_part(parts[0])
    assert before.keys() == after.keys()
    assert all((before[name] == after[name]).all() or before[name].dtype.kind == "f" for name in before)
    pd.testing.assert_frame_equal(inspection, pd.read_parquet(out / "tables" / "inspection.parquet"))


def test_an_inspection_has_no_policy() -> None:
    with pytest.raises(InputError, match="looks at runs without a policy"):
        spec.InspectGrid("word_problems", policies=("top:1",))
    with pytest.raises(InputError, match="looks"):
        spec.InspectGrid("word_problems", looks=0)
