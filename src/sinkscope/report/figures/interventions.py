"""Training runs over seeds: what each change of attention, spelling or training changes, compared with runs without it."""

from __future__ import annotations

import pandas as pd

from sinkscope.report.figures import look
from sinkscope.report.figures.ladder import COLOURS

SHOWN = {
    "sinks": "sinks per head",
    "main_sink": "main sink, share of attention",
    "moving": "moving or vanishing heads",
    "nats per token: text": "nats per token",
    "accuracy: word_problems": "accuracy, word problems",
    "accuracy: small_code": "accuracy, programs",
    "damage: text, top:1": "nats lost under top:1",
    "damage: word_problems, top:1": "accuracy lost under top:1,\nword problems",
    "damage: small_code, top:1": "accuracy lost under top:1,\nprograms",
}
"""Measure of the table → title of its panel; measures that the table lacks have none."""


def plot_interventions(changes: pd.DataFrame) -> look.PaperFigure:
    """A panel for each measure: intervention minus none at the same objective, size, tokens and seed, with its interval.

    Args:
        changes: the table `ladder_interventions` of a study (see `sinkscope.study.ladder`), with at least one measure of SHOWN.
            Of several sizes the smallest is shown.
    """
    own = changes[changes["measure"].isin(SHOWN)]
    own = own[own["parameters"] == own["parameters"].min()]
    panels = [measure for measure in SHOWN if (own["measure"] == measure).any()]
    names, objectives = (list(dict.fromkeys(own[column])) for column in ("intervention", "objective"))
    colours = dict(zip(objectives, COLOURS, strict=False))
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    with look.style():
        figure, axes = look.sheet(
            rows, columns, look.PAGE, 0.6 + rows * (0.55 + 0.24 * len(names)), sharey=True
        )
        for spare in axes.flat[len(panels) :]:
            spare.set_visible(False)
        for axis, measure in zip(axes.flat, panels, strict=False):
            axis.axvline(0.0, color="#999999", linewidth=0.5)
            for shift, objective in enumerate(objectives):
                part = own[(own["measure"] == measure) & (own["objective"] == objective)]
                value, low, high = (
                    part[f"difference{end}"].astype(float).to_numpy() for end in ("", "_low", "_high")
                )
                places = [
                    names.index(name) + 0.22 * (shift - (len(objectives) - 1) / 2)
                    for name in part["intervention"]
                ]
                error = [(value - low).clip(0), (high - value).clip(0)]
                axis.errorbar(
                    value, places, xerr=error, fmt="o", markersize=3, linewidth=0.8, capsize=2, color=colours[objective]
                )  # fmt: skip
            axis.set(title=SHOWN[measure], ylim=(len(names) - 0.5, -0.5))
            axis.set_yticks(range(len(names)), names)
        handles = [axes[0][0].plot([], [], "o", color=colours[name], label=name)[0] for name in objectives]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(objectives))
    return look.finished("interventions", figure, own.reset_index(drop=True), seeds=int(own["seeds"].min()))
