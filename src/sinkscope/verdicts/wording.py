"""Verdicts in words, for people: the only place that makes sentences of them. Nothing reads these back."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from textwrap import shorten
from typing import Any

from sinkscope.sinks.measures import Form, Measure
from sinkscope.statistics import Estimate, bounded
from sinkscope.verdicts.holdings import KIND, KINDS
from sinkscope.verdicts.mask_rules import MATCHED
from sinkscope.verdicts.measures import LEAST_TEXTS
from sinkscope.verdicts.questions import HOLDINGS, Judged, overall
from sinkscope.verdicts.verdict import UNKNOWN, Question, Reason, Status, Verdict, point

SHORT = 72
"""Characters of a verdict's evidence on a line of a terminal."""
HERE = {Status.SUPPORTED: "holds here", Status.CONTRADICTED: "does not hold here", Status.UNDECIDED: "undecided"}
"""Words for verdicts on other models than the paper's, or on likelihoods: they neither confirm nor refute it."""
PROBED = {
    "supported": "sinks tell it, and more of it than random places of their kind and one fixed place",
    "contradicted": "sinks do not tell it to a linear probe",
}
MODEL = {
    Question.DRAINS: {"drains": "mostly drains", "hubs": "mostly hubs", "both": "drains and hubs"},
    Question.MOVING: {
        "static": "mostly fixed", "moving": "mostly moving", "flickering": "mostly flickering", "vanishing": "mostly vanishing",
        "emerging": "mostly emerging late", "intermittent": "mostly coming and going at one position",
        "mixed": "some fixed and some moving",
    },
}  # fmt: skip
NEEDS = Question.NEEDS_SINKS, Question.NEEDS_KEYS
"""Whether a model needs them: of a study, and else of `ss.diagnose`."""
TO_MEASURE: Mapping[str, str] = {
    Question.DRAINS: "record norms: capture=ss.Capture(anatomy=True), or --anatomy",
    Question.NEEDS_KEYS: "ss.diagnose(trace, unmasked=…, top1=…, random1=…)",
    Question.NEEDS_FIRST: "ss.diagnose(trace, unmasked=…, window=…, window_first=…)",
}
"""What a reader can do where a question was not measured."""
COUNTED = (Reason.INTERVAL, Reason.TOO_FEW, Reason.TOO_FEW_SEEDS)
"""Reasons that more of what n counts may do away with."""
LEAST = 8
"""With fewer documents no loss can be told from chance."""
ROUNDING = 1e-9
"""A difference below it is the rounding of a sum, and no drift."""
FORMS = {"number": ".2g", "signed": "+.2g", "nats": ".3g", "p": ".2g"}


TOKENS = {"control": "special tokens", "end": "end of text"}
"""Kind of token → what it is called where that is not its name; a control is what a policy stands beside."""
_TITLES = {
    measure.named(kind): measure.named(words)
    for measure in (Measure.FREQUENCY, Measure.ENRICHMENT)
    for kind, words in TOKENS.items()
}


def titled(measure: str) -> str:
    """The name of a measure in tables as people read it.

    >>> titled("control: enrichment"), titled("absorbed")
    ('special tokens: enrichment', 'absorbed')
    """
    return _TITLES.get(measure, measure)


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


def bounded_below(verdict: Verdict) -> Verdict:
    """Without intervals of too few texts: 1 − exp(−nats lost) has no lower end, and that of five texts was −7924 to 99 points."""
    if verdict.unit != "text" or verdict.n >= LEAST_TEXTS:
        return verdict
    numbers = tuple(number._replace(estimate=point(number.estimate.value)) for number in verdict.numbers)
    control = verdict.control and point(verdict.control.value)
    return replace(verdict, estimate=point(verdict.estimate.value), control=control, numbers=numbers)


def evidence(verdict: Verdict) -> str:
    """What a verdict rests on: its estimate, the numbers beside it, and why it is undecided."""
    verdict, value = bounded_below(verdict), ""
    if verdict.measure is not None and math.isfinite(verdict.estimate.value):
        value = measured(verdict.measure, verdict.estimate, verdict.of, verdict.unit)
    # Not one seen decides alone; an interval over few prompts would not.
    unseen = "not one was seen" if (verdict.measure, verdict.estimate.value) == (Measure.WITH, 0) else ""
    beside = f"beside {verdict.beside}" if verdict.beside else ""
    numbers = (measured(*number, unit=verdict.unit) for number in verdict.numbers)
    return "; ".join(filter(None, (value, beside, unseen, *numbers, because(verdict))))


def status(verdict: Verdict) -> str:
    """What became of a claim: "supported" and "contradicted" are for what bears on the paper."""
    return verdict.status.value if verdict.bears else HERE[verdict.status]


def because(verdict: Verdict) -> str:
    """Why it is undecided; "" where it is not."""
    few = f" (n = {verdict.n})" if verdict.reason in COUNTED and verdict.n else ""
    limit = f", {verdict.limit:.3g}" if verdict.reason == Reason.INTERVAL and verdict.limit is not None else ""
    return f"{verdict.reason.value}{limit}{few}" if verdict.reason else ""


