"""Small parts of the report that need no browser: markup, words, pictures, sizes, and what is said when something is missing."""

from __future__ import annotations

import base64
import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from sinkscope.errors import InputError
from sinkscope.report.study import claims, exemplars, source, summary, words, write_report
from sinkscope.report.study.__main__ import main
from sinkscope.report.study.markup import LONGEST, Safe, spelled, tag
from sinkscope.report.study.masking import shipped_results
from sinkscope.report.study.numbers import SHOWN, number, setting, shown, valued
from sinkscope.report.study.page import report_page
from sinkscope.report.study.svg import Plot
from sinkscope.report.study.words import CONTENTS
from sinkscope.study import spec
from sinkscope.study.paper import published_tokens
from sinkscope.study.shipped import Shipped
from sinkscope.study.store import Store


def test_plain_strings_cannot_become_markup():
    assert tag("p", "<b>", title='"x"') == '<p title="&quot;x&quot;">&lt;b&gt;</p>'
    assert tag("p", Safe("<b>ours</b>")) == "<p><b>ours</b></p>"
    assert spelled("a\u202eb\x00") == "a⟨U+202E⟩b⟨U+0000⟩"
    assert len(spelled("x" * 100_000)) < LONGEST + 40
    assert "(100,000 characters)" in spelled("x" * 100_000)


def test_numbers_are_shown_as_they_are():
    row = {
        "family": "llada", "dtype": "float32", "weights": "abc", "task_version": "1", "scheme": "plain", "decoding": "{}",
        "seeds": "[0]", "detectable": 0.25, "policy": "top:1", "n": 16, "accuracy": 0.5, "low": 0.28, "high": 0.72,
        "difference": -0.5, "difference_low": -0.75, "difference_high": -0.25, "hidden_share": 0.043, "control_accuracy": 0.9375,
        "control_draws": 1,
        "sinks_hit": None,
    }  # fmt: skip
    found = {name: shown(row, name) for name, _ in SHOWN}
    assert found["accuracy"] == "0.500"
    assert found["interval"] == "0.28 to 0.72"
    assert found["difference"] == "−0.500"
    assert found["difference_interval"] == "−0.75 to −0.25"
    assert found["hidden_share"] == "4.3%"
    assert found["control_accuracy"] == "0.938 (1×)"
    assert found["sinks_hit"] == ""
    assert "0.25" in setting(row)
    assert number(-0.001, "+.2f") == "0.00"


def test_policies_in_words():
    assert words.dose("random(top:5),match=mass,seed=2") == words.Dose(5, "head", False, "mass")
    assert words.dose("window:16") is None
    assert words.policy_words("top:5@layer") == "5 strongest keys hidden, one set per layer"
    assert words.policy_words("top:1,effect=silence") == "strongest key silenced, each head its own"
    assert words.policy_words("random(top:1)") == "control: as many random keys as top:1"


def test_the_verdict_is_one_sentence_that_keeps_to_the_evidence():
    findings = {
        "sinks": ("present", "43% (41% to 46%) of head-steps have a sink"),
        "drains or hubs": ("hubs", "1%"),
        "moving": ("mixed", ""),
        "ARM-like dependency": ("yes", "top-1 loses 81.2 points (48.8 to 95.6), its random control 6.2 (-9.6 to 20.7); base 1"),
    }  # fmt: skip
    said = summary.sentence(findings)
    assert said.startswith(
        "It has sinks in 43% (41% to 46%) of head-steps, mostly hubs rather than drains, some fixed and some moving"
    )
    assert said.endswith(
        "hiding each head’s strongest key costs 81 points (49 to 96), hiding a random key 6 (−10 to 21)."
    )
    for verdict, part in (
        ("no", "hardly needs"),
        ("not enough evidence", "was not shown"),
        ("no: the random control", "so do random"),
    ):
        assert part in summary.sentence({**findings, "ARM-like dependency": (verdict, "x")})
    assert "No sinks were found" in summary.sentence({"sinks": ("none", "0%")})
    assert "is not known" in summary.sentence({})


