"""The block [[inspect]]: measured document by document, resumable, in tables, figures and the report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from tests.sinks import synthetic
from tests.study import small

from sinkscope.base.errors import InputError
from sinkscope.inspection.survey import Name
from sinkscope.sinks.sink_statistics import sink_statistics
from sinkscope.study import spec
from sinkscope.study.store import load_part, load_statistics, part_bytes, statistics_bytes

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


def test_files_keep_names_and_those_of_another_version_are_refused(tmp_path: Path) -> None:
    """Names are stored as data: one with any sign in it comes back as it was."""
    part = {
        Name("patch", "no value, at masks: kl|flipped", "all"): np.ones(2),
        Name("vectors", "residual"): np.zeros(1),
    }
    (tmp_path / "part.npz").write_bytes(part_bytes(part))
    assert {name: array.tolist() for name, array in load_part(tmp_path / "part.npz").items()} == {
        name: array.tolist() for name, array in part.items()
    }
    np.savez(tmp_path / "old.npz", **{"vectors|residual": np.zeros(1)})
    with pytest.raises(InputError, match=r"old.npz is damaged .*: remove it, and run the same command again"):
        load_part(tmp_path / "old.npz")
    statistics = sink_statistics(synthetic.trace("static", lengths=(9, 12), answer=8), parts=("depth", "strength"))
    (tmp_path / "new.npz").write_bytes(statistics_bytes(statistics))
    xr.testing.assert_identical(load_statistics(tmp_path / "new.npz"), statistics)
    older = statistics.assign_attrs(format="sinkscope-sink-statistics-1", parts="depth,strength")
    (tmp_path / "older.npz").write_bytes(statistics_bytes(older))
    with pytest.raises(
        InputError, match=r"older.npz is damaged .another version of sinkscope wrote it.: remove it and its trace"
    ):
        load_statistics(tmp_path / "older.npz")


def test_an_inspection_has_no_policy() -> None:
    with pytest.raises(InputError, match="looks at runs without a policy"):
        spec.InspectGrid("word_problems", policies=("top:1",))
    with pytest.raises(InputError, match="looks"):
        spec.InspectGrid("word_problems", looks=0)
