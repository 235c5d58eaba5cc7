"""Charts of the page: matplotlib figures that become SVG inside it, in the page's own colours, and maps as small pictures.

A chart is drawn in the colours of `PAPER`. Once it is rendered, each of these becomes the variable of the style sheet that has
its name, so that a chart follows dark mode and print as the words beside it do. Letters stay letters, in the page's font.
"""

from __future__ import annotations

import io
import textwrap
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
from markupsafe import Markup

from sinkscope.base.text import visible
from sinkscope.report.figures import look
from sinkscope.statistics import Estimate

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

PAPER = {
    "ink": "#1c1b22", "soft": "#5b5966", "line": "#d9d6cf", "surface": "#ffffff", "s1": "#0b5fa5", "s2": "#b8480a",
    "s3": "#00795a", "s4": "#9a3d78",
}  # fmt: skip
"""Variable of the style sheet → the colour in which it is drawn."""
COLOURS = ("s1", "s2", "s3", "s4", "soft", "ink")
WIDE, ROW, HALF = 372, 24, 26
"""Pixels: as wide as a phone shows without shrinking the letters, and the height of a row; and the letters of half a line."""
APART = 0.23
"""Of two marks on one line, as a share of its height: four of them stay nearer to each other than to the next line."""
SHARE: dict[str, Any] = {"limits": (-0.02, 1.02), "ticks": {0.0: "0", 0.25: "0.25", 0.5: "0.5", 0.75: "0.75", 1.0: "1"}}
"""Of an axis of accuracies."""
MOST = 400
"""Rows and columns of a map; a larger one shows the strongest of neighbouring cells."""
SETTINGS = {
    "font.size": 11, "xtick.labelsize": 11, "ytick.labelsize": 11, "axes.labelsize": 11, "legend.fontsize": 11,
    "svg.fonttype": "none", "text.color": PAPER["ink"], "axes.labelcolor": PAPER["soft"],
    "axes.edgecolor": PAPER["line"], "xtick.color": PAPER["line"], "ytick.color": PAPER["line"],
    "xtick.labelcolor": PAPER["soft"], "ytick.labelcolor": PAPER["ink"], "grid.color": PAPER["line"], "figure.dpi": 72,
    "axes.grid": True, "axes.axisbelow": True,
}  # fmt: skip


@dataclass(frozen=True)
class Series:
    """Marks of one colour, with a name in the key.

    Attributes:
        points: where each stands on the axis of rows (or layers), and its value.
        marker: as matplotlib names them. line: joins the marks; "": none.
    """

    label: str
    points: Sequence[tuple[float, Estimate]] = ()
    colour: str = "s1"
    marker: str = "o"
    hollow: bool = False
    line: str = ""


@contextmanager
def style() -> Iterator[None]:
    """Inside, matplotlib draws for the page: the papers' style with letters of its size."""
    import matplotlib

    with look.style(), matplotlib.rc_context(SETTINGS):
        yield


def rows(
    names: Sequence[str],
    series: Sequence[Series],
    *,
    title: str,
    label: str = "",
    limits: tuple[float, float] | None = None,
    ticks: Mapping[float, str] | None = None,
    log: bool = False,
    border: float | None = None,
    row: int = ROW,
) -> Markup:
    """One row for each name, values with their intervals along it. border: a value that a dashed line marks; row: its height."""
    with style():
        figure, axes = _sheet(row * len(names) + 32, series, names)
        if border is not None:
            axes.axvline(border, color=PAPER["soft"], linestyle="--", linewidth=1)
        axes.set(xlabel=label, xscale="log" if log else "linear")
        draw(axes, series, flat=True, limits=limits)
        if ticks is not None:
            axes.set_xticks(list(ticks), list(ticks.values()))
            axes.minorticks_off()
        return inline(figure, title)


def lines(values: Mapping[str, Estimate], **options: Any) -> Markup:
    """One value for each name, along its row. options: of `rows`."""
    return rows(list(values), [Series("", list(enumerate(values.values())))], **options)


def curves(ticks: Mapping[float, str], series: Sequence[Series], *, title: str, label: str, top: float = 1.0) -> Markup:
    """Values upwards, with their intervals, joined over the ticks."""
    with style():
        figure, axes = _sheet(190, series)
        axes.set(xlabel=label, ylim=(-0.03 * top, 1.03 * top))
        axes.set_xticks(list(ticks), list(ticks.values()))
        axes.grid(axis="x", visible=False)
        draw(axes, series, flat=False)
        return inline(figure, title)


def shares(names: Sequence[str], parts: Sequence[tuple[str, str, Sequence[float]]], *, title: str) -> Markup:
    """One bar for each name. parts: (label, colour, a share for each name), from the left; wide ones carry their number."""
    with style():
        figure, axes = _sheet(30 * len(names) + 30, names=names)
        start = np.zeros(len(names))
        for label, colour, values in parts:
            wide = np.nan_to_num(np.asarray(values, dtype=float))
            bars = axes.barh(range(len(names)), wide, left=start, height=0.72, color=PAPER[colour], label=label)
            told = [f"{share:.0%}" if share >= 0.1 else "" for share in wide]
            axes.bar_label(bars, told, label_type="center", color=PAPER["surface"])
            start += wide
        axes.set_xlim(0, 1)
        axes.set_xticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
        return inline(figure, title)


