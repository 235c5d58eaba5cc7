"""What other distributions add to a study: tables, figures, a section, studies, and the models of a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure
from tests.study import small

from sinkscope.base.errors import InputError
from sinkscope.report.figures.look import PaperFigure
from sinkscope.report.study import make_report
from sinkscope.study import plugged, spec
from sinkscope.study.plugged import Column, ShownTable, StudyPlugin

BLOCKS = """
[decodings.short]
causal = { length = 6 }
[[evaluate]]
task = "word_problems"
decodings = ["short"]
samples = 2
policies = ["none", "top:1"]
"""
COLUMNS = (Column("model", "model"), Column("right", "accuracy", ".2f"), Column("rows", "rows", ","))


def build(models: Mapping[str, Path], frames: Mapping[str, Any], kept: Path) -> dict[str, Any]:
    kept.write_text(json.dumps(sorted(models)))
    table = frames["results"][["model", "policy", "accuracy"]].assign(rows=1234)
    return {"tally": table, "tally_more": table, "results": table.head(0), "other": table}


def figures(frames: Mapping[str, Any]) -> list[PaperFigure]:
    caption = "Bars. Computed: by hand. Not shown: all else."
    return [PaperFigure("bars", "Bars", Figure(), frames["tally"], caption)] if "tally" in frames else []


TALLY = StudyPlugin(
    "tally", "What was tallied", "A stranger's section.", build, figures,
    terminal=(ShownTable("tally", "{policy}: tallied", COLUMNS, by=("policy",)),),
    report=(ShownTable("tally", "All of it.", COLUMNS, figure="bars"), ShownTable("tally_none", "", COLUMNS)),
    models_in=lambda folder: {"there": str(folder / "llama")},
)  # fmt: skip


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes these the only plug-ins."""

    def install(*plugins: StudyPlugin) -> None:
        monkeypatch.setattr(plugged.PLUGINS, "_loaded", True)
        monkeypatch.setattr(plugged.PLUGINS, "_things", {plugin.name: plugin for plugin in plugins})

    return install


@pytest.mark.slow
def test_a_plugin_adds_tables_figures_a_section_and_models(tmp_path: Path, installed: Any) -> None:
    installed(TALLY)
    study = small.write_blocks(tmp_path / "models", ("llama",), BLOCKS)
    study.write_text(study.read_text().partition("[[models]]")[0] + BLOCKS)
    out = tmp_path / "out"
    said = small.run_here(study, out, "--runs", str(tmp_path / "models"), "--no-report")
    assert "none: tallied\nmodel  right  rows\nthere" in said
    assert "1,234" in said
    assert json.loads((out / "tally.json").read_text()) == ["there"]
    assert {path.stem for path in (out / "tables").glob("*.csv")} & {"tally", "tally_more", "other"} == {
        "tally",
        "tally_more",
    }, "a plug-in cannot replace a table of the study, or make one that is not called after it"
    assert len(pd.read_parquet(out / "tables" / "results.parquet")) == 2
    page = make_report(out).read_text()
    section = page.split('id="tally"')[1].split("</section>")[0]
    assert "A stranger's section." in section.replace("&#39;", "'")
    assert "data:image/svg" in section
    assert "1,234" in section
    installed()
    assert 'id="tally"' not in make_report(out).read_text(), "without the plug-in the report has no such section"


def test_the_folder_of_a_sweep_is_refused_without_what_reads_it(tmp_path: Path, installed: Any) -> None:
    installed(replace(TALLY, models_in=None))
    with pytest.raises(InputError, match="pip install sinkscope-train"):
        plugged.models_in(tmp_path)


def test_a_plugin_brings_studies_and_replaces_none_of_ours(tmp_path: Path, installed: Any) -> None:
    for name in ("quick", "theirs"):
        (tmp_path / f"{name}.toml").write_text(f'name = "{name}"\nmodels = ["organism/causal"]\n{BLOCKS}')
    installed(replace(TALLY, studies=tmp_path))
    assert spec.read("theirs").name == "theirs"
    assert spec.builtin()["quick"].parent == spec.BUILTIN


def test_what_is_no_plugin_is_refused() -> None:
    for thing in (object(), replace(TALLY, name="a b")):
        with pytest.raises(InputError, match="should be a StudyPlugin"):
            plugged.PLUGINS.add(thing)  # type: ignore[arg-type]
