"""Verdicts in words, for people: the only place that makes sentences of them. Nothing reads these back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sinkscope.sinks.measures import Form, Measure
from sinkscope.statistics import Estimate, bounded
from sinkscope.verdicts.holdings import KIND, KINDS
from sinkscope.verdicts.questions import HOLDINGS, Tally
from sinkscope.verdicts.verdict import Reason, Status, Verdict

SHORT = 66
"""Characters of a verdict's evidence on a line of a terminal."""
HERE = {Status.SUPPORTED: "holds here", Status.CONTRADICTED: "does not hold here", Status.UNDECIDED: "undecided"}
"""Words for verdicts on other models than the paper's, or on likelihoods: they neither confirm nor refute it."""
PROBED = {
    "supported": "sinks tell it, and more of it than random places of their kind and one fixed place",
    "contradicted": "sinks do not tell it to a linear probe",
}
MODEL = {
    "drains or hubs": {"drains": "mostly drains", "hubs": "mostly hubs", "both": "drains and hubs"},
    "moving": {
        "static": "mostly fixed", "moving": "mostly moving", "flickering": "mostly flickering", "vanishing": "mostly vanishing",
        "emerging": "mostly emerging late", "intermittent": "mostly coming and going at one position",
        "mixed": "some fixed and some moving",
    },
}  # fmt: skip
NEEDS = "needs its strongest sinks"
"""A question of studies beside those of `ss.diagnose`."""
TO_MEASURE = {
    "drains or hubs": "record norms: capture=ss.Capture(anatomy=True), or --anatomy",
    "needs its strongest keys": "ss.diagnose(trace, unmasked=…, top1=…, random1=…)",
    "needs its first tokens": "ss.diagnose(trace, unmasked=…, window=…, window_first=…)",
}
"""Question → what a reader can do where it was not measured."""
COUNTED = (Reason.INTERVAL, Reason.TOO_FEW, Reason.TOO_FEW_SEEDS)
"""Reasons that more of what n counts may do away with."""
LEAST = 8
"""With fewer documents no loss can be told from chance."""
ROUNDING = 1e-9
"""A difference below it is the rounding of a sum, and no drift."""
FORMS = {"number": ".2g", "signed": "+.2g", "nats": ".3g", "p": ".2g"}


def missing(value: Any) -> bool:
    """None or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def number(value: Any, form: str = ".3f") -> str:
    """A number as text; empty when there is none.

    >>> number(0.0434, ".1%"), number(-0.001, ".2f")
    ('4.3%', '0.00')
    >>> number(-6.4e-34, "+.2g"), number(1e-12, ".2g")
    ('0', '1e−12')
    """
    if missing(value):
        return ""
    if not isinstance(value, (int, float)):
        return str(value)
    if form[:1] == "+" and abs(value) < ROUNDING:
        value = 0.0
    text = f"{value:{form}}".replace("-", "−")
    return text.lstrip("−+") if set(text) <= set("−+0.%") else text  # no zero below zero


def shown(estimate: Estimate, form: Form = "number") -> str:
    """A value with its interval.

    >>> shown(Estimate(0.43, 0.41, 0.46), "share"), shown(Estimate(1.6, 1.4, 1.8)), shown(Estimate(0.8, 0.5, 1.0), "points")
    ('43 % (41 to 46)', '1.6 (1.4 to 1.8)', '80 points (50 to 100)')
    """
    if form in ("share", "points"):
        value, low, high = (number(100 * float(bound), ".0f") for bound in estimate)
        value += " %" if form == "share" else " points"
    else:
        value, low, high = (number(float(bound), FORMS[form]) for bound in estimate)
    return f"{value} ({low} to {high})" if estimate.known else value


def measured(measure: Measure, estimate: Estimate, of: str = "", unit: str = "") -> str:
    """A number with its label: "43 % (41 to 46) of heads and steps have no sink". unit: a text's points are of probability."""
    label = measure.label.format(of)
    if (unit, measure.form) == ("text", "points"):
        label = f"of a token's probability {label}"
    before = f"{of}:" if label == measure.label and of else ""
    return " ".join(filter(None, (before, shown(estimate, measure.form), label)))


def evidence(verdict: Verdict) -> str:
    """What a verdict rests on: its estimate, the numbers beside it, and why it is undecided."""
    parts = []
    if verdict.measure is not None and math.isfinite(verdict.estimate.value):
        parts.append(measured(verdict.measure, verdict.estimate, verdict.of, verdict.unit))
    if verdict.beside:
        parts.append(f"beside {verdict.beside}")
    parts += [measured(*number, unit=verdict.unit) for number in verdict.numbers]
    return "; ".join(filter(None, [*parts, because(verdict)]))


def status(verdict: Verdict) -> str:
    """What became of a claim: "supported" and "contradicted" are for what bears on the paper."""
    return verdict.status.value if verdict.bears else HERE[verdict.status]


def because(verdict: Verdict) -> str:
    """Why it is undecided; "" where it is not."""
    few = f" (n = {verdict.n})" if verdict.reason in COUNTED and verdict.n else ""
    limit = f", {verdict.limit:.3g}" if verdict.reason == Reason.INTERVAL and verdict.limit is not None else ""
    return f"{verdict.reason.value}{limit}{few}" if verdict.reason else ""


def answer(verdict: Verdict) -> str:
    """The answer to a question in a word or two."""
    return verdict.answer or status(verdict)


