"""Who looks at whom, differences, search, copying, folding: each equals the trace, and hostile texts stay text in all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.report import browser as chromium
from tests.report import pages
from tests.report.driving import APP, STATE, centre, choose
from tests.sinks import synthetic

import sinkscope as ss
from sinkscope.report.html import write_viewer
from sinkscope.sinks import step_position_map
from sinkscope.trace.trace import Trace

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        chromium.find() is None, reason="needs Chromium (apt-get install chromium), and none is installed"
    ),
]
NOTE = "document.querySelector('.relation .note').textContent"
PAIR = (
    "[...document.querySelectorAll('.pair')[0].querySelectorAll('table')].map((t) => [t.caption.textContent,"
    " [...t.tBodies[0].rows].filter((r) => !r.hidden).map((r) => [...r.cells].map((c) => c.textContent))])"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("relations")
    write_viewer(folder / "maps.html", pages.maps(), samples=[0])
    write_viewer(folder / "classes.html", synthetic.split_trace(), samples=[0])
    write_viewer(folder / "ended.html", pages.ended(), samples=[0])
    masked = pages.diffusion(seed=2)
    write_viewer(folder / "both.html", masked, pages.diffusion(), names=("masked", "plain"), samples=[0])
    hostile = pages.hostile(pages.maps(lengths=(30,)))
    write_viewer(folder / "hostile.html", hostile, hostile, names=(pages.HOSTILE[12], pages.HOSTILE[22]))
    return folder


def relative(data, step: int) -> np.ndarray:
    """[layer, head, query, key]: attention of the first sample relative to uniform, real tokens alone."""
    real = data["position"].values[0] >= 0
    attention = data["attention"].values[0, step][..., real, :][..., real]
    return attention * real.sum()


def test_a_token_s_row_and_column_are_those_of_the_map(page, made):
    data = pages.maps()
    first = int(np.flatnonzero(data["position"].values[0] >= 0)[0])
    for where, pick in (
        ("", lambda m: m.mean(axis=(0, 1))),
        ("&layer=1", lambda m: m[1].mean(axis=0)),
        ("&layer=1&head=2", lambda m: m[1, 2]),
    ):
        place = 6
        page.open(made / "maps.html", f"#step=5&key={first + place}{where}")
        wanted = pick(relative(data, 5))
        assert page.js(NOTE).startswith("Exact, from the attention map of this step")
        (looks, row), (looked, column) = page.js(PAIR)
        assert looks.startswith("Position 6 ")
        assert looks.endswith(" looks at")
        assert looked.endswith(" is looked at by")
        for shown, exact in ((row, wanted[place]), (column, wanted[:, place])):
            assert len(shown) == 8
            order = np.sort(exact)[::-1]
            for i, (position, _, value) in enumerate(shown):
                assert float(value) == pytest.approx(exact[int(position)], rel=0.03, abs=0.02)
                assert float(value) == pytest.approx(order[i], rel=0.05, abs=0.03)


def test_tokens_take_the_colours_of_what_the_selected_one_looks_at(page, made):
    data = pages.maps()
    first = int(np.flatnonzero(data["position"].values[0] >= 0)[0])
    page.open(made / "maps.html", f"#step=5&key={first + 6}")
    colours = "[...document.querySelectorAll('.tokens .token')].map((t) => getComputedStyle(t).backgroundColor)"
    plain = page.js(colours)
    light = {}
    for way in ("from", "to"):
        choose(page, "tokens coloured by", way)
        assert "selected token" in page.js("document.querySelector('.tokens').getAttribute('aria-label')")
        light[way] = [sum(map(int, c[4:-1].split(","))) for c in page.js(colours)]
    wanted = relative(data, 5).mean(axis=(0, 1))
    assert np.argmin(light["from"]) == np.argmax(wanted[6])
    assert np.argmin(light["to"]) == np.argmax(wanted[:, 6])
    x, y = centre(page, ".tokens .token:nth-of-type(3)")
    before = page.js(colours)
    page.mouse("mouseMoved", x, y)
    page.settle()
    assert page.js(colours) != before, "a token that is pointed at takes the place of the selected one"
    page.mouse("mouseMoved", 2, 2)
    choose(page, "tokens coloured by", "")
    assert page.js(colours) == plain


def test_the_map_is_chosen_from_and_says_its_cells(page, made):
    page.open(made / "maps.html", "#step=5")
    x, y = centre(page, ".relation .front", 0.5, 0.5)
    page.mouse("mouseMoved", x, y)
    page.settle()
    tip = page.js("document.querySelector('.tip').textContent")
    assert " looks at position " in tip
    page.click(x, y)
    assert page.js(f"{STATE}.key") >= 0
    page.js("document.querySelector('.relation .front').focus()")
    before = page.js(f"{STATE}.key")
    page.press("ArrowDown")
    assert page.js(f"{STATE}.key") == before + 1


def test_without_maps_the_class_of_a_query_answers_and_the_page_says_so(page, made):
    data = synthetic.split_trace()
    position = data["position"].values[0]
    first = int(np.flatnonzero(position >= 0)[0])
    page.open(made / "classes.html", f"#step=10&key={first + 2}")
    assert page.js(NOTE).startswith("By class of query")
    (_, row), _ = page.js(PAIR)
    by = data["received_by"].values[0, 10].mean(axis=(0, 1))
    assert int(row[0][0]) == 7, "prompt queries look at position 7"
    assert float(row[0][2]) == pytest.approx(by[2, first + 7], rel=0.03)
    masked = int(np.flatnonzero(data["masked"].values[0, 10])[0])
    page.js(f"{APP}.set({{key: {masked}}})")
    page.settle()
    (_, row), _ = page.js(PAIR)
    assert int(row[0][0]) == 0, "masked queries look at position 0"


def some_maps():
    """Attention by class of query in every step, and maps of two: every query looks at its neighbour alone."""
    data = synthetic.split_trace().isel(sample=[0])
    many = data.sizes["key"]
    map_of = np.roll(np.eye(many, dtype=np.float32), 1, axis=1)
    shape = (1, 2, data.sizes["layer"], data.sizes["head"], many, many)
    dims = ("sample", "map_step", "layer", "head", "query", "key")
    steps = data["step"].values[[4, 10]] if "step" in data.coords else np.array([4, 10])
    return data.assign(attention_at=(dims, np.broadcast_to(map_of, shape).copy())).assign_coords(map_step=steps)


def test_steps_without_a_map_fall_back_to_the_class_of_a_query(page, tmp_path):
    data = some_maps()
    first = int(np.flatnonzero(data["position"].values[0] >= 0)[0])
    write_viewer(tmp_path / "some.html", data)
    page.open(tmp_path / "some.html", f"#step=10&key={first + 2}")
    assert page.js(NOTE).startswith("Exact, from the attention map of this step")
    (_, row), _ = page.js(PAIR)
    assert int(row[0][0]) == 3, "its neighbour"
    page.js(f"{APP}.set({{step: 8}})")
    page.settle()
    note = page.js(NOTE)
    assert note.startswith("By class of query")
    assert note.endswith("Maps were recorded of step 4, 10, not of this one.")
    (_, row), _ = page.js(PAIR)
    assert int(row[0][0]) == 7, "prompt queries look at position 7"
    leaps = "[...document.querySelectorAll('.leap')].filter((b) => !b.hidden).map((b) => b.textContent)"
    assert page.js(leaps) == ["go to step 4", "go to step 10"]
    choose(page, "tokens coloured by", "from")
    assert "what the selected token looks at" in page.js("document.querySelector('.tokens').ariaLabel")
    page.js("document.querySelector('.leap').click()")
    page.settle()
    assert page.js(f"{STATE}.step") == 4
    assert page.js(NOTE).startswith("Exact")
    assert page.js(leaps) == ["go to step 10"]


def test_the_difference_compares_steps_by_their_number(page, tmp_path):
    """One trace has every step, the other every third: steps of one number stand beside each other, and are subtracted."""
    masked, plain = pages.diffusion(seed=2), pages.diffusion()
    few = plain.isel(step=slice(None, None, 3))
    write_viewer(tmp_path / "every.html", masked, few, names=("masked", "plain"), samples=[0])
    page.open(tmp_path / "every.html", "#step=6&a=0&b=1&diff=1")
    steps = f"{APP}.panels.map((p) => p.view.steps[p.step])"
    assert page.js(steps) == [6, 6, 6]
    a, b = (step_position_map(data).values[0, 6] for data in (masked, plain))
    position = plain["position"].values[0]
    change = {int(p): a[i] - b[i] for i, p in enumerate(position) if p >= 0}
    rows = (
        "[...document.querySelectorAll('.difference table tbody tr')].filter((r) => !r.hidden)"
        ".map((r) => [...r.cells].map((c) => c.textContent))"
    )
    shown = page.js(rows)
    assert len(shown) == 8
    for place, _, value, ends in shown:
        number = float(value.replace("−", "-").replace("+", ""))
        assert number == pytest.approx(change[int(place)], abs=0.01 * (2 + np.nanmax(a) + np.nanmax(b)))
        before, after = map(float, ends.split(" → "))
        assert after - before == pytest.approx(number, abs=0.02 * max(1, after))
    assert "compared by number, and 8 were recorded in both" in page.js(
        "document.querySelector('.difference .note').textContent"
    )
    page.js(f"{APP}.set({{step: 7}})")
    page.settle()
    assert page.js(steps) == [7, 6, 7], "the other trace shows its last step up to this one"
    assert page.js(rows) == []
    assert "the other trace has no such step" in page.js(f"{APP}.panels[2].describe({{step: 7, key: 34}})")


def test_side_by_side_the_cards_start_at_the_same_height(page, tmp_path):
    """Also where one trace has folded tokens, a longer header and other legends."""
    write_viewer(tmp_path / "two.html", pages.ended(), pages.causal(), names=("a long name " * 9, "c"), samples=[0])
    for wide in (1400, 760):
        try:
            page.call(
                "Emulation.setDeviceMetricsOverride", width=wide, height=900, deviceScaleFactor=1, mobile=False,
            )  # fmt: skip
            page.open(tmp_path / "two.html", "#a=0&b=1&step=23")
            page.settle()
            tops = page.js(
                "[...document.querySelectorAll('.panel')].map((p) => [...p.querySelectorAll('.card')]"
                ".map((c) => c.getBoundingClientRect().top))"
            )
            assert tops[0] == pytest.approx(tops[1], abs=1)
            frames = page.js(
                "[...document.querySelectorAll('.card.main .frame')].map((f) => f.getBoundingClientRect().top)"
            )
            assert frames[0] == pytest.approx(frames[2], abs=1)
        finally:
            page.call("Emulation.clearDeviceMetricsOverride")


def test_where_nothing_was_recorded_the_page_says_what_to_do(page):
    note = page.js(NOTE)
    assert "sinkscope trace TRACE --maps-at STEP" in note
    assert page.js("document.querySelector('.relation .frame').hidden")
    assert page.js("document.querySelector('select[aria-label=\"tokens coloured by\"]').closest('.field').hidden")


def test_the_difference_of_two_traces_is_first_minus_second(page, made):
    page.open(made / "both.html", "#step=7&a=0&b=1")
    choose(page, "compared as", "1")
    panel = page.js("document.querySelector('.difference h2').textContent")
    assert panel == "masked, sample 0 minus plain, sample 0"
    a, b = (step_position_map(pages.diffusion(seed=seed)).values[0, 7] for seed in (2, 1))
    position = pages.diffusion()["position"].values[0]
    change = {int(p): a[i] - b[i] for i, p in enumerate(position) if p >= 0}
    shown = page.js(
        "[...document.querySelectorAll('.difference table tbody tr')].filter((r) => !r.hidden)"
        ".map((r) => [...r.cells].map((c) => c.textContent))"
    )
    assert len(shown) == 8
    largest = sorted(map(abs, change.values()), reverse=True)
    for i, (place, _, value, ends) in enumerate(shown):
        number = float(value.replace("−", "-").replace("+", ""))
        exact = change[int(place)]
        error = 0.01 * (2 + np.nanmax(a) + np.nanmax(b))  # two scores in 8 bits
        assert number == pytest.approx(exact, abs=error)
        assert abs(number) == pytest.approx(largest[i], abs=2 * error)
        before, after = map(float, ends.split(" → "))
        assert after - before == pytest.approx(number, abs=0.02 * max(1, after))
    tops = page.js(f"{APP}.panels.map((p) => p.top)")
    assert tops[0] == tops[1] != tops[2], "traces share one scale; differences have their own"
    x, y = centre(page, ".difference .card.main .front", 0.5, 0.4)
    page.mouse("mouseMoved", x, y)
    page.settle()
    assert " · change " in page.js("document.querySelector('.tip').textContent")
    page.until("location.hash.includes('diff=1')")
    choose(page, "compare with", "-1")
    assert page.js("document.querySelectorAll('.panel').length") == 1


def test_a_search_finds_tokens_and_walks_through_them(page):
    texts = page.js("[...document.querySelectorAll('.tokens .token')].map((t) => t.textContent)")
    wanted = [i for i, text in enumerate(texts) if "word" in text]
    assert len(wanted) > 2
    page.js("document.querySelector('.find').focus()")
    page.js(
        "(() => { const f = document.querySelector('.find'); f.value = 'WORD';"
        " f.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )
    page.settle()
    found = page.js("[...document.querySelectorAll('.tokens .token')].map((t) => t.classList.contains('match'))")
    assert [i for i, match in enumerate(found) if match] == wanted
    assert page.js("document.querySelector('.matches').textContent") == str(len(wanted))
    for i in range(2):
        page.js(
            "document.querySelector('.find').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}))"
        )
        page.settle()
        assert page.js(f"{APP}.views[0].indexOf({STATE}.key)") == wanted[i]
        assert page.js("document.querySelector('.matches').textContent") == f"{i + 1} of {len(wanted)}"
    page.js(f"{APP}.set({{find: '('}})")
    page.settle()
    assert page.js("document.querySelector('.matches').textContent") == "none"


def test_what_is_copied_as_python_gives_the_number_shown(page, tmp_path):
    trace = tmp_path / 'a "quoted" name.zarr.zip'
    Trace(dataset=pages.diffusion()).save(trace)
    write_viewer(tmp_path / "t.html", Trace.open(trace), files=(str(trace), ""), samples=[1], heads=[(1, 3)])
    for where in ("", "&layer=2", "&layer=1&head=3"):
        page.open(tmp_path / "t.html", f"#step=6&key=34{where}")
        page.js("[...document.querySelectorAll('.copies button')][0].click()")
        page.until("!document.querySelector('.copied').hidden")
        code = page.js("document.querySelector('.copied').value")
        lines = code.strip().split("\n")
        space: dict[str, object] = {}
        exec("\n".join(lines[:-1]), space)  # the selection, as a reader would run it
        value = float(eval(lines[-1].partition("#")[0], space))
        said = page.js(f"{APP}.panels[0].describe({{step: 6, key: 34}})")
        assert float(said.split("× uniform")[0].rpartition("· ")[2]) == pytest.approx(value, rel=0.02, abs=0.02)
    page.js("[...document.querySelectorAll('.copies button')][1].click()")
    page.until("document.querySelector('.copied').value.startsWith('file:')")
    assert page.js("document.querySelector('.copied').value.split('#')[1]") == "step=6&layer=1&head=3&key=34&a=0"
    assert ss.Trace is Trace


def test_runs_of_end_tokens_are_folded_and_can_be_shown(page, made):
    page.open(made / "ended.html", "#step=23")
    shown = "[...document.querySelectorAll('.tokens .token')].filter((t) => t.offsetParent).map((t) => t.textContent)"
    folded = page.js(shown)
    assert folded[-1] == "<|endoftext|> ×9"
    assert page.js("document.querySelector('.fold').textContent") == "8 repeated tokens folded: show"
    page.js("document.querySelector('.fold').click()")
    assert len(page.js(shown)) == len(folded) + 8
    assert page.js("document.querySelector('.fold').ariaPressed") == "true"
    page.js("document.querySelector('.fold').click()")
    page.js(f"{APP}.set({{key: {APP}.views[0].K - 1}})")
    page.settle()
    assert page.js("document.querySelector('[aria-selected]').textContent") == "<|endoftext|> ×9"
    page.press("Home")
    assert "×" not in "".join(page.js(shown)), "masks are never folded"


def test_blocks_and_decided_positions_are_drawn(page, tmp_path):
    page.downloads(tmp_path)
    page.js("document.querySelector('.card.main .saves button').click()")
    page.until("true")
    import time
    import xml.etree.ElementTree as ET

    end = time.monotonic() + 10
    while not list(tmp_path.glob("*.svg")) and time.monotonic() < end:
        time.sleep(0.1)
    root = ET.parse(next(tmp_path.glob("*.svg"))).getroot()
    space = "{http://www.w3.org/2000/svg}"
    dashed = [line for line in root.iter(f"{space}polyline") if line.get("stroke-dasharray") == "2 4"]
    assert len(dashed) == 2, "24 answer tokens in blocks of 8"
    accent = page.js("getComputedStyle(document.documentElement).getPropertyValue('--accent').trim()")
    squares = [box for box in root.iter(f"{space}rect") if box.get("fill") == accent]
    assert len(squares) == int(pages.diffusion()["decided"].values[0].sum())


def test_every_card_explains_itself(page):
    asks = page.js("[...document.querySelectorAll('.ask')].length")
    assert asks == page.js("document.querySelectorAll('.card').length")
    page.js("document.querySelectorAll('.ask').forEach((b) => b.click())")
    texts = page.js("[...document.querySelectorAll('.explain')].map((p) => p.hidden ? '' : p.textContent)")
    assert all(len(text) > 60 for text in texts)
    assert page.js("[...document.querySelectorAll('.ask')].every((b) => b.ariaExpanded === 'true')")


@pytest.mark.parametrize("wide", [1400, 1120, 760, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_window_and_legends_have_room(page, made, wide, scheme):
    try:
        page.call("Emulation.setDeviceMetricsOverride", width=wide, height=900, deviceScaleFactor=1, mobile=False)
        page.media(prefers_color_scheme=scheme)
        for name, where in (
            ("maps.html", "#step=5&key=8&show=to"),
            ("both.html", "#b=1&diff=1&step=3"),
            ("ended.html", "#step=23"),
        ):
            page.open(made / name, where)
            page.settle()
            assert page.js("document.documentElement.scrollWidth <= innerWidth"), name
            for panel in range(page.js(f"{APP}.panels.length")):
                room = page.js(
                    f"(() => {{ const h = {APP}.panels[{panel}].heat, c = document.createElement('canvas').getContext('2d');"
                    " c.font = `600 12px ${getComputedStyle(document.body).fontFamily}`;"
                    " const text = c.measureText(h.panel.selectionText()).width; const w = h.size()[0];"
                    " return h.narrow || 50 + text < w - 12 - 132 - 130; })()"
                )
                assert room, f"title and legend of {name} do not meet"
    finally:
        page.call("Emulation.clearDeviceMetricsOverride")
        page.media()


def test_hostile_texts_stay_text_in_every_new_view(page, made):
    page.open(made / "hostile.html", "#a=0&b=1&diff=1&step=2")
    assert page.js("document.querySelector('.difference h2').textContent").startswith("</script><img src=x")
    first = page.js(f"{APP}.views[0].realKeys[0]")
    for i in range(len(pages.HOSTILE)):
        for show in ("from", "to"):
            page.js(f"{APP}.set({{key: {first + i}, show: '{show}', step: 3}})")
            page.settle()
    for text in pages.HOSTILE.values():
        page.js(f"{APP}.set({{find: {text[:50].encode('unicode_escape').decode()!r}}})")
        page.settle()
    page.js("document.querySelectorAll('.copies button').forEach((b) => b.click())")
    page.js("document.querySelectorAll('.ask').forEach((b) => b.click())")
    assert page.js("document.querySelectorAll('img, svg, iframe, object, embed, b').length") == 0
    assert page.js("window.hacked") is None
    assert page.js("document.scripts.length") == 2


def test_everything_new_has_a_name_for_a_screen_reader(page, made):
    page.open(made / "both.html", "#b=1&diff=1")
    page.call("Accessibility.enable")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    page.call("Accessibility.disable")
    for role in ("button", "combobox", "searchbox", "application", "table", "region"):
        names = [
            node.get("name", {}).get("value", "")
            for node in nodes
            if not node.get("ignored") and node["role"]["value"] == role
        ]
        assert names, role
        assert all(names), (role, names)