@pytest.mark.slow
def test_traces_are_embedded_only_while_the_page_stays_small(planted: Path):
    found = source.read(planted)
    both = exemplars.traces(found)
    assert both is not None
    assert "Left out" not in both.section
    one = exemplars.traces(found, budget=len(both.parts.body) * 2 // 3)
    assert one is not None
    assert "Left out because the page would grow too large" in one.section
    assert exemplars.traces(found, budget=100) is None
    assert [path.name for path in found.exemplars.values()] == ["000001-0.zarr.zip"] * 2, (
        "those that have maps"
    )


@pytest.mark.slow
def test_curves_of_other_weights_are_not_shown(tmp_path: Path, planted: Path):
    from sinkscope.study.spec import StudyModel

    found = source.read(planted)
    name = "organism/scratch"
    models = (StudyModel(name), StudyModel("organism/causal"))
    manifest = {"models": {name: {"weights": "right"}, "organism/causal": {"weights": "right"}}}
    found = replace(found, study=replace(found.study, models=models), manifest=manifest)
    assert exemplars.emergence(found, tmp_path) is None
    for model, digest in (("scratch", "right"), ("causal", "other")):
        (tmp_path / model).mkdir()
        (tmp_path / model / "emergence.svg").write_text(f"<svg><title>{model}</title></svg>")
        (tmp_path / model / "accuracy.json").write_text(json.dumps({"digest": digest}))
    page = exemplars.emergence(found, tmp_path)
    assert page is not None
    assert "Left out, because other weights were studied than are shipped: organism/causal." in page
    assert re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page) == [
        base64.b64encode(b"<svg><title>scratch</title></svg>").decode()
    ]


def test_the_paper_s_tokens_stand_beside_its_own_models_alone():
    assert published_tokens("GSAI-ML/LLaDA-8B-Instruct")[0] == ("line break", 0.368)
    assert published_tokens("organism/scratch") == ()


def test_a_folder_that_is_no_finished_study_is_explained(tmp_path: Path):
    with pytest.raises(InputError, match=r"no study\.toml"):
        source.read(tmp_path)
    for arguments, message in (([str(tmp_path)], r"no study\.toml"), ([], "usage")):
        with pytest.raises(SystemExit, match=message):
            main(arguments)
    wanted = {"name": "begun", "models": ["organism/scratch"], "evaluate": [{"task": "word_problems"}]}
    Store(tmp_path / "begun").write_study(spec.from_data(wanted))
    with pytest.raises(InputError, match="not finished"):
        source.read(tmp_path / "begun")


def test_the_report_is_asked_for_without_heavy_imports():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, sinkscope.report.study; print(sorted({'pandas', 'xarray', 'matplotlib', 'torch'} & set(sys.modules)))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_shipped_tables_are_labelled_drawn_and_never_cited_as_ours():
    rows = [
        {"model": "organism/x", "task": "t", "policy": policy, "n": 500, "draws": draws, "accuracy": value, "low": value - 0.04,
         "high": value + 0.04, "difference": value - 0.9, "difference_low": value - 0.95, "difference_high": value - 0.85,
         "hidden_share": 0.1}
        for policy, value, draws in (("none", 0.9, 1), ("top:1", 0.2, 1), ("random(top:1)", 0.8, 3), ("top:5", 0.1, 1))
    ]  # fmt: skip
    page = shipped_results([Shipped("shipped result of 2026-11-16, some GPU", tuple(rows))])
    assert page.count("shipped result of 2026-11-16, some GPU") >= 2
    assert "0.200 (0.160 to 0.240)" in page
    assert "−0.700 (−0.750 to −0.650)" in page
    assert "500, 3 draws" in page
    assert "<svg" in page
    assert "data-at" not in page
    assert "No full-size results ship" in shipped_results([])
    only = shipped_results([Shipped("shipped accuracy", ({**rows[0], "difference": None},))])
    assert "<svg" not in only
    assert "− none" not in only


@pytest.mark.parametrize(
    ("gone", "sections"),
    [
        (("sinks", "depth", "figures", "traces"), ["summary", "verdict", "claims", "masking", "mechanisms", "settings"]),
        (("results", "records", "diagnosis", "replay", "pairs", "figures"),
         ["summary", "claims", "composition", "dynamics", "anatomy", "traces", "settings"]),
    ],
)  # fmt: skip
def test_a_study_of_accuracies_or_of_traces_alone_has_a_report_too(
    planted: Path, tmp_path: Path, gone, sections
):
    folder = tmp_path / "study"
    shutil.copytree(planted, folder)
    for name in gone:
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / "tables" / f"{name}.parquet").unlink(missing_ok=True)
    page = write_report(folder).read_text(encoding="utf-8")
    assert [name for name in CONTENTS if f'aria-labelledby="{name}-title"' in page] == sections
    assert [name for name in CONTENTS if f'href="#{name}"' in page] == sections


