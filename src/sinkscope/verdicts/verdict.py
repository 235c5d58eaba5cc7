"""A verdict as data, and the one function that turns an interval and a limit into a status.

Claims of the paper, diagnosis, holdings, skills, trends and comparisons are all verdicts. Sentences about them are made by
`wording`, for people, and never read back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, NamedTuple

from sinkscope.sinks.measures import Measure
from sinkscope.statistics import Estimate

UNKNOWN = Estimate(math.nan, math.nan, math.nan)


class Status(StrEnum):
    """What becomes of a claim, or of a question that is asked as a statement ("only at the start")."""

    SUPPORTED = "supported"
    CONTRADICTED = "contradicted"
    UNDECIDED = "undecided"


class Question(StrEnum):
    """What is asked of a model: of its traces, and of accuracies under masks; diagnosis.toml decides them by these names."""

    SINKS = "sinks"
    DRAINS = "drains or hubs"
    MOVING = "moving"
    DRIFT = "drift"
    MEANING = "semantic or positional"
    START = "only at the start"
    LEARNED = "sinks without a token"
    NEEDS_KEYS = "needs its strongest keys"
    NEEDS_FIRST = "needs its first tokens"
    NEEDS_SINKS = "needs its strongest sinks"


class Side(StrEnum):
    """Where the estimate of a claim that holds lies."""

    ABOVE = "above"
    BELOW = "below"


class Reason(StrEnum):
    """Why nothing is decided, in words; `brief`: in a word or two, beside an estimate that may look decided by itself."""

    brief: str

    def __new__(cls, words: str, brief: str = "") -> Reason:
        """A text with its short form; it is read back by its words alone."""
        reason = str.__new__(cls, words)
        reason._value_, reason.brief = words, brief or words
        return reason

    NOT_MEASURED = "not measured"
    INTERVAL = "the interval includes the limit", "too wide"
    NO_INTERVAL = "one prompt has no interval", "too few"
    NONE_SEEN = "none was seen, which has no interval", "too few"
    TOO_FEW = "too few documents or steps", "too few"
    TOO_FEW_SEEDS = "too few seeds", "too few"
    TOO_FEW_RIGHT = (
        "no two skills have enough right answers at equal unmasked accuracy; ask more documents, or other levels",
        "too few",
    )
    NO_SINKS = "it has no sinks to describe", "no sinks"
    NOT_JUDGED = "no key could be judged", "not measured"
    NOT_IDENTIFIABLE = "not identifiable from these prompts", "too few"
    NOTHING_TO_LOSE = "too little is there to be lost", "nothing to lose"
    NOTHING_LEFT = "too little is left to lose more", "nothing to lose"
    NO_LOSS = "no loss is certain, so none is to be explained", "no loss"
    SINKS_MISSED = "too few of the sinks were masked", "sinks missed"
    STRONGEST_MISSED = "the strongest sinks were missed, so other keys may matter", "sinks missed"
    NO_CONTROL = "there is no control to compare with", "not measured"
    CONTROL_TOO = "masking random keys costs that too", "random too"
    CONTROL_MAY = "the control may lose as much", "random too"
    UNMATCHED = "the control did not remove as much attention", "control unlike"
    CONTROL_MORE = "keys that cost as much removed more attention", "control unlike"
    NO_HALVES = "the mask was not run on sinks alone and on other keys alone", "not measured"
    OTHERS_MAY = "masking the keys that are no sinks may cost as much", "others too"
    UNDAMAGED = (
        "no two controls did a little less and a little more damage, and fragile tokens lose most under any mask",
        "control unlike",
    )
    DAMAGE_MAY = "it may be the damage: controls that did less and more of it do not say the same", "control unlike"
    SILENCE_DISAGREES = "silencing the same keys says something else", "silence differs"
    NO_RIVAL = "there is no model to compare with", "not measured"
    TIES = "too many selections were ties", "ties"
    NO_EVENTS = "the runs have no such events", "too few"
    EVENTS_UNRELATED = "not shown to move with the events", "chance"
    NO_MAJORITY = "neither is certainly the majority", "too wide"
    EPSILON = "another threshold between ε = 2 and 6 says something else", "ε decides"
    CHANCE = "noise that lasts as long moves as much", "chance"
    EASY_MAY = (
        "easy answers alone may make it: the losses may be in proportion to those under the control",
        "easy answers",
    )
    FLOOR = "nothing is left, and the losses only mirror those of random keys", "nothing to lose"
    NO_MASKS = "a causal model has no mask tokens", "not of causal"
    CANNOT_MOVE = "a causal model computes keys and values once: they cannot move", "not of causal"
    NO_BLOCKS = "a causal model has no block that is all masks at first", "not of causal"
    ELSEWHERE_TOO = "sinks tell it; that they tell more than other places is not shown", "others too"


class Number(NamedTuple):
    """A named number beside the estimate; of: the policy, kind or model that it is of."""

    measure: Measure
    estimate: Estimate
    of: str = ""


class Decision(NamedTuple):
    """A status, and the reason where it is undecided."""

    status: Status
    reason: Reason | None = None


def decide(estimate: Estimate | None, limit: float, side: Side = Side.ABOVE) -> Decision:
    """Which side of the limit the whole 95 % interval lies on, widened by the clearance (`statistics.CLEARANCE`).

    >>> decide(Estimate(0.6, 0.55, 0.65), 0.5).status.value
    'supported'
    """
    if estimate is None or not math.isfinite(estimate.value):
        return Decision(Status.UNDECIDED, Reason.NOT_MEASURED)
    if not estimate.known:
        return Decision(Status.UNDECIDED, Reason.NO_INTERVAL if estimate.value else Reason.NONE_SEEN)
    for there, clear in ((Side.ABOVE, estimate.above(limit)), (Side.BELOW, estimate.below(limit))):
        if clear:
            return Decision(Status.SUPPORTED if there == side else Status.CONTRADICTED)
    return Decision(Status.UNDECIDED, Reason.INTERVAL)


def certain(estimate: Estimate | None, limit: float, side: Side = Side.ABOVE) -> bool:
    """Whether an estimate lies on that side of a limit for certain."""
    return decide(estimate, limit, side).status == Status.SUPPORTED


@dataclass(frozen=True)
class Verdict:
    """One claim or question about one subject.

    Attributes:
        question: the name of the claim or question. subject: the model, or group of runs. about: the task or set of traces.
        reason: why it is undecided; None where it is not. answer: for a question with several answers, the one that holds.
        rule: the name of the rule. measure: of the estimate; of: the policy, category or kind that it is of.
        estimate: with its 95 % interval. limit, side: a claim that holds has its estimate on that side of the limit.
        control: what the same rule's control gives. beside: the model that it was compared with.
        n, unit: how many documents, texts, prompts or seeds the interval is over.
        bears: it was measured as the paper's claim is meant, on one of the paper's checkpoints; otherwise it neither confirms nor
            refutes the paper.
        numbers: what a reader needs besides.
    """

    question: str = ""
    subject: str = ""
    about: str = ""
    status: Status = Status.UNDECIDED
    reason: Reason | None = None
    answer: str = ""
    rule: str = ""
    measure: Measure | None = None
    of: str = ""
    estimate: Estimate = UNKNOWN
    limit: float | None = None
    side: Side = Side.ABOVE
    control: Estimate | None = None
    beside: str = ""
    n: int = 0
    unit: str = "prompt"
    bears: bool = False
    numbers: tuple[Number, ...] = ()

    @property
    def decided(self) -> bool:
        """Supported or contradicted."""
        return self.status != Status.UNDECIDED

    def number(self, measure: Measure, of: str = "") -> Estimate | None:
        """One of the further numbers."""
        return next((x.estimate for x in self.numbers if x.measure == measure and of in ("", x.of)), None)

    def undecided(self, reason: Reason) -> Verdict:
        """The same without a decision."""
        return replace(self, status=Status.UNDECIDED, reason=reason, answer="")

    def unless(self, *reasons: Reason | None) -> Verdict:
        """The same, or undecided for the first reason there is."""
        reason = next(filter(None, reasons), None)
        return self.undecided(reason) if reason else self

    def settled(self, status: Status, answer: str = "") -> Verdict:
        """The same with another decision."""
        return replace(self, status=status, reason=None, answer=answer)

    def beside_it(self, *numbers: tuple[Any, ...]) -> Verdict:
        """The same with further numbers (measure, estimate, of), those that are known."""
        known = [Number(*x) for x in numbers if x[1] is not None and math.isfinite(x[1].value)]
        return replace(self, numbers=(*self.numbers, *known))

    def data(self) -> dict[str, Any]:
        """Plain values for JSON: enumerations by name, what is not a number as null."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(self.data(), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Verdict:
        """From what `to_json` gives."""
        known = {name: value for name, value in json.loads(text).items() if value is not None}
        return cls(**{name: READ[name](value) if name in READ else value for name, value in known.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    if isinstance(value, (Measure, Reason)):
        return value.name
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _estimate(bounds: list[float | None]) -> Estimate:
    return Estimate(*(math.nan if value is None else value for value in bounds))


def _reason(told: str) -> Reason:
    """By its name; studies of before names were stored have its words, of which one was another."""
    if told == "the interval holds the limit":
        return Reason.INTERVAL
    return Reason[told] if told in Reason.__members__ else Reason(told)


READ: dict[str, Callable[[Any], Any]] = {
    "status": Status, "reason": _reason, "side": Side, "measure": Measure.__getitem__, "estimate": _estimate,
    "control": _estimate, "numbers": lambda told: tuple(Number(Measure[name], _estimate(e), of) for name, e, of in told),
}  # fmt: skip


def weighed(
    measure: Measure, estimate: Estimate | None, limit: float, side: Side = Side.ABOVE, of: str = ""
) -> Verdict:
    """The estimate of a measure against its limit."""
    decision = decide(estimate, limit, side)
    return Verdict(
        status=decision.status, reason=decision.reason, measure=measure, of=of, estimate=estimate or UNKNOWN, limit=limit,
        side=side,
    )  # fmt: skip


def point(value: float) -> Estimate:
    """A number without an interval."""
    return Estimate(value, math.nan, math.nan)
