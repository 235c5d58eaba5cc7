"""The commands `view` and `figures`: what they read from the command line, and what they leave on disk."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from tests.report import pages
from typer.testing import CliRunner

from sinkscope.cli import app
from sinkscope.commands.figures import find_traces, read_accuracies
from sinkscope.commands.view import beside, parse_heads, parse_samples
from sinkscope.errors import InputError
from sinkscope.report.figures import save_all
from sinkscope.report.study.source import StudySource, read
from sinkscope.trace.trace import Trace

pytestmark = pytest.mark.slow


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder in which every path that ends in .zarr.zip opens as the small synthetic trace."""
    monkeypatch.setattr(Trace, "open", staticmethod(lambda path: Trace(dataset=pages.diffusion())))
    for name in ("a", "b"):
        (tmp_path / f"{name}.zarr.zip").touch()
    return tmp_path


def test_heads_and_samples_are_read_and_mistakes_explained():
    assert parse_heads("3:1, 5:0,3:1") == ((3, 1), (5, 0))
    assert parse_heads("") == ()
    assert parse_samples("0,2") == [0, 2]
    assert parse_samples("") is None
    for text in ("3", "3:", ":1", "a:b", "3:-1", "3:1:2"):
        with pytest.raises(InputError, match="layer:head"):
            parse_heads(text)
    with pytest.raises(InputError, match="numbers"):
        parse_samples("first")


def test_the_page_is_named_after_the_traces():
    assert beside(Path("x/run.zarr.zip"), None) == Path("run.html")
    assert beside(Path("x/a.zarr.zip"), Path("b.zarr.zip.partial")) == Path("a-and-b.html")
    assert beside(Path("x/a.zarr.zip"), Path("b.zarr.zip")) == Path("a-and-b.html")


def test_view_writes_one_page_with_both_traces(opened: Path):
    out = opened / "page.html"
    files = [str(opened / f"{name}.zarr.zip") for name in ("a", "b")]
    done = CliRunner().invoke(app, ["view", *files, "--out", str(out), "--heads", "1:2", "--samples", "1"])
    assert done.exit_code == 0, done.output
    text = out.read_text(encoding="utf-8")
    assert '"name":"a"' in text
    assert '"name":"b"' in text
    assert text.count('"full":{"1:2"') == 2
    assert "page.html" in done.output.replace("\n", "")


def test_figures_draws_what_it_can_and_says_what_it_cannot(opened: Path):
    out = opened / "figures"
    done = CliRunner().invoke(
        app, ["figures", str(opened), "--out", str(out), "--only", "figure_10,figure_4"]
    )
    assert done.exit_code == 0, done.output
    assert set(pd.read_csv(out / "figure_10.csv")["trace"]) == {"a", "b"}
    assert "figure_4 of a left out" in done.output
    assert not list(out.glob("figure_4*"))


def test_figures_of_a_study_print_its_accuracies_as_table_1(planted: Path, tmp_path: Path):
    done = CliRunner().invoke(
        app, ["figures", str(planted), "--out", str(tmp_path), "--only", "table_1,figure_10,figure_4"]
    )
    assert done.exit_code == 0, done.output
    drawn = pd.read_csv(tmp_path / "table_1.csv")
    results = pd.read_parquet(planted / "tables" / "results.parquet")
    columns = ["task", "policy", "model", "accuracy", "stderr"]
    pd.testing.assert_frame_equal(drawn, results[columns].reset_index(drop=True), check_dtype=False)
    assert {path.suffix for path in tmp_path.glob("table_1.*")} == {".svg", ".pdf", ".csv", ".txt"}
    assert set(pd.read_csv(tmp_path / "figure_10.csv")["trace"]) == set(results["model"])
    assert "figure_4" in done.output, "said why it is left out: these maps hold no attention"
    wrong = CliRunner().invoke(app, ["figures", str(planted), "--out", str(tmp_path), "--only", "table_9"])
    assert wrong.exit_code != 0


def test_table_1_needs_no_trace(tmp_path: Path):
    accuracies = pd.DataFrame({"task": ["t"], "policy": ["none"], "model": ["m"], "accuracy": [0.5]})
    made = save_all({}, tmp_path, only=["table_1", "figure_1", "figure_3"], accuracies=accuracies)
    assert list(made.files) == ["table_1"]
    assert set(made.left_out) == {"figure_1", "figure_3"}


def test_table_1_keeps_decodings_apart(planted: Path):
    results = pd.DataFrame(
        {
            "task": "t",
            "policy": "none",
            "model": "m",
            "accuracy": [0.5, 0.6],
            "stderr": 0.1,
            "decoding_name": ["a", "b"],
        }
    )
    for rows, tasks in ((results, ["t, a", "t, b"]), (results[:1], ["t"])):
        source = StudySource(planted, read(planted).study, {"results": rows}, {})
        assert source.accuracies is not None
        assert list(source.accuracies["task"]) == tasks


def test_folders_and_tables_that_do_not_fit_are_explained(tmp_path: Path):
    with pytest.raises(InputError, match="holds no trace"):
        find_traces(tmp_path)
    with pytest.raises(InputError, match="neither"):
        find_traces(tmp_path / "none")
    with pytest.raises(InputError, match="cannot be read"):
        read_accuracies(tmp_path / "none.csv")
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "run.zarr.zip").touch()
    assert list(find_traces(tmp_path)) == ["x/run", "y/run"]
