"""What was measured of one subject in one setting: the only thing that rules see.

`Measure`, the enumeration of measures with unit and label, stands in `sinks`, which produces most of them and sees nothing
above; rules and reports take it from here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sinkscope.base.masked import MASK
from sinkscope.sinks.measures import Form, Measure
from sinkscope.statistics import Estimate, kept_share, mean_difference, paired_interval, wilson
from sinkscope.verdicts.verdict import UNKNOWN

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Form", "Kind", "Measure", "Measures", "PolicyRun", "control", "estimates_of"]

BASE_ACCURACY = 0.2
"""Under this accuracy without a policy there is nothing to lose, and no verdict."""
MOST_NATS = 6.5
"""Nats per token above which a text is hardly predicted better than from the frequencies of its tokens."""
ALL_LOST = 36.0
"""Nats beyond which the share of a probability that is lost would round to 1, and nothing could be lost beyond it."""
LEAST_TEXTS = 16
"""Fewer texts may all miss the long tail of their distribution: no verdict."""


def control(policy: str, match: str = "count") -> str:
    """What a policy's random control is called, all its draws together. match: "mass": as much attention, not as many keys.

    >>> control("top:1"), control("top:1", "mass")
    ('random(top:1)', 'random(top:1),match=mass')
    """
    return f"random({policy})" + (f",match={match}" if match != "count" else "")


class Kind(StrEnum):
    """Where measures come from."""

    ACCURACIES = "accuracies"
    TEXTS = "texts"
    TRACES = "traces"
    PAIRS = "pairs of traces"
    INSIDE = "inspections"


def estimates_of(table: pd.DataFrame) -> dict[str, Estimate]:
    """Measure by its name → value with its interval, from a table with the columns measure, value, low, high."""
    rows = zip(*(table[name] for name in ("measure", "value", "low", "high")), strict=True)
    return {str(name): Estimate(*map(float, bounds)) for name, *bounds in rows}


@dataclass(frozen=True)
class PolicyRun:
    """Documents under one policy; the draws of a control are averaged. What it masked is called as in `Masked`.

    Attributes:
        scores: document → share of its answers that were right, or nats per token of a text.
        hits: share of the sinks that were masked. strongest: share of heads whose strongest sink was. removed: share of
            attention. sinks_removed: share of the sinks' attention. told: whether what was masked was recorded; scores alone
            are taken at their word.
    """

    scores: Mapping[str, float]
    hits: float = math.nan
    strongest: float = math.nan
    removed: float = math.nan
    sinks_removed: float = math.nan
    told: bool = True

    @property
    def shares(self) -> dict[Measure, float]:
        """What was masked, by its measures."""
        of_mask = (Measure.HITS, Measure.STRONGEST, Measure.REMOVED, Measure.SINKS_REMOVED)
        return {measure: getattr(self, measure.name.lower()) for measure in of_mask}

    @classmethod
    def of(cls, scores: Mapping[str, float], row: Mapping[Any, Any]) -> PolicyRun:
        """Scores with what a row of results says about the mask."""
        shares: dict[str, Any] = {share.name.lower(): float(row[share]) for share in MASK if row.get(share) is not None}
        return cls(scores, **shares)


@dataclass(frozen=True)
class Measures:
    """One model in one setting.

    Texts have nats per token: in place of an accuracy stands the probability of a token (the geometric mean over a text),
    relative to that without a policy, exp(−Δ nats). A loss of 5 points is a perplexity that is 5 % higher; where half is left,
    it has doubled. Of accuracies only what lies above guessing counts: (accuracy − guess) / (1 − guess).

    Attributes:
        about: the task, or the set of traces. prompts: how many the intervals of `estimates` are over.
        estimates: measure by its name → value with its interval.
        runs: policy → its run; of a `control` over all its draws.
        guess: the accuracy of guessing. counts: measure by its name → prompts, where they differ. void: what means nothing here.
        bears: see `Verdict`. elsewhere: (ε, rule) → estimates of the same traces by it.
        others: the study's other models in the same setting.
    """

    subject: str = ""
    family: str = ""
    kind: Kind = Kind.ACCURACIES
    about: str = ""
    prompts: int = 0
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    runs: Mapping[str, PolicyRun] = field(default_factory=dict)
    guess: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)
    void: frozenset[str] = frozenset()
    bears: bool = False
    elsewhere: Mapping[tuple[float, str], Mapping[str, Estimate]] = field(default_factory=dict)
    others: tuple[Measures, ...] = ()

    @property
    def n(self) -> int:
        """Documents, texts or prompts."""
        return max((len(run.scores) for run in self.runs.values()), default=self.prompts)

    @property
    def unit(self) -> str:
        """Of what n counts."""
        return {Kind.ACCURACIES: "document", Kind.TEXTS: "text"}.get(self.kind, "prompt")

    def other(self, family: str) -> Measures | None:
        """The study's first model of a family, when it is another."""
        return next((other for other in self.others if other.family == family), None)

    def get(self, measure: Measure, of: str = "") -> Estimate | None:
        """An estimate; None: it was not measured."""
        if measure == Measure.WITH:
            without = self.estimates.get(Measure.WITHOUT.named())
            return without and Estimate(1 - without.value, 1 - without.high, 1 - without.low)
        return self.estimates.get(measure.named(of))

    def judged_by(self, setting: tuple[float, str], points: bool = False) -> Measures:
        """The same traces by another ε and rule, and those of the other models; points: without intervals."""
        estimates = self.elsewhere.get(setting, {})
        if points:
            estimates = {name: Estimate(*3 * (estimate.value,)) for name, estimate in estimates.items()}
        others = tuple(other.judged_by(setting, points) for other in self.others)
        return replace(self, estimates=estimates, elsewhere={}, others=others)

    # ---- policies

    def score(self, policy: str) -> float:
        """What is right above guessing, or the share of a token's probability that is left; NaN when it was not run."""
        if self.kind == Kind.TEXTS:
            return math.exp(min(0.0, self.mean("none") - self.mean(policy)))
        return self._above_guessing(self.mean(policy))

    @property
    def base(self) -> float:
        """The score without a policy, as a reader knows it."""
        return 1.0 if self.kind == Kind.TEXTS else self.mean("none")

    def least(self, policy: str) -> float:
        """The score that a policy leaves for certain (Wilson's bound)."""
        run = self.runs.get(policy)
        if run is None:
            return math.nan
        right = self.score(policy) if self.kind == Kind.TEXTS else self.mean(policy)
        return self._above_guessing(wilson(right * len(run.scores), len(run.scores)).low)

    def mean(self, policy: str) -> float:
        """The mean score as it was recorded."""
        scores = self.runs[policy].scores if policy in self.runs else {}
        return sum(scores.values()) / len(scores) if scores else math.nan

    @property
    def able(self) -> bool:
        """Whether something is there to be lost."""
        texts = self.kind == Kind.TEXTS
        return self.mean("none") <= MOST_NATS if texts else self.score("none") >= BASE_ACCURACY

    def lost(self, policy: str, base: str = "none") -> Estimate | None:
        """What is lost between two policies, paired by document; None: not both were run."""
        pair = self._pair(policy, base)
        if pair is None:
            return None
        if self.kind == Kind.TEXTS:
            return Estimate(*(1.0 - math.exp(-min(nats, ALL_LOST)) for nats in mean_difference(pair[1], pair[0])))
        return Estimate(*(points / self._guessed_wrong for points in paired_interval(*pair)))

    def part_lost(self, policy: str, part: float) -> float:
        """What a part of a policy's loss would be: of nats, or of points; at least 0."""
        whole = (self.lost(policy) or UNKNOWN).value
        return max(0.0, float(1 - (1 - whole) ** part if self.kind == Kind.TEXTS else part * whole))

    def kept(self, policy: str) -> Estimate:
        """The share of the score without a policy that is left under one."""
        pair = self._pair(policy, "none")
        if pair is None:
            return UNKNOWN
        if self.kind != Kind.TEXTS:
            return kept_share(*pair, guess=self.guess)
        lost = self.lost(policy) or UNKNOWN
        return Estimate(1.0 - lost.value, 1.0 - lost.high, 1.0 - lost.low)

    def _above_guessing(self, accuracy: float) -> float:
        return (accuracy - self.guess) / self._guessed_wrong

    @property
    def _guessed_wrong(self) -> float:
        """The share of answers that guessing gets wrong; NaN where none is, and nothing can be told."""
        return 1 - self.guess or math.nan

    def _pair(self, policy: str, base: str) -> tuple[list[float], list[float]] | None:
        before, after = (self.runs[name].scores if name in self.runs else {} for name in (base, policy))
        if not before or not after or set(before) != set(after):
            return None
        order = sorted(before)
        return [before[name] for name in order], [after[name] for name in order]
