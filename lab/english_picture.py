"""The picture of docs/english.md: sinks by training step in the twins of SmolLM2, from the curves in lab/english.

    python -m lab.english_picture docs/images

Writes english-training.png. A line is the mean of three seeds; a band goes from the lowest to the highest.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from lab.screenshots import few_colours
from sinkscope.report.figures import look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVES = Path(__file__).parent / "english"
LORA, FULL, RANDOM, NOTE = "#0072B2", "#D55E00", "#009E73", "#666666"
"""The first three colours of the style, and grey for words that are about no way of training."""

WAYS = {"lora": LORA, "full": FULL, "random": RANDOM}
"""Way of training, as in the names of the runs → its colour."""

DASHES = {0.25: (0, (1, 1)), 0.5: "-", 0.75: (0, (4, 1.5)), 1.0: "-"}
"""Share of masked tokens → its line."""

STEPS = (0, 1, 4, 16, 64, 181, 420)
"""Those with a number below them: the page's table has the last four, and 0."""


class Label(NamedTuple):
    """Words beside a line, which begin at a step, or end there ("right")."""

    words: str
    colour: str
    step: float
    value: float
    align: str = "left"


@dataclass(frozen=True)
class Panel:
    """A measure of emergence.csv.gz by training step, at some shares of masked tokens; `level` is a thin grey line."""

    measure: str
    title: str
    masked: str
    shares: tuple[float, ...]
    top: float
    labels: tuple[Label, ...]
    level: float | None = None


PANELS = (
    Panel(
        "first_received", "attention on the first token, × uniform", "50 % of the tokens masked", (0.5,), 125,
        (
            Label("all weights", FULL, 8, 74, "right"),
            Label("LoRA", LORA, 12, 58),
            Label("random weights", RANDOM, 420, 8, "right"),
        ),
    ),
    Panel(
        "value_ratio", "value norm of a head's main sink, × median", "50 % of the tokens masked", (0.5,), 1.75,
        (
            Label("LoRA", LORA, 8, 0.43),
            Label("all weights", FULL, 8, 0.2),
            Label("random weights", RANDOM, 84, 1.36, "right"),
            Label("median of all tokens", NOTE, 0.1, 1.03),
        ),
        level=1.0,
    ),
    Panel(
        "sinks_per_head", "sinks per head", "25 % (dotted), 50 %, 75 % (dashed) of the tokens masked",
        (0.25, 0.5, 0.75), 25,
        (
            Label("all weights", FULL, 13, 16.2, "right"),
            Label("LoRA", LORA, 24, 17.2),
            Label("random weights", RANDOM, 84, 21, "right"),
            Label("25, 50 %", NOTE, 455, 20.7),
            Label("75 %", NOTE, 455, 17.2),
            Label("75 %", NOTE, 455, 10.2),
            Label("50 %", NOTE, 455, 8.1),
            Label("25 %", NOTE, 455, 6.0),
        ),
    ),
    Panel(
        "sink_heads", "share of heads with a sink", "all tokens masked", (1.0,), 1,
        (
            Label("LoRA", LORA, 20, 0.64, "right"),
            Label("all weights", FULL, 84, 0.52),
            Label("random weights", RANDOM, 420, 0.28, "right"),
        ),
    ),
)  # fmt: skip


def curves() -> pd.DataFrame:
    """Rows of the twins: way, seed, step, masked share, measure, value."""
    files = (CURVES / "emergence.csv.gz", CURVES / "weights" / "emergence.csv.gz")
    found = pd.concat(map(pd.read_csv, files), ignore_index=True)
    twins = found[found["run"].str.startswith("twin-")]
    names = twins["run"].str.split("-", expand=True)
    return twins.assign(way=names[1], seed=names[2])


def draw(found: pd.DataFrame) -> Figure:
    """A panel for each measure."""
    with look.style():
        figure, axes = look.sheet(2, 2, look.PAGE, 4.9)
        figure.set_layout_engine("constrained", h_pad=0.08)
        for axis, panel in zip(axes.flat, PANELS, strict=True):
            _panel(axis, panel, found[found["measure"] == panel.measure])
    return figure


def _panel(axis: Any, panel: Panel, found: pd.DataFrame) -> None:
    if panel.level is not None:
        axis.axhline(panel.level, color="#999999", linewidth=0.5)
    for way, colour in WAYS.items():
        for share in panel.shares:
            own = found[(found["way"] == way) & (found["masked share"] == share)]
            # Steps at which every seed has a value: where no head has a sink, there is no value norm.
            seeds = own.pivot(index="step", columns="seed", values="value").dropna()
            ends = seeds.min(axis=1), seeds.max(axis=1)
            axis.fill_between(
                seeds.index, *ends, color=colour, alpha=0.2 / len(panel.shares) ** 0.5, linewidth=0
            )
            axis.plot(seeds.index, seeds.mean(axis=1), color=colour, linestyle=DASHES[share])
    for label in panel.labels:
        axis.text(label.step, label.value, label.words, color=label.colour, ha=label.align)
    axis.set_title(panel.title, pad=17)
    axis.text(0, 1.04, panel.masked, transform=axis.transAxes)
    axis.set_xscale("symlog", linthresh=1, linscale=0.3)
    axis.set(xlim=(0, STEPS[-1]), ylim=(0, panel.top), xlabel="training step")
    axis.set_xticks(STEPS, [str(step) for step in STEPS])
    axis.minorticks_off()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="the folder for english-training.png")
    path = parser.parse_args().out / "english-training.png"
    draw(curves()).savefig(path, dpi=200)
    few_colours(path)
    print(path)


if __name__ == "__main__":
    main()
