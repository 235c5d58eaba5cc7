"""What every figure has: style, colours of received attention, sheets, what several draw alike, and `PaperFigure`.

`heat_panels` draws grids of received attention side by side, `intervals` values with their intervals. A `PaperFigure` is the
picture, the data behind it and a caption; saved as SVG, PDF, CSV and text.
"""

from __future__ import annotations

import base64
import html
import io
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sinkscope.base.text import csv_text, visible

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

ENDINGS = ("svg", "pdf", "csv", "txt")
NAMED = 4
"""Models that a sentence names; of more it says how many there are."""
CAPTIONS = tomllib.loads((Path(__file__).parent / "captions.toml").read_text(encoding="utf-8"))

COLUMN, PAGE = 3.4, 7.0
"""Widths in inches: one column, and the whole page."""

RAMP = ("#f8f7f4", "#fdebcf", "#fccd93", "#f9a06b", "#ee6f62", "#cf4173", "#9d2a7c", "#641f73", "#2a1250")
RAMP_DARK = ("#191b22", "#2a1f45", "#4f2374", "#822a80", "#b93a79", "#e5606a", "#f98f62", "#fcc48a", "#fdf3c8")
PALE = 0.16
"""Share of the colours for scores under uniform attention; above it each doubling is one more step."""

BESIDE, LONGEST = 4, 28
"""Panels side by side at most, and characters of a name that stands above or beside one."""


@contextmanager
def style() -> Iterator[None]:
    """Inside, matplotlib follows sinkscope.mplstyle; outside nothing has changed."""
    import matplotlib.style

    with as_file(files("sinkscope.report.figures") / "sinkscope.mplstyle") as path, matplotlib.style.context(str(path)):
        yield


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper, drawn from traces.

    Attributes:
        name: figure_1 … figure_10.
        figure: the matplotlib figure.
        table: the data behind it, one row for each mark.
        caption: what is seen, how it was computed, what it does not show.
    """

    name: str
    title: str
    figure: Figure
    table: pd.DataFrame
    caption: str

    def save(self, folder: Path, suffix: str = "") -> list[Path]:
        """Writes NAME.svg, NAME.pdf, NAME.csv and NAME.txt (the caption); files of these names are replaced."""
        stem = self.name + (f"_{suffix}" if suffix else "")
        svg, pdf, csv, text = made = [folder / f"{stem}.{ending}" for ending in ENDINGS]
        folder.mkdir(parents=True, exist_ok=True)
        for path in made:  # a link planted at one of these names would otherwise lead elsewhere
            path.unlink(missing_ok=True)
        with style():
            # No date, and ids that follow from the picture (svg.hashsalt of the style): the same data give the same file.
            self.figure.savefig(svg, metadata={"Date": None, "Title": self.title})
            self.figure.set_layout_engine("none")  # it is laid out now, and need not be again
            self.figure.savefig(pdf, metadata={"CreationDate": None, "Title": self.title})
        csv.write_text(csv_text(self.table), encoding="utf-8")
        text.write_text(f"{self.title}. {self.caption}\n", encoding="utf-8")
        return made

    def __repr__(self) -> str:
        return f"<{self.name}: {self.title}; table of {len(self.table)} rows>"

    def address(self, kind: str, **options: Any) -> str:
        """The picture as an address, "svg" or "png"; nothing in it can run. options: of savefig."""
        picture = io.BytesIO()
        with style():
            self.figure.savefig(picture, format=kind, **options)
        return data_address(kind, picture)

    def image(self) -> str:
        """The picture as an HTML element, for notebooks."""
        alt = html.escape(visible(f"{self.title}. {self.caption}"))
        return f'<img alt="{alt}" src="{self.address("png", dpi=150)}" style="max-width:100%;background:#fff">'

    def _repr_html_(self) -> str:
        words = f"<b>{html.escape(visible(self.title))}.</b> {html.escape(visible(self.caption))}"
        return f'<figure style="margin:0;max-width:60em">{self.image()}<figcaption>{words}</figcaption></figure>'


def data_address(kind: str, picture: io.BytesIO) -> str:
    """A picture as an address that holds it."""
    kind = "svg+xml" if kind == "svg" else kind
    return f"data:image/{kind};base64,{base64.b64encode(picture.getvalue()).decode()}"


def finished(
    name: str, figure: Figure, table: pd.DataFrame, caption: Mapping[str, str] | None = None, **words: Any
) -> PaperFigure:
    """A figure with its title and caption, in which `words` fill the braces. caption: None: that of captions.toml."""
    told = {part: text.format(**words) for part, text in (caption or CAPTIONS[name]).items()}
    whole = f"{told['seen']} Computed: {told['computed']} Not shown: {told['not_shown']}"
    return PaperFigure(name, told["title"], figure, table, whole)


def short(model: str) -> str:
    """A model's name in figures.

    >>> short("organism/causal")
    'causal'
    """
    return model.removeprefix("organism/")


def several(texts: Iterable[str]) -> str:
    """Texts of a caption, one for each trace; of many the first ones."""
    each = list(texts)
    more = [f"and {len(each) - NAMED} more"] if len(each) > NAMED + 1 else []
    return "; ".join([*(each[:NAMED] if more else each), *more])


def cut(name: str, longest: int = LONGEST) -> str:
    """A name that fits above or beside a panel, with nothing invisible in it."""
    return visible(name if len(name) <= longest else f"{name[: longest - 1]}…")


def sheet(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Figure, Any]:
    """A figure with axes [rows, columns]; no pyplot, so nothing global."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


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
    """0, 1 and powers of two up to the top."""
    powers = [2**i for i in range(12) if 2**i <= top]
    return [0, *(powers if len(powers) < 6 else powers[::2])]