def on_lines(lines: Sequence[Mapping[str, Estimate]], looks: Mapping[str, Series]) -> list[Series]:
    """Marks of several kinds on each line, a little below each other, so that their intervals can be told apart."""
    points: dict[str, list[tuple[float, Estimate]]] = {name: [] for name in looks}
    for number, line in enumerate(lines):
        names = [name for name in looks if name in line]
        for place, name in enumerate(names):
            points[name].append((number + APART * (place - (len(names) - 1) / 2), line[name]))
    return [replace(looks[name], points=marks) for name, marks in points.items() if marks]


def draw(axes: Any, series: Sequence[Series], *, flat: bool, limits: tuple[float, float] | None = None) -> None:
    """Every mark with its interval, along x (flat) or y; values beyond the limits stand at the edge."""
    for marks in series:
        places = [place for place, _ in marks.points]
        values = np.array([estimate for _, estimate in marks.points], dtype=float).reshape(
            -1, 3
        )  # none: nothing is known
        colour, inside = PAPER[marks.colour], PAPER["surface" if marks.hollow else marks.colour]
        look.intervals(
            axes, places, np.clip(values.T, *(limits or (-np.inf, np.inf))), flat=flat, fmt=marks.marker,
            linestyle=marks.line or "none", color=colour, label=visible(marks.label), markersize=6, linewidth=1.6, elinewidth=1.6,
            markerfacecolor=inside,
        )  # fmt: skip
    if limits is not None:
        axes.set_xlim(*limits)
    if len(series) > 1:
        axes.figure.legend(loc="outside upper left", ncols=_key(series)[0], handletextpad=0.4, columnspacing=1)


def _sheet(height: float, series: Sequence[Series] = (), names: Sequence[str] = ()) -> tuple[Figure, Any]:
    """Axes of this height, and room for the key above them. names: of the rows; long ones stand in two lines."""
    beside, lines = _key(series)
    figure, ((axes,),) = look.sheet(1, 1, WIDE / 72, (height + 17 * lines * (beside > 0)) / 72)
    if names:
        wrapped = ["\n".join(textwrap.wrap(look.cut(name, 2 * HALF), HALF)) for name in names]
        axes.set_yticks(range(len(names)), wrapped)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
    return figure, axes


def _key(series: Sequence[Series]) -> tuple[int, int]:
    """How many names stand beside each other in the key, and in how many lines; one series needs no key."""
    beside = 2 if all(len(one.label) < HALF for one in series) else 1
    return (beside, -(-len(series) // beside)) if len(series) > 1 else (0, 0)


# ---- from matplotlib to the page -------------------------------------------------------------------


def inline(figure: Figure, title: str) -> Markup:
    """A figure as an SVG element of the page; title: what a screen reader says of it."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    root = ElementTree.fromstring(drawn.getvalue())  # noqa: S314 – drawn here
    # Ids are of one picture; on a page with many each needs its own.
    mark = f"c{zlib.crc32(drawn.getvalue().encode()):x}"
    variables = {colour: f"var(--{name})" for name, colour in PAPER.items()}
    for element in list(root.iter()):
        _plain(element, mark, variables)
    wide, high = (float(number) for number in root.attrib["viewBox"].split()[2:])
    root.attrib |= {"class": "chart", "role": "img", "width": f"{wide:g}", "height": f"{high:g}"}
    named = ElementTree.Element("title")
    named.text = visible(title)
    root.insert(0, named)
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # noqa: S704 – texts are escaped


def _plain(element: ElementTree.Element, mark: str, variables: Mapping[str, str]) -> None:
    """Attributes in place of styles, which the page's policy forbids; names without a namespace; nothing that is not needed."""
    for child in list(element):
        if child.tag.endswith(("}metadata", "}style")):
            element.remove(child)
    element.tag = element.tag.rpartition("}")[2]
    told = dict(element.attrib)
    element.attrib.clear()
    for declaration in filter(None, told.pop("style", "").split(";")):
        name, _, value = declaration.partition(":")
        if name.strip() != "font-family":
            element.attrib[name.strip()] = variables.get(value.strip(), value.strip())
    for name, value in told.items():
        if name == "id" and element.tag == "g":
            continue
        if name == "id":
            value = mark + value
        value = value.replace("url(#", f"url(#{mark}") if name == "clip-path" else value
        if name.endswith("}href"):
            name, value = "href", value.replace("#", f"#{mark}", 1)
        element.attrib[name] = " ".join(value.split())
    if element.tag != "text":
        element.text = None
    element.tail = None


def heat(table: pd.DataFrame, ramp: Sequence[str]) -> str:
    """Received attention by step (downwards) and position as the address of a PNG, a pixel for each cell; its own scale."""
    from matplotlib.image import imsave

    wide = table.pivot_table(index="step", columns="position", values="received").to_numpy(dtype=float)
    top = float(np.nanquantile(wide, 0.9995))
    for axis in (0, 1):
        every = -(-wide.shape[axis] // MOST)
        starts = np.arange(0, wide.shape[axis], every)
        wide = np.fmax.reduceat(wide, starts, axis=axis)
    picture = io.BytesIO()
    imsave(picture, look.colours(ramp, (0, 0, 0, 0))(look.received_norm(top)(np.ma.masked_invalid(wide))), format="png")
    return look.data_address("png", picture)
