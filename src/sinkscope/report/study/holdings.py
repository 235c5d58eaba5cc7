"""The section on what sinks hold: answers of rules, each with its number, and patches beside their controls."""

from __future__ import annotations

from sinkscope.report.figures import file_name
from sinkscope.report.study.exemplars import embedded_svg
from sinkscope.report.study.markup import Safe, details, figure, link, section, table, tag
from sinkscope.report.study.mechanisms import plain_table
from sinkscope.report.study.numbers import cited, missing, number
from sinkscope.report.study.source import Row, Source
from sinkscope.report.study.words import short

NOTE = (
    "A patch replaces what stands at a sink, in one step, and shows whether the predictions of that step use it. A lens and a "
    "probe show what can be read there, not that it is used. The control of all three is as many random places of the same kind "
    "that are no sinks; sinks get more attention than these, so the same change weighs more there."
)
KIND = "What kind of sinks are they?"


def what_they_hold(source: Source) -> Safe | None:
    """The section; None for a study without [[inspect]]."""
    if "holdings" not in source.frames:
        return None
    models = [model for model in source.models if any(True for _ in source.rows("holdings", model=model))]
    asked = dict.fromkeys(str(row["question"]) for _, row in source.rows("holdings"))
    known = {
        (str(row["question"]), model): (at, row)
        for model in models
        for at, row in source.rows("holdings", model=model)
    }
    body = [
        [question, *(_answer(known.get((question, model))) for model in models)]
        for question in asked
        if question != KIND
    ]
    lead = [tag("li", tag("b", model), ": ", _kind(known.get((KIND, model)))) for model in models]
    answers = table(
        "What rules say about the sinks. Yes and no need the whole 95 % interval over prompts, widened by a quarter, on one side "
        "of the limit, and 20 prompts; everything else is not shown",
        ("question", *models), body,
    )  # fmt: skip
    measures = plain_table(
        source,
        "inspection",
        "All measures, with 95 % intervals over prompts; layer −1: mean over layers",
    )
    return section(
        "inspection", "What they hold", tag("ul", *lead), tag("p", NOTE, class_="warning"), answers,
        *(_picture(source, model) for model in models), details("all measures", measures),
    )  # fmt: skip


def _kind(found: tuple[int, Row] | None) -> str:
    if found is None:
        return "not inspected"
    row = found[1]
    return str(row["sentence"]) if row["answer"] == "yes" else f"{row['answer']}: {row['sentence']}"


def _answer(found: tuple[int, Row] | None) -> Safe | str:
    if found is None:
        return "–"
    at, row = found
    value = "" if missing(row["value"]) else cited(number(row["value"], ".3g"), "holdings", at, "value")
    return tag("span", tag("b", row["answer"]), " ", value, tag("small", row["sentence"]))


def _picture(source: Source, model: str) -> Safe:
    stem = f"holdings_{file_name(short(model))}"
    path = source.figure(f"{stem}.svg")
    if path is None:
        return tag("p", f"{model}: not drawn", class_="quiet")
    picture = tag(
        "img", src=embedded_svg(path.read_bytes()), alt=f"what the sinks of {model} hold", class_="tinted"
    )
    return figure(
        picture,
        f"{model}: what patches change, what a lens and probes read, and how far values move, at sinks and at their controls.",
        "means over prompts with 95 % intervals (docs/inside.md states every measure).",
        "That the model uses what a probe or a lens reads; and patches act in the steps that were looked at only.",
        link(f"figures/{stem}.csv"),
    )
