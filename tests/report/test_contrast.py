"""The palette of the viewer meets WCAG 2.2 AA: text 4.5, parts of controls and pictures 3."""

from __future__ import annotations

import itertools
import json
import re
from importlib.resources import files

import pytest

VIEWER = files("sinkscope.report") / "viewer"
CSS, COLOUR = ((VIEWER / name).read_text(encoding="utf-8") for name in ("viewer.css", "colour.js"))


def luminance(colour: tuple[float, ...]) -> float:
    parts = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def rgb(text: str) -> tuple[float, ...]:
    return tuple(int(text[i : i + 2], 16) for i in (1, 3, 5))


def ratio(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def css_palettes() -> dict[str, dict[str, str]]:
    found = {}
    dark = CSS.index("prefers-color-scheme: dark")
    paper = CSS.index("@media print")
    for name, start in (("light", 0), ("dark", dark), ("print", paper)):
        block = CSS[start : CSS.index("}", CSS.index(":root", start))]
        found[name] = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
    return found


def js_palettes() -> dict[str, dict[str, str]]:
    found = {}
    for name in ("light", "dark"):
        block = re.search(rf"  {name}: \{{(.*?)\}}", COLOUR, re.DOTALL)[1]
        found[name] = dict(re.findall(r'(\w+): "(#[0-9a-f]{6})"', block))
    return found


def ramps() -> dict[str, list[str]]:
    return {name: json.loads(re.search(rf"  {name}: (\[[^\]]+\])", COLOUR)[1]) for name in ("light", "dark")}


@pytest.mark.parametrize("name", ["light", "dark", "print"])
def test_text_and_controls_stand_out(name):
    colours = css_palettes()[name]
    for ground in ("page", "surface", "raised"):
        for text in ("ink", "soft", "accent"):
            assert ratio(rgb(colours[text]), rgb(colours[ground])) >= 4.5, (text, ground)
        assert ratio(rgb(colours["edge"]), rgb(colours[ground])) >= 3, ground


@pytest.mark.parametrize("name", ["light", "dark"])
def test_pictures_use_the_colours_of_the_page(name):
    css, js = css_palettes()[name], js_palettes()[name]
    for key in ("page", "surface", "ink", "soft", "line", "accent", "raised"):
        assert css[key] == js[key], key
    for mark in ("path", "cursor"):
        for ground in ("surface", "raised", "blank"):
            assert ratio(rgb(js[mark]), rgb(js[ground])) >= 3, (mark, ground)


@pytest.mark.parametrize("name", ["light", "dark"])
def test_the_ramp_is_ordered_by_lightness_and_readable_everywhere(name):
    stops = [rgb(colour) for colour in ramps()[name]]
    light = [luminance(stop) for stop in stops]
    assert light == sorted(light, reverse=name == "light")
    limit = float(re.search(r"luminance\(rgb\) > ([0-9.]+)", COLOUR)[1])
    for i in range(256):
        at = i / 255 * (len(stops) - 1)
        low = min(int(at), len(stops) - 2)
        colour = tuple(a + (b - a) * (at - low) for a, b in zip(stops[low], stops[low + 1], strict=True))
        ink = (0, 0, 0) if luminance(colour) > limit else (255, 255, 255)
        assert ratio(colour, ink) >= 4.5, i


def test_the_ramp_keeps_its_order_for_colour_blind_readers():
    """Simulated after Viénot et al. (1999), neighbouring stops stay apart in lightness, in the same direction."""
    matrices = {
        "protan": ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0)),
        "deutan": ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0)),
    }
    for name, stops in ramps().items():
        for matrix in matrices.values():
            seen = []
            for stop in map(rgb, stops):
                linear = [(c / 255) ** 2.2 for c in stop]
                moved = [sum(m * c for m, c in zip(row, linear, strict=True)) for row in matrix]
                seen.append(luminance(tuple(255 * max(0.0, c) ** (1 / 2.2) for c in moved)))
            steps = [a - b if name == "light" else b - a for a, b in itertools.pairwise(seen)]
            assert min(steps) > 0, (name, seen)


REPORT = (files("sinkscope.report") / "study" / "style.css").read_text(encoding="utf-8")


def report_palettes() -> dict[str, dict[str, str]]:
    found = {}
    dark, paper = REPORT.index("prefers-color-scheme: dark"), REPORT.index("@media print")
    for name, start in (("light", 0), ("dark", dark), ("print", paper)):
        block = REPORT[start : REPORT.index("}", REPORT.index(":root", start))]
        found[name] = css_palettes()[name] | dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", block))
    return found


@pytest.mark.parametrize("name", ["light", "dark", "print"])
def test_verdicts_and_marks_of_the_report_stand_out(name):
    colours = report_palettes()[name]
    for verdict in ("good", "bad", "open"):
        for ground in (f"{verdict}-ground", "surface"):
            assert ratio(rgb(colours[verdict]), rgb(colours[ground])) >= 4.5, (verdict, ground)
    for series in range(1, 5):
        mark = rgb(colours[f"s{series}"])
        assert ratio(mark, rgb(colours["surface"])) >= 4.5, "also the number that a bar carries"


def test_paper_is_light():
    colours = report_palettes()
    own = colours["print"].keys() - {"page"}
    assert {key: colours["print"][key] for key in own} == {key: colours["light"][key] for key in own}