@pytest.mark.slow
def test_the_summary_is_five_sentences_that_follow_the_tables(planted: Path, tmp_path: Path):
    lines = summary.sentences(source.read(planted))
    assert len(lines) == 5
    assert all(line.endswith(".") and line.count(". ") == 0 for line in lines), lines
    assert "on gsm8k (40 documents), without a policy and under 6 policies and random controls" in lines[0]
    losses = r"costs \S+ −?\d+ points \(−?\d+ to \d+\), and hiding a random key −?\d+ \(−?\d+ to \d+\)"
    assert re.search(losses, lines[3])
    assert "the strongest key costs more than a random one in meta-llama/Llama-3.1-8B-Instruct" in lines[3]
    page = write_report(planted).read_text(encoding="utf-8")
    tally = re.search(
        r"(\d+) of (\d+) claims are decided .* these are (\d+) verdicts, (\d+) of them decided", lines[4]
    )
    assert tally is not None
    claims, every, verdicts, decided = map(int, tally.groups())
    cells = [cell for cell in page.split("<td")[1:] if "data-claim" in cell]
    both = [
        {word for word in ("supported", "contradicted") if f'data-status="{word}"' in cell} for cell in cells
    ]
    assert (claims, every) == (sum(len(words) == 1 for words in both), len(cells))
    statuses = re.findall(r'data-status="([a-z ]+)"', page)
    assert (verdicts, decided) == (len(statuses), len(statuses) - statuses.count("not testable"))
    assert page.count(lines[4].removesuffix(".")) == 2, "in the summary, and beside the claims"
    bare = replace(source.read(planted), frames={})
    nothing = summary.sentences(bare)
    assert nothing[1:4] == [
        "Where sinks are was not measured.",
        "Whether they move was not measured.",
        "Whether any model needs the keys that its heads attend to most was not shown.",
    ]


def test_with_evidence_the_summary_says_how_many_documents_there_are(planted: Path):
    found = source.read(planted)
    records = found.frames["records"]
    more = [records.assign(document=records["document"] + f"-{i}") for i in range(3)]
    earlier = pd.concat(more).assign(sinks_hit=0.6, made="then")
    lines = summary.sentences(replace(found, frames={**found.frames, "earlier_records": earlier}))
    assert "gsm8k (40 documents, 160 with earlier evidence)" in lines[0]


def test_the_summary_speaks_of_texts_that_were_read(planted: Path):
    found = source.read(planted)
    model = found.models[0]
    place = {"model": model, "task": "text", "decoding_name": "reading", "n": 16}
    lost = {"difference": 1.4, "difference_low": 1.15, "difference_high": 1.7}
    none = dict.fromkeys(lost, -0.001)
    rows = [{**place, "policy": "top:1", **lost}, {**place, "policy": "random(top:1)", **none}]
    texts = pd.DataFrame([{**place, "policy": "none", **dict.fromkeys(lost)}, *rows])
    cost = f"costs {words.short(model)} 1.40 nats per token (1.15 to 1.70), and a random key 0.00"
    lines = summary.sentences(replace(found, frames={**found.frames, "likelihood": texts}))
    assert "on gsm8k (40 documents) and text (16 texts read), without a policy" in lines[0]
    assert lines[3].endswith(f"; on texts, it {cost}.")
    alone = summary.sentences(replace(found, frames={"likelihood": texts}))
    assert "on text (16 texts read), without a policy and under 1 policy and random controls" in alone[0]
    assert alone[3] == f"Hiding each head’s strongest key {cost}."


def test_claims_are_judged_once_for_the_whole_page(planted: Path, monkeypatch: pytest.MonkeyPatch):
    calls = []
    judge = claims.judge
    monkeypatch.setattr(claims, "judge", lambda evidence: (calls.append(1), judge(evidence))[1])
    page = report_page(source.read(planted))
    assert "data-claim" in page
    assert calls == [1]


