"""Approximate steps: accuracy and agreement with the exact run against the work that each reuse rule saves."""

from __future__ import annotations

import pandas as pd

from sinkscope.report.figures import look

COLOURS = {
    "exact": "#000000", "sinks": "#cf4173", "received": "#e08214", "recent": "#2b7bba", "first": "#1b9e77", "random": "#7f7f7f",
}  # fmt: skip
OTHER = ("#7b3294", "#a6761d", "#66a61e", "#444444", "#80b1d3", "#b3de69")
MEASURES = (("accuracy", "low", "high"), ("tokens_equal", "tokens_equal_low", "tokens_equal_high"))
CAPTION = {
    "title": "Approximate steps",
    "seen": "Approximate steps: what a rule keeps of the exact run against the work it saves; {n} documents.",
    "computed": "work: multiply-adds through the layers of the same steps in full; accuracy with Wilson's, tokens equal with "
    "Student's 95 % interval over documents; a line joins the sizes of one rule.",
    "not_shown": "time, which also depends on the machine; and other tasks or longer texts, where more is kept and less "
    "computed.",
}
COLUMNS = ("model", "task", "decoding_name", "reuse", "series", "n", "agreement_n", "work_saved")


def plot_frontier(table: pd.DataFrame) -> look.PaperFigure:
    """A column of panels for each model of the table `reuse` (see `reuse.study.table`), one row for each measure."""
    shown = table[[*COLUMNS, *(name for names in MEASURES for name in names)]].reset_index(drop=True)
    models = list(dict.fromkeys(shown["model"]))
    measures = [names for names in MEASURES if shown[names[0]].notna().any()]
    series = list(dict.fromkeys(shown["series"]))
    others = [name for name in series if name not in COLOURS]
    colours = COLOURS | {name: OTHER[place % len(OTHER)] for place, name in enumerate(others)}
    with look.style():
        figure, axes = look.sheet(len(measures), len(models), look.PAGE, 0.4 + 2.0 * len(measures))
        for column, model in enumerate(models):
            for row, names in enumerate(measures):
                axis = axes[row][column]
                rows = shown[(shown["model"] == model) & shown[names[0]].notna()]
                for name in series:
                    for _, line in rows[rows["series"] == name].groupby("decoding_name", sort=False):
                        line = line.sort_values("work_saved")
                        look.interval_line(axis, line, "work_saved", names, colours[name])
                axis.set_ylim(-0.03, 1.03)
                most = max(0.001, float(shown.loc[shown["model"] == model, "work_saved"].max()))
                axis.set_xlim(-0.05 * most, 1.05 * most)  # each model's own: a causal cache saves far less
                if row == 0:
                    axis.set_title(look.short(str(model)))
                if row == len(measures) - 1:
                    axis.set_xlabel("multiply-adds saved")
                if column == 0:
                    axis.set_ylabel(names[0].replace("_", " "))
        handles = [axes[0][0].plot([], [], "o", color=colours[name], label=name)[0] for name in series]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(6, len(series)))
    counts = sorted({int(n) for name in ("n", "agreement_n") for n in shown[name].dropna()})
    return look.finished("frontier", figure, shown, CAPTION, n=" or ".join(map(str, counts)))
