"""What the page shows equals the trace: tokens, masks, scores within the stated error, counts of sinks, residences."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.report import browser as chromium
from tests.report import pages
from tests.report.driving import APP, STATE, centre, choose, error, rows

from sinkscope.sinks import detect, residences, step_position_map

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        chromium.find() is None, reason="needs Chromium (apt-get install chromium), and none is installed"
    ),
]


def test_tokens_and_masks_are_those_of_the_step(page):
    data = pages.diffusion()
    texts = {0: "<pad>", 1: "", 4: "⏎", 7: "␣"}
    for step in (0, 7, 23):
        page.js(f"{APP}.set({{step: {step}}})")
        page.settle()
        shown = page.js(
            "[...document.querySelectorAll('.tokens .token')].map((t) => [t.textContent, t.classList.contains('mask'),"
            " t.classList.contains('decided'), getComputedStyle(t).backgroundColor])"
        )
        real = data["position"].values[0] >= 0
        tokens = data["tokens"].values[0, step][real]
        assert [one[1] for one in shown] == list(data["masked"].values[0, step][real])
        assert [one[2] for one in shown] == list(data["decided"].values[0, step][real])
        for (text, masked, _, _), token in zip(shown, tokens, strict=True):
            if token in (1, 4):
                assert text == texts[token]
            elif token >= 12:
                assert text == f" word{token}"
            assert masked == (token == 1)
        received = step_position_map(data).values[0, step][real]
        light = [sum(map(int, re.findall(r"\d+", colour)[:3])) for *_, colour in shown]
        assert np.argmin(light) == np.argmax(received), "the strongest key has the strongest colour"


def test_numbers_equal_the_trace(page, folder):
    data = pages.diffusion()
    received = data["received"].values[0]
    position, sinks = data["position"].values[0], detect(data).values[0]
    selections = {
        "#step=5": (received.mean(axis=(1, 2)), sinks.sum(axis=(1, 2)), 12),
        "#step=9&layer=1": (received[:, 1].mean(axis=1), sinks[:, 1].sum(axis=1), 4),
        "#step=5&layer=1&head=2": (received[:, 1, 2], sinks[:, 1, 2], 0),
        "#step=20&layer=2&head=3": (received[:, 2, 3], sinks[:, 2, 3], 0),
    }
    for where, (values, counts, heads) in selections.items():
        page.open(folder / "one.html", where)
        step = int(re.search(r"step=(\d+)", where)[1])
        shown = rows(page, 0)
        assert len(shown) == 8
        bound = error(page)
        assert bound < 0.02
        wanted = np.sort(values[step][position >= 0])[::-1]
        for i, (place, _, value, count) in enumerate(shown):
            key = int(np.flatnonzero(position == int(place))[0])
            exact = float(values[step, key])
            assert abs(float(value) - exact) <= bound * (1 + exact) + 0.005
            assert exact >= wanted[i] - 2 * bound * (1 + exact)
            found = int(counts[step, key])
            assert count == (f"{found} of {heads}" if heads else "this head" if found else "–")


def test_hovering_says_the_number_of_a_cell_and_links_tokens_to_the_map(page):
    data = pages.diffusion()
    x, y = centre(page, ".card.main .front", 0.6, 0.4)
    page.mouse("mouseMoved", x, y)
    page.settle()
    tip = page.js("document.querySelector('.tip').textContent")
    step, place, value = re.match(r"step (\d+) · position (\d+) · .* · ([0-9.]+)× uniform", tip).groups()
    key = int(np.flatnonzero(data["position"].values[0] == int(place))[0])
    exact = float(step_position_map(data).values[0, int(step), key])
    assert abs(float(value) - exact) <= error(page) * (1 + exact) + 0.005
    marked = page.js("[...document.querySelectorAll('.tokens .token')].findIndex((t) => t.ariaSelected === 'true')")
    assert marked == int(place)
    page.click(x, y)
    assert page.js(f"[{STATE}.step, {STATE}.key]") == [int(step), key]
    x, y = centre(page, ".tokens .token:nth-of-type(4)")
    page.mouse("mouseMoved", x, y)
    assert page.js("document.querySelector('.tip').textContent").startswith(f"step {step} · position 3 · ")


def test_residences_of_a_head_are_those_of_the_analysis(page):
    choose(page, "layer", "1")
    choose(page, "head", "0")
    table = residences(pages.diffusion())
    table = table[(table["sample"] == 0) & (table["layer"] == 1) & (table["head"] == 0)]
    table = table.sort_values(["length", "strength"], ascending=False).head(8)
    shown = rows(page, 1)
    assert [(int(r[0]), r[2], r[4]) for r in shown] == [
        (row.position, f"{row.start}–{row.stop}", row.fate) for row in table.itertuples()
    ]
    for row, exact in zip(shown, table["strength"], strict=True):
        assert float(row[3]) == pytest.approx(exact, abs=0.0501 if exact >= 10 else 0.00501)