def colours(ramp: Sequence[str] = RAMP, bad: Any = "#ffffff") -> Any:
    """The colours of received attention; bad: where there is none."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("received", list(ramp)).with_extremes(bad=bad)


def heat(axes: Any, table: pd.DataFrame, row: str, column: str, value: str, top: float) -> Any:
    """A long table as a grid of colours, the first row on top; cells that the table lacks are white."""
    wide = table.pivot_table(index=row, columns=column, values=value, sort=True)
    across, down = wide.columns.to_numpy(), wide.index.to_numpy()
    edges = (across[0] - 0.5, across[-1] + 0.5, down[-1] + 0.5, down[0] - 0.5)
    picture = axes.imshow(
        wide.to_numpy(dtype=float), norm=received_norm(top), cmap=colours(), extent=edges, rasterized=True
    )
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)
    return picture


def heat_panels(
    table: pd.DataFrame, by: str, row: str, column: str, value: str, *, label: str, top: float | None = None,
    across: int | None = None, width: float | None = None, height: float = 2.5,
) -> Figure:  # fmt: skip
    """A grid of colours for each value of the column `by`, with one scale for all; arrows point at the columns in `mark`.

    top: where the scale ends; None: at the largest value. across: panels side by side. width: of the figure; height: of a line.
    """
    parts = {str(name): part for name, part in table.groupby(by, sort=False)}
    top = float(table[value].max()) if top is None else top
    lines = -(-len(parts) // (across or BESIDE))
    across = across or -(-len(parts) // lines)
    with style():
        figure, axes = sheet(lines, across, width or (COLUMN if len(parts) == 1 else PAGE), height * lines)
        picture: Any = None
        for number, (name, part) in enumerate(parts.items()):
            axis = axes.flat[number]
            picture = heat(axis, part, row, column, value, top)
            axis.set(title=cut(name), xlabel=column, ylabel="" if number % across else row)
            axis.locator_params(integer=True)
            first, many = part[row].min(), part[row].nunique()
            for mark in part["mark"].unique() if "mark" in part else ():
                axis.annotate(
                    "", (mark, first - 0.5), (mark, first - 0.06 * many - 0.5), annotation_clip=False,
                    arrowprops={"arrowstyle": "-|>", "color": "#0072B2", "lw": 1},
                )  # fmt: skip
        for spare in axes.flat[len(parts) :]:
            spare.set_visible(False)
        bar = figure.colorbar(picture, ax=axes, label=label, pad=0.02)
        bar.set_ticks(received_ticks(top))
        bar.minorticks_off()
    return figure


def legend(figure: Figure, axes: Any, colours: Mapping[str, str], marker: str = "o") -> None:
    """Names of colours below all panels. colours: name → colour."""
    handles = [axes.plot([], [], marker, color=colour, label=name)[0] for name, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))


def intervals(axes: Any, places: Any, bounds: Iterable[Any], *, flat: bool = False, **options: Any) -> None:
    """Values with their intervals, along x (flat) or y. bounds: value, low and high of each place."""
    value, low, high = (np.asarray(bound, dtype=float) for bound in bounds)
    # A bound that is not known leaves no half of an interval.
    known = np.isfinite([value, low, high]).all(axis=0)
    error = np.where(known, np.clip([value - low, high - value], 0, None), np.nan)
    points = (value, places) if flat else (places, value)
    axes.errorbar(*points, **{"xerr" if flat else "yerr": error}, **options)


def interval_line(axes: Any, rows: pd.DataFrame, x: str, names: Sequence[str], colour: str, **options: Any) -> None:
    """A line through values with their intervals. names: the columns of value, low and high."""
    shown: dict[str, Any] = {"fmt": "o-", "markersize": 3, "linewidth": 0.8, "color": colour}
    intervals(axes, rows[x], (rows[name] for name in names), **shown, **options)
