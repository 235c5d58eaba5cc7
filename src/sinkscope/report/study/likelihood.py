"""The section on texts that were read: nats per token under each policy, beside its controls."""

from __future__ import annotations

from sinkscope.report.study.markup import Safe, link, section, table, tag
from sinkscope.report.study.numbers import cited, missing, number, valued, within
from sinkscope.report.study.source import Row, Source
from sinkscope.report.study.words import policy_words

NOTE = (
    "A text is not generated but read: the less probable its tokens become under a policy, the more was lost. That shows that "
    "something was lost, not what. Causal models give exact values; values of diffusion models are of masked tokens, given the "
    "others, or a bound, and are not to be compared with them: compare each model with itself."
)
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
            caption = (
                f"{model}: {task} · {decoding}, {texts} texts ({rows[0][1]['decoding']}). Means over texts; intervals: "
                "Student’s t over texts, of differences the wider of it and Hall’s, which allows for a long tail; a positive "
                "difference is a loss. The control hides as many random keys. Data: "
            )
            body = [_row(at, row) for at, row in rows]
            parts.append(table(tag("span", caption, link("tables/likelihood.csv")), COLUMNS, body))
    return section("likelihood", "Likelihood of text", tag("p", NOTE), *parts)


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
