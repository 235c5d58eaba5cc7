"""The section on what sinks hold: answers of rules, each with its number, and patches beside their controls."""

from __future__ import annotations

from sinkscope.report.figures import file_name
from sinkscope.report.study.exemplars import tinted
from sinkscope.report.study.markup import Safe, details, table, tag
from sinkscope.report.study.numbers import cited, missing, number
from sinkscope.report.study.source import Row, StudySource
from sinkscope.report.study.tables import plain_table
from sinkscope.report.study.words import note, section, short

KIND = "What kind of sinks are they?"


def what_they_hold(source: StudySource) -> Safe | None:
    """The section; None for a study without [[inspect]]."""
    if "holdings" not in source.frames:
        return None
    cells = {
        (model, str(row["task"])): title(source, model, str(row["task"]))
        for model in source.models
        for _, row in source.rows("holdings", model=model)
    }
    known = {
        (str(row["question"]), model, task): (at, row)
        for model, task in cells
        for at, row in source.rows("holdings", model=model, task=task)
    }
    asked = [question for question in dict.fromkeys(question for question, *_ in known) if question != KIND]
    body = [[question, *(_answer(known.get((question, *cell))) for cell in cells)] for question in asked]
    lead = [tag("li", tag("b", name), ": ", _kind(known.get((KIND, *cell)))) for cell, name in cells.items()]
    answers = table(
        note("holdings_table"),
        ("question", *cells.values()), body,
    )  # fmt: skip
    measures = plain_table(
        source, "inspection", "All measures, with 95 % intervals over prompts; layer −1: mean over layers"
    )
    return section(
        "inspection", tag("ul", *lead), tag("p", note("holdings"), class_="warning"), answers,
        *(_picture(source, *cell) for cell in cells), details("all measures", measures),
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


def title(source: StudySource, model: str, task: str) -> str:
    """The model, and the task where the study inspects several."""
    several = source.frames["inspection"]["task"].nunique() > 1
    return f"{model} · {task}" if several else model


def figure_stem(source: StudySource, model: str, task: str) -> str:
    """The name of a picture's files, without their ending."""
    return f"holdings_{file_name(title(source, short(model), task))}"


def _picture(source: StudySource, model: str, task: str) -> Safe:
    stem = figure_stem(source, model, task)
    alt, lacking = f"what the sinks of {model} hold", f"{model}: not drawn"
    return tinted(source, stem, alt, lacking, "holdings", model=model)