@pytest.mark.slow
def test_every_page_that_the_report_names_is_in_the_documentation(planted: Path):
    """A lone file has no folder docs beside it: pages are named by their titles, with how to build them."""
    docs = Path(__file__).parents[2] / "docs"
    for name, title in words.DOCUMENTATION.items():
        assert (docs / f"{name}.md").read_text(encoding="utf-8").startswith(f"# {title}\n")
        assert f"{name}.md" in (docs.parent / "mkdocs.yml").read_text(encoding="utf-8")
    page = report_page(source.read(planted))
    assert "make docs" in page
    assert not re.search(r"docs/\w+\.md|the page on", page)
    for title in set(re.findall(r"page “([^”]+)”", page)):
        assert title in words.DOCUMENTATION.values()


def test_what_ships_says_how_it_was_made_in_words():
    from sinkscope.models.load import ORGANISMS, find
    from sinkscope.study import evidence

    for name in ("causal", "scratch", "adapted", "multimodal"):
        known = evidence.load(ORGANISMS / name / evidence.NAME, find(ORGANISMS / name).digest)
        assert known is not None
        made = {one.made for one in (*known.answers, *known.traces.values())} | {
            row["made"] for row in known.pairs
        }
        assert made
        assert not any("lab.masking" in text for text in made)


@pytest.mark.slow
def test_measurements_that_some_studies_have_get_a_section(planted: Path, tmp_path: Path):
    found = source.read(planted)
    about = {"model": found.models[0], "task": "text", "decoding_name": "reading", "decoding": "{}", "n": 16}
    texts = pd.DataFrame([{**about, "policy": "top:1", "nll": 2.345, "low": 2.2, "high": 2.5}])
    rules = pd.DataFrame(
        [{**about, "reuse": "prefix:8", "accuracy": 0.5, "low": 0.4, "high": 0.6, "work_saved": 0.3}]
    )
    for name, table, column in (("likelihood", texts, "nll"), ("reuse", rules, "accuracy")):
        page = report_page(replace(found, frames={**found.frames, name: table}))
        assert f'id="{name}"' in page
        assert f'data-at="{name}/0/{column}' in page
        assert f'href="#{name}"' in page


def test_answers_that_were_not_graded_are_named(planted: Path):
    found = source.read(planted)
    left = [{"title": "m · humaneval · top:1", "answers": 7, "why": "no sandbox"}]
    page = report_page(replace(found, manifest={**found.manifest, "not_graded": left}))
    assert "not graded here: 7 answers of m · humaneval · top:1 (no sandbox); sinkscope grade" in page
    alone = replace(found, frames={}, manifest={**found.manifest, "not_graded": left})
    assert "not graded here" in report_page(alone)


def test_half_an_interval_is_not_drawn():
    plot = Plot("planted", 100, 100, (0, 1), (0, 1))
    plot.dot(0.5, 0.5, "s1", "no upper bound", whisker=(0.2, math.nan), flat=True)
    plot.dot(0.5, 0.5, "s1", "no lower bound", whisker=(math.nan, 0.7))
    plot.band([(0, 0.1, 0.2), (1, 0.1, math.nan)], "s1")
    assert "nan" not in plot.svg()
    assert "whisker" not in plot.svg()
    plot.dot(0.5, 0.5, "s1", "both", whisker=(0.2, 0.7))
    assert plot.svg().count("whisker") == 1
    row = {"value": 0.0, "low": 0.0, "high": math.nan}
    assert valued(row, "sinks", 3) == '<span data-at="sinks/3/value">0</span>'


def test_what_sinks_hold_gets_a_section(planted: Path):
    found = source.read(planted)
    asked = {
        "task": "word_problems",
        "answer": "not shown",
        "sentence": "the interval does not decide it",
        "low": 0.1,
        "high": 0.9,
        "n": 30,
    }
    holdings = pd.DataFrame(
        [
            {
                "model": found.models[0],
                "question": "What kind of sinks are they?",
                **asked,
                "value": math.nan,
            },
            {
                "model": found.models[0],
                "question": "Is content read there?",
                **asked,
                "value": 0.345,
            },
        ]
    )
    measured = pd.DataFrame(
        [{"model": found.models[0], "task": "word_problems", "section": "patch", "value": 0.345, "layer": -1}]
    )
    page = report_page(replace(found, frames={**found.frames, "holdings": holdings, "inspection": measured}))
    assert 'id="inspection"' in page
    assert "not shown: the interval does not decide it" in page
    assert 'data-at="holdings/1/value"' in page
    assert 'data-at="inspection/0/value"' in page
