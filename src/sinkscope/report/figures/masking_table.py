"""Table 1: accuracy with sinks masked, from a table of accuracies."""

from __future__ import annotations

import pandas as pd

from sinkscope.errors import InputError
from sinkscope.report.figures import look

COLUMNS = ("task", "policy", "model", "accuracy")


def plot_masking_table(accuracies: pd.DataFrame) -> look.PaperFigure:
    """Tasks and policies downwards, models to the right, as the paper prints it.

    Args:
        accuracies: columns task, policy ("" or "none": unmasked), model, accuracy in [0, 1], and perhaps stderr.

    Returns:
        Table: these columns, in order.
    """
    table = _checked(accuracies)
    models = list(dict.fromkeys(table["model"]))
    rows = []
    for (task, policy), part in table.groupby(["task", "policy"], sort=False):
        cells = part.set_index("model")
        row = [str(task), "unmasked" if policy == "none" else str(policy)]
        for model in models:
            if model not in cells.index:
                row.append("–")
                continue
            value, error = float(cells.loc[model, "accuracy"]), float(cells.loc[model, "stderr"])
            row.append(f"{value:.2f} ± {error:.2f}" if error == error else f"{value:.2f}")
        rows.append(row)
    return look.finished("table_1", look.printed_table(["task", "sinks", *models], rows, look.PAGE), table)


def _checked(accuracies: pd.DataFrame) -> pd.DataFrame:
    missing = [name for name in COLUMNS if name not in accuracies]
    if missing:
        raise InputError(
            f"table_1 needs the columns {', '.join(COLUMNS)} and may have stderr; {missing[0]} is missing"
        )
    table = accuracies.copy()
    table["policy"] = table["policy"].fillna("").replace("", "none")
    if not table["accuracy"].between(0, 1).all():
        raise InputError(f"table_1 needs accuracies between 0 and 1, got {table['accuracy'].max()}")
    twice = table[table.duplicated(["task", "policy", "model"])]
    if len(twice):
        row = twice.iloc[0]
        raise InputError(
            f"table_1 has two accuracies for {row['task']}, {row['policy']}, {row['model']}; average them first"
        )
    if "stderr" not in table:
        table["stderr"] = float("nan")
    return table[[*COLUMNS, "stderr"]].reset_index(drop=True)