def why(verdict: Verdict) -> str:
    """The same in a word or two; "" where it is decided."""
    return verdict.reason.brief if verdict.reason else ""


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
    return shorten(said, SHORT, placeholder=" …")


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


def tallied(judged: Judged) -> str:
    """How many claims are decided, each counted once for every model that it is about; empty where there is none."""
    rows = [verdicts for by_model in judged.values() for verdicts in by_model.values() if verdicts]
    if not rows:
        return ""
    claims, each = Counter(map(overall, rows)), [verdict for verdicts in rows for verdict in verdicts]
    bears = any(verdict.bears for verdict in each)
    words = ("supported", "contradicted") if bears else ("holding here", "not holding")
    held, not_held = (claims[status] for status in (Status.SUPPORTED, Status.CONTRADICTED))
    said = (
        f"{held + not_held} of {len(rows)} claims are decided, {held} as {words[0]} and {not_held} as {words[1]}. Each "
        "is counted once for every model that it is about"
    )
    if len(each) == len(rows):
        return said
    return f"{said}; task by task there are {len(each)} verdicts, {sum(verdict.decided for verdict in each)} of them decided"


def of_model(verdicts: Mapping[str, Verdict], brief: bool = False) -> str:
    """A model in one sentence, from question → verdict of its diagnosis: its sinks, and what it costs to mask the strongest.

    brief: without intervals and kinds of sinks, for a terminal.
    """
    nothing = Verdict(reason=Reason.NOT_MEASURED)
    present, needs = verdicts.get(Question.SINKS, nothing), _first(verdicts, *NEEDS) or nothing
    if present.answer == "present":
        kinds = [MODEL[name].get(verdicts.get(name, nothing).answer, "") for name in MODEL if not brief]
        share = shown(point(present.estimate.value) if brief else present.estimate, "share")
        sinks = ", ".join(filter(None, [f"Sinks in {share} of heads and steps", *kinds]))
    elif present.status == Status.CONTRADICTED:
        sinks = f"No sinks were found ({evidence(present)})"
    else:
        sinks = f"Whether it has sinks is undecided ({because(present)})"
    return f"{sinks}; {_cost(needs, brief)}."


def _first(verdicts: Mapping[str, Verdict], *questions: str) -> Verdict | None:
    return next((verdicts[name] for name in questions if name in verdicts), None)


def counted(verdicts: Mapping[str, Verdict]) -> str:
    """How much the sentences about a model rest on: "3 prompts and 16 documents"; "" where there is nothing."""
    asked = verdicts.get(Question.SINKS), _first(verdicts, *NEEDS)
    return " and ".join(f"{one.n} {one.unit}{'' if one.n == 1 else 's'}" for one in asked if one is not None and one.n)


def _cost(verdict: Verdict, brief: bool) -> str:
    """What masking each head's strongest sink, or key, costs beside both controls, and whether sinks are the reason.

    The verdict asks only for more than random keys cost. Strong keys get more attention than these, so what keys with about as
    much attention cost stands beside it; a loss that is not certainly larger leaves the reason open.
    """
    key = f"each head’s {'strongest key' if verdict.of in ('', 'top:1') else verdict.of}"
    if not math.isfinite(verdict.estimate.value):
        return f"whether it needs them is undecided ({because(verdict) or Reason.NOT_MEASURED})"
    if 0 < verdict.n < (LEAST_TEXTS if verdict.unit == "text" else LEAST) and not verdict.decided:
        return f"what masking {key} costs is undecided: {verdict.n} {verdict.unit}s are too few"
    form: Form = "share" if verdict.unit == "text" else "points"
    cost = f"masking {key} costs {shown(point(verdict.estimate.value) if brief else verdict.estimate, form)}"
    cost += " of a token’s probability" if verdict.unit == "text" else ""
    reached = (verdict.number(Measure.MATCHED) or UNKNOWN).value
    nearest = "keys nearest in attention" + (f" ({100 * reached:.0f} % of it)" if reached < 1 - MATCHED else "")
    for name, lost in (("random keys", verdict.control), (nearest, _nearest(verdict))):
        if lost is not None:
            cost += f", {name} {shown(point(lost.value) if brief else lost, form).replace(' points', '')}"
    if verdict.status == Status.UNDECIDED:
        return f"{cost}: undecided" + ("" if verdict.reason == Reason.INTERVAL else f" ({why(verdict)})")
    if verdict.status == Status.CONTRADICTED:
        return f"{cost}: hardly anything"
    beyond = verdict.number(Measure.OVER_MASS)
    both = beyond is not None and beyond.above(0.0) and reached >= 1 - MATCHED
    return f"{cost}: {'more than both controls' if both else 'that sinks are the reason is open'}"


def _nearest(verdict: Verdict) -> Estimate | None:
    """What masking random keys nearest in attention costs: the loss, less what it is beyond theirs; None: it was not run."""
    beyond = verdict.number(Measure.OVER_MASS)
    if beyond is None:
        return None
    # Of texts the loss is of a probability, whose factors multiply.
    text = verdict.unit == "text"
    lost = 1 - (1 - verdict.estimate.value) / (1 - beyond.value) if text else verdict.estimate.value - beyond.value
    return point(lost)
