"""The section on texts that were read: nats per token under each policy, beside its controls."""

from __future__ import annotations

from sinkscope.report.study.markup import Safe, link, section, table, tag
from sinkscope.report.study.numbers import cited, missing, number, valued, within
from sinkscope.report.study.source import Row, Source
from sinkscope.report.study.words import note, policy_words

COLUMNS = (
    "policy", "nats per token (95 %)", "− none (paired 95 %)", "control", "− control (paired 95 %)", "attention hidden",
    "sinks hit",
)  # fmt: skip


def likelihood(source: Source) -> Safe | None:
    """The section; None for a study without texts."""
    frame = source.frames.get("likelihood")
    if frame is None:
        return None
    parts = []
    for model in source.models:
        own = frame[frame["model"] == model]
        for task, decoding in dict.fromkeys(zip(own["task"], own["decoding_name"], strict=True)):
            rows = list(source.rows("likelihood", model=model, task=task, decoding_name=decoding))
            texts = max(int(row["n"]) for _, row in rows)
            caption = note(
                "likelihood_table", model=model, task=task, decoding=decoding, texts=texts, options=rows[0][1]["decoding"]
            )  # fmt: skip
            body = [_row(at, row) for at, row in rows]
            parts.append(table(tag("span", caption, link("tables/likelihood.csv")), COLUMNS, body))
    return section("likelihood", "Likelihood of text", tag("p", note("likelihood")), *parts)


def _row(at: int, row: Row) -> list[Safe | str]:
    def share(name: str) -> Safe | str:
        value = row.get(name)
        return "–" if missing(value) else cited(number(value, ".1%"), "likelihood", at, name)

    policy, control = str(row["policy"]), row.get("control_nll")
    nats = f"{number(row['nll'])} ({within(row['low'], row['high'])})"
    return [
        tag("span", policy, tag("small", policy_words(policy))),
        cited(nats, "likelihood", at, "nll", "low", "high"),
        valued(row, "likelihood", at, "+.3f", "difference"),
        "–" if missing(control) else cited(number(control), "likelihood", at, "control_nll"),
        valued(row, "likelihood", at, "+.3f", "over_control"),
        share("hidden_share"),
        share("sinks_hit"),
    ]
