"""The top of the page: five sentences and the verdict on each model, written by rules from the tables, and the words they use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.resources import files

from sinkscope.report.study.claims import tally
from sinkscope.report.study.evidence import ACCURACIES, ModelEvidence
from sinkscope.report.study.markup import Safe, details, table, tag
from sinkscope.report.study.numbers import cited, number
from sinkscope.report.study.rules import points
from sinkscope.report.study.source import Row, StudySource
from sinkscope.report.study.words import FAMILIES, note, section, short
from sinkscope.sinks.diagnosis import NO_EVIDENCE
from sinkscope.study.names import control
from sinkscope.text import listed

MOVING = {
    "static": "stay where they are in",
    "moving": "move in",
    "flickering": "flicker in",
    "vanishing": "vanish in",
    "emerging": "emerge late in",
    "intermittent": "come and go in",
    "mixed": "partly stay and partly move in",
}
DEPENDENCE = {"yes": "the strongest key costs more than a random one in", "no": "it costs little in"}
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


NUMBER = r"(-?\d+\.?\d*)"
LOSSES = re.compile(
    rf"top-1 loses {NUMBER} points \({NUMBER} to {NUMBER}\), its random control {NUMBER}(?: points)? \({NUMBER} to {NUMBER}\)"
)
"""How `ss.diagnose` words what hiding keys costs."""
COMPARED = ("none", "top:1", "random(top:1)")


def summary(source: StudySource) -> Safe:
    """The section."""
    glossary = (files("sinkscope.report") / "study" / "glossary.txt").read_text(encoding="utf-8")
    entries = [line.split(": ", 1) for line in glossary.splitlines()]
    words = [tag(kind, text) for entry in entries for kind, text in zip(("dt", "dd"), entry, strict=True)]
    rows = tag("dl", *words, class_="words")
    return section(
        "summary", tag("ol", *(tag("li", line) for line in sentences(source)), class_="five"),
        details("How to read this page: the words, for readers who do not know sinks", rows),
    )  # fmt: skip


def sentences(source: StudySource) -> list[str]:
    """Five sentences: what was run, where sinks are, whether they move, what hiding them costs, what becomes of the claims."""
    findings: dict[str, dict[str, tuple[str, str]]] = {}
    for model in source.models:
        for _, row in source.rows("diagnosis", model=model):
            findings.setdefault(str(row["question"]), {})[model] = (str(row["verdict"]), str(row["evidence"]))
    return [
        _scope(source),
        _where(findings.get("sinks", {})),
        _moving(findings.get("moving", {})),
        _dependence(source, findings.get("ARM-like dependency", {})),
        _claims(source),
    ]


def _scope(source: StudySource) -> str:
    models = _names(source.models)
    graded, read = (source.frames.get(name) for name in ("results", "likelihood"))
    tasks, used = [], []
    for task, rows in () if graded is None else graded.groupby("task", sort=False):
        here = max(map(int, rows["n"]))
        every = max((one.n for one in _graded(source) if one.about.partition(",")[0] == task), default=here)
        tasks.append(f"{task} ({here} documents{f', {every} with earlier evidence' if every > here else ''})")
        used += list(rows["policy"])
    for task, rows in () if read is None else read.groupby("task", sort=False):
        tasks.append(f"{task} ({max(map(int, rows['n']))} texts read)")
        used += list(rows["policy"])
    if not tasks:
        return f"This study traced {models} and graded no answers."
    policies = [policy for policy in dict.fromkeys(used) if policy != "none"]
    plain = [policy for policy in policies if control(policy) is None]
    under = f"under {len(plain)} polic{'y' if len(plain) == 1 else 'ies'}"
    controls = " and random controls" if len(plain) < len(policies) else ""
    return f"This study ran {models} on {listed(tasks)}, without a policy and {under}{controls}."


def _graded(source: StudySource) -> list[ModelEvidence]:
    """The evidence on accuracies, not that of texts that were read."""
    return [one for one in source.evidence if one.kind == ACCURACIES and one.counted]


def _where(found: Mapping[str, tuple[str, str]]) -> str:
    with_sinks = [
        f"{evidence.partition(' of head-steps')[0]} of {short(model)}"
        for model, (verdict, evidence) in found.items()
        if verdict == "present"
    ]
    if not with_sinks:
        return "Where sinks are was not measured." if not found else "No model of it shows sinks by its rule."
    return f"Of the head-steps (one head in one step) these shares have a sink: {listed(with_sinks)}."


def _moving(found: Mapping[str, tuple[str, str]]) -> str:
    groups = _groups(found, MOVING)
    if not groups:
        return f"Whether they move was not {'shown' if found else 'measured'}."
    return f"They {listed(f'{words} {_names(models)}' for words, models in groups.items())}{_rest(found, MOVING)}."


def _dependence(source: StudySource, found: Mapping[str, tuple[str, str]]) -> str:
    costs: dict[str, tuple[str, str, str]] = {}
    for one in _graded(source):
        lost, random = one.on(COMPARED).lost("top:1"), one.on(COMPARED).lost("random(top:1)")
        if lost is not None and random is not None:
            costs.setdefault(
                one.model, (short(one.model), points(lost), points(random).replace(" points", ""))
            )
    read = _read_costs(source)
    if not costs and not read:
        return "Whether any model needs the keys that its heads attend to most was not shown."
    if not costs:
        return f"Hiding each head’s strongest key costs {'; '.join(read)}."
    first, *rest = costs.values()
    parts = ["Hiding each head’s strongest key costs {} {}, and hiding a random key {}".format(*first)]
    parts += ["{} {} and {}".format(*one) for one in rest]
    groups = _groups({model: found[model] for model in costs if model in found}, DEPENDENCE)
    parts += [f"{words} {_names(models)}" for words, models in groups.items()]
    parts += [f"on texts, it costs {read[0]}", *read[1:]] if read else []
    return f"{'; '.join(parts)}."


def _read_costs(source: StudySource) -> list[str]:
    """For each model what hiding the strongest key costs in the first of its texts, beside the random control."""
    costs: dict[str, str] = {}
    for _, row in source.rows("likelihood", policy="top:1"):
        place = {name: row[name] for name in ("model", "task", "decoding_name")}
        control = [other for _, other in source.rows("likelihood", policy="random(top:1)", **place)]
        if str(row["model"]) not in costs and control:
            lost = "{difference:.2f} nats per token ({difference_low:.2f} to {difference_high:.2f})".format(
                **row
            )
            random = f"{round(control[0]['difference'], 2) + 0:.2f}"  # no −0.00
            costs[str(row["model"])] = f"{short(str(row['model']))} {lost}, and a random key {random}"
    return list(costs.values())


def _claims(source: StudySource) -> str:
    said = tally(source.judged).sentence
    return f"{said}." if said else "No claim of the paper is about these models."


def _groups(found: Mapping[str, tuple[str, str]], words: Mapping[str, str]) -> dict[str, list[str]]:
    """Words of a verdict → the models that have it, verdicts without words left out."""
    groups: dict[str, list[str]] = {}
    for model, (verdict, _) in found.items():
        if verdict in words:
            groups.setdefault(words[verdict], []).append(model)
    return groups


def _rest(found: Mapping[str, tuple[str, str]], words: Mapping[str, str]) -> str:
    """The models whose verdict has no words."""
    open_ = [model for model, (verdict, _) in found.items() if verdict not in words]
    return f"; for {_names(open_)} it was not shown" if open_ else ""


def _names(models: Iterable[str]) -> str:
    return listed(short(model) for model in models)


# ---- the verdict on each model ---------------------------------------------------------------------


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
    lost = costs(lost.partition("; base")[0])
    if verdict == "yes":
        return f"{first}; and it depends on the key that each head attends to most: {lost}."
    if verdict == "no":
        return f"{first}; and it hardly needs the key that each head attends to most: {lost}."
    if verdict == NO_EVIDENCE:
        return f"{first}; whether it needs them was not shown ({lost})."
    return f"{first}; hiding keys hurts it, but so do random ones: {lost}."


def costs(evidence: str) -> str:
    """What hiding keys costs in whole points, from the evidence of `ss.diagnose`; other evidence as it is.

    >>> costs("top-1 loses 93.8 points (56.2 to 98.9), its random control 25.0 points (0.8 to 49.5)")
    'hiding each head’s strongest key costs 94 points (56 to 99), hiding a random key 25 (1 to 50)'
    """
    found = LOSSES.match(evidence)
    if found is None:
        return evidence
    lost, low, high, other, other_low, other_high = (number(float(text), ".0f") for text in found.groups())
    hidden = f"hiding each head’s strongest key costs {lost} points ({low} to {high})"
    return f"{hidden}, hiding a random key {other} ({other_low} to {other_high})"


def verdicts(source: StudySource) -> Safe | None:
    """The section."""
    cards = [
        _card(source, model, rows)
        for model in source.models
        if (rows := list(source.rows("diagnosis", model=model)))
    ]
    if not cards:
        return None
    return section(
        "verdict", tag("div", *cards, class_="verdicts"), tag("p", note("verdicts"), class_="quiet")
    )


def _card(source: StudySource, model: str, rows: list[tuple[int, Row]]) -> Safe:
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
