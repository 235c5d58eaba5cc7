"""The section on training runs: what masking costs by objective, size and scope, and what interventions change, over seeds."""

from __future__ import annotations

from sinkscope.report.study.exemplars import tinted
from sinkscope.report.study.markup import Safe, link, section, table, tag
from sinkscope.report.study.numbers import valued
from sinkscope.report.study.source import StudySource
from sinkscope.report.study.words import note

COLUMNS = (
    "objective", "parameters", "intervention", "task", "policy", "seeds", "accuracy without", "lost", "− random keys",
    "− random keys, as much attention", "concluded",
)  # fmt: skip
CHANGES = ("objective", "layers × width", "intervention", "measure", "seeds", "change", "concluded")


def training_runs(source: StudySource) -> Safe | None:
    """The section; None for a study that is not about training runs."""
    if "ladder" not in source.frames:
        return None
    rows: list[list[Safe | str]] = [
        [
            str(row["objective"]), f"{row['parameters']:,}", str(row["intervention"]) or "–", str(row["task"]),
            str(row["policy"]), str(row["seeds"]), valued(row, "ladder", at, ".3f", "unmasked"),
            *(valued(row, "ladder", at, "+.3f", stem) for stem in ("damage", "beyond_count", "beyond_mass")),
            str(row["conclusion"]),
        ]
        for at, row in source.rows("ladder")
    ]  # fmt: skip
    changes: list[list[Safe | str]] = [
        [
            str(row["objective"]), str(row["size"]), str(row["intervention"]), str(row["measure"]),
            str(row["seeds"]), valued(row, "ladder_interventions", at, "+.3g", "difference"), str(row["conclusion"]),
        ]
        for at, row in source.rows("ladder_interventions")
    ]  # fmt: skip
    picture = tinted(source, "ladder", "accuracy lost against size", "the ladder was not drawn")
    parts = [picture, table(_told("ladder"), COLUMNS, rows)]
    if changes:
        parts.append(table(_told("ladder_interventions"), CHANGES, changes))
    return section("ladder", "Training runs", tag("p", note("ladder")), *parts)


def _told(name: str) -> Safe:
    return tag("span", note(f"{name}_table"), link(f"tables/{name}.csv"))
