"""Verdicts on traces by threshold and rule: which of them rest on ε = 3."""

from __future__ import annotations

import pandas as pd

from sinkscope.report.figures import look

COLOURS = {"supported": "#2b7bba", "contradicted": "#cf4173", "undecided": "#d9d9d9"}

USUAL = ("auto", "sum", "distance")
"""Rules whose columns are named by their ε."""


def plot_sensitivity(table: pd.DataFrame) -> look.PaperFigure:
    """A panel for each model of the table `sensitivity`: a row for each claim, a column for each ε, and each rule at ε = 3."""
    shown = table[["model", "question", "epsilon", "rule", "status", "value"]].reset_index(drop=True)
    shown["setting"] = ["" if rule in USUAL else str(rule) for rule in shown["rule"]]
    settings = sorted({(name, float(at)) for name, at in zip(shown["setting"], shown["epsilon"], strict=True)})
    labels = [name or f"{epsilon:g}" for name, epsilon in settings]
    models, claims = (list(dict.fromkeys(shown[name])) for name in ("model", "question"))
    with look.style():
        # Title, upright labels and legend take their inches whatever the number of claims.
        figure, axes = look.sheet(1, len(models), look.PAGE, 1.4 + 0.16 * len(claims))
        for axis, model in zip(axes[0], models, strict=True):
            rows = shown[shown["model"] == model]
            columns = (rows[name] for name in ("question", "epsilon", "setting", "status"))
            for question, epsilon, name, status in zip(*columns, strict=True):
                place = settings.index((name, float(epsilon))), claims.index(question)
                axis.scatter(*place, marker="s", s=36, color=COLOURS[str(status)])
            axis.set_title(look.short(str(model)))
            axis.set_xticks(range(len(settings)), labels, rotation=90)
            axis.set_yticks(range(len(claims)), claims if axis is axes[0][0] else [])
            axis.set_ylim(len(claims) - 0.5, -0.5)
            axis.set_xlabel("ε, or another rule at 3")
        look.legend(figure, axes[0][0], COLOURS, "s")
    return look.finished("sensitivity", figure, shown)
