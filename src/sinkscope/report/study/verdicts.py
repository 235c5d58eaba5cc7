"""The verdict on each model in one sentence, with the evidence one click away."""

from __future__ import annotations

from collections.abc import Mapping

from sinkscope.report.study.markup import Safe, details, section, table, tag
from sinkscope.report.study.numbers import cited
from sinkscope.report.study.source import Row, Source
from sinkscope.report.study.words import FAMILIES, note
from sinkscope.sinks.diagnosis import NO_EVIDENCE

KINDS = {"drains": "mostly drains", "hubs": "mostly hubs rather than drains", "both": "drains and hubs"}
MOVES = {
    "static": "most of them staying where they are",
    "moving": "most of them moving",
    "flickering": "most of them flickering",
    "vanishing": "most of them vanishing",
    "emerging": "most of them emerging late",
    "intermittent": "most of them coming and going in one place",
    "mixed": "some fixed and some moving",
}


def sentence(findings: Mapping[str, tuple[str, str]]) -> str:
    """One sentence from question → (verdict, evidence)."""
    present, seen = findings.get("sinks", (NO_EVIDENCE, "no trace was given"))
    if present != "present":
        why = "No sinks were found" if present == "none" else "Where its sinks are is not known"
        first = f"{why} ({seen})"
    else:
        parts = [f"It has sinks in {seen.partition(';')[0].removesuffix(' have a sink')}"]
        parts += [
            words[verdict]
            for question, words in (("drains or hubs", KINDS), ("moving", MOVES))
            if (verdict := findings.get(question, ("", ""))[0]) in words
        ]
        first = ", ".join(parts)
    verdict, lost = findings.get("ARM-like dependency", (NO_EVIDENCE, "no accuracies"))
    lost = lost.partition("; base")[0].replace("(-", "(−").replace("to -", "to −")
    if verdict == "yes":
        return f"{first}; and it depends on the key that each head attends to most: {lost}."
    if verdict == "no":
        return f"{first}; and it hardly needs the key that each head attends to most: {lost}."
    if verdict == NO_EVIDENCE:
        return f"{first}; whether it needs them was not shown ({lost})."
    return f"{first}; hiding keys hurts it, but so do random ones: {lost}."


def verdicts(source: Source) -> Safe | None:
    """The section."""
    cards = [
        _card(source, model, rows)
        for model in source.models
        if (rows := list(source.rows("diagnosis", model=model)))
    ]
    if not cards:
        return None
    return section(
        "verdict",
        "Verdict",
        tag("div", *cards, class_="verdicts"),
        tag("p", note("verdicts"), class_="quiet"),
    )


def _card(source: Source, model: str, rows: list[tuple[int, Row]]) -> Safe:
    findings = {row["question"]: (row["verdict"], row["evidence"]) for _, row in rows}
    about = source.manifest.get("models", {}).get(model, {})
    size = f"{about['parameters'] / 1e6:,.1f}M parameters" if about.get("parameters") else ""
    facts = (FAMILIES.get(about.get("family", ""), ""), size, str(about.get("dtype", "")))
    kind = ", ".join(filter(None, facts))
    body = [
        [row["question"], *(cited(row[name], "diagnosis", at, name) for name in ("verdict", "evidence", "thresholds"))]
        for at, row in rows
    ]  # fmt: skip
    evidence = table(
        f"Findings on {model}: the numbers they rest on and the thresholds that decided",
        ("question", "verdict", "evidence", "rule"),
        body,
        kind="findings",
    )
    return tag(
        "article", tag("h3", model), tag("p", kind, class_="kind"), tag("p", sentence(findings), class_="said"),
        details("evidence and rules", evidence), class_="verdict",
    )  # fmt: skip
