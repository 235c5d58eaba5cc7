"""What every rule on a claim has: judgements (supported, contradicted, not testable), limits, words for numbers.

Rules are pure functions of evidence; `trace_rules.py` and `masking_rules.py` have them.

A claim is supported, or contradicted, when the whole 95 % interval lies on one side of a limit that is stated beside it. An
interval that holds the limit decides nothing, however suggestive its middle. What was not measured decides nothing either.
How often each rule errs, and how large an effect must be for it, is in docs/report.md (`python -m lab.verdict_simulation`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Concatenate, NamedTuple, ParamSpec

from sinkscope.report.study.evidence import Evidence
from sinkscope.report.study.numbers import number
from sinkscope.statistics import Estimate

SUPPORTED, CONTRADICTED, OPEN = "supported", "contradicted", "not testable"


class Judgement(NamedTuple):
    """supported, contradicted or not testable, the numbers or the reason in words, and what it rests on.

    about: the task or set of traces. rests: how many documents or prompts, and how many of them ran here.
    """

    status: str
    evidence: str
    about: str = ""
    rests: str = ""


Rule = Callable[[Evidence], Judgement]
Options = ParamSpec("Options")
NOT_MEASURED = Judgement(OPEN, "not measured in this study")


def rule(decide: Callable[Concatenate[Evidence, Options], Judgement]) -> Callable[Options, Rule]:
    """A rule by its options: `keeps("top:1")` decides on evidence by `keeps(evidence, "top:1")`, as it is written."""

    @functools.wraps(decide)
    def with_options(*options: Options.args, **named: Options.kwargs) -> Rule:
        return lambda evidence: decide(evidence, *options, **named)

    return with_options


def side(estimate: Estimate | None, limit: float, above: bool, said: str) -> Judgement:
    """Which side of a limit the whole interval lies on."""
    if estimate is None or not math.isfinite(estimate.value):
        return NOT_MEASURED
    if not estimate.known:
        why = "none was seen, which has no interval" if estimate.value == 0 else "one prompt has no interval"
        return Judgement(OPEN, f"{said}; {why}")
    if estimate.above(limit):
        return Judgement(SUPPORTED if above else CONTRADICTED, said)
    if estimate.below(limit):
        return Judgement(CONTRADICTED if above else SUPPORTED, said)
    return Judgement(OPEN, f"{said}: not testable at this n, the interval does not clear {limit:g}")


def shares(estimate: Estimate) -> str:
    """43 % (41 to 46)."""
    value, low, high = (number(100 * one, ".0f") for one in estimate)
    return f"{value} % ({low} to {high})" if estimate.known else f"{value} %"


def plain(estimate: Estimate, form: str = ".2g") -> str:
    """1.6 (1.4 to 1.8)."""
    text = number(estimate.value, form)
    if not estimate.known:
        return text
    return f"{text} ({number(estimate.low, form)} to {number(estimate.high, form)})"


def points(estimate: Estimate) -> str:
    """81 points (49 to 96)."""
    value, low, high = (number(100 * one, ".0f") for one in estimate)
    return f"{value} points ({low} to {high})"


def loss(policy: str, lost: Estimate) -> str:
    """top:1 loses 81 points (49 to 96)."""
    return f"{policy} loses {points(lost)}"
