"""The numbers on the report's page are the numbers of the tables: read back from text and from the matrix in a real browser."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from tests.report import browser as chromium

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        chromium.find() is None, reason="needs Chromium (apt-get install chromium), and none is installed"
    ),
]

TEXTS = """[...document.querySelectorAll('[data-at]:not(g)')].map((e) => [e.dataset.at, e.textContent])"""


@cache
def table_of(path: Path) -> pd.DataFrame:
    return pd.read_parquet(path)


def cells(planted: Path, places: str) -> list[object]:
    found = []
    for place in places.split(" "):
        table, row, column = place.split("/")
        found.append(table_of(planted / "tables" / f"{table}.parquet")[column].iloc[int(row)])
    return found


def said(text: str) -> list[tuple[float, float]]:
    """The numbers of a text, each with half a unit of its last digit."""
    found = []
    for sign, digits, power, percent in re.findall(r"([+−-]?)(\d+(?:\.\d+)?)(?:e([+−-]?\d+))?(%?)", text):
        factor = (0.01 if percent else 1.0) * 10.0 ** int((power or "0").replace("−", "-"))
        places = len(digits.partition(".")[2])
        found.append(((-1 if sign in "−-" and sign else 1) * float(digits) * factor, 0.5 * 10.0**-places * factor))
    return found


def test_every_number_of_the_page_is_that_of_its_table(report, planted):
    texts = report.js(TEXTS)
    assert len(texts) > 250
    tables = {name.split("/")[0] for places, _ in texts for name in places.split(" ")}
    assert tables == {"results", "sinks", "depth", "replay", "pairs"}
    columns = {name.split("/")[2] for places, _ in texts for name in places.split(" ")}
    assert {
        "accuracy", "low", "high", "paper", "difference", "difference_p_holm",
        "over_control", "hidden_share", "sinks_hit", "key_share", "n", "value", "sinks_per_head",
        "absorbed_high",
    } <= columns  # fmt: skip
    for places, text in texts:
        wanted = cells(planted, places)
        if isinstance(wanted[0], str):
            assert text == wanted[0]
            continue
        found = said(text)
        assert len(found) == len(wanted), (places, text)
        for (shown, half), real in zip(found, wanted, strict=True):
            assert abs(shown - float(real)) <= half * 1.001 + 1e-12, (places, text, real)


def test_every_row_of_the_result_table_is_on_the_page(report, planted):
    texts = report.js(TEXTS)
    shown = {place for places, _ in texts for place in places.split(" ")}
    results = pd.read_parquet(planted / "tables" / "results.parquet")
    for row in range(len(results)):
        assert f"results/{row}/accuracy" in shown
    questions = report.js("document.querySelectorAll('#findings [data-status]').length")
    needs = 2  # whether each model needs its strongest sinks
    assert questions == len(pd.read_parquet(planted / "tables" / "diagnosis.parquet")) + needs


def test_the_claims_are_those_that_the_rules_give(report, planted):
    from sinkscope.report.study.source import read
    from sinkscope.verdicts.wording import because, evidence

    shown = report.js(
        "[...document.querySelectorAll('#claims [data-status]')].map((e) => [e.closest('[data-claim]').dataset.claim,"
        " e.dataset.model, e.dataset.about, e.dataset.status, e.querySelector('.badge').textContent,"
        " e.querySelector('.evidence').textContent])"
    )
    judged = read(planted).judged
    wanted = {
        (claim, model, verdict.about): (verdict.status.value, evidence(verdict))
        for claim, row in judged.items()
        for model, verdicts in row.items()
        for verdict in verdicts
    }
    folded = report.js(
        "[...document.querySelectorAll('#claims li[data-claim]')].map((e) => [e.dataset.claim, e.textContent])"
    )
    unmeasured = dict(folded)
    assert 0 < len(unmeasured) == len(folded)
    for claim, text in unmeasured.items():  # nothing of them was measured: they are named, with why, and are no lines
        told = [verdict for verdicts in judged[claim].values() for verdict in verdicts]
        assert all(verdict.estimate.value != verdict.estimate.value and because(verdict) in text for verdict in told), (
            text
        )
    wanted = {key: verdict for key, verdict in wanted.items() if key[0] not in unmeasured}
    assert {(claim, model, about): (badge, text) for claim, model, about, _, badge, text in shown} == wanted
    assert all(status == badge for *_, status, badge, _ in shown)
    assert {"supported", "contradicted", "undecided"} == {status for *_, status, _, _ in shown}


def test_every_line_of_the_matrix_shows_each_model_on_one_scale(report, planted):
    """The places of estimate, interval and limit are those of the verdict, on a scale that the models of a line share."""
    from sinkscope.report.study import matrix
    from sinkscope.report.study.source import read

    claims = matrix.claims(read(planted))
    shown = report.js(
        "[...document.querySelectorAll('#claims .line[data-claim]')].map((line) => [...line.querySelectorAll('.judged')]"
        ".map((e) => ['value', 'limit', 'interval'].map((name) => { const mark = e.querySelector('line.' + name);"
        " return mark && [Number(mark.getAttribute('x1')), Number(mark.getAttribute('x2'))]; })))"
    )
    lines = [line for theme in claims["themes"].values() for line in theme]
    assert len(shown) == len(lines) > 10
    seen = 0
    for line, cells in zip(lines, shown, strict=True):
        points = []
        for model, (value, limit, interval) in zip(claims["models"], cells, strict=True):
            if value is None:
                continue
            verdict = line.drawn(model)
            points.append((verdict.estimate.value, value[0]))
            points += [] if limit is None else [(verdict.limit, limit[0])]
            points += [] if interval is None else list(zip(verdict.estimate[1:], interval, strict=True))
            seen += 1
        points = [(value, place) for value, place in points if value is not None]
        for value, place in points:
            assert 0 <= place <= 100, line.question.name
            for other, elsewhere in points:
                assert (value < other) <= (place <= elsewhere), line.question.name
    assert seen > 10
