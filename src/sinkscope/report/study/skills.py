"""The section on skills: what masking costs each skill of the battery beyond random keys, at equal unmasked accuracy."""

from __future__ import annotations

from sinkscope.report.study.markup import Safe, link, section, table, tag
from sinkscope.report.study.numbers import cited, number, valued
from sinkscope.report.study.source import Row, StudySource
from sinkscope.report.study.words import note

COLUMNS = (
    "skill", "difficulties", "unmasked", "right answers", "kept", "kept with random keys", "lost beyond them (95 %)",
    "apart from other skills",
)  # fmt: skip


def skills(source: StudySource) -> Safe | None:
    """The section; None for a study without the battery, or without enough controls."""
    frame = source.frames.get("skill_losses")
    if frame is None:
        return None
    parts: list[Safe] = []
    keys = ["model", "decoding_name", "scheme", "policy", "match"]
    for group in dict.fromkeys(frame[keys].itertuples(index=False, name=None)):
        named = dict(zip(keys, group, strict=True))
        rows = list(source.rows("skill_losses", **named))
        said = {name: rows[0][1][name] for name in ("verdict", "why", "left_out")}
        left_out = f" Not compared: {said['left_out']}." if said["left_out"] else ""
        caption = note("skills_table", **named, verdict=said["verdict"], why=said["why"], left_out=left_out)
        body = [_row(at, row) for at, row in rows if row["skill"]]
        parts.append(table(tag("span", caption, link("tables/skill_losses.csv")), COLUMNS, body))
    return section("skills", "Which skills", tag("p", note("skills")), *parts)


def _row(at: int, row: Row) -> list[Safe | str]:
    def value(name: str, form: str) -> Safe | str:
        return cited(number(row[name], form), "skill_losses", at, name)

    return [
        str(row["skill"]),
        str(row["difficulties"]),
        value("accuracy", ".3f"),
        value("n", ".0f"),
        value("kept", ".3f"),
        value("control_kept", ".3f"),
        valued(row, "skill_losses", at, "+.3f", "beyond"),
        valued(row, "skill_losses", at, "+.3f", "apart"),
    ]
