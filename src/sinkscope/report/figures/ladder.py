"""Training runs over seeds: what masking costs against size, by objective and scope; and which sinks move, by objective."""

from __future__ import annotations

import pandas as pd

from sinkscope.report.figures import look
from sinkscope.study.ladder import UNITS

COLOURS = ("#cf4173", "#2b7bba", "#1b9e77", "#e08214", "#7b3294", "#444444")
COLUMNS = ("panel", "objective", "parameters", "intervention", "seeds", "measure", "value", "low", "high")
MOVEMENT = "moving or vanishing heads"


def plot_ladder(damage: pd.DataFrame, sinks: pd.DataFrame | None = None) -> look.PaperFigure:
    """A panel for each task and policy, and one for movement; a line for each objective, x is the number of parameters.

    Args:
        damage: the table `ladder` of a study (see `sinkscope.study.ladder`). sinks: its table `ladder_sinks`, for movement.
    """
    shown = _data(damage, sinks)
    panels = list(dict.fromkeys(shown["panel"]))
    kinds = list(dict.fromkeys(zip(shown["objective"], shown["intervention"], strict=True)))
    colours = {kind: COLOURS[place % len(COLOURS)] for place, kind in enumerate(kinds)}
    # Layouts of one size differ by a few biases: a tick for all of them.
    ticks = {float(f"{count:.1e}"): f"{count / 1e6:.2g}M" for count in shown["parameters"]}
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    with look.style():
        figure, axes = look.sheet(rows, columns, look.PAGE, 0.5 + 2.0 * rows)
        for spare in axes.flat[len(panels) :]:
            spare.set_visible(False)
        for axis, panel in zip(axes.flat, panels, strict=False):
            for kind in kinds:
                own = shown[(shown["panel"] == panel) & (shown["objective"] == kind[0])]
                own = own[own["intervention"] == kind[1]].sort_values("parameters")
                look.interval_line(
                    axis, own, "parameters", ("value", "low", "high"), colours[kind], capsize=2
                )
            axis.set(title=panel.replace(", ", "\n"), xscale="log", xlabel="parameters")
            axis.set_ylabel(_label(shown[shown["panel"] == panel]))
            axis.axhline(0.0, color="#999999", linewidth=0.5)
            low, high = axis.get_ylim()
            axis.set_ylim(min(low, -0.05), max(high, 0.05))
            axis.set_xticks(list(ticks), list(ticks.values()))
            axis.set_xlim(0.7 * min(ticks), 1.4 * max(ticks))
            axis.minorticks_off()
        handles = [
            axes[0][0].plot([], [], "o-", color=colours[kind], label=": ".join(filter(None, kind)))[0]
            for kind in kinds
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(3, len(kinds)))
    seeds = sorted({int(count) for count in shown["seeds"]})
    return look.finished("ladder", figure, shown, seeds=" or ".join(map(str, seeds)))


def _label(panel: pd.DataFrame) -> str:
    """What the y axis of a panel shows."""
    measure = str(panel["measure"].iloc[0])
    return "share of head-steps" if measure == "moving" else f"{UNITS[measure]} lost"


def _data(damage: pd.DataFrame, sinks: pd.DataFrame | None) -> pd.DataFrame:
    """One row for each mark: panel, objective, parameters, intervention, seeds, measure, value, low, high."""
    whole = damage[~damage["task"].str.startswith("battery:")]  # the skills one by one are in the table
    lost = whole.assign(panel=whole["task"] + ", " + whole["policy"])
    lost = lost.rename(columns={"damage": "value", "damage_low": "low", "damage_high": "high"})
    parts = [lost[list(COLUMNS)]]
    if sinks is not None and (sinks["measure"] == "moving").any():
        moved = sinks[sinks["measure"] == "moving"].assign(panel=MOVEMENT)
        parts.append(moved.rename(columns={"value_low": "low", "value_high": "high"})[list(COLUMNS)])
    return pd.concat(parts, ignore_index=True)
