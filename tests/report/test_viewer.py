"""The real page in headless Chromium, from a file, with the network off: every control."""

from __future__ import annotations

import re
import time
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from tests.report import browser as chromium
from tests.report import pages
from tests.report.driving import APP, COUNT, MAP, STATE, centre, choose, rows

from sinkscope.sinks import layer_head_map, step_position_map

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        chromium.find() is None, reason="needs Chromium (apt-get install chromium), and none is installed"
    ),
]


def test_scrubbing_by_keys_mouse_and_play(page):
    assert page.js(COUNT) == "step 23 of 23", "it opens where everything is decided"
    page.press("Home")
    page.press("ArrowRight")
    page.press("ArrowRight")
    assert page.js(COUNT) == "step 2 of 23"
    page.press("End")
    assert page.js(COUNT) == "step 23 of 23"
    page.press("ArrowRight")
    assert page.js(COUNT) == "step 23 of 23"
    page.press("Home")
    page.js("document.querySelector('.scrubber').focus()")
    page.press("ArrowRight")
    assert page.js(COUNT) == "step 1 of 23"
    x, y = centre(page, ".scrubber", 0.1)
    far, _ = centre(page, ".scrubber", 0.9)
    page.mouse("mousePressed", x, y, held=True)
    page.mouse("mouseMoved", far, y, held=True)
    page.mouse("mouseReleased", far, y)
    page.settle()
    assert 18 <= page.js(f"{STATE}.step") <= 23
    page.js("document.querySelector('.scrubber').blur()")
    page.press("Home")
    page.press(" ")
    page.until(f"{STATE}.step > 2", 5)
    page.press(" ")
    stopped = page.js(f"{STATE}.step")
    time.sleep(0.4)
    assert page.js(f"{STATE}.step") == stopped


CELLS = """(() => {
  const c = document.querySelector('.card.main canvas.base'), found = [];
  const copy = new OffscreenCanvas(c.width, c.height).getContext('2d', { willReadFrequently: true });
  copy.drawImage(c, 0, 0);
  const data = copy.getImageData(0, 0, c.width, c.height).data;
  for (let y = 0.3; y < 0.75; y += 0.05) for (let x = 0.2; x < 0.9; x += 0.05) {
    const at = 4 * (Math.floor(y * c.height) * c.width + Math.floor(x * c.width));
    found.push(data[at] >> 3, data[at + 1] >> 3, data[at + 2] >> 3);
  }
  return found;
})()"""
"""Colours of a grid of points inside the heat map."""


def test_layer_and_head_are_chosen_by_grid_keys_and_lists(page):
    strength = layer_head_map(pages.diffusion()).values[0]
    boxes = page.js(
        "(() => { const p = document.querySelector('[data-sinkscope]').sinkscope.panels[0].grid; return p.box(p.size()); })()"
    )
    page.js("document.querySelector('.card.side .front').scrollIntoView({block: 'center'})")
    page.mouse("mouseMoved", 2, 2)  # what the mouse points at is marked in the picture
    page.settle()
    before, cells = page.js(MAP), page.js(CELLS)
    edge = page.js(
        "(() => { const b = document.querySelector('.card.side .front').getBoundingClientRect(); return [b.x, b.y]; })()"
    )
    x = edge[0] + boxes[0] + boxes[2] * 2.5 / 4
    y = edge[1] + boxes[1] + boxes[3] * 1.5 / 3
    page.mouse("mouseMoved", x, y)
    page.settle()
    tip = page.js("document.querySelector('.tip').textContent")
    assert tip.startswith("layer 1, head 2 · strongest key ")
    assert float(re.search(r"strongest key ([0-9.]+)", tip)[1]) == pytest.approx(strength[1, 2], rel=5e-3)
    page.click(x, y)
    assert page.js(f"[{STATE}.layer, {STATE}.head]") == [1, 2]
    assert page.js("document.querySelector('select[aria-label=layer]').value") == "1"
    after = page.js(MAP)
    assert after != before
    assert page.js(CELLS) != cells
    assert "8 strongest" not in page.js("document.querySelector('.note').textContent"), "this head is embedded in full"
    page.js("document.querySelector('.card.side .front').focus()")
    page.press("ArrowDown")
    page.press("ArrowRight")
    assert page.js(f"[{STATE}.layer, {STATE}.head]") == [2, 3]
    assert "8 strongest keys of each step" in page.js("document.querySelector('.note').textContent")
    choose(page, "head", "-1")
    choose(page, "layer", "0")
    assert page.js(f"[{STATE}.layer, {STATE}.head]") == [0, -1]
    page.js("document.querySelector('.card.side .front').focus()")
    page.press("Escape")
    assert page.js(f"[{STATE}.layer, {STATE}.head]") == [-1, -1]
    page.mouse("mouseMoved", 2, 2)
    page.settle()
    # Text on a canvas is smoothed anew when Chromium changes its renderer: cells are compared, not the picture's bytes.
    assert page.js(CELLS) == cells
    assert page.js(MAP) != after


