"""The report of a study from disk, the network off: safe, readable in the dark and on paper, usable without eyes or mouse."""

from __future__ import annotations

import base64
import itertools

import pytest
from tests.report import browser as chromium
from tests.report import studies
from tests.report.driving import STATE

from sinkscope.report.study import write_report
from sinkscope.report.study.words import CONTENTS

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        chromium.find() is None, reason="needs Chromium (apt-get install chromium), and none is installed"
    ),
]

LEFT_OUT = ("skills", "likelihood", "inspection", "reuse", "ladder", "emergence")
"""Sections for what the planted study did not measure."""

GROUNDS = (
    "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector('.s1')).getPropertyValue('--own'),"
    " getComputedStyle(document.querySelector('.badge.contradicted')).color]"
)


def test_it_reads_from_the_verdict_to_the_settings(report, planted):
    sections = report.js(
        "[...document.querySelectorAll('main > section')].map((s) => [s.id, s.querySelector('h2').textContent])"
    )
    # The planted models are no organisms, so there is no curve of their training, and not everything was measured.
    assert [tuple(one) for one in sections] == [pair for pair in CONTENTS.items() if pair[0] not in LEFT_OUT]
    captions = report.js(
        "[...document.querySelectorAll('figcaption')].map((c) => [...c.querySelectorAll('b')].map((b) => b.textContent))"
    )
    assert len(captions) >= 6
    assert all(
        one[:3] == ["What is seen.", "How it was computed.", "What it does not show."] for one in captions
    )
    text = report.js("document.querySelector('#masking').textContent")
    assert "does not show that a sink matters" in text
    verdicts = report.js("[...document.querySelectorAll('.verdict .said')].map((p) => p.textContent)")
    assert len(verdicts) == 2
    assert "it depends on the key that each head attends to most" in verdicts[1]
    links = report.js("[...document.querySelectorAll('#settings a')].map((a) => a.getAttribute('href'))")
    for link in links:
        assert (planted / link).is_file(), link
    assert (planted / "report.html").stat().st_size < 5_000_000


def test_links_of_the_contents_lead_to_sections(report):
    report.js("document.querySelector('.contents a[href=\"#dynamics\"]').click()")
    report.until(
        "Math.abs(document.querySelector('#dynamics').getBoundingClientRect().top) < innerHeight / 4"
    )


def test_dark_mode_and_paper(report):
    light = report.js(GROUNDS)
    report.media(prefers_color_scheme="dark")
    dark = report.js(GROUNDS)
    assert all(a != b for a, b in zip(light, dark, strict=True))
    report.media(media="print", prefers_color_scheme="dark")
    paper = report.js(GROUNDS)
    assert paper[0] == "rgb(255, 255, 255)"
    assert paper[1:] == light[1:]
    shown = report.js(
        "['.contents', '#traces', '#claims', 'figcaption'].map((s) => getComputedStyle(document.querySelector(s)).display)"
    )
    assert shown[:2] == ["none", "none"]
    assert "none" not in shown[2:]
    try:
        # A4 with the usual margins.
        report.call(
            "Emulation.setDeviceMetricsOverride", width=718, height=1000, deviceScaleFactor=1, mobile=False
        )
        report.settle()
        assert report.js("document.documentElement.scrollWidth <= innerWidth"), (
            "nothing is cut off at the edge of the paper"
        )
    finally:
        report.call("Emulation.clearDeviceMetricsOverride")
    pdf = base64.b64decode(report.call("Page.printToPDF", printBackground=True)["data"])
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 50_000


def test_the_page_is_never_wider_than_the_window(report):
    try:
        for wide in (1400, 800, 390):
            report.call(
                "Emulation.setDeviceMetricsOverride",
                width=wide,
                height=900,
                deviceScaleFactor=1,
                mobile=False,
            )
            report.settle()
            assert report.js("document.documentElement.scrollWidth <= innerWidth"), wide
    finally:
        report.call("Emulation.clearDeviceMetricsOverride")


def test_a_table_that_is_wider_than_its_box_shows_it(report):
    """Its edge is shaded; the shade of a table that fits is covered."""
    try:
        report.call(
            "Emulation.setDeviceMetricsOverride", width=760, height=900, deviceScaleFactor=1, mobile=False
        )
        boxes = report.js(
            "[...document.querySelectorAll('.scroll')].map((b) => [b.scrollWidth > b.clientWidth,"
            " getComputedStyle(b).backgroundImage.split('linear-gradient').length - 1, getComputedStyle(b).backgroundAttachment])"
        )
        assert any(wide for wide, *_ in boxes)
        assert all(many == 4 and attached.startswith("local, local, scroll") for _, many, attached in boxes)
    finally:
        report.call("Emulation.clearDeviceMetricsOverride")


