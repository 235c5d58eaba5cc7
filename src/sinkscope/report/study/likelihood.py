"""The section on texts that were read: nats per token under each policy, beside its controls."""

from __future__ import annotations

from sinkscope.report.study.markup import Safe, link, section, table, tag
from sinkscope.report.study.numbers import cited, number, valued, within
from sinkscope.report.study.source import Row, StudySource
from sinkscope.report.study.words import note, policy_words

COLUMNS = (
    "policy", "nats per token (95 %)", "− none (paired 95 %)", "control", "− control (paired 95 %)", "attention hidden",
    "sinks hit",
)  # fmt: skip


def likelihood(source: StudySource) -> Safe | None:
    """The section; None for a study without texts."""
    if "likelihood" not in source.frames:
        return None
    parts = []
    for rows in source.groups("likelihood", "task", "decoding_name"):
        caption = note("likelihood_table", **rows[0][1], texts=max(int(row["n"]) for _, row in rows))
        body = [_row(at, row) for at, row in rows]
        parts.append(table(tag("span", caption, link("tables/likelihood.csv")), COLUMNS, body))
    return section("likelihood", "Likelihood of text", tag("p", note("likelihood")), *parts)


def _row(at: int, row: Row) -> list[Safe | str]:
    policy = str(row["policy"])
    nats = f"{number(row['nll'])} ({within(row['low'], row['high'])})"
    return [
        tag("span", policy, tag("small", policy_words(policy))),
        cited(nats, "likelihood", at, "nll", "low", "high"),
        valued(row, "likelihood", at, "+.3f", "difference"),
        valued(row, "likelihood", at, ".3f", "control_nll"),
        valued(row, "likelihood", at, "+.3f", "over_control"),
        *(valued(row, "likelihood", at, ".1%", name) for name in ("hidden_share", "sinks_hit")),
    ]
