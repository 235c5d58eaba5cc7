"""The pictures of traces in the docs: two of the viewer, by headless Chromium, and two heat maps side by side.

    python tests/report/shoot_traces.py docs/images

Both organisms answer the README's question; writes viewer-light.png, viewer-dark.png and heatmaps.png.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.report.browser import Browser
from tests.report.shoot import few_colours

import sinkscope as ss
from sinkscope.report.figures import heat_map, look

QUESTION = "Jack has 6 bags with 6 seeds each. He sells 28 of them. He buys 39 more. How many seeds does he have now?"
LAYER, HEAD = 1, 7
"""A head of organism/scratch whose sink moves."""
NOTE = (
    f"Attention that each position receives, layer {LAYER}, mean of its heads. Dark columns are keys that many queries look at.\n"
    "In the diffusion model some appear, shift and fade as tokens are written. The causal one has one at its first token,\n"
    "and others that come with the text. White: not written yet, or seen by fewer than 16 queries."
)


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


def shoot(out: Path) -> list[Path]:
    """Takes every picture."""
    traces = record()
    made = []
    with tempfile.TemporaryDirectory() as folder:
        alone, both = Path(folder) / "alone.html", Path(folder) / "both.html"
        traces["scratch"].to_html(alone, heads=[(LAYER, HEAD)])
        traces["scratch"].to_html(both, other=traces["causal"])
        browser = Browser(1400, 1303)
        try:
            for path, name, scheme, view in (
                (alone, "viewer-light.png", "light", f"#step=22&layer={LAYER}&head={HEAD}"),
                (both, "viewer-dark.png", "dark", f"#step=34&layer={LAYER}&b=1"),
            ):
                browser.open(path, view)
                browser.media(prefers_color_scheme=scheme)
                browser.screenshot(out / name)
                few_colours(out / name)
                made.append(out / name)
        finally:
            browser.close()
    names = {
        "organism/scratch (masked diffusion)": traces["scratch"],
        "organism/causal (autoregressive)": traces["causal"],
    }
    figure = heat_map.draw(heat_map.table(names, layers=[LAYER]))
    with look.style():
        figure.supxlabel(NOTE, fontsize="small")
    figure.savefig(out / "heatmaps.png", dpi=200)
    few_colours(out / "heatmaps.png")
    return [*made, out / "heatmaps.png"]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tests/report/shoot_traces.py OUT")
    for path in shoot(Path(sys.argv[1])):
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
