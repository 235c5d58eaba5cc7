"""Does masking hurt some skills more than others, beyond what random keys do, at equal unmasked accuracy? Pure functions.

Skills differ in how well a model does them, and a policy cannot take what is not there. So three things are held equal: the
keys (the loss of a skill is measured beyond its matched random control, paired by document), the unmasked accuracy (skills are
compared at levels of difficulty where it is the same, within BAND), and the documents (losses are of those that are right without
a policy, so that each skill starts from 1).

Equal losses on one scale are unequal on another, and accuracies within BAND are not quite equal. So skills differ only if they do
on two scales: in the share of right answers that is lost, and in probits, where a policy that makes every answer harder by the
same amount costs the same at every accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sinkscope.errors import InputError
from sinkscope.statistics import (
    CONFIDENCE,
    LEAST_SEEDS,
    Estimate,
    difference,
    equal_means,
    equal_shifts,
    over_seeds,
    paired_interval,
    wilson,
)  # fmt: skip

Array = NDArray[np.float64]
Verdict = Literal["differs", "alike", "not shown", "not decided"]

BAND = 0.1
"""Unmasked accuracies this near to a common one count as equal."""
LEAST_RIGHT = 16
"""Documents right without a policy that a skill needs."""
RIGHT = 0.5
"""A document counts as right without a policy from this score on; scores between 0 and 1 are means over a decoding's seeds."""
LEVEL = 0.025
"""p below it, on both scales, is a difference. Half of 5 %: with small groups of unequal size, or of mixed accuracies, the tests
err more often than they say."""
ALIKE = 0.1
"""Skills are alike when none loses this much more or less than the others."""
FLOOR = 0.1
"""A skill of which a policy leaves less than this is at the floor; if all are, their losses only mirror the control's."""


class SkillAnswers(NamedTuple):
    """Scores of one skill, 1 right and 0 wrong, for the same n documents.

    Attributes:
        level: [n], the difficulty of each document.
        plain: [n], without a policy; policy: [n].
        control: [seeds, n], at least 3 draws of the policy's random control.
    """

    level: NDArray[np.int64]
    plain: Array
    policy: Array
    control: Array


class SkillLoss(NamedTuple):
    """One skill, over its documents that are right without a policy.

    Attributes:
        levels: those of equal unmasked accuracy; accuracy: unmasked, at these levels.
        n: documents that count.
        kept, control_kept: share of them that is right under the policy, and under its control.
        beyond: control_kept − kept with its 95 % interval: what these keys cost more than as many others.
        apart: its distance from the mean of the other skills' losses, with intervals that hold for all skills together.
    """

    skill: str
    levels: tuple[int, ...]
    accuracy: float
    n: int
    kept: float
    control_kept: float
    beyond: Estimate
    apart: Estimate


class SkillComparison(NamedTuple):
    """The skills that can be compared, and what follows.

    Attributes:
        accuracy: the common unmasked accuracy; NaN where no two skills have one.
        p: of equal losses beyond the control, the larger one of the two scales; NaN where it was not tested.
        left_out: skills that have no level of that accuracy, or too few right answers.
        verdict: "differs", "alike" (no skill is apart by ALIKE), "not shown" (neither is certain), or "not decided" (no test).
        why: the reason in words.
    """

    skills: tuple[SkillLoss, ...]
    accuracy: float
    p: float
    left_out: tuple[str, ...]
    verdict: Verdict
    why: str


def compare_skills(answers: Mapping[str, SkillAnswers]) -> SkillComparison:
    """The comparison over all skills that share an unmasked accuracy."""
    for skill, given in answers.items():
        _check(skill, given)
    target, chosen = matched_levels(answers)
    left_out = tuple(skill for skill in answers if skill not in chosen)
    if len(chosen) < 2:
        why = (
            f"no two skills have {LEAST_RIGHT} right answers each at levels of equal unmasked accuracy (within {BAND}); ask more "
            "documents, or levels of which the model can do some but not all"
        )
        return SkillComparison((), target, float("nan"), left_out, "not decided", why)
    kept = {skill: _right(answers[skill], levels) for skill, levels in chosen.items()}
    losses = _losses(answers, chosen, kept)
    p = max(
        equal_means([over_seeds(given.control) - given.policy for given in kept.values()]),
        equal_shifts([_pairs(answers[skill], levels) for skill, levels in chosen.items()]),
    )
    if all(wilson(float(given.policy.sum()), len(given.policy)).high < FLOOR for given in kept.values()):
        why = f"the policy leaves less than {FLOOR:.0%} of every skill; the losses only mirror those of random keys"
        return SkillComparison(losses, target, p, left_out, "not decided", why)
    if p < LEVEL:
        most, least = (choose(losses, key=lambda loss: loss.beyond.value) for choose in (max, min))
        why = (
            f"beyond random keys, {most.skill} loses {most.beyond.value:+.2f} and {least.skill} {least.beyond.value:+.2f} "
            f"(p = {p:.2g})"
        )
        return SkillComparison(losses, target, p, left_out, "differs", why)
    if all(loss.apart.low > -ALIKE and loss.apart.high < ALIKE for loss in losses):
        return SkillComparison(
            losses, target, p, left_out, "alike", f"no skill is {ALIKE} apart from the others"
        )
    why = f"no difference between skills is shown (p = {p:.2g}), and one of {ALIKE} is not excluded"
    return SkillComparison(losses, target, p, left_out, "not shown", why)


