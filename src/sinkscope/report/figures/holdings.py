"""What sinks hold: patches, lens, probes and movement of an inspection, sinks beside their controls."""

from __future__ import annotations

from typing import Any

import pandas as pd

from sinkscope.inspection.survey import LAYER_WORDS, PATCHES, patched, probes
from sinkscope.report.figures import look

COLOURS = {"sinks": "#cf4173", "others": "#7f7f7f", "shuffled": "#c7c7c7"}
WORDS = {"sinks": "at sinks", "others": "at random places of the same kind", "shuffled": "labels in a random order"}

KL = {patched(name, "kl"): name for name, *_ in PATCHES}
"""Measure of a patch → the patch."""


def plot_holdings(table: pd.DataFrame, title: str = "What sinks hold") -> look.PaperFigure:
    """Four panels from the table of an inspection (see `sinkscope.inspection.survey.survey_table`)."""
    residual = {probe.name: probe for layers in range(1, 4) for probe in probes(layers) if probe.vector == "residual"}
    shown = table[
        ((table["section"] == "patch") & table["measure"].isin(KL))
        | ((table["section"] == "lens") & (table["measure"] == "a token due elsewhere"))
        | ((table["section"] == "probe") & table["measure"].isin(residual))
        | ((table["section"] == "movement") & (table["measure"] == "drift of the value"))
    ]
    shown = shown[shown["place"].isin(COLOURS)].reset_index(drop=True)
    with look.style():
        figure, axes = look.sheet(2, 2, look.PAGE, 4.6)
        patch = shown[shown["section"] == "patch"].replace({"measure": KL})
        _dots(axes[0][0], patch, "KL of the predictions, nats")
        axes[0][0].set_xscale("symlog", linthresh=1e-3)
        _lines(axes[0][1], shown[shown["section"] == "lens"], "reads a token due elsewhere")
        asked = shown[shown["section"] == "probe"]
        # One layer is shown, the one in the middle where it was asked, else the last.
        layers = list(dict.fromkeys(residual[name].where for name in asked["measure"]))
        chosen = LAYER_WORDS[1] if LAYER_WORDS[1] in layers else layers[-1] if layers else ""
        asked = asked[asked["measure"].map(lambda name: residual[name].where == chosen).astype(bool)]
        asked = asked.assign(measure=[residual[name].label for name in asked["measure"]])
        _dots(axes[1][0], asked, f"skill of a held-out probe, residual of layer {chosen}")
        axes[1][0].set_xlim(-0.5, 1.05)
        axes[1][0].axvline(0, color="#7f7f7f", linewidth=0.5)
        _lines(axes[1][1], shown[shown["section"] == "movement"], "drift of values, 1 − cosine")
        look.legend(figure, axes[0][0], {WORDS[place]: colour for place, colour in COLOURS.items()})
    n = int(table["n"].max()) if len(table) else 0
    return look.finished("holdings", figure, shown, whose=title, n=n)


def _dots(axes: Any, rows: pd.DataFrame, label: str) -> None:
    rows = rows[rows["layer"] == -1]
    names = list(dict.fromkeys(rows["measure"]))
    for shift, place in zip((-0.2, 0.0, 0.2), COLOURS, strict=True):
        part = rows[rows["place"] == place].dropna(subset="value")
        if len(part):
            y = [names.index(name) + shift for name in part["measure"]]
            bounds = (part[name] for name in ("value", "low", "high"))
            look.intervals(axes, y, bounds, flat=True, fmt="o", markersize=3, linewidth=0.8, color=COLOURS[place])
    axes.set(yticks=range(len(names)), yticklabels=names, xlabel=label)
    if names:
        axes.set_ylim(len(names) - 0.5, -0.5)
    else:
        axes.text(0.5, 0.5, "too few prompts", ha="center", va="center", transform=axes.transAxes)


def _lines(axes: Any, rows: pd.DataFrame, label: str) -> None:
    rows = rows[rows["layer"] >= 0]
    for place, part in rows.groupby("place", sort=False):
        part = part.sort_values("layer")
        axes.plot(part["layer"], part["value"], color=COLOURS[str(place)], marker="o", markersize=2.5)
        axes.fill_between(part["layer"], part["low"], part["high"], color=COLOURS[str(place)], alpha=0.2, linewidth=0)
    axes.set(xlabel="layer", ylabel=label)
    axes.locator_params(axis="x", integer=True)
    if not len(rows):
        axes.text(0.5, 0.5, "void for this model", ha="center", va="center", transform=axes.transAxes)
