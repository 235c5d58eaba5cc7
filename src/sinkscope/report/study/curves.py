"""Degradation curves: accuracy against the number of keys masked, with intervals, controls and the paper's numbers."""

from __future__ import annotations

from collections.abc import Iterable

from sinkscope.report.study.markup import Safe, panels, tag
from sinkscope.report.study.numbers import missing, number
from sinkscope.report.study.source import Row
from sinkscope.report.study.svg import Plot, key
from sinkscope.report.study.words import Dose, dose

SERIES = (
    ("head", "s1", "circle", "each head’s strongest keys hidden"),
    ("count", "s5 hollow", "circle", "control: as many random keys"),
    ("mass", "s6 hollow", "diamond", "control: as much attention"),
    ("silence", "s2", "diamond", "silenced instead of hidden"),
    ("layer", "s3", "triangle", "one set per layer"),
    ("model", "s4", "square", "one set for the whole model"),
    ("paper", "s6 hollow", "square", "the paper’s number"),
)
LINED = ("head", "count", "mass")


def curves(
    rows_by_title: Iterable[tuple[str, str, list[tuple[int, Row]]]], cited: bool = True
) -> Safe | None:
    """Panels with one key for all: (title, line below it, rows of one model); None when no row has a dose.

    cited: row numbers are those of tables/results.
    """
    pictures, used = [], set()
    for title, note, rows in rows_by_title:
        plot, shown = _panel(f"{title} {note}".strip(), rows, cited)
        if plot is not None:
            used |= shown
            pictures.append((title, tag("div", tag("p", note, class_="quiet") if note else "", plot)))
    if not pictures:
        return None
    entries = [(kind, shape, words) for name, kind, shape, words in SERIES if name in used]
    return tag("div", panels(pictures), key(entries))


def series_of(taken: Dose) -> str | None:
    """The curve that a policy belongs to; None for controls of other scopes, which only the table shows."""
    if taken.match:
        return taken.match if taken.scope == "head" and not taken.silence else None
    if taken.silence:
        return "silence" if taken.scope == "head" else None
    return taken.scope


def _panel(title: str, rows: list[tuple[int, Row]], cited: bool) -> tuple[Safe | None, set[str]]:
    """The picture of one model and the curves that it has."""
    points: dict[str, list[tuple[int, int, Row]]] = {}
    base = next(((at, row) for at, row in rows if row["policy"] == "none"), None)
    for at, row in rows:
        taken = dose(row["policy"])
        name = None if taken is None else series_of(taken)
        if taken is not None and name is not None:
            points.setdefault(name, []).append((taken.k, at, row))
    if base is None or not points:
        return None, set()
    doses = sorted({0, *(k for series in points.values() for k, _, _ in series)})
    plot = Plot(title, 440, 215, (-0.35, len(doses) - 0.65), (0, 1), margin=(36, 10, 8, 36))
    plot.y_axis([(value, f"{value:g}") for value in (0, 0.25, 0.5, 0.75, 1)])
    plot.x_axis([(place, str(k)) for place, k in enumerate(doses)], "keys masked")
    order = [name for name, *_ in SERIES if name in points]
    # Curves stand a little beside each other, so that their intervals can be told apart.
    shift = {name: 0.1 * (i - (len(order) - 1) / 2) for i, name in enumerate(order)}
    for name, kind, *_ in SERIES:
        if name in LINED and name in points:
            line = sorted(
                (doses.index(k) + shift[name], float(row["accuracy"])) for k, _, row in points[name]
            )
            dashed = "" if name == "head" else " dashed"
            plot.line([(0.0, float(base[1]["accuracy"])), *line], kind.split()[0] + dashed)
    for name, kind, shape, words in SERIES:
        for k, at, row in points.get(name, []):
            _dot(plot, doses.index(k) + shift[name], at if cited else None, row, kind, shape, words)
    _dot(plot, 0.0, base[0] if cited else None, base[1], "s1", "circle", "nothing taken away")
    shown = set(points)
    for at, row in rows:
        taken = dose(row["policy"])
        if not missing(row.get("paper")) and (row["policy"] == "none" or taken is not None):
            place = doses.index(0 if taken is None else taken.k) + 0.3
            text = f"paper: {number(row['paper'], '.2f')} ± {number(row['paper_plus_minus'], '.2f')}"
            plot.dot(place, row["paper"], "s6 hollow", text, f"results/{at}/paper", shape="square")
            shown.add("paper")
    return plot.svg(), shown


def _dot(plot: Plot, x: float, at: int | None, row: Row, kind: str, shape: str, words: str) -> None:
    low, high = float(row["low"]), float(row["high"])
    text = f"{row['policy']} ({words}): {row['accuracy']:.3f} ({low:.3f} to {high:.3f}), n = {int(row['n'])}"
    place = None if at is None else f"results/{at}/accuracy"
    plot.dot(x, row["accuracy"], kind, text, place, (low, high), shape=shape)
