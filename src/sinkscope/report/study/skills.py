"""The section on skills: what masking costs each skill of the battery beyond random keys, at equal unmasked accuracy."""

from __future__ import annotations

from sinkscope.report.study.markup import Safe, link, section, table, tag
from sinkscope.report.study.numbers import valued
from sinkscope.report.study.source import Row, StudySource
from sinkscope.report.study.words import note

COLUMNS = (
    "skill", "difficulties", "unmasked", "right answers", "kept", "kept with random keys", "lost beyond them (95 %)",
    "apart from other skills",
)  # fmt: skip


def skills(source: StudySource) -> Safe | None:
    """The section; None for a study without the battery, or without enough controls."""
    if "skill_losses" not in source.frames:
        return None
    parts = []
    for rows in source.groups("skill_losses", "decoding_name", "scheme", "policy", "match"):
        first = rows[0][1]
        left_out = f" Not compared: {first['left_out']}." if first["left_out"] else ""
        caption = note("skills_table", **{**first, "left_out": left_out})
        body = [_row(at, row) for at, row in rows if row["skill"]]
        parts.append(table(tag("span", caption, link("tables/skill_losses.csv")), COLUMNS, body))
    return section("skills", "Which skills", tag("p", note("skills")), *parts)


def _row(at: int, row: Row) -> list[Safe | str]:
    forms = {
        "accuracy": ".3f", "n": ".0f", "kept": ".3f", "control_kept": ".3f", "beyond": "+.3f", "apart": "+.3f",
    }  # fmt: skip
    numbers = (valued(row, "skill_losses", at, form, name) for name, form in forms.items())
    return [str(row["skill"]), str(row["difficulties"]), *numbers]
