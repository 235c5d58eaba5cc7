"""The pictures of the report in the docs, taken from a finished study by headless Chromium.

    sinkscope study organisms --out study
    python tests/report/shoot.py study docs/images

Writes report-light.png (the top of the page), report-dark.png (what breaks without sinks) and report-maps.png.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from PIL import Image
from tests.report.browser import Browser

WIDTH = 1280
SHOTS = (
    ("report-light.png", "light", "body", 1540),
    ("report-dark.png", "dark", "#masking figure", 770),
    ("report-maps.png", "light", "#maps", 760),
)
"""File, colour scheme, where it begins, height. The contents stand beside the top of the page alone."""


def shoot(study: Path, out: Path) -> list[Path]:
    """Takes every picture."""
    browser = Browser(WIDTH, 1000)
    made = []
    try:
        browser.call(
            "Emulation.setDeviceMetricsOverride", width=WIDTH, height=1000, deviceScaleFactor=1, mobile=False
        )
        browser.open(study / "report.html")
        for name, scheme, start, high in SHOTS:
            browser.media(prefers_color_scheme=scheme)
            left, top = browser.js(
                f"(() => {{ const box = document.querySelector({start!r}).getBoundingClientRect();"
                " return [box.left, box.top + scrollY]; })()"
            )
            x, y = max(0, left - 28), max(0, top - 28)
            clip = {"x": x, "y": y, "width": WIDTH - x, "height": high, "scale": 1}
            browser.screenshot(out / name, whole=True, clip=clip)
            few_colours(out / name)
            made.append(out / name)
    finally:
        browser.close()
    return made


def few_colours(path: Path) -> None:
    """Makes a picture a third of its size."""
    with Image.open(path) as picture:
        # The most frequent colours are kept; rare ones, such as a badge's green, would be lost without the second pass.
        small = picture.convert("RGB").quantize(256, kmeans=3, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python tests/report/shoot.py STUDY OUT")
    for path in shoot(Path(sys.argv[1]), Path(sys.argv[2])):
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
