"""The pictures of the docs, taken by headless Chromium.

    sinkscope study organisms --out study
    python -m lab.screenshots report study docs/images
    python -m lab.screenshots traces docs/images
    python -m lab.screenshots english docs/images      # after sinkscope fetch smollm2

`report` writes report-SCREEN.png, light and dark, on a wide screen and on a phone: what is seen first, claims, masks.
`traces` lets two organisms answer the README's question and writes viewer-light.png and viewer-dark.png.
`english` lets SmolLM2 and its diffusion twin go on from the same sentences and writes english.png.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from PIL import Image
from tests.report.browser import Browser

import sinkscope as ss
from sinkscope.tasks.reading import text_ids

QUESTION = "Jack has 6 bags with 6 seeds each. He sells 28 of them. He buys 39 more. How many seeds does he have now?"
OPENING = (
    "The old lighthouse keeper climbed the stairs every evening at six. He carried a lamp, a book, and a small bag of bread. "
    "When the fog came in,"
)
LAYER, HEAD = 1, 7
"""A head of organism/scratch whose sink moves."""
SIZES = {"": (1440, 900), "-phone": (390, 844)}
SCREENS = {"": "body", "-claims": "#far, #claims", "-masking": "#masking"}
"""Name of a picture → the first of these elements is at its top."""
MARGIN = 8


def report(study: Path, out: Path) -> list[Path]:
    """Takes the three screens of the report at both widths and in both themes."""
    browser = Browser(*SIZES[""])
    made = []
    try:
        browser.call("Emulation.setScrollbarsHidden", hidden=True)
        for size, (width, height) in SIZES.items():
            metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
            browser.call("Emulation.setDeviceMetricsOverride", **metrics)
            browser.open(study / "report.html")
            for scheme in ("light", "dark"):
                browser.media(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
                for name, element in SCREENS.items():
                    browser.js(f"document.querySelector({element!r}).scrollIntoView()")
                    browser.settle()
                    made.append(out / f"report{name}{size}-{scheme}.png")
                    browser.screenshot(made[-1])
                    few_colours(made[-1], 40)
    finally:
        browser.close()
    return made


def take(browser: Browser, path: Path, first: str, last: str) -> None:
    """A picture from the top of one element to the bottom of another, as wide as the page."""
    left, top, width, bottom = browser.js(
        f"(() => {{ const [a, b] = [{first!r}, {last!r}].map((name) => document.querySelector(name).getBoundingClientRect());"
        " return [a.left, a.top + scrollY, document.documentElement.clientWidth, b.bottom + scrollY]; })()"
    )
    x, y = max(0, left - MARGIN), max(0, top - MARGIN)
    clip = {"x": x, "y": y, "width": width - x, "height": bottom + MARGIN - y, "scale": 1}
    browser.screenshot(path, whole=True, clip=clip)
    few_colours(path)


def few_colours(path: Path, colours: int = 256) -> None:
    """Makes a picture a third of its size; a page without maps needs no more than forty colours."""
    with Image.open(path) as picture:
        # The colours that are far apart are kept: rare ones, such as a verdict's green, would else be lost to shades of grey.
        method = Image.Quantize.MAXCOVERAGE
        small = picture.convert("RGB").quantize(colours, method=method, kmeans=1, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def record() -> dict[str, ss.Trace]:
    """One answer of each, recorded."""
    found = {}
    for name, decoding in (
        ("scratch", ss.LladaDecoding(length=64, steps=64, block=16)),
        ("causal", ss.GreedyDecoding(length=64)),
    ):
        model = ss.load(f"organism/{name}", device="cpu")
        run = ss.generate(model, QUESTION, decoding, capture=ss.Capture(anatomy=True))
        print(f"organism/{name}: {run.texts[0].splitlines()}")
        assert run.trace is not None
        found[name] = run.trace
    return found


def traces(out: Path) -> list[Path]:
    """Takes every picture."""
    recorded = record()
    made = []
    with tempfile.TemporaryDirectory() as folder:
        alone, both = Path(folder) / "alone.html", Path(folder) / "both.html"
        recorded["scratch"].to_html(alone, heads=[(LAYER, HEAD)])
        recorded["scratch"].to_html(both, other=recorded["causal"])
        browser = Browser(1400, 1303)
        try:
            browser.call("Emulation.setScrollbarsHidden", hidden=True)
            for path, name, scheme, view in (
                (alone, "viewer-light.png", "light", f"#step=22&layer={LAYER}&head={HEAD}"),
                (both, "viewer-dark.png", "dark", f"#step=34&layer={LAYER}&b=1"),
            ):
                browser.open(path, view)
                browser.media(prefers_color_scheme=scheme)
                take(browser, out / name, "body", ".cards > .card:nth-child(3)")
                made.append(out / name)
        finally:
            browser.close()
    return made


def english(out: Path) -> list[Path]:
    """SmolLM2 and its diffusion twin go on from the same sentences; both side by side in the viewer."""
    decodings = {"smollm2-twin": ss.DreamDecoding(length=40, steps=40), "smollm2": ss.GreedyDecoding(length=40)}
    recorded = []
    for name, decoding in decodings.items():
        model = ss.load(name, device="cpu")
        run = ss.generate(model, torch.tensor([text_ids(model, OPENING)]), decoding, capture=ss.Capture())
        print(f"{name}: {run.texts[0]}")
        assert run.trace is not None
        recorded.append(run.trace)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "both.html"
        recorded[0].to_html(page, other=recorded[1])
        browser = Browser(1400, 1303)
        try:
            browser.call("Emulation.setScrollbarsHidden", hidden=True)
            browser.open(page, "#step=24&b=1")
            browser.media(prefers_color_scheme="light")
            take(browser, out / "english.png", "body", ".cards > .card:nth-child(2)")
        finally:
            browser.close()
    return [out / "english.png"]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="The pictures of the docs.")
    commands = parser.add_subparsers(dest="command", required=True)
    of_report = commands.add_parser("report", help="the report of a finished study")
    of_report.add_argument("study", type=Path)
    of_traces = commands.add_parser("traces", help="two organisms in the viewer")
    of_english = commands.add_parser("english", help="SmolLM2 and its diffusion twin in the viewer")
    for command in (of_report, of_traces, of_english):
        command.add_argument("out", type=Path)
    given = parser.parse_args()
    take_all = {"report": lambda out: report(given.study, out), "traces": traces, "english": english}
    for path in take_all[given.command](given.out):
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
