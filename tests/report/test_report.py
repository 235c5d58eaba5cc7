"""The report of a study from disk, the network off: safe, readable in the dark and on paper, usable without eyes or mouse."""

from __future__ import annotations

import base64
import itertools

import pytest
from tests.report import browser as chromium
from tests.report import studies
from tests.report.driving import STATE, centre

from sinkscope.report.study import make_report
from sinkscope.report.study.page import sections
from sinkscope.report.study.source import read
from sinkscope.study.names import control, label
from sinkscope.verdicts.wording import of_model

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        chromium.find() is None, reason="needs Chromium (apt-get install chromium), and none is installed"
    ),
]

LEFT_OUT = ("skills", "likelihood", "inspection", "reuse", "ladder", "far")
"""Sections for what the planted study did not measure, and for models that its own are not."""
GROUNDS = (
    "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector('svg.chart text')).fill,"
    " getComputedStyle(document.querySelector('.icon.contradicted')).color]"
)
LINES = "[...document.querySelectorAll('details.line')]"


def test_it_reads_from_the_summary_to_the_settings(report, planted):
    shown = report.js(
        "[...document.querySelectorAll('main > section')].map((s) => [s.id, s.querySelector('h2').textContent])"
    )
    assert [tuple(one) for one in shown] == [
        (part.name, part.title) for part in sections() if part.name not in LEFT_OUT
    ]
    said = report.js("[...document.querySelectorAll('.found .said')].map((p) => p.textContent)")
    assert said == [of_model(verdicts) for verdicts in read(planted).diagnoses.values()]
    assert all("heads and steps" in text and "masking each head’s" in text and text.count(". ") == 0 for text in said)
    text = report.js("document.querySelector('#masking').textContent")
    assert "does not show that a sink matters" in text
    links = report.js("[...document.querySelectorAll('#settings a')].map((a) => a.getAttribute('href'))")
    for link in links:
        assert (planted / link).is_file(), link
    assert (planted / "report.html").stat().st_size < 5_000_000


@pytest.mark.parametrize(("wide", "high"), [(1440, 900), (390, 844)])
def test_the_first_screen_is_seen_whole(report, wide, high):
    """The sentence and the map of each model, and the chart, without scrolling."""
    with report.sized(wide, high):
        ends = report.js(
            "[...document.querySelectorAll('.found li, .found img.heat, .costs svg.chart')]"
            ".map((e) => e.getBoundingClientRect().bottom)"
        )
        assert len(ends) == 5
        assert max(ends) <= high
        assert report.js("document.querySelectorAll('main > section > h2')[1].getBoundingClientRect().top") >= high


@pytest.mark.parametrize(("wide", "high"), [(1440, 900), (390, 844)])
def test_the_first_screen_holds_four_models(shared, tmp_path_factory, wide, high):
    """The models and policies of the default study; marks of one line stand apart."""
    made = studies.make(tmp_path_factory.mktemp("four"), organisms=True)
    make_report(made)
    shared.open(made / "report.html")
    with shared.sized(wide, high):
        ends = shared.js(
            "[...document.querySelectorAll('.found li, .costs svg.chart')].map((e) => e.getBoundingClientRect().bottom)"
        )
        assert len(ends) == 5
        assert max(ends) < high
        assert shared.js("document.querySelectorAll('main > section > h2')[1].getBoundingClientRect().top") >= high
        themes = shared.js("[...document.querySelectorAll('.theme')].map((e) => e.getBoundingClientRect().height)")
        assert len(themes) == 5
        assert max(themes) < high, "a theme of claims fits one screen"
        marks = shared.js(
            "[...document.querySelectorAll('.costs svg use')].map((e) => e.getBoundingClientRect())"
            ".map((box) => [box.left, box.top, box.right, box.bottom])"
        )
    assert len(marks) >= 12
    for at, (left, top, right, bottom) in enumerate(marks):
        for other in marks[:at]:
            apart = min(right, other[2]) - max(left, other[0]), min(bottom, other[3]) - max(top, other[1])
            assert min(apart) < 1, "no mark hides another"


def test_links_of_the_contents_lead_to_sections(report):
    report.js("document.querySelector('.contents a[href=\"#dynamics\"]').click()")
    report.until("Math.abs(document.querySelector('#dynamics').getBoundingClientRect().top) < innerHeight / 4")