def test_marks_follow_the_step_and_the_key(page):
    page.js(f"{APP}.set({{layer: 1, head: 2, key: 30}})")
    page.settle()
    boxes = (
        "[...document.querySelectorAll('.frame')].map((f) => [...f.querySelectorAll('.mark')]"
        ".map((m) => { const a = m.getBoundingClientRect(), b = f.getBoundingClientRect();"
        " return [a.x - b.x, a.y - b.y, a.width, a.height]; }))"
    )
    page.press("Home")
    (step, key), (cell, _), (line, level), _ = page.js(boxes)
    assert min(step[2], key[3], line[2], level[3]) > 50, "the marks of step and key are there"
    assert cell[2] > 5
    assert cell[3] > 5
    page.press("End")
    (last, same), _, (lower, _), _ = page.js(boxes)
    assert last[1] > step[1] + 100, "down the heat map"
    assert lower[1] > line[1] + 100, "and down the picture of sinks: time runs one way"
    assert lower[0] == line[0]
    assert same == key


def test_two_traces_stand_side_by_side_with_one_scrubber(page, folder):
    page.open(folder / "two.html")
    assert page.js("document.querySelectorAll('.panel').length") == 2
    assert page.js("[...document.querySelectorAll('.panel h2')].map((h) => h.textContent)") == ["synthetic", "causal"]
    page.press("End")
    assert page.js(f"{APP}.panels.map((p) => p.step)") == [23, 11]
    page.press("Home")
    tops = page.js(f"{APP}.panels.map((p) => [p.top, p.strengthTop, p.most, p.lookTop])")
    assert tops[0] == tops[1], "one colour scale for both, in every picture"
    both = [pages.diffusion().isel(sample=[0]), pages.causal()]
    strongest = max(layer_head_map(data, percent=True).values.max() for data in both)
    assert tops[0][1] == pytest.approx(strongest, rel=1e-3), "in percent of a query's attention"
    for value, scores in (("", "auto"), ("received", "received")):
        choose(page, "scores", value)
        page.js(f"{APP}.set({{step: 6}})")
        page.settle()
        wanted = np.nanmax(step_position_map(both[1], scores=scores, percent=True).values[0, 6])
        assert float(rows(page, 0, panel=1)[0][2]) == pytest.approx(wanted, rel=0.02)
    choose(page, "scores", "")
    said = page.js(f"{APP}.panels[1].describe({{step: 6, key: 25}})")
    assert "too few distant queries · unknown whether a sink" in said
    assert "sink in" in page.js(f"{APP}.panels[1].describe({{step: 6, key: 0}})")
    unknown = "document.querySelectorAll('.panel')[1].querySelectorAll('.tokens .unknown').length"
    assert page.js(unknown) == 15
    assert "unknown whether a sink" in page.js(
        "document.querySelectorAll('.panel')[1].querySelector('.key').textContent"
    )
    assert "unknown" not in page.js("document.querySelectorAll('.panel')[0].querySelector('.key').textContent")
    choose(page, "compare with", "-1")
    assert page.js("document.querySelectorAll('.panel').length") == 1


def test_the_address_keeps_the_view(page, folder):
    choose(page, "layer", "2")
    choose(page, "head", "1")
    page.press("Home")
    page.press("ArrowRight")
    page.js(f"{APP}.set({{key: 30}})")
    page.until("location.hash.includes('key=30')")
    kept, picture = page.js("[location.hash, document.querySelector('.card.main canvas.base').toDataURL()]")
    state = page.js(STATE)
    page.open(folder / "one.html", kept)
    assert page.js(STATE) == state
    assert state == {
        "a": 0, "b": -1, "step": 1, "layer": 2, "head": 1, "score": "", "key": 30, "show": "", "diff": 0, "find": ""
    }  # fmt: skip
    assert page.js(MAP) == picture
    page.js("location.hash = '#step=4&layer=1'")
    page.until(f"{STATE}.layer === 1 && {STATE}.head === -1")
    page.settle()
    assert page.js(COUNT) == "step 4 of 23", "a link inside the page works too"
    page.open(folder / "one.html", "#step=99999&layer=-7&head=x&a=44&key=1e9&score=</script>&b=8")
    assert page.js(f"[{STATE}.step, {STATE}.layer, {STATE}.head, {STATE}.a, {STATE}.score]") == [23, -1, -1, 1, ""]


def test_every_picture_saves_as_svg_and_png(page, tmp_path):
    page.downloads(tmp_path)
    choose(page, "layer", "1")
    choose(page, "head", "2")
    names = ["tokens", "heatmap", "grid", "sinks"]
    for kind in ("SVG", "PNG"):
        page.js(
            f"[...document.querySelectorAll('.saves:not([hidden]) button')].filter((b) => b.textContent === '{kind}')"
            ".forEach((b, i) => setTimeout(() => b.click(), 250 * i))"
        )
        end = time.monotonic() + 20
        while len([p for p in tmp_path.glob(f"*.{kind.lower()}") if p.stat().st_size]) < 4 and time.monotonic() < end:
            time.sleep(0.1)
    for name in names:
        svg = next(tmp_path.glob(f"sinkscope-{name}-*.svg"))
        root = ET.parse(svg).getroot()
        space = "{http://www.w3.org/2000/svg}"
        assert root.tag == f"{space}svg"
        assert root.find(f"{space}title").text
        assert len(root.findall(f"{space}text")) > 5
        assert all(i.get("href").startswith("data:image/png") for i in root.findall(f"{space}image"))
        png = next(tmp_path.glob(f"sinkscope-{name}-*.png")).read_bytes()
        assert png.startswith(b"\x89PNG")
        assert int.from_bytes(png[16:20], "big") > 400
    heat = ET.parse(next(tmp_path.glob("sinkscope-heatmap-*.svg"))).getroot()
    words = {node.text for node in heat.iter("{http://www.w3.org/2000/svg}text")}
    assert {"position", "step", "layer 1, head 2"} <= words
