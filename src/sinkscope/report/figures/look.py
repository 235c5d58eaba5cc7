"""How the figures look: the style file, the colours of received attention, and the sheet that every figure is drawn on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.4, 7.0
"""Widths in inches: one column, and the whole page."""

RAMP = ("#f8f7f4", "#fdebcf", "#fccd93", "#f9a06b", "#ee6f62", "#cf4173", "#9d2a7c", "#641f73", "#2a1250")
PALE = 0.16
"""Share of the colours for scores under uniform attention; above it each doubling is one more step."""


@contextmanager
def style() -> Iterator[None]:
    """Inside, matplotlib follows sinkscope.mplstyle; outside nothing has changed."""
    import matplotlib.style

    with (
        as_file(files("sinkscope.report.figures") / "sinkscope.mplstyle") as path,
        matplotlib.style.context(str(path)),
    ):
        yield


def sheet(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Figure, Any]:
    """A figure with axes [rows, columns]; no pyplot, so nothing global."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def received_colours() -> Any:
    """The ramp of the viewer as a colour map; what does not exist is white."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("received", RAMP).with_extremes(bad="#ffffff")


def received_norm(top: float) -> Any:
    """0 … top: pale and linear up to uniform attention (1), then logarithmic."""
    from matplotlib.colors import FuncNorm

    top = max(2.0, float(top))

    def forward(value: Any) -> Any:
        value = np.asarray(value, dtype=float)
        with np.errstate(invalid="ignore", divide="ignore"):
            above = PALE + (1 - PALE) * np.log(np.maximum(value, 1.0)) / np.log(top)
        return np.where(value <= 1, PALE * value, above)

    def inverse(part: Any) -> Any:
        part = np.asarray(part, dtype=float)
        return np.where(part <= PALE, part / PALE, np.exp((part - PALE) / (1 - PALE) * np.log(top)))

    return FuncNorm((forward, inverse), vmin=0.0, vmax=top)


def received_ticks(top: float) -> list[int]:
    """Powers of two up to the top, and 0 and 1."""
    powers = [2**i for i in range(12) if 2**i <= top]
    return [0, *(powers if len(powers) < 6 else powers[::2])]


def grid_of(table: Any, row: str, column: str, value: str) -> tuple[Any, Any, Any]:
    """A long table as (rows, columns, values [row, column]), NaN where the table has none."""
    wide = table.pivot_table(index=row, columns=column, values=value, sort=True)
    return wide.index.to_numpy(), wide.columns.to_numpy(), wide.to_numpy(dtype=float)


def show(axes: Any, rows: Any, columns: Any, values: Any, norm: Any, **options: Any) -> Any:
    """A grid as a picture with the labels of its rows and columns, the first row on top."""
    edges = (columns[0] - 0.5, columns[-1] + 0.5, rows[-1] + 0.5, rows[0] - 0.5)
    picture = axes.imshow(values, norm=norm, extent=edges, rasterized=True, **options)
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)
    return picture
