"""The paper's figures of a study, as files: from its exemplars and their maps, never over other files."""

from __future__ import annotations

from pathlib import Path

import pytest

from sinkscope.base.errors import InputError
from sinkscope.report.study import drawing


@pytest.mark.slow
def test_every_figure_that_a_study_allows_is_saved_and_the_others_are_named(planted: Path, tmp_path: Path):
    saved = drawing.save_study(planted, tmp_path, ["figure_4", "figure_10"])
    assert set(saved.files) == {"figure_10"}
    assert all("figure_4" in name for name in saved.left_out), "these maps hold no attention"


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
