"""What breaks without sinks: accuracies, and nats per token of texts that were read, under every policy beside its controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from markupsafe import Markup

from sinkscope.report.study import charts
from sinkscope.report.study.cells import Row, Table, columns_table
from sinkscope.report.study.source import StudySource
from sinkscope.statistics import Estimate
from sinkscope.study.comparison import untested
from sinkscope.study.names import SINK, control, label, natural, role
from sinkscope.study.plugged import ShownTable
from sinkscope.study.shown import LIKELIHOOD, RESULTS, estimate
from sinkscope.tasks.task import ACCURACY, NATS
from sinkscope.verdicts.wording import missing, number

Rows = Sequence[tuple[int, Row]]

TABLES = {"results": RESULTS, "likelihood": LIKELIHOOD}
MEASURES = {"results": ACCURACY, "likelihood": NATS}
"""Table → what it is about."""
LABELS = {ACCURACY: "accuracy", NATS: "nats per token (more is worse)"}
SERIES = {
    "none": charts.Series("nothing masked", (), "ink", "o"), "policy": charts.Series("masked", (), "s2", "D"),
    "count": charts.Series("as many random keys", (), "soft", "o", True),
    "mass": charts.Series("keys nearest in attention", (), "s1", "D", True),
    "paper": charts.Series("the paper’s number", (), "s4", "s", True),
}  # fmt: skip
"""How marks look, and their names in the key."""


def masking(source: StudySource) -> dict[str, Any] | None:
    """Accuracies; None for a study without any."""
    frame = source.frames.get("results")
    ungraded, left_out = ([row for _, row in source.rows(name)] for name in ("not_graded", "left_out"))
    if frame is None and not ungraded:
        return None
    remarks = [] if frame is None else untested(frame)
    return {
        "settings": settings(source, "results"), "remarks": remarks, "ungraded": ungraded, "left_out": left_out,
    }  # fmt: skip


def likelihood(source: StudySource) -> dict[str, Any] | None:
    """Texts that were read; None for a study without texts."""
    return {"settings": settings(source, "likelihood")} if "likelihood" in source.frames else None


def settings(source: StudySource, table: str) -> list[dict[str, Any]]:
    """Each task with each decoding: a chart and a table for each model."""
    return [
        {
            "task": rows[0][1]["task"], "decoding": rows[0][1]["decoding_name"],
            "n": " or ".join(map(str, sorted({int(row["n"]) for _, row in rows}))),
            "charts": [(model, _chart(model, MEASURES[table], own)) for model, own in by_model(rows).items()],
            "tables": [_numbers(model, TABLES[table], own) for model, own in by_model(rows).items()],
        }
        for rows in source.groups(table, "task", "decoding_name")
    ]  # fmt: skip


def by_model(rows: Rows) -> Mapping[str, Rows]:
    """Model → its rows."""
    return {
        model: [(at, row) for at, row in rows if row["model"] == model]
        for model in dict.fromkeys(str(row["model"]) for _, row in rows)
    }


def _numbers(model: str, table: ShownTable, rows: Rows) -> Table:
    """Every column that people read."""
    row = rows[0][1]
    setting = (
        f"{model}: {row.get('family')}, {row.get('dtype')}, weights {str(row.get('weights'))[:12]}; {row.get('task_version')}, "
        f"scheme {row.get('scheme')}; {row['decoding']}; seeds {row.get('seeds')}"
    )
    if not missing(row.get("detectable")):
        setting += f"; smallest detectable difference {number(row['detectable'], '.2f')}"
    columns = [one for one in table.columns if any(not missing(row.get(one.name)) for _, row in rows)]
    return columns_table(setting, columns, rows, table.name, policy=partial(label, causal=is_causal(row)))


def is_causal(row: Row) -> bool:
    """Whether a row is of a causal model: there the same mask has another text."""
    return bool(row.get("family") == "causal")


def marks(rows: Rows, measure: str = ACCURACY) -> tuple[list[str], list[charts.Series]]:
    """A line for each policy, none first; on it the policy's score and those of its controls, and the paper's number."""
    causal = is_causal(rows[0][1])
    lines: dict[str, dict[str, Estimate]] = {}
    for _, row in rows:
        policy, kind = str(row["policy"]), control(str(row["policy"]))
        name = "none" if policy == "none" else "policy" if kind is None else kind.match
        line = lines.setdefault(policy if kind is None else kind.like, {})
        line[name] = estimate(row, measure)
        if not missing(row.get("paper")):
            told, error = float(row["paper"]), 1.96 * float(row["paper_plus_minus"])
            line["paper"] = Estimate(told, told - error, told + error)
    policies = [policy for policy, line in lines.items() if line.keys() & {"none", "policy"}]
    policies.sort(key=lambda policy: (policy != "none", role(policy, causal) != SINK, natural(policy)))
    names = [label(policy, causal) for policy in policies]
    named = [policy if names.count(name) > 1 else name for policy, name in zip(policies, names, strict=True)]
    return named, charts.on_lines([lines[policy] for policy in policies], SERIES)


def _chart(model: str, measure: str, rows: Rows) -> Markup:
    policies, series = marks(rows, measure)
    base = next((row[measure] for _, row in rows if row["policy"] == "none"), None)
    title = f"{model}: {LABELS[measure]} under each policy, beside its controls"
    return charts.rows(
        policies, series, title=title, border=base, row=32, **charts.SHARE if measure == ACCURACY else {}
    )
