"""The section on approximate steps: what each reuse rule saves and loses, and whether the keys that it keeps are the reason."""

from __future__ import annotations

from sinkscope.report.study.exemplars import embedded_svg
from sinkscope.report.study.markup import Safe, link, section, table, tag
from sinkscope.report.study.numbers import cited, missing, number, valued, within
from sinkscope.report.study.source import Row, Source
from sinkscope.report.study.words import captioned, note

FIGURE = "frontier"
COLUMNS = (
    "rule", "accuracy (95 %)", "− exact (paired 95 %)", "− random keys", "− nearest keys", "work saved", "time saved",
    "tokens equal", "− random keys", "first step that differs", "KL, nats",
)  # fmt: skip


def approximate_steps(source: Source) -> Safe | None:
    """The section; None for a study without reuse rules."""
    frame = source.frames.get("reuse")
    if frame is None:
        return None
    parts: list[Safe] = []
    for model in source.models:
        own = frame[frame["model"] == model]
        for task, decoding in dict.fromkeys(zip(own["task"], own["decoding_name"], strict=True)):
            rows = list(source.rows("reuse", model=model, task=task, decoding_name=decoding))
            counts = [
                f"{max(found):.0f} {words}"
                for name, words in (
                    ("n", "answers graded"),
                    ("agreement_n", "runs compared with the exact one"),
                )
                if (found := [row[name] for _, row in rows if not missing(row.get(name))])
            ]
            words = {"model": model, "task": task, "decoding": decoding, "options": rows[0][1]["decoding"]}
            caption = note("reuse_table", counts=" and ".join(counts), **words)
            body = [_row(at, row) for at, row in rows]
            parts.append(table(tag("span", caption, link("tables/reuse.csv")), COLUMNS, body))
    return section("reuse", "Approximate steps", tag("p", note("reuse")), _picture(source), *parts)


def _row(at: int, row: Row) -> list[Safe | str]:
    def value(name: str, form: str) -> Safe | str:
        found = row.get(name)
        return "–" if missing(found) else cited(number(found, form), "reuse", at, name)

    accuracy: Safe | str = "–"
    if not missing(row.get("accuracy")):
        text = f"{number(row['accuracy'])} ({within(row['low'], row['high'])})"
        accuracy = cited(text, "reuse", at, "accuracy", "low", "high")
    rule = str(row["reuse"])
    return [
        tag("span", rule, tag("small", "exact" if rule == "none" else "approximate")),
        accuracy,
        *(valued(row, "reuse", at, "+.3f", stem) for stem in ("difference", "over_random", "over_recent")),
        value("work_saved", ".1%"),
        valued(row, "reuse", at, ".1%", "time_saved"),
        valued(row, "reuse", at, ".3f", "tokens_equal"),
        valued(row, "reuse", at, "+.3f", "tokens_equal_over_random"),
        value("first_step", ".0f"),
        valued(row, "reuse", at, ".3g", "kl"),
    ]


def _picture(source: Source) -> Safe:
    path = source.figure(f"{FIGURE}.svg")
    if path is None:
        return tag("p", "the frontier was not drawn", class_="quiet")
    alt = "accuracy and agreement against work saved"
    picture = tag("img", src=embedded_svg(path.read_bytes()), alt=alt, class_="tinted")
    return captioned(picture, FIGURE, link(f"figures/{FIGURE}.csv"))
