"""The figures of a study are the same whoever draws them: this process, several processes, or a pool that lost one."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

import cloudpickle
import pandas as pd
import pytest

from sinkscope.errors import InputError, SinkscopeError
from sinkscope.report.figures import Saved
from sinkscope.report.study import drawing, make_report

ENDINGS = ("csv", "pdf", "txt")  # an SVG holds names drawn at random


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for ending in ENDINGS for path in folder.glob(f"*.{ending}")}


@pytest.mark.parametrize(
    "few",
    [
        pytest.param(("figure_10", "table_1"), marks=pytest.mark.slow),
        pytest.param(("figure_3", "figure_5", "figure_10", "table_1"), marks=pytest.mark.soak),
    ],
)
def test_processes_draw_what_this_one_draws(planted: Path, tmp_path: Path, few: tuple[str, ...]):
    here = drawing.save_study(planted, tmp_path / "here", few, workers=1)
    there = drawing.save_study(planted, tmp_path / "there", few, workers=2)
    assert set(here.files) == set(there.files) == set(few)
    assert files(tmp_path / "here") == files(tmp_path / "there")


def _dies(mark: Path | None, name: str, *_: object) -> Saved:
    """In place of a drawing: is killed at figure 10, once where a mark can be left, else always."""
    if name == "figure_10" and not (mark and mark.exists()):
        if mark:
            mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return Saved({name: []}, {})


@pytest.mark.slow
def test_a_lost_process_is_replaced_and_one_lost_twice_is_named(tmp_path: Path):
    # Sent by value: the processes of the pool do not know this module.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    jobs: list[tuple[str, dict[str, str], None]] = [(name, {}, None) for name in ("figure_10", "figure_5")]
    saved = drawing._in_processes(jobs, tmp_path, 2, partial(_dies, tmp_path / "mark"))
    assert [set(part.files) for part in saved] == [{"figure_10"}, {"figure_5"}]
    with pytest.raises(SinkscopeError, match="figure_10 was lost twice"):
        drawing._in_processes(jobs, tmp_path, 2, partial(_dies, None))


@pytest.mark.slow
def test_the_study_and_the_command_draw_the_same_table_1(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # A study draws every figure that there is; three of them say what is asked here.
    few = {name: drawing.FIGURES[name] for name in ("table_1", "figure_4", "figure_10")}
    monkeypatch.setattr(drawing, "FIGURES", few)
    folder = tmp_path / "study"
    shutil.copytree(planted, folder)
    (folder / "report.html").unlink()
    assert make_report(folder, workers=1) == folder / "report.html"
    drawing.save_study(planted, tmp_path / "out", ["table_1"])
    again, whole = (pd.read_csv(place / "table_1.csv") for place in (tmp_path / "out", folder / "figures"))
    pd.testing.assert_frame_equal(again, whole)
    assert (folder / "figures" / "figure_10.csv").is_file()
    assert "figure_4" in (folder / "figures" / "left_out.json").read_text(encoding="utf-8")


@pytest.mark.slow
def test_figures_are_never_replaced_unasked(planted: Path, tmp_path: Path):
    drawing.save_study(planted, tmp_path, ["figure_10"])
    with pytest.raises(InputError, match=r"figure_10\.\w+ exists already; give another --out, or --force"):
        drawing.save_study(planted, tmp_path, ["figure_10"], force=False)
    target = tmp_path / "elsewhere"
    target.write_text("kept")
    (tmp_path / "figure_10.csv").unlink()
    (tmp_path / "figure_10.csv").symlink_to(target)
    drawing.save_study(planted, tmp_path, ["figure_10"])
    assert target.read_text() == "kept", "a link at a figure's name is replaced, not followed"