def matched_levels(answers: Mapping[str, SkillAnswers]) -> tuple[float, dict[str, tuple[int, ...]]]:
    """A common unmasked accuracy, and each skill's levels within BAND of it; a skill with too few right answers is left out.

    Of all accuracies that occur, the one that keeps most skills, then most documents. Only unmasked scores decide.
    """
    known = {
        (skill, int(level)): given.plain[given.level == level]
        for skill, given in answers.items()
        for level in np.unique(given.level)
    }
    best: tuple[tuple[int, float], float, dict[str, tuple[int, ...]]] = ((0, 0.0), float("nan"), {})
    for target in sorted({float(scores.mean()) for scores in known.values()}):
        near = [key for key, scores in known.items() if abs(float(scores.mean()) - target) <= BAND]
        right = {
            skill: sum(int((known[key] >= RIGHT).sum()) for key in near if key[0] == skill)
            for skill in answers
        }
        chosen = {
            skill: tuple(level for name, level in near if name == skill)
            for skill, count in right.items()
            if count >= LEAST_RIGHT
        }
        rank = (len(chosen), float(sum(right[skill] for skill in chosen)))
        if rank > best[0]:
            best = (rank, target, chosen)
    return best[1], best[2]


def _right(given: SkillAnswers, levels: tuple[int, ...]) -> SkillAnswers:
    """The documents at these levels that are right without a policy."""
    use = np.isin(given.level, levels) & (given.plain >= RIGHT)
    return SkillAnswers(given.level[use], given.plain[use], given.policy[use], given.control[:, use])


def _pairs(given: SkillAnswers, levels: tuple[int, ...]) -> list[tuple[Array, Array]]:
    """All documents at these levels, level by level: scores under the control and under the policy."""
    return [
        (over_seeds(given.control[:, given.level == level]), given.policy[given.level == level])
        for level in levels
    ]


def _losses(
    answers: Mapping[str, SkillAnswers],
    chosen: Mapping[str, tuple[int, ...]],
    kept: Mapping[str, SkillAnswers],
) -> tuple[SkillLoss, ...]:
    # Together these intervals hold with 95 %: Bonferroni's, one for each skill.
    together = 1 - (1 - CONFIDENCE) / len(chosen)
    pairs = {skill: (over_seeds(given.control), given.policy) for skill, given in kept.items()}
    wide = {skill: paired_interval(*pair, confidence=together) for skill, pair in pairs.items()}
    losses = []
    for skill, levels in chosen.items():
        others = _mean([wide[other] for other in chosen if other != skill])
        control, policy = pairs[skill]
        asked = np.isin(answers[skill].level, levels)
        losses.append(
            SkillLoss(
                skill, levels, float(answers[skill].plain[asked].mean()), len(policy), float(policy.mean()),
                float(control.mean()), paired_interval(control, policy), difference(wide[skill], others),
            )
        )  # fmt: skip
    return tuple(losses)


def _mean(estimates: list[Estimate]) -> Estimate:
    """The mean of independent estimates, with bounds from their own ("MOVER", as in `difference`)."""
    value, low, high = (np.array(each, dtype=np.float64) for each in zip(*estimates, strict=True))
    count = len(estimates)
    return Estimate(
        float(value.mean()),
        float(value.mean() - np.sqrt(((value - low) ** 2).sum()) / count),
        float(value.mean() + np.sqrt(((high - value) ** 2).sum()) / count),
    )


def _check(skill: str, given: SkillAnswers) -> None:
    n = len(given.level)
    if not (len(given.plain) == len(given.policy) == n and given.control.ndim == 2):
        raise InputError(
            f"{skill}: levels, plain and policy scores [n] and control scores [seeds, n] are expected"
        )
    if given.control.shape[1] != n or given.control.shape[0] < LEAST_SEEDS:
        raise InputError(
            f"{skill}: control scores of shape {given.control.shape} for {n} documents: at least {LEAST_SEEDS} seeds are needed"
        )
