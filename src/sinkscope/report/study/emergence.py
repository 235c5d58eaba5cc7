"""The section on training: the curves that ship with the organisms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sinkscope.report.study.markup import Safe, figure, panels, section, tag
from sinkscope.report.study.numbers import missing
from sinkscope.report.study.source import Source
from sinkscope.report.study.svg import Plot, key
from sinkscope.report.study.words import colour
from sinkscope.study.shipped import SHELF

FIRST = 0.7
"""The place of step 0 on the logarithmic axis."""

PANELS = (
    ("sink_heads", "share of heads with a sink", True),
    ("max_received", "strongest key, × uniform", False),
    ("value_ratio", "its value norm / median", False),
)
Curves = dict[str, list[tuple[int, dict[str, Any]]]]


def emergence(source: Source, shelf: Path = SHELF) -> Safe | None:
    """The section; only for models whose shipped curve belongs to the weights that were studied."""
    curves: Curves = {}
    left_out: list[str] = []
    for model in source.study.models:
        folder = shelf / model.source.removeprefix("organism/")
        if not model.source.startswith("organism/") or not (folder / "emergence.json").is_file():
            continue
        weights = source.manifest.get("models", {}).get(model.name, {}).get("weights")
        if _digest(folder) not in (None, weights):
            left_out.append(model.name)
            continue
        curves[model.name] = curve(json.loads((folder / "emergence.json").read_text(encoding="utf-8")))
    if not curves:
        return None
    pictures = panels(
        ((title, _panel(source, curves, name, title, share)) for name, title, share in PANELS),
        "panels-row three",
    )
    marks = key([(colour(model, source.models), "line", model) for model in curves])
    gone = ""
    if left_out:
        gone = f" Left out, because other weights were studied than are shipped: {', '.join(left_out)}."
    picture = figure(
        tag("div", pictures, marks),
        "How sinks appear during training, by optimiser step (logarithmic; 0 is the start, which for models that continue from "
        f"another is that model).{gone}",
        "a fixed held-out probe of texts at log-spaced steps; diffusion models with half of the targets masked (t = 0.5), the "
        "causal model on the whole text; ε = 3. Shipped with the weights (emergence.json), not computed here.",
        "Other seeds: each curve is one training run. The probe is not the study’s task, and no curve has an interval.",
    )
    return section("emergence", "When they appear", picture)


def curve(data: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """(step, numbers) at t = 0.5, or at the only level there is."""
    points = []
    for point in data["points"]:
        levels = point["levels"]
        points.append((int(point["step"]), levels.get("0.5") or next(iter(levels.values()))))
    return points


def _digest(folder: Path) -> str | None:
    """The digest of the weights that the shelf's numbers belong to; None: not known."""
    path = folder / "accuracy.json"
    if not path.is_file():
        return None
    digest = json.loads(path.read_text(encoding="utf-8")).get("digest")
    return None if digest is None else str(digest)


def _panel(source: Source, curves: Curves, name: str, title: str, share: bool) -> Safe:
    lines = {
        model: [
            (max(FIRST, step), float(point[name])) for step, point in points if not missing(point.get(name))
        ]
        for model, points in curves.items()
    }
    last = max(step for points in curves.values() for step, _ in points)
    top = 1.0 if share else float(int(max([2.0, *(y for line in lines.values() for _, y in line)])) + 1)
    plot = Plot(title, 330, 200, (FIRST, max(2, last)), (0, top), margin=(36, 8, 12, 36), log_x=True)
    plot.y_axis([(value, f"{value:g}") for value in (0, top / 2, top)])
    ticks = [(step, f"{step:,}") for step in (10, 100, 1000, 10_000, 100_000) if step <= last]
    plot.x_axis([(FIRST, "0"), (1, "1"), *ticks], "training step")
    for model, line in lines.items():
        plot.line(line, colour(model, source.models))
    return plot.svg()