def concluded(verdict: Verdict) -> str:
    """The answer alone, or why there is none, for a column of a table."""
    open_ = "not shown" if verdict.reason == Reason.INTERVAL else f"nothing: {because(verdict)}"
    return answer(verdict) if verdict.decided else open_


def short(verdict: Verdict) -> str:
    """The estimate, or why there is none, in a few words."""
    said = because(verdict) if verdict.reason == Reason.EPSILON else evidence(replace(verdict, numbers=()))
    todo = TO_MEASURE.get(verdict.question) if verdict.reason == Reason.NOT_MEASURED else None
    if todo:
        return f"{said} ({todo})"
    return said if len(said) <= SHORT else f"{said[:SHORT]}…"


def row(verdict: Verdict) -> dict[str, Any]:
    """A verdict as a row of a table: flat columns, and its evidence in words."""
    told = verdict.data()
    flat = {name: told[name] for name in ("question", "subject", "about", "status", "reason")}
    flat["answer"] = answer(verdict)
    flat |= {"measure": "" if verdict.measure is None else verdict.measure.named(verdict.of)}
    flat |= dict(zip(("value", "low", "high"), verdict.estimate, strict=True))
    flat |= {"limit": verdict.limit, "side": verdict.side.value}
    flat |= bounded("control", *(verdict.control or ()))
    flat |= {name: told[name] for name in ("beside", "n", "unit", "rule", "bears")}
    return flat | {"evidence": evidence(verdict)}


def stored(verdict: Verdict) -> dict[str, Any]:
    """The same row with the verdict itself, as `from_json` reads it: what pages and terminals render."""
    return row(verdict) | {"verdict": verdict.to_json()}


def held(verdict: Verdict) -> str:
    """What a verdict on what sinks hold says."""
    if verdict.question == KIND and verdict.answer:
        return KINDS[verdict.answer]
    says = next((question.says for question in HOLDINGS if question.name == verdict.question), PROBED)
    words = says.get(verdict.status.value)
    return f"{words} ({evidence(verdict)})" if words else evidence(verdict)


def tallied(tally: Tally) -> str:
    """How many claims are decided; empty where no claim is about the models."""
    if not tally.claims:
        return ""
    words = ("supported", "contradicted") if tally.bears else ("holding here", "not holding")
    held, not_held = (tally.claims[status] for status in (Status.SUPPORTED, Status.CONTRADICTED))
    said = (
        f"{tally.decided} of {tally.claims.total()} claims are decided, {held} as {words[0]} and {not_held} as {words[1]}. Each "
        "is counted once for every model that it is about"
    )
    every = tally.verdicts.total()
    if every == tally.claims.total():
        return said
    return (
        f"{said}; task by task there are {every} verdicts, {every - tally.verdicts[Status.UNDECIDED]} of them decided"
    )


def of_model(verdicts: Mapping[str, Verdict]) -> str:
    """A model in two sentences, each on one base of evidence, from question → verdict of its diagnosis."""
    nothing = Verdict(reason=Reason.NOT_MEASURED)
    present = verdicts.get("sinks", nothing)
    needs = next((verdicts[name] for name in (NEEDS, "needs its strongest keys") if name in verdicts), nothing)
    if present.answer == "present":
        kinds = [MODEL[name].get(verdicts.get(name, nothing).answer, "") for name in MODEL]
        first = f"Sinks in {shown(present.estimate, 'share')} of (step, head) pairs"
        first = ", ".join(filter(None, [first, *kinds]))
    elif present.status == Status.CONTRADICTED:
        first = f"No sinks were found ({evidence(present)})"
    else:
        first = f"Whether it has sinks is undecided ({because(present)})"
    return f"{first}. {_needed(needs)}."


def counted(verdicts: Mapping[str, Verdict]) -> str:
    """How much the sentences about a model rest on: "3 prompts and 16 documents"; "" where there is nothing."""
    asked = (verdicts.get(name) for name in ("sinks", NEEDS if NEEDS in verdicts else "needs its strongest keys"))
    return " and ".join(f"{one.n} {one.unit}{'' if one.n == 1 else 's'}" for one in asked if one is not None and one.n)


def _needed(verdict: Verdict) -> str:
    """Whether a model needs the strongest sink, or key, of each head."""
    key = f"each head’s {'strongest key' if verdict.of in ('', 'top:1') else verdict.of}"
    if not math.isfinite(verdict.estimate.value):
        return f"Whether it needs them is undecided ({because(verdict) or Reason.NOT_MEASURED})"
    if not verdict.decided and 0 < verdict.n < LEAST:
        return f"Whether it needs {key} is undecided: {verdict.n} documents are too few"
    form: Form = "share" if verdict.unit == "text" else "points"
    cost = f"masking it costs {shown(verdict.estimate, form)}"
    cost += " of a token’s probability" if verdict.unit == "text" else ""
    if verdict.control is not None:
        cost += f", a random key {shown(verdict.control, form).replace(' points', '')}"
    if verdict.status == Status.UNDECIDED:
        but = "" if verdict.reason == Reason.INTERVAL else f", and {because(verdict)}"
        return f"Whether it needs {key} is undecided: {cost}{but}"
    return f"It {'needs' if verdict.status == Status.SUPPORTED else 'hardly needs'} {key}: {cost}"
