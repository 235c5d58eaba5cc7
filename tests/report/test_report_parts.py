"""Parts of the report that need no browser: escaping, numbers, charts, sizes, and what is said when something is missing."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from markupsafe import Markup
from tests.report import studies

from sinkscope.base.errors import InputError
from sinkscope.cli.study_output import outcome_lines
from sinkscope.report.figures import look
from sinkscope.report.html import LONGEST, spelled
from sinkscope.report.study import charts, drawing, make_report, matrix, overview, scores, source
from sinkscope.report.study.cells import Cell, columns_table, value
from sinkscope.report.study.charts import Series
from sinkscope.report.study.page import environment, report_page, sections
from sinkscope.report.study.tables import mechanisms
from sinkscope.statistics import Estimate
from sinkscope.study import spec, tables
from sinkscope.study.measured import Studied, collect, diagnoses
from sinkscope.study.names import label
from sinkscope.study.paper import published_tokens
from sinkscope.study.plugged import Column
from sinkscope.study.run import Outcome
from sinkscope.study.store import Store
from sinkscope.verdicts import Measure, Reason, Status, Verdict, questions
from sinkscope.verdicts.holdings import KIND
from sinkscope.verdicts.verdict import point

HOSTILE = "<b>\u202e&\"'$x$"


def test_plain_strings_cannot_become_markup():
    made = (
        environment()
        .from_string('<p title="{{ a }}">{{ a }}{{ b }}{{ c }}</p>')
        .render(a=HOSTILE, b=Markup("<i>ours</i>"), c=None)
    )
    safe = "&lt;b&gt;⟨U+202E⟩&amp;&#34;&#39;$x$"
    assert made == f'<p title="{safe}">{safe}<i>ours</i></p>'
    assert len(spelled("x" * 100_000)) < LONGEST + 40
    assert "(100,000 characters)" in spelled("x" * 100_000)


def test_a_chart_of_nothing_that_is_known_is_drawn():
    """As of a model in which no kind of token is known to be a sink."""
    assert "<svg" in charts.rows(["a", "b"], [Series("", [])], title="nothing", limits=(0.1, 10), log=True)


def test_numbers_are_shown_as_they_are():
    row = {
        "policy": "top:1", "accuracy": 0.5, "low": 0.28, "high": 0.72, "difference": -0.5, "difference_low": -0.75,
        "difference_high": -0.25, "hidden_share": 0.043, "sinks_hit": None, "over_control": 0.1,
        "over_control_low": math.nan, "over_control_high": 0.2, "small": -0.001,
    }  # fmt: skip
    columns = [
        Column("", name, form)
        for name, form in (("policy", ""), ("accuracy", ".3f"), ("difference", "+.2f"), ("hidden_share", ".1%"),
                           ("sinks_hit", ".1%"), ("over_control", "+.2f"), ("small", "+.2f"))
    ]  # fmt: skip
    (cells,) = columns_table("", columns, [(3, row)], "results", policy=lambda text: f"says {text}").rows
    assert cells == [
        Cell("top:1", small=("says top:1",)), Cell("0.500 (0.280 to 0.720)", "results/3/accuracy results/3/low results/3/high"),
        Cell("−0.50 (−0.75 to −0.25)", "results/3/difference results/3/difference_low results/3/difference_high"),
        Cell("4.3%", "results/3/hidden_share"), Cell("–"), Cell("+0.10", "results/3/over_control"),
        Cell("0.00", "results/3/small"),
    ]  # fmt: skip
    assert value({"value": 0.0, "low": 0.0, "high": math.nan}, "sinks", 3) == Cell("0", "sinks/3/value")


# ---- charts


def test_a_chart_has_the_colours_of_the_page_and_nothing_that_its_policy_forbids():
    series = [
        Series("one <b>", [(0, Estimate(0.2, 0.1, 0.3))]),
        Series("two", [(1, Estimate(0.5, 0.4, 0.9))], "s2", "D", True),
    ]
    made = charts.rows([HOSTILE, "b"], series, title=HOSTILE, label="x", border=0.4)
    root = ElementTree.fromstring(made)
    assert root.attrib["role"] == "img"
    assert root.find("title").text == HOSTILE.replace("\u202e", "⟨U+202E⟩")
    assert "$x$" in "".join(root.itertext()), "a dollar sign is no mathematics"
    assert not [e for e in root.iter() if "style" in e.attrib or e.tag in ("style", "metadata", "script")]
    assert not re.search(r"#[0-9a-f]{6}\b", made), "every colour is a variable of the page"
    variables = set(re.findall(r"var\(--([a-z0-9]+)\)", made))
    assert {"s1", "s2", "soft", "line", "ink", "surface"} <= variables <= set(charts.PAPER)
    ids = {e.attrib["id"] for e in root.iter() if "id" in e.attrib}
    links = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', made))
    assert {a or b for a, b in links} <= ids
    other = ElementTree.fromstring(charts.rows(["a"], series[:1], title="other"))
    assert not ids & {e.attrib["id"] for e in other.iter() if "id" in e.attrib}
    assert made == charts.rows([HOSTILE, "b"], series, title=HOSTILE, label="x", border=0.4), (
        "the same data, the same chart"
    )


def test_marks_stand_where_their_numbers_are():
    points = [(0.0, Estimate(0.2, 0.1, 0.35)), (1.0, Estimate(5.0, 4.0, 30.0)), (2.0, Estimate(0.4, 0.3, math.nan))]
    for flat in (True, False):
        with charts.style():
            _, axes = charts._sheet(100)
            charts.draw(axes, [Series("", points)], flat=flat, limits=(0.0, 16.0) if flat else None)
        line, _, (bars,) = axes.containers[0].lines
        values, places = (line.get_xdata(), line.get_ydata())[:: 1 if flat else -1]
        assert list(places) == [0, 1, 2]
        assert list(values) == [0.2, 5.0, 0.4]
        ends = [[point[0 if flat else 1] for point in segment] for segment in bars.get_segments()]
        assert ends[0] == pytest.approx([0.1, 0.35])
        assert ends[1] == pytest.approx([4.0, 16.0 if flat else 30.0]), "an interval ends at the edge"
        assert len(ends) == 2 or np.isnan(ends[2]).all(), "half an interval is not drawn"


@pytest.mark.slow
def test_a_line_of_the_masking_chart_is_a_policy_beside_its_controls(planted: Path):
    found = source.read(planted)
    rows = [(at, row) for at, row in found.rows("results", model=found.models[0])]
    names, series = scores.marks(rows)
    marks = {one.label: dict(one.points) for one in series}
    assert names[0] == "no mask"
    marks = {kind: {round(at): mark for at, mark in points.items()} for kind, points in marks.items()}
    assert max(abs(at - round(at)) for one in series for at, _ in one.points) < 0.4, (
        "nearer to their line than to the next"
    )
    place = {policy: names.index(label(policy, False)) for policy in ("top:1", "top:5", "top:10", "top:1@model")}
    assert place["top:5"] < place["top:10"]
    assert not any("random" in name for name in names)
    known = {row["policy"]: Estimate(row["accuracy"], row["low"], row["high"]) for _, row in rows}
    assert all(marks["masked"][place[policy]] == known[policy] for policy in place)
    assert marks["as many random keys"] == {place[policy]: known[f"random({policy})"] for policy in ("top:1", "top:5")}
    assert marks["keys nearest in attention"] == {place["top:1"]: known["random(top:1),match=mass"]}


@pytest.mark.parametrize("ramp", [charts.look.RAMP, charts.look.RAMP_DARK])
def test_a_map_is_a_picture_of_its_cells(ramp):
    import base64
    import io

    from matplotlib.image import imread

    table = pd.DataFrame({"step": [0, 0, 1, 1], "position": [0, 1, 0, 1], "received": [0.0, 8.0, 1.0, math.nan]})
    kind, data = charts.heat(table, ramp).split(",")
    assert kind == "data:image/png;base64"
    pixels = imread(io.BytesIO(base64.b64decode(data)))
    assert pixels.shape == (2, 2, 4)
    ends = [tuple(int(ramp[i][at : at + 2], 16) / 255 for at in (1, 3, 5)) for i in (0, -1)]
    assert pixels[0, 0, :3] == pytest.approx(ends[0], abs=0.01)
    assert pixels[0, 1, :3] == pytest.approx(ends[1], abs=0.01)
    assert pixels[1, 1, 3] == 0, "where there is no key the page is seen"
    long = pd.DataFrame(
        {"step": np.arange(1000), "position": 0, "received": np.where(np.arange(1000) == 501, 9.0, 1.0)}
    )
    small = imread(io.BytesIO(base64.b64decode(charts.heat(long, ramp).split(",")[1])))
    assert small.shape[0] <= charts.MOST
    assert (small[:, 0, :3] != small[0, 0, :3]).any(axis=1).sum() == 1, "a sink of one step is still seen"


# ---- the page


@pytest.mark.slow
def test_traces_are_embedded_only_while_the_page_stays_small(planted: Path):
    found = source.read(planted)
    both = drawing.traces(found)
    assert both is not None
    assert both["left_out"] == []
    one = drawing.traces(found, budget=len(both["parts"].body) * 2 // 3)
    assert one is not None
    assert len(one["left_out"]) == 1
    assert drawing.traces(found, budget=100) is None
    assert set(found.exemplars) == set(found.models)
    for model, trace in found.exemplars.items():
        assert trace.identical(found.maps[model]), "the document that was chosen for maps"


def test_the_paper_s_tokens_stand_beside_its_own_models_alone():
    assert published_tokens("GSAI-ML/LLaDA-8B-Instruct")[0] == ("line break", 0.368)
    assert published_tokens("organism/scratch") == ()


def test_a_folder_that_is_no_finished_study_is_explained(tmp_path: Path):
    with pytest.raises(InputError, match=r"no study\.toml"):
        source.read(tmp_path)
    wanted = {"name": "begun", "models": ["organism/scratch"], "evaluate": [{"task": "word_problems"}]}
    Store(tmp_path / "begun").write_study(spec.from_data(wanted))
    with pytest.raises(InputError, match="not finished"):
        source.read(tmp_path / "begun")


def test_the_report_is_asked_for_without_heavy_imports():
    code = "import sys, sinkscope.report.study; print(sorted({'pandas', 'xarray', 'matplotlib', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def shown(page: str) -> list[str]:
    return [part.name for part in sections() if f'aria-labelledby="{part.name}-title"' in page]


@pytest.mark.parametrize(
    ("gone", "wanted"),
    [
        (("sinks", "depth", "traces"), ["summary", "claims", "findings", "masking", "mechanisms", "answers", "settings"]),
        (("results", "records", "replay", "pairs"),
         ["summary", "claims", "findings", "maps", "composition", "dynamics", "anatomy", "traces", "settings"]),
    ],
)  # fmt: skip
def test_a_study_of_accuracies_or_of_traces_alone_has_a_report_too(planted: Path, tmp_path: Path, gone, wanted):
    folder = tmp_path / "study"
    shutil.copytree(planted, folder)
    for name in gone:
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / "tables" / f"{name}.parquet").unlink(missing_ok=True)
    page = make_report(folder).read_text(encoding="utf-8")
    assert shown(page) == wanted
    assert re.findall(r'<li><a href="#(\w+)">', page) == wanted


@pytest.mark.slow
def test_claims_come_after_the_findings_where_the_models_do_not_bear_on_them(planted: Path):
    found = source.read(planted)
    page = report_page(found)
    assert shown(page)[:3] == ["summary", "claims", "findings"]
    assert "far" not in shown(page)
    models = [replace(model, source="organism/scratch") for model in found.study.models]
    of_others = shown(report_page(replace(found, study=replace(found.study, models=tuple(models)))))
    assert "claims" not in of_others
    assert (
        of_others.index("traces") > of_others.index("far") > of_others.index("mechanisms") > of_others.index("findings")
    )
    both = replace(found, study=replace(found.study, models=(models[0], *found.study.models[1:])))
    assert {"claims", "far"} <= set(shown(report_page(both)))
    assert [matrix.claims(both, near=near)["models"] for near in (True, False)] == [found.models[1:], found.models[:1]]


@pytest.mark.slow
def test_few_documents_are_said_to_be_too_few(planted: Path):
    found = source.read(planted)
    few = {name: frame.copy() for name, frame in found.frames.items()}
    few["results"]["n"] = 4
    few["records"] = few["records"][few["records"]["index"] < 4]
    few |= tables.verdicts(few, {name: Studied(about["family"]) for name, about in found.manifest["models"].items()})
    page = report_page(replace(found, frames=few))
    assert "Too few documents: 4 cannot tell a loss from chance" in page
    assert "costs is undecided: 4 documents are too few" in page
    assert "Too few documents" not in report_page(found)
    bare = replace(found, frames={})
    assert "Nothing was measured" in report_page(bare)


def texts(model: str) -> pd.DataFrame:
    about = {
        "model": model, "task": "text", "decoding_name": "reading", "decoding": "{}", "n": 16, "task_version": "1",
        "scheme": "raw", "seeds": "[0]",
    }  # fmt: skip
    rows = (("none", 2.0, None), ("top:1", 3.4, "random(top:1)"), ("random(top:1)", 2.1, None))
    scores = [
        {"policy": policy, "nll": nats, "low": nats - 0.1, "high": nats + 0.1, "control": control}
        for policy, nats, control in rows
    ]
    return pd.DataFrame([{**about, **row} for row in scores])


def test_a_study_of_texts_opens_with_nats(planted: Path):
    found = source.read(planted)
    alone = replace(found, frames={"likelihood": texts(found.models[0])})
    (cost,) = overview.costs(alone)
    assert (cost["task"], cost["n"], cost["unit"]) == ("text", 16, "texts")
    assert "nats per token" in cost["measure"]
    page = report_page(alone)
    assert {"summary", "likelihood"} <= set(shown(page))
    assert 'data-at="likelihood/1/nll' in page
    both = replace(found, frames={**found.frames, "likelihood": texts(found.models[0])})
    assert [cost["task"] for cost in overview.costs(both)] == ["gsm8k"], "a model is shown once, accuracies first"


def data(judged: questions.Judged) -> dict[str, list[object]]:
    return {claim: [one.data() for told in row.values() for one in told] for claim, row in judged.items()}


def test_the_page_shows_the_verdicts_of_the_tables_and_decides_nothing(planted: Path):
    found = source.read(planted)
    models = {name: Studied(about["family"], published=True) for name, about in found.manifest["models"].items()}
    measured = collect(found.frames, models)
    assert data(found.judged) == data(questions.judge(measured))
    for model, told in diagnoses(measured).items():
        assert [one.data() for one in found.diagnoses[model].values()][:-1] == [one.data() for one in told]

    def changed(text: str) -> str:
        return replace(Verdict.from_json(text), status=Status.UNDECIDED, reason=Reason.TIES).to_json()

    frames = {
        name: found.frames[name].assign(verdict=found.frames[name]["verdict"].map(changed))
        for name in ("claims", "needs")
    }
    page = report_page(replace(found, frames={**found.frames, **frames}))
    section = page[page.index('<section id="claims"') : page.index('<section id="findings"')]
    assert set(re.findall('data-status="([a-z]+)"', section)) == {"undecided"}
    assert section.count(Reason.TIES.value) > 20


@pytest.mark.slow
def test_every_page_that_the_report_names_is_in_the_documentation(planted: Path):
    """A lone file has no folder docs beside it: pages are named by their titles, with how to build them."""
    docs = Path(__file__).parents[2] / "docs"
    titles = {path.read_text(encoding="utf-8").split("\n")[0].removeprefix("# ") for path in docs.glob("*.md")}
    page = report_page(source.read(planted))
    (reading,) = re.findall(r"pages (“.*?) of sinkscope’s documentation", page)
    named = {*re.findall(r"“([^”]+)”", reading), *re.findall(r"page “([^”]+)”", page)}
    assert len(named) >= 4
    assert named <= titles
    assert "make docs" in page
    assert not re.search(r"docs/\w+\.md|the page on", page)


def test_what_a_policy_changes_opens_with_pictures(planted: Path):
    """Of replays, and of pairs of traces whose confidence cannot be compared with right tokens."""
    found = source.read(planted)
    made = mechanisms(found)
    assert [title for title, _ in made["replayed"]] == [f"{found.models[0]}, short"]
    assert [title for title, _ in made["moved"]] == [f"{found.models[0]}, short, top:1"]
    page = report_page(found)
    section = page[page.index('<section id="mechanisms"') :]
    assert 0 < section.index("<svg") < section.index("<table")
    assert section.index("attention goes when") < section.index("<table")


@pytest.mark.slow
def test_measurements_that_some_studies_have_get_a_section(planted: Path):
    found = source.read(planted)
    about = {"model": found.models[0], "task": "text", "decoding_name": "reading", "decoding": "{}", "n": 16}
    rules = pd.DataFrame(
        [{**about, "reuse": "prefix:8", "series": "exact", "agreement_n": 3, "accuracy": 0.5, "low": 0.4, "high": 0.6,
          "tokens_equal": math.nan, "tokens_equal_low": math.nan, "tokens_equal_high": math.nan, "work_saved": 0.3}]
    )  # fmt: skip
    for name, table, column in (("likelihood", texts(found.models[0]), "nll"), ("reuse", rules, "accuracy")):
        page = report_page(replace(found, frames={**found.frames, name: table}))
        assert name in shown(page)
        assert f'data-at="{name}/0/{column}' in page
        assert f'href="#{name}"' in page


def test_answers_that_were_not_graded_are_named(planted: Path):
    found = source.read(planted)
    row = {"model": "m", "title": "m · humaneval · top:1", "answers": 7, "why": "no sandbox"}
    left = {"not_graded": pd.DataFrame([row])}
    page = report_page(replace(found, frames={**found.frames, **left}))
    assert "not graded here: 7 answers of m · humaneval · top:1 (no sandbox); sinkscope evaluate --grade" in page
    assert "not graded here" in report_page(replace(found, frames=left))


def test_what_sinks_hold_gets_a_section(planted: Path):
    found = source.read(planted)
    about = {"model": found.models[0], "task": "word_problems", "n": 30}
    kind = Verdict(KIND, reason=Reason.INTERVAL)
    content = Verdict("Is content read there?", reason=Reason.INTERVAL, measure=Measure.PATCH, estimate=point(0.345))
    holdings = pd.DataFrame([{**about, "question": one.question, "verdict": one.to_json()} for one in (kind, content)])
    place = {
        "section": "lens", "measure": "a token due elsewhere", "place": "sinks", "value": 0.345, "low": 0.1, "high": 0.9,
    }  # fmt: skip
    measured = pd.DataFrame([{**about, **place, "layer": -1}])
    page = report_page(replace(found, frames={**found.frames, "holdings": holdings, "inspection": measured}))
    assert "inspection" in shown(page)
    assert f"Undecided for {look.short(found.models[0])}: whether sinks hold anything." in page
    assert f"{Reason.INTERVAL.value}" in page[page.index(KIND) :]
    assert 'data-at="holdings/1/value"' in page
    assert 'data-at="inspection/0/value' in page


def test_the_end_of_the_default_study_fits_a_terminal(tmp_path: Path):
    """Four models, every policy: thirty lines of at most a hundred columns, a sentence for each model."""
    made = source.read(studies.make(tmp_path, organisms=True))
    lines = outcome_lines(Outcome(made.root, made.study, made.frames, 7), Path("study-organisms"), tmp_path)
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 100
    for model in made.models:
        assert [line for line in lines if line.startswith(f"{look.short(model)}: Sinks in ")] != [], model
    assert "window of 48 and first 4" in "\n".join(lines)
    assert lines[-1] == "report: study-organisms/report.html"
