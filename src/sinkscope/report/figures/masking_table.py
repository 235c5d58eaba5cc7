"""Table 1: accuracy with sinks masked, from a table of accuracies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from sinkscope.errors import InputError
from sinkscope.report.figures import look
from sinkscope.report.figures.sources import caption as words
from sinkscope.report.figures.table import draw_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "table_1"
TITLE = "Accuracy with sinks masked"
COLUMNS = ("task", "policy", "model", "accuracy")


def table(accuracies: pd.DataFrame) -> pd.DataFrame:
    """Checked and in order. Columns task, policy ("" or "none": unmasked), model, accuracy in [0, 1]; optional stderr."""
    missing = [name for name in COLUMNS if name not in accuracies]
    if missing:
        raise InputError(
            f"{NAME} needs the columns {', '.join(COLUMNS)} and may have stderr; {missing[0]} is missing"
        )
    found = accuracies.copy()
    found["policy"] = found["policy"].fillna("").replace("", "none")
    if not found["accuracy"].between(0, 1).all():
        raise InputError(f"{NAME} needs accuracies between 0 and 1, got {found['accuracy'].max()}")
    twice = found.duplicated(["task", "policy", "model"])
    if twice.any():
        row = found[twice].iloc[0]
        raise InputError(
            f"{NAME} has two accuracies for {row['task']}, {row['policy']}, {row['model']}; average them first"
        )
    if "stderr" not in found:
        found["stderr"] = float("nan")
    return found[[*COLUMNS, "stderr"]].reset_index(drop=True)


def draw(data: pd.DataFrame) -> Figure:
    """Tasks and policies downwards, models to the right, as the paper prints it."""
    models = list(dict.fromkeys(data["model"]))
    rows = []
    for (task, policy), part in data.groupby(["task", "policy"], sort=False):
        cells = part.set_index("model")
        row = [str(task), "unmasked" if policy == "none" else str(policy)]
        for model in models:
            if model not in cells.index:
                row.append("–")
                continue
            value, error = float(cells.loc[model, "accuracy"]), float(cells.loc[model, "stderr"])
            row.append(f"{value:.2f} ± {error:.2f}" if error == error else f"{value:.2f}")
        rows.append(row)
    with look.style():
        return draw_table(["task", "sinks", *models], rows, look.PAGE)


def caption(data: pd.DataFrame) -> str:
    """What is seen, how it was computed, what it does not show."""
    return words(
        "Accuracy with the keys that a policy takes hidden, beside the unmasked model.",
        "share of problems answered right; ± is one standard error where it was given.",
        "that a sink matters: hiding any keys can cost accuracy. Read it beside count- and mass-matched random controls and "
        "beside `silence`; only where all agree is the loss due to the sink.",
    )
