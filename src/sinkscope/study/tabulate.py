"""A comparison as text: one block for each model and task, aligned columns, no wrapping."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from sinkscope.tasks.task import ACCURACY, NATS
from sinkscope.text import aligned

if TYPE_CHECKING:
    from sinkscope.statistics import Interval
    from sinkscope.study.comparison import Row, Table

LEGEND = (
    "accuracy ± lm-eval's standard error [Wilson 95 %]; − none: paired difference to the run without a policy [Tango "
    "95 % over documents]; over control: paired difference to the mean of the control's seeds; p after Holm over all tests "
    "of this table; removed: share of attention; sinks: share of the sinks that were masked; strongest: share of heads with a "
    "sink whose strongest one was masked; keys: k as a share of the keys"
)
NATS_LEGEND = (
    "nats per token: mean over documents ± standard error [Student's t, 95 %]; − none and over control: paired differences, a "
    "positive one is a loss [Student's t or Hall's over documents, the wider]; otherwise as above"
)
WORDS = {ACCURACY: "accuracy", NATS: "nats per token"}
PAPER = "paper: arXiv 2510.15731, table 1; which keys it masked, and its prompts, are unpublished"


def text(table: Table) -> str:
    """The whole table."""
    parts = []
    for (task, model), group in groupby(table.rows, key=lambda row: (row.task, row.model)):
        rows = list(group)
        seen = rows[0].detectable
        detect = (
            ""
            if seen is None
            else f", which detect a difference of {seen:.3f} or more (80 % power, unrelated runs)"
        )
        parts.append(f"{model} · {task}:{rows[0].scheme} · {rows[0].n} documents{detect}\n{rows[0].decoding}")
        head, *lines = aligned(_cells(rows))
        parts.append("\n".join([head, "─" * max(map(len, (head, *lines))), *lines]))
    parts.append(LEGEND)
    if any(row.measure == NATS for row in table.rows):
        parts.append(NATS_LEGEND)
    parts += [*([PAPER] if any(row.paper for row in table.rows) else []), *table.notes]
    return "\n\n".join(parts)


def _cells(rows: list[Row]) -> list[list[str]]:
    mass = any("mass" in row.over_control for row in rows)
    paper = any(row.paper for row in rows)
    head = ["policy", "draws", WORDS[rows[0].measure], "− none", "p", "over control", "p"]
    head += ["over mass control", "p"] if mass else []
    head += ["removed", "sinks", "strongest", "keys"] + (["paper"] if paper else [])
    lines = [head]
    for row in rows:
        against = row.against_none
        cells = [
            f"  {row.policy}" if row.control_of else row.policy,
            str(row.draws),
            f"{row.value:.3f} ± {row.stderr:.3f} {_interval(row.interval)}",
            "" if against is None else f"{against.difference:+.3f} {_interval(against.interval, True)}",
            _p(row.corrected.get("none")),
        ]
        for match in ("count", "mass") if mass else ("count",):
            effect = row.over_control.get(match)
            cells += [
                "" if effect is None else f"{effect.effect:+.3f} {_interval(effect.interval, True)}",
                _p(row.corrected.get(match)),
            ]
        cells += [
            _percent(value) for value in (row.hidden_share, row.sinks_hit, row.strongest_hit, row.key_share)
        ]
        if paper:
            cells.append("" if row.paper is None else f"{row.paper.value:.2f} ± {row.paper.plus_minus:.2f}")
        lines.append(cells)
    return lines


def _interval(interval: Interval, signed: bool = False) -> str:
    sign = "+" if signed else ""
    return f"[{interval.low:{sign}.3f}, {interval.high:{sign}.3f}]"


def _p(value: float | None) -> str:
    if value is None:
        return ""
    return "< .001" if value < 0.001 else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