@pytest.mark.parametrize(("wide", "least"), [(1400, 9.5), (760, 9.5), (390, 9.5)])
def test_the_words_of_the_chart_of_movement_can_be_read(report, wide, least):
    """Letters as high on the screen as this, in pixels."""
    try:
        report.call(
            "Emulation.setDeviceMetricsOverride", width=wide, height=900, deviceScaleFactor=1, mobile=False
        )
        sizes = report.js(
            "[...document.querySelectorAll('#dynamics svg.plot')].filter((s) => s.clientWidth).map((s) =>"
            " Math.min(...[...s.querySelectorAll('text')].map((t) => parseFloat(getComputedStyle(t).fontSize)))"
            " * s.getBoundingClientRect().width / s.viewBox.baseVal.width)"
        )
        assert len(sizes) == 1
        assert sizes[0] >= least
    finally:
        report.call("Emulation.clearDeviceMetricsOverride")


def test_tables_are_cards_on_a_phone(report):
    labels = (
        "[...document.querySelectorAll('#masking td[data-label]')].slice(0, 4).map((d) => [d.dataset.label,"
        " getComputedStyle(d, '::before').content, getComputedStyle(d).display])"
    )
    assert {row[2] for row in report.js(labels)} == {"table-cell"}
    try:
        report.call(
            "Emulation.setDeviceMetricsOverride", width=390, height=900, deviceScaleFactor=1, mobile=False
        )
        report.settle()
        rows = report.js(labels)
        assert all(content == f'"{label}"' and display == "grid" for label, content, display in rows), rows
        cut = report.js(
            "[...document.querySelectorAll('main > section .scroll')]"
            ".filter((s) => s.offsetParent && s.scrollWidth > s.clientWidth + 1)"
            ".map((s) => s.getAttribute('aria-label'))"
        )
        assert cut == [], "no table is cut"
    finally:
        report.call("Emulation.clearDeviceMetricsOverride")


def test_a_screen_reader_finds_its_way(report):
    report.call("Accessibility.enable")
    nodes = report.call("Accessibility.getFullAXTree")["nodes"]
    report.call("Accessibility.disable")
    names: dict[str, list[str]] = {}
    for node in nodes:
        if not node.get("ignored"):
            names.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    for role in ("main", "navigation", "table", "columnheader", "rowheader", "image", "link", "figure"):
        assert names.get(role), role
    for role in ("table", "image", "link", "region", "navigation"):
        assert all(names[role]), f"every {role} has a name: {names[role]}"
    levels = report.js("[...document.querySelectorAll('h1, h2, h3')].map((h) => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels)), "no level is skipped"
    bare = report.js(
        "[...document.querySelectorAll('main > section table')].filter((t) => !t.caption && !t.closest('.sinkscope')).length"
    )
    assert bare == 0
    assert report.js("document.querySelectorAll('section th:not([scope])').length") == report.js(
        "document.querySelectorAll('.sinkscope th:not([scope])').length"
    )


def test_keys_belong_to_the_page_until_the_view_has_the_focus(report):
    report.js("document.activeElement.blur(); scrollTo(0, 0)")
    report.press("ArrowRight")
    assert report.js(f"{STATE}.step") == 0
    report.js("document.querySelector('.skip').focus()")
    assert report.js("document.querySelector('.skip').getBoundingClientRect().left") >= 0, (
        "the skip link can be seen"
    )
    report.js("document.querySelector('.tokens').focus()")
    report.press("End")
    assert report.js(f"{STATE}.step") > 0
    assert report.js("document.querySelector('.scroll').tabIndex") == 0, "a keyboard can scroll a wide table"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    made = studies.make(tmp_path_factory.mktemp("hostile"), hostile=True)
    write_report(made)
    return made


def test_hostile_texts_stay_text(shared, hostile):
    shared.open(hostile / "report.html")
    assert shared.js("window.hacked") is None
    assert shared.js("document.querySelectorAll('main img:not(.paper), iframe, object, embed').length") == 0
    assert shared.js("document.scripts.length") == 2  # the view's data and its script
    shown = studies.HOSTILE.replace("\u202e", "⟨U+202E⟩")
    assert shared.js("document.querySelector('h1').textContent") == f"Attention sinks: study {shown}"
    assert shared.js("document.querySelector('.verdict h3').textContent") == f"{shown} a"
    text = shared.js("document.querySelector('main').textContent")
    assert text.count("onerror=window.hacked") > 20
    assert "\u202e" not in shared.js("document.body.innerText")
    shared.js("[...document.querySelectorAll('details')].forEach((one) => one.open = true)")
    assert shared.js("document.documentElement.scrollWidth <= innerWidth")
    assert shared.js("window.hacked") is None
    assert shared.problems() == []
