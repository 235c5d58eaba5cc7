"""Small pictures drawn by hand: SVG that takes its colours from the page, so that it follows dark mode and print.

A `Plot` has a box, two scales and marks. Every mark that stands for a number of a table says which (`data-at`), and the plot
says its scales (`data-x`, `data-y`: value and pixel of two points), so that a test can read the numbers back from the picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sinkscope.report.study.markup import Safe, tag
from sinkscope.report.study.numbers import missing


@dataclass(frozen=True)
class Scale:
    """Values to pixels, linear or logarithmic."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self._moved(self.low), self._moved(self.high)
        inside = min(max(value, min(self.low, self.high)), max(self.low, self.high))
        share = (self._moved(inside) - low) / ((high - low) or 1.0)
        return round(self.start + share * (self.stop - self.start), 2)

    def _moved(self, value: float) -> float:
        return math.log(max(value, 1e-12)) if self.log else value

    @property
    def text(self) -> str:
        """For the test that reads a picture back."""
        kind = "log" if self.log else "linear"
        return f"{kind} {self.low:g} {self.start:g} {self.high:g} {self.stop:g}"


@dataclass
class Plot:
    """A picture with axes. Margins in pixels: left, top, right, bottom."""

    title: str
    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]
    margin: tuple[float, float, float, float] = (44, 10, 10, 30)
    log_x: bool = False
    parts: list[Safe] = field(default_factory=list)

    def __post_init__(self) -> None:
        left, top, right, bottom = self.margin
        self.across = Scale(*self.x, left, self.width - right, self.log_x)
        self.down = Scale(*self.y, self.height - bottom, top)

    # ---- axes

    def x_axis(self, ticks: Sequence[tuple[float, str]], label: str = "", grid: bool = False) -> None:
        """Ticks (value, text) below."""
        bottom = self.down.start
        for value, text in ticks:
            place = self.across(value)
            if grid:
                self.add("line", x1=place, x2=place, y1=bottom, y2=self.down.stop, class_="grid")
            self.text(place, bottom + 15, text, "tick middle")
        if label:
            self.text((self.across.start + self.across.stop) / 2, self.height - 3, label, "label middle")

    def y_axis(self, ticks: Sequence[tuple[float, str]]) -> None:
        """Ticks (value, text) at the left, with lines across."""
        for value, text in ticks:
            place = self.down(value)
            self.add("line", x1=self.across.start, x2=self.across.stop, y1=place, y2=place, class_="grid")
            self.text(self.across.start - 6, place + 3.5, text, "tick end")

    # ---- marks

    def text(self, x: float, y: float, text: str, kind: str) -> None:
        """Words."""
        self.parts.append(tag("text", text, class_=kind, x=round(x, 2), y=round(y, 2)))

    def add(self, name: str, **attributes: Any) -> None:
        """Any element."""
        self.parts.append(tag(name, **attributes))

    def line(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """A line through values; breaks where y is missing."""
        runs: list[list[str]] = [[]]
        for x, y in points:
            if missing(y):
                runs.append([])
            else:
                runs[-1].append(f"{self.across(x):g},{self.down(y):g}")
        for run in runs:
            if len(run) > 1:
                self.add("polyline", points=Safe(" ".join(run)), class_=f"line {kind}")

    def band(self, points: Sequence[tuple[float, float, float]], kind: str) -> None:
        """An area between low and high."""
        kept = [point for point in points if not any(map(missing, point))]
        if len(kept) > 1:
            forth = [f"{self.across(x):g},{self.down(high):g}" for x, _, high in kept]
            back = [f"{self.across(x):g},{self.down(low):g}" for x, low, _ in reversed(kept)]
            self.add("polygon", points=Safe(" ".join([*forth, *back])), class_=f"band {kind}")

    def dot(
        self,
        x: float,
        y: float,
        kind: str,
        title: str,
        at: str | None = None,
        whisker: tuple[float, float] | None = None,
        flat: bool = False,
        shape: str = "circle",
    ) -> None:
        """A value with its interval, if both bounds are known. flat: the interval lies along x. at: the cell that it shows."""
        cx, cy = self.across(x), self.down(y)
        inside: list[Safe] = [tag("title", title)]
        if whisker is not None and not any(map(missing, whisker)):
            low, high = whisker
            ends = (
                {"x1": self.across(low), "x2": self.across(high), "y1": cy, "y2": cy}
                if flat
                else {"x1": cx, "x2": cx, "y1": self.down(low), "y2": self.down(high)}
            )
            inside.append(tag("line", class_="whisker", **ends))
        inside.append(tag("path", d=f"M{cx:g} {cy:g}{SHAPES[shape]}", class_="point"))
        kept = {"data_at": at, "data_axis": ("x" if flat else "y") if at else None}
        self.parts.append(
            tag("g", *inside, class_=f"dot {kind}", data_place=f"{cx:g} {cy:g}" if at else None, **kept)
        )

    def svg(self) -> Safe:
        """The picture."""
        box = f"0 0 {self.width:g} {self.height:g}"
        return tag(
            "svg", tag("title", self.title), *self.parts, class_="plot", role="img", viewBox=box, data_x=self.across.text,
            data_y=self.down.text,
        )  # fmt: skip


SHAPES = {
    "circle": "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "square": "m-3.5-3.5h7v7h-7z",
    "diamond": "m0-5l5 5l-5 5l-5-5z",
    "triangle": "m0-4.6l4.4 8h-8.8z",
}


def key(entries: Sequence[tuple[str, str, str]]) -> Safe:
    """A legend of the marks: (class, shape, words); the shape "patch" is an area."""
    items = []
    for kind, shape, words in entries:
        if shape == "patch":
            mark = tag("rect", x=2, y=1, width=14, height=12, class_=kind)
        else:
            point = tag("path", d=f"M9 7{SHAPES[shape]}", class_="point")
            mark = tag("g", point, class_=f"dot {kind}")
        picture = tag("svg", mark, viewBox="0 0 18 14", class_="sample", aria_hidden="true")
        items.append(tag("li", picture, words))
    return tag("ul", *items, class_="key-list")
