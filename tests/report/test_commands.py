"""`sinkscope show`: what they read from the command line, and what they leave on disk."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from tests.report import pages
from typer.testing import CliRunner

from sinkscope.base.errors import InputError
from sinkscope.cli import app
from sinkscope.cli.inputs import numbers
from sinkscope.cli.show import find_traces
from sinkscope.trace.trace import Trace

pytestmark = pytest.mark.slow


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder in which every path that ends in .zarr.zip opens as the small synthetic trace."""
    monkeypatch.setattr(Trace, "open", staticmethod(lambda path: Trace(dataset=pages.diffusion())))
    for name in ("a", "b"):
        (tmp_path / f"{name}.zarr.zip").touch()
    return tmp_path


def test_lists_are_read_and_mistakes_explained():
    pairs = "--heads", "layer:head, such as 3:1,5:0", r"\d+:\d+"
    assert numbers("3:1, 5:0,3:1", *pairs) == [(3, 1), (5, 0), (3, 1)]
    assert numbers("", *pairs) == []
    for text in ("3", "3:", ":1", "a:b", "3:-1", "3:1:2"):
        with pytest.raises(InputError, match="layer:head"):
            numbers(text, *pairs)


def test_view_writes_one_page_with_both_traces(opened: Path):
    out = opened / "page.html"
    files = [str(opened / f"{name}.zarr.zip") for name in ("a", "b")]
    done = CliRunner().invoke(app, ["show", *files, "--view", str(out), "--heads", "1:2", "--samples", "1"])
    assert done.exit_code == 0, done.output
    text = out.read_text(encoding="utf-8")
    assert '"name":"a"' in text
    assert '"name":"b"' in text
    assert text.count('"full":{"1:2"') == 2
    assert "page.html" in done.output.replace("\n", "")


def test_figures_draws_what_it_can_and_says_what_it_cannot(opened: Path):
    out = opened / "figures"
    done = CliRunner().invoke(app, ["show", str(opened), "--figures", str(out), "--only", "figure_10,figure_4"])
    assert done.exit_code == 0, done.output
    assert set(pd.read_csv(out / "figure_10.csv")["trace"]) == {"a", "b"}
    assert "figure_4 of a left out" in done.output
    assert not list(out.glob("figure_4*"))


def test_figures_of_a_study_are_those_of_its_exemplars(planted: Path, tmp_path: Path):
    done = CliRunner().invoke(app, ["show", str(planted), "--figures", str(tmp_path), "--only", "figure_10,figure_4"])
    assert done.exit_code == 0, done.output
    results = pd.read_parquet(planted / "tables" / "results.parquet")
    assert set(pd.read_csv(tmp_path / "figure_10.csv")["trace"]) == set(results["model"])
    assert {path.suffix for path in tmp_path.glob("figure_10.*")} == {".svg", ".pdf", ".csv", ".txt"}
    assert "figure_4" in done.output, "said why it is left out: these maps hold no attention"
    wrong = CliRunner().invoke(app, ["show", str(planted), "--figures", str(tmp_path), "--only", "figure_11"])
    assert wrong.exit_code != 0


def test_folders_that_do_not_fit_are_explained(tmp_path: Path):
    with pytest.raises(InputError, match="holds no trace"):
        find_traces(tmp_path)
    with pytest.raises(InputError, match="neither"):
        find_traces(tmp_path / "none")
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "run.zarr.zip").touch()
    assert list(find_traces(tmp_path)) == ["x/run", "y/run"]
