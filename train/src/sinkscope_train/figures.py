"""Training runs over seeds as a figure: what masking costs against size, and which sinks move."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from sinkscope.report.figures import look

CAPTIONS = tomllib.loads((Path(__file__).parent / "data" / "captions.toml").read_text(encoding="utf-8"))
COLOURS = ("#cf4173", "#2b7bba", "#1b9e77", "#e08214", "#7b3294", "#444444")
COLUMNS = ("panel", "objective", "parameters", "intervention", "seeds", "unit", "value", "low", "high")
MOVEMENT = "moving or vanishing heads"


def figures(frames: Mapping[str, pd.DataFrame]) -> list[look.PaperFigure]:
    """The figures that the tables of a study allow."""
    return [plot_ladder(frames["ladder"], frames.get("ladder_sinks"))] if "ladder" in frames else []


def plot_ladder(damage: pd.DataFrame, sinks: pd.DataFrame | None = None) -> look.PaperFigure:
    """A panel for each task and policy, and one for movement; a line for each objective, x is the number of parameters.

    Args:
        damage: the table `ladder` of a study (see `sinkscope_train.ladder`). sinks: its table `ladder_sinks`, for movement.
    """
    shown = _marks(damage, sinks)
    panels = list(dict.fromkeys(shown["panel"]))
    kinds = list(dict.fromkeys(zip(shown["objective"], shown["intervention"], strict=True)))
    colours = {kind: COLOURS[number % len(COLOURS)] for number, kind in enumerate(kinds)}
    # Layouts of one size differ by a few biases: a tick for all of them.
    ticks = {float(f"{count:.1e}"): f"{count / 1e6:.2g}M" for count in shown["parameters"]}
    with look.style():
        columns = min(3, len(panels))
        rows = -(-len(panels) // columns)
        figure, axes = look.sheet(rows, columns, look.PAGE, 0.5 + 2.0 * rows)
        for spare in axes.flat[len(panels) :]:
            spare.set_visible(False)
        for axis, panel in zip(axes.flat, panels, strict=False):
            inside = shown[shown["panel"] == panel]
            for objective, intervention in kinds:
                line = inside[(inside["objective"] == objective) & (inside["intervention"] == intervention)]
                look.interval_line(
                    axis, line.sort_values("parameters"), "parameters", ("value", "low", "high"),
                    colours[objective, intervention], capsize=2,
                )  # fmt: skip
            label = "share of heads and steps" if panel == MOVEMENT else f"{inside['unit'].iloc[0]} lost"
            axis.set(title=panel.replace(", ", "\n"), xscale="log", xlabel="parameters", ylabel=label)
            axis.axhline(0.0, color="#999999", linewidth=0.5)
            low, high = axis.get_ylim()
            axis.set_ylim(min(low, -0.05), max(high, 0.05))
            axis.set_xticks(list(ticks), list(ticks.values()))
            axis.set_xlim(0.7 * min(ticks), 1.4 * max(ticks))
            axis.minorticks_off()
        names = [": ".join(filter(None, kind)) for kind in kinds]
        handles = [axes[0][0].plot([], [], "o-", color=colours[kind])[0] for kind in kinds]
        figure.legend(handles, names, loc="outside lower center", ncols=min(3, len(names)))
    seeds = sorted({int(count) for count in shown["seeds"]})
    return look.finished("ladder", figure, shown, CAPTIONS["ladder"], seeds=" or ".join(map(str, seeds)))


def _marks(damage: pd.DataFrame, sinks: pd.DataFrame | None) -> pd.DataFrame:
    """One row for each mark, with COLUMNS."""
    whole = damage[~damage["task"].str.startswith("battery:")]  # the skills one by one are in the table
    lost = whole.assign(panel=whole["task"] + ", " + whole["policy"])
    parts = [lost.rename(columns={"damage": "value", "damage_low": "low", "damage_high": "high"})]
    if sinks is not None and (sinks["measure"] == "moving").any():
        moved = sinks[sinks["measure"] == "moving"].assign(panel=MOVEMENT, unit="")
        parts.append(moved.rename(columns={"value_low": "low", "value_high": "high"}))
    return pd.concat([part[list(COLUMNS)] for part in parts], ignore_index=True)
