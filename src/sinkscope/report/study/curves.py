"""Degradation curves: accuracy against the number of keys taken, with intervals, controls and the paper's numbers."""

from __future__ import annotations

from sinkscope.report.study.markup import Safe, figure, link, tag
from sinkscope.report.study.numbers import missing, number
from sinkscope.report.study.source import Row, Source
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


def series_of(found: Dose) -> str | None:
    """The curve that a policy belongs to; None for controls of other scopes, which only the table shows."""
    if found.match:
        return found.match if found.scope == "head" and not found.silence else None
    if found.silence:
        return "silence" if found.scope == "head" else None
    return found.scope


def curves(source: Source, task: str, decoding: str, rows: list[tuple[int, Row]]) -> Safe | None:
    """One panel for each model."""
    panels = []
    used: set[str] = set()
    for model in source.models:
        own = [(at, row) for at, row in rows if row["model"] == model]
        plot, shown = panel(f"{model}, {task}", own)
        if plot is not None:
            used |= shown
            panels.append(tag("div", tag("p", model, class_="panel-title"), plot))
    if not panels:
        return None
    entries = [(kind, shape, words) for name, kind, shape, words in SERIES if name in used]
    return figure(
        tag("div", tag("div", *panels, class_="panels-row"), key(entries)),
        f"Accuracy on {task} (decoding {decoding}) as more keys are taken from every head, from none at the left.",
        "share of documents answered right, with Wilson 95 % intervals; every policy answered the same documents. Keys "
        "are ranked by received attention in the step before. Controls draw anew where the set changes; they are means over "
        "their draws.",
        "That a sink matters: read the blue curve beside its grey control, and beside silencing. A control with as many keys "
        "takes less attention than the sinks do; only a mass-matched one takes as much. What lies within the intervals of a few "
        "documents is noise.",
        link("tables/results.csv"),
    )


def panel(title: str, rows: list[tuple[int, Row]], cited: bool = True) -> tuple[Safe | None, set[str]]:
    """The picture of one model and which curves it has; None without any. cited: rows are those of tables/results."""
    found: dict[str, list[tuple[int, int, Row]]] = {}
    base = next(((at, row) for at, row in rows if row["policy"] == "none"), None)
    for at, row in rows:
        what = dose(row["policy"])
        name = None if what is None else series_of(what)
        if what is not None and name is not None:
            found.setdefault(name, []).append((what.k, at, row))
    if base is None or not found:
        return None, set()
    doses = sorted({0, *(k for points in found.values() for k, _, _ in points)})
    plot = Plot(title, 440, 215, (-0.35, len(doses) - 0.65), (0, 1), margin=(36, 10, 8, 36))
    plot.y_axis([(value, f"{value:g}") for value in (0, 0.25, 0.5, 0.75, 1)])
    plot.x_axis([(place, str(k)) for place, k in enumerate(doses)], "keys taken")
    shown = {*found}
    order = [name for name, *_ in SERIES if name in found]
    start = (0.0, float(base[1]["accuracy"]))
    for name in LINED:
        if name in found:
            line = [
                (doses.index(k) + _shift(name, order), float(row["accuracy"]))
                for k, _, row in sorted(found[name], key=_k)
            ]
            kind = next(kind for own, kind, *_ in SERIES if own == name)
            plot.line([start, *line], kind.split()[0] + (" dashed" if name != "head" else ""))
    for name, kind, shape, words in SERIES:
        for k, at, row in found.get(name, []):
            _dot(plot, doses.index(k) + _shift(name, order), at if cited else None, row, kind, shape, words)
    _dot(plot, 0.0, base[0] if cited else None, base[1], "s1", "circle", "nothing taken away")
    for at, row in rows:
        what = dose(row["policy"])
        if not missing(row.get("paper")) and (row["policy"] == "none" or what is not None):
            place = doses.index(0 if what is None else what.k) + 0.3
            text = f"paper: {number(row['paper'], '.2f')} ± {number(row['paper_plus_minus'], '.2f')}"
            plot.dot(place, row["paper"], "s6 hollow", text, f"results/{at}/paper", shape="square")
            shown.add("paper")
    return plot.svg(), shown


def _shift(name: str, order: list[str]) -> float:
    """Curves stand a little beside each other, so that their intervals can be told apart."""
    return 0.1 * (order.index(name) - (len(order) - 1) / 2)


def _k(point: tuple[int, int, Row]) -> int:
    return point[0]


def _dot(plot: Plot, x: float, at: int | None, row: Row, kind: str, shape: str, words: str) -> None:
    interval = (float(row["low"]), float(row["high"]))
    text = f"{row['policy']} ({words}): {row['accuracy']:.3f} ({interval[0]:.3f} to {interval[1]:.3f}), n = {int(row['n'])}"
    place = None if at is None else f"results/{at}/accuracy"
    plot.dot(x, row["accuracy"], kind, text, place, interval, shape=shape)
