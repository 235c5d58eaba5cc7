"""The top of the page: five sentences written by rules from the tables, and a page of words for readers new to sinks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.resources import files

from sinkscope.report.study.claims import judge
from sinkscope.report.study.evidence import collect
from sinkscope.report.study.markup import Safe, details, section, tag
from sinkscope.report.study.rules import CONTRADICTED, OPEN, SUPPORTED
from sinkscope.report.study.source import Source
from sinkscope.report.study.words import short

MOVING = {
    "static": "stay where they are in",
    "moving": "move in",
    "flickering": "flicker in",
    "vanishing": "vanish in",
    "emerging": "emerge late in",
    "intermittent": "come and go in",
    "mixed": "partly stay and partly move in",
}
DEPENDENCE = {
    "yes": "costs accuracy beyond what random keys cost in",
    "no": "costs little in",
}


def summary(source: Source) -> Safe:
    """The section."""
    glossary = (files("sinkscope.report") / "study" / "glossary.txt").read_text(encoding="utf-8")
    entries = [line.split(": ", 1) for line in glossary.splitlines()]
    words = [tag(kind, text) for entry in entries for kind, text in zip(("dt", "dd"), entry, strict=True)]
    rows = tag("dl", *words, class_="words")
    return section(
        "summary", "In five sentences", tag("ol", *(tag("li", line) for line in sentences(source)), class_="five"),
        details("How to read this page: the words, for readers who do not know sinks", rows),
    )  # fmt: skip


def sentences(source: Source) -> list[str]:
    """Five sentences: what was run, where sinks are, whether they move, what hiding them costs, what becomes of the claims."""
    findings: dict[str, dict[str, tuple[str, str]]] = {}
    for model in source.models:
        for _, row in source.rows("diagnosis", model=model):
            findings.setdefault(str(row["question"]), {})[model] = (str(row["verdict"]), str(row["evidence"]))
    return [
        _scope(source),
        _where(findings.get("sinks", {})),
        _moving(findings.get("moving", {})),
        _dependence(findings.get("ARM-like dependency", {})),
        _claims(source),
    ]


def _scope(source: Source) -> str:
    models = _names(source.models)
    results = source.frames.get("results")
    if results is None:
        return f"This study traced {models} and graded no answers."
    tasks = _names(dict.fromkeys(map(str, results["task"])))
    documents = " or ".join(map(str, sorted(set(map(int, results["n"])))))
    policies = len(set(results["policy"]) - {"none"})
    return f"This study ran {models} on {tasks}, {documents} documents a cell, without a policy and under {policies} policies."


def _where(found: Mapping[str, tuple[str, str]]) -> str:
    with_sinks = [
        f"{evidence.partition(' of head-steps')[0]} of {short(model)}"
        for model, (verdict, evidence) in found.items()
        if verdict == "present"
    ]
    if not with_sinks:
        return "Where sinks are was not measured." if not found else "No model of it shows sinks by its rule."
    return f"Of the head-steps (one head in one step) these shares have a sink: {_list(with_sinks)}."


def _moving(found: Mapping[str, tuple[str, str]]) -> str:
    groups = _groups(found, MOVING)
    if not groups:
        return f"Whether they move was not {'shown' if found else 'measured'}."
    return f"They {_list(f'{words} {_names(models)}' for words, models in groups.items())}{_rest(found, MOVING)}."


def _dependence(found: Mapping[str, tuple[str, str]]) -> str:
    groups = _groups(found, DEPENDENCE)
    parts = [f"{words} {_names(models)}" for words, models in groups.items()]
    if not parts:
        return "Whether any model needs the keys that its heads attend to most was not shown."
    return f"Hiding from each head the key that it attends to most {_list(parts)}{_rest(found, DEPENDENCE)}."


def _claims(source: Source) -> str:
    tally: Counter[str] = Counter()
    for by_model in judge(collect(source)).values():
        tally.update(judgement.status for judgements in by_model.values() for judgement in judgements)
    decided = tally[SUPPORTED] + tally[CONTRADICTED]
    if not tally:
        return "No claim of the paper is about these models."
    return (
        f"Of {sum(tally.values())} verdicts on the paper’s claims {decided} could be decided here: {tally[SUPPORTED]} supported, "
        f"{tally[CONTRADICTED]} contradicted; {tally[OPEN]} are not testable with this many documents and prompts."
    )


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
    return _list(short(model) for model in models)


def _list(parts: Iterable[str]) -> str:
    """a, b and c."""
    words = list(parts)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
