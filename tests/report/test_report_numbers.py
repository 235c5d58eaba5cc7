"""The numbers on the report's page are the numbers of the tables: read back from text and from pictures in a real browser."""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path

import numpy as np
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
MARKS = """[...document.querySelectorAll('g[data-place]')].map((g) => {
  const svg = g.closest('svg'), whisker = g.querySelector('.whisker');
  return [g.dataset.at, g.dataset.axis, g.dataset.place, svg.dataset[g.dataset.axis], g.querySelector('.point').getAttribute('d'),
    whisker && [...'12'].map((i) => Number(whisker.getAttribute(g.dataset.axis + i)))]; })"""
BARS = """[...document.querySelectorAll('g[data-wide]')].map((g) => {
  const box = g.querySelector('rect'); return [g.dataset.at, Number(box.getAttribute('width')), g.closest('svg').dataset.x]; })"""


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
        found.append(
            ((-1 if sign in "−-" and sign else 1) * float(digits) * factor, 0.5 * 10.0**-places * factor)
        )
    return found


def value(at: float, scale: str) -> float:
    """Pixel → value, from what the plot says about its axis."""
    kind, *numbers = scale.split(" ")
    low, start, high, stop = map(float, numbers)
    share = (at - start) / (stop - start)
    if kind == "log":
        return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    return low + share * (high - low)


def test_every_number_of_the_page_is_that_of_its_table(report, planted):
    texts = report.js(TEXTS)
    assert len(texts) > 300
    tables = {name.split("/")[0] for places, _ in texts for name in places.split(" ")}
    assert tables == {"results", "sinks", "depth", "diagnosis", "replay", "pairs"}
    columns = {name.split("/")[2] for places, _ in texts for name in places.split(" ")}
    assert {
        "accuracy", "low", "high", "paper", "paper_plus_minus", "difference", "difference_p_holm", "control_accuracy",
        "over_control", "hidden_share", "control_hidden_share", "sinks_hit", "key_share", "n", "value", "sinks_per_head",
        "absorbed_high", "verdict",
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
    diagnosis = pd.read_parquet(planted / "tables" / "diagnosis.parquet")
    assert sum(place.startswith("diagnosis/") and place.endswith("verdict") for place in shown) == len(
        diagnosis
    )


def test_marks_stand_where_their_numbers_are(report, planted):
    marks = report.js(MARKS)
    assert {at.split("/")[0] for at, *_ in marks} == {"results", "sinks", "depth"}
    assert any(at.endswith("/paper") for at, *_ in marks)
    for at, axis, place, scale, drawn, whisker in marks:
        x, y = place.split(" ")
        assert drawn.startswith(f"M{x} {y}"), "the shape is drawn where the mark says it is"
        low, high = sorted(float(number) for number in (scale.split(" ")[1], scale.split(" ")[3]))
        real = float(np.clip(cells(planted, at)[0], low, high))
        read = value(float(x if axis == "x" else y), scale)
        assert read == pytest.approx(real, rel=0.01, abs=0.004 * (high - low)), at
        if whisker and at.startswith("results/") and at.endswith("/accuracy"):
            ends = sorted(value(end, scale) for end in whisker)
            wanted = cells(planted, f"{at.replace('accuracy', 'low')} {at.replace('accuracy', 'high')}")
            assert ends == pytest.approx([float(end) for end in wanted], abs=0.005), at


def test_bars_are_as_long_as_their_shares(report, planted):
    bars = report.js(BARS)
    assert bars
    for at, wide, scale in bars:
        _, _, start, _, stop = scale.split(" ")
        assert wide / (float(stop) - float(start)) == pytest.approx(
            float(cells(planted, at)[0]), abs=0.002
        ), at


def test_the_claims_are_those_that_the_rules_give(report, planted):
    from sinkscope.report.study.claims import judge
    from sinkscope.report.study.evidence import collect
    from sinkscope.report.study.source import read

    shown = report.js(
        "[...document.querySelectorAll('[data-claim]')].map((e) => [e.dataset.claim, e.dataset.model, e.dataset.about,"
        " e.dataset.status, e.querySelector('.badge').textContent.slice(2), e.querySelector('.evidence').textContent])"
    )
    wanted = {
        (claim, model, found.about): (found.status, found.evidence)
        for claim, row in judge(collect(read(planted))).items()
        for model, judgements in row.items()
        for found in judgements
    }
    assert {(claim, model, about): (badge, text) for claim, model, about, _, badge, text in shown} == wanted
    assert all(status == badge for *_, status, badge, _ in shown)
    assert {"supported", "contradicted", "not testable"} == {status for *_, status, _, _ in shown}
