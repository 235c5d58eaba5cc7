"""The section on approximate steps: what each reuse rule saves and loses, and whether the keys that it keeps are the reason."""

from __future__ import annotations

from sinkscope.report.study.exemplars import tinted
from sinkscope.report.study.markup import Safe, link, section, table, tag
from sinkscope.report.study.numbers import cited, missing, number, valued, within
from sinkscope.report.study.source import Row, StudySource
from sinkscope.report.study.words import note

COLUMNS = (
    "rule", "accuracy (95 %)", "− exact (paired 95 %)", "− random keys", "− nearest keys", "work saved", "time saved",
    "tokens equal", "− random keys", "first step that differs", "KL, nats",
)  # fmt: skip


def approximate_steps(source: StudySource) -> Safe | None:
    """The section; None for a study without reuse rules."""
    if "reuse" not in source.frames:
        return None
    parts = []
    for rows in source.groups("reuse", "task", "decoding_name"):
        counts = [
            f"{max(found):.0f} {words}"
            for name, words in (("n", "answers graded"), ("agreement_n", "runs compared with the exact one"))
            if (found := [row[name] for _, row in rows if not missing(row.get(name))])
        ]
        caption = note("reuse_table", **rows[0][1], counts=" and ".join(counts))
        body = [_row(at, row) for at, row in rows]
        parts.append(table(tag("span", caption, link("tables/reuse.csv")), COLUMNS, body))
    alt = "accuracy and agreement against work saved"
    picture = tinted(source, "frontier", alt, "the frontier was not drawn")
    return section("reuse", "Approximate steps", tag("p", note("reuse")), picture, *parts)


def _row(at: int, row: Row) -> list[Safe | str]:
    accuracy: Safe | str = "–"
    if not missing(row.get("accuracy")):
        text = f"{number(row['accuracy'])} ({within(row['low'], row['high'])})"
        accuracy = cited(text, "reuse", at, "accuracy", "low", "high")
    rule = str(row["reuse"])
    return [
        tag("span", rule, tag("small", "exact" if rule == "none" else "approximate")),
        accuracy,
        *(valued(row, "reuse", at, "+.3f", stem) for stem in ("difference", "over_random", "over_recent")),
        *(valued(row, "reuse", at, ".1%", stem) for stem in ("work_saved", "time_saved")),
        valued(row, "reuse", at, ".3f", "tokens_equal"),
        valued(row, "reuse", at, "+.3f", "tokens_equal_over_random"),
        valued(row, "reuse", at, ".0f", "first_step"),
        valued(row, "reuse", at, ".3g", "kl"),
    ]