def test_a_line_of_the_matrix_opens_by_click_and_by_keyboard(report):
    assert report.js(f"{LINES}.some((line) => line.open)") is False
    assert report.js("document.querySelector('.opened').checkVisibility({contentVisibilityAuto: true})") is False
    report.click(*centre(report, "details.line summary"))
    assert report.js(f"{LINES}[0].open")
    opened = report.js(f"{LINES}[0].querySelector('.opened').innerText")
    for part in ("Measured:", "Rule:", "control", "limit", "n"):
        assert part in opened, part
    report.js(f"{LINES}[1].querySelector('summary').focus()")
    report.press("Enter")
    assert report.js(f"{LINES}[1].open")
    report.press(" ")
    assert not report.js(f"{LINES}[1].open")
    report.press("Tab")
    assert report.js(f"document.activeElement === {LINES}[2].querySelector('summary')")


def test_dark_mode_and_paper(report):
    light = report.js(GROUNDS)
    report.media(prefers_color_scheme="dark")
    dark = report.js(GROUNDS)
    assert all(a != b for a, b in zip(light, dark, strict=True))
    assert report.js("document.querySelector('img.heat').currentSrc !== document.querySelector('img.heat').src")
    report.media(media="print", prefers_color_scheme="dark")
    paper = report.js(GROUNDS)
    assert paper[0] == "rgb(255, 255, 255)"
    assert paper[1:] == light[1:]
    shown = report.js(
        "['.contents', '#traces', '#claims', 'figcaption'].map((s) => getComputedStyle(document.querySelector(s)).display)"
    )
    assert shown[:2] == ["none", "none"]
    assert "none" not in shown[2:]
    with report.sized(718, 1000):  # A4 with the usual margins
        assert report.js("document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off at the edge"
    report.js(
        "addEventListener('beforeprint', () => { window.printed = document.querySelectorAll('details.line[open]').length; })"
    )
    pdf = base64.b64decode(report.call("Page.printToPDF", printBackground=True)["data"])
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 50_000
    assert report.js(f"window.printed === {LINES}.length"), "what is folded on the screen is printed"
    assert report.js(f"{LINES}.some((line) => line.open)") is False


@pytest.mark.parametrize("wide", [1400, 800, 390])
def test_the_page_is_never_wider_than_the_window(report, wide):
    report.js("[...document.querySelectorAll('details')].forEach((one) => one.open = true)")
    with report.sized(wide):
        assert report.js("document.documentElement.scrollWidth <= innerWidth"), wide
        sizes = report.js(
            "[...document.querySelectorAll('svg.chart')].map((s) => Math.min(...[...s.querySelectorAll('text')]"
            ".map((t) => parseFloat(getComputedStyle(t).fontSize))) * s.getBoundingClientRect().width / s.viewBox.baseVal.width)"
        )
        assert len(sizes) > 5
        assert min(sizes) >= 9.4, "the letters of every chart can be read"


def test_a_table_that_is_wider_than_its_box_shows_it(report):
    """Its edge is shaded; the shade of a table that fits is covered."""
    report.js("[...document.querySelectorAll('details')].forEach((one) => one.open = true)")
    with report.sized(760):
        boxes = report.js(
            "[...document.querySelectorAll('.scroll')].map((b) => [b.scrollWidth > b.clientWidth,"
            " getComputedStyle(b).backgroundImage.split('linear-gradient').length - 1, getComputedStyle(b).backgroundAttachment])"
        )
        assert any(wide for wide, *_ in boxes)
        assert all(many == 4 and attached.startswith("local, local, scroll") for _, many, attached in boxes)


def test_tables_are_cards_on_a_phone(report):
    report.js("[...document.querySelectorAll('details')].forEach((one) => one.open = true)")
    labels = (
        "[...document.querySelectorAll('#masking td[data-label]')].slice(0, 4).map((d) => [d.dataset.label,"
        " getComputedStyle(d, '::before').content, getComputedStyle(d).display])"
    )
    assert {row[2] for row in report.js(labels)} == {"table-cell"}
    with report.sized(390):
        rows = report.js(labels)
        assert all(content == f'"{label}"' and display == "grid" for label, content, display in rows), rows
        cut = report.js(
            "[...document.querySelectorAll('main > section .scroll')]"
            ".filter((s) => s.offsetParent && s.scrollWidth > s.clientWidth + 1)"
            ".map((s) => s.getAttribute('aria-label'))"
        )
        assert cut == [], "no table is cut"


def test_a_screen_reader_finds_its_way(report):
    report.js("[...document.querySelectorAll('details')].forEach((one) => one.open = true)")
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
    assert any("contradicted" in name for name in names["DisclosureTriangle"]), "a line says its verdicts"
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
    ids = report.js("[...document.querySelectorAll('main [id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids)), "an id is of one element"


def test_keys_belong_to_the_page_until_the_view_has_the_focus(report):
    report.js("document.activeElement.blur(); scrollTo(0, 0)")
    start = report.js(f"{STATE}.step")
    report.press("ArrowRight")
    assert report.js(f"{STATE}.step") == start
    report.js("document.querySelector('.skip').focus()")
    assert report.js("document.querySelector('.skip').getBoundingClientRect().left") >= 0, "the skip link can be seen"
    report.js("document.querySelector('.tokens').focus()")
    report.press("Home")
    report.press("End")
    assert report.js(f"{STATE}.step") > 0
    assert report.js("document.querySelector('.scroll').tabIndex") == 0, "a keyboard can scroll a wide table"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    made = studies.make(tmp_path_factory.mktemp("hostile"), hostile=True)
    make_report(made)
    return made


def test_hostile_texts_stay_text(shared, hostile):
    shared.open(hostile / "report.html")
    assert shared.js("window.hacked") is None
    assert shared.js("document.querySelectorAll('main img:not(.paper):not(.heat), iframe, object, embed').length") == 0
    assert shared.js("document.scripts.length") == 3  # the view's data, its script, and the page's
    shown = studies.HOSTILE.replace("\u202e", "⟨U+202E⟩")
    assert shared.js("document.querySelector('h1').textContent") == shown
    assert shared.js("document.querySelector('.found h3').textContent") == f"{shown} a"
    text = shared.js("document.querySelector('main').textContent")
    assert text.count("onerror=window.hacked") > 20
    assert "\u202e" not in shared.js("document.body.innerText")
    assert studies.HOSTILE[:20] in shared.js("document.querySelector('.costs svg').textContent"), "also in a chart"
    shared.js("[...document.querySelectorAll('details')].forEach((one) => one.open = true)")
    assert shared.js("document.documentElement.scrollWidth <= innerWidth")
    assert shared.js("window.hacked") is None
    assert shared.problems() == []


def test_a_study_of_many_models_opens_fast_and_stays_readable(shared, tmp_path):
    """Twenty models under twelve policies."""
    made = studies.make(tmp_path, models=20)
    make_report(made)
    found = read(made)
    policies = {policy for policy in found.frames["results"]["policy"] if control(policy) is None} - {"none"}
    assert (len(found.models), len(policies)) == (20, 12)
    before = shared.busy()
    shared.open(made / "report.html")
    assert shared.busy() - before < 2, "seconds of processor time, whatever else the machine does"
    for wide in (1440, 390):
        with shared.sized(wide):
            assert shared.js("document.documentElement.scrollWidth <= innerWidth"), wide
            cells = shared.js(
                "[...document.querySelectorAll('.judged')].filter((e) => e.scrollWidth > e.clientWidth + 1).length"
            )
            assert cells == 0, "no verdict is cut"
    assert shared.js("document.querySelectorAll('.found li').length") == 20
    charts = "[...document.querySelectorAll('#masking figure svg.chart')]"
    words = shared.js(f"{charts}.map((chart) => chart.textContent)")
    assert len(words) == 20
    assert all(label(policy, at % 2 == 1)[:20] in text for at, text in enumerate(words) for policy in policies)
    assert shared.problems() == []


def test_answers_are_found_by_their_words(report):
    report.js("document.querySelector('#answers details').open = true")
    rows = "[...document.querySelectorAll('#answers tbody tr')].filter((row) => !row.hidden)"
    every = report.js(f"{rows}.length")
    report.js(
        "(() => { const find = document.querySelector('#answers-find'); find.value = 'test-3 WRONG top:1';"
        " find.dispatchEvent(new Event('input')); })()"
    )
    left = report.js(f"{rows}.map((row) => row.innerText)")
    assert 0 < len(left) < every
    assert all("test-3" in text and "wrong" in text and "top:1" in text for text in left)
    assert report.js("document.querySelector('#answers-count').textContent") == f"{len(left)} of {every} answers"
