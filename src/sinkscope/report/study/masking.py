"""What breaks when keys are taken away: the paper's table 1 for the models of this study, with intervals and controls."""

from __future__ import annotations

from typing import Any

from sinkscope.report.study.curves import curves
from sinkscope.report.study.markup import Safe, details, link, section, table, tag
from sinkscope.report.study.numbers import SHOWN, cited, missing, number, result, setting
from sinkscope.report.study.shipped_results import shipped_results
from sinkscope.report.study.source import Row, Source
from sinkscope.report.study.words import policy_words
from sinkscope.study.comparison import control, natural

LIMITS = (
    "Losing accuracy when keys are hidden does not show that a sink matters. It does only when the controls that hide as many "
    "random keys and as much attention keep their accuracy, and when silencing the same keys (their attention stays, their "
    "content goes) costs accuracy too. Hiding a key removes its information and spreads its attention over the others."
)


def masking(source: Source) -> Safe | None:
    """The section."""
    if "results" not in source.frames:
        return None
    frame = source.frames["results"]
    parts: list[Any] = [tag("p", LIMITS, class_="warning")]
    for key in dict.fromkeys(zip(frame["task"], frame["decoding_name"], strict=True)):
        task, decoding = map(str, key)
        rows = list(source.rows("results", task=task, decoding_name=decoding))
        parts += [_wide(source, task, decoding, rows), curves(source, task, decoding, rows)]
        parts.append(details(f"all numbers of {task} · {decoding}", *_long(source, rows)))
    if source.notes:
        parts.append(tag("ul", *(tag("li", note) for note in source.notes), class_="quiet"))
    parts.append(shipped_results(source.shipped))
    return section("masking", "What breaks without them", *parts)


def _wide(source: Source, task: str, decoding: str, rows: list[tuple[int, Row]]) -> Safe:
    """Policies downwards, models to the right, as the paper prints it."""
    models = [model for model in source.models if any(row["model"] == model for _, row in rows)]
    places = {(row["policy"], row["model"]): (at, row) for at, row in rows}
    policies = sorted({row["policy"] for _, row in rows}, key=_order)
    many = sorted({int(row["n"]) for _, row in rows})
    paper = any(not missing(row.get("paper")) for _, row in rows)
    caption = (
        f"{task} · {decoding}: accuracy with its Wilson 95 % interval, n = {' or '.join(map(str, many))} documents a cell"
        + ("; the paper’s number with its standard error beside" if paper else "")
        + ". Controls are means over their draws."
    )
    body = [
        [tag("span", policy, tag("small", policy_words(policy))), *(_accuracy(places.get((policy, model))) for model in models)]
        for policy in policies
    ]  # fmt: skip
    return table(caption, ("policy", *models), body)


def _order(policy: str) -> tuple[bool, list[tuple[int, float, str]], bool, str]:
    """none first, each control after its policy."""
    kind = control(policy)
    return policy != "none", natural(policy if kind is None else kind[0]), kind is not None, policy


def _accuracy(place: tuple[int, Row] | None) -> Safe | str:
    if place is None:
        return "–"
    at, row = place
    parts = [
        cited(number(row["accuracy"], ".2f"), "results", at, "accuracy"),
        tag("small", result(row, at, "interval")),
    ]
    if not missing(row.get("paper")):
        text = f"paper {number(row['paper'], '.2f')} ± {number(row['paper_plus_minus'], '.2f')}"
        parts.append(tag("small", cited(text, "results", at, "paper", "paper_plus_minus")))
    return tag("span", *parts)


def _long(source: Source, rows: list[tuple[int, Row]]) -> list[Safe]:
    """Every column that people read, model by model."""
    found = []
    for model in source.models:
        own = [(at, row) for at, row in rows if row["model"] == model]
        if own:
            caption = f"{model}: {setting(own[0][1])}"
            body = [[result(row, at, column) for column, _ in SHOWN] for at, row in own]
            found.append(table(caption, [title for _, title in SHOWN], body))
    note = (
        "Paired intervals in this table are bootstraps over documents: where all documents agree they have no width, which does "
        "not mean certainty. p: McNemar’s exact test, corrected over the table by Holm. Attention hidden: mean share that the "
        "mask took. Sinks hit: share of the step’s own sinks that it really hid. Keys: k as a share of the keys."
    )
    return [*found, tag("p", note, " Data: ", link("tables/results.csv"), ".")]
