"""Does masking hurt some skills more than others, beyond what random keys do, at equal unmasked accuracy? The tables, too.

Skills differ in how well a model does them, and a policy cannot take what is not there. So three things are held equal: the
keys (the loss of a skill is measured beyond its matched random control, paired by document), the unmasked accuracy (skills are
compared at levels of difficulty where it is the same, within BAND), and the documents (losses are of those that are right without
a policy, so that each skill starts from 1).

Equal losses on one scale are unequal on another, and accuracies within BAND are not quite equal. So skills differ only if they do
on two scales: in the share of right answers that is lost, and in probits, where a policy that makes every answer harder by the
same amount costs the same at every accuracy.

Skills may be asked together (task `battery`) or in blocks of their own (`battery:logic`, …); what one model answers under one
decoding and scheme is compared together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sinkscope.errors import InputError
from sinkscope.statistics import (
    CONFIDENCE,
    LEAST_SEEDS,
    Estimate,
    align,
    bounded,
    compare,
    difference,
    equal_means,
    equal_shifts,
    over_seeds,
    paired_interval,
    wilson,
)  # fmt: skip
from sinkscope.study.names import control, pooled
from sinkscope.tasks.battery import SKILLS, stratum_of
from sinkscope.tasks.evaluation import Evaluation
from sinkscope.tasks.task import scheme_name

if TYPE_CHECKING:
    import pandas as pd

    from sinkscope.study.cells import Cell

Array = NDArray[np.float64]
Verdict = Literal["differs", "alike", "not shown", "not decided"]
Scores = Mapping[str, float]
"""By document."""

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
    verdict, why = _verdict(kept, losses, p)
    return SkillComparison(losses, target, p, left_out, verdict, why)


def _verdict(kept: Mapping[str, SkillAnswers], losses: Sequence[SkillLoss], p: float) -> tuple[Verdict, str]:
    if all(wilson(float(given.policy.sum()), len(given.policy)).high < FLOOR for given in kept.values()):
        left = f"the policy leaves less than {FLOOR:.0%} of every skill"
        return "not decided", f"{left}; the losses only mirror those of random keys"
    if p < LEVEL:
        most, least = (choose(losses, key=lambda loss: loss.beyond.value) for choose in (max, min))
        lost = f"{most.skill} loses {most.beyond.value:+.2f} and {least.skill} {least.beyond.value:+.2f}"
        return "differs", f"beyond random keys, {lost} (p = {p:.2g})"
    if all(loss.apart.low > -ALIKE and loss.apart.high < ALIKE for loss in losses):
        return "alike", f"no skill is {ALIKE} apart from the others"
    shown = f"no difference between skills is shown (p = {p:.2g})"
    return "not shown", f"{shown}, and one of {ALIKE} is not excluded"


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


# ---- tables --------------------------------------------------------------------------------------


def skill_tables(cells: Sequence[Cell], evaluations: Mapping[str, Evaluation]) -> dict[str, pd.DataFrame]:
    """`skills` and `skill_losses`; none for a study without the battery."""
    import pandas as pd

    groups: dict[tuple[str, str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.id in evaluations and all(map(stratum_of, evaluations[cell.id].scores())):
            groups[cell.model.name, cell.decoding_name, scheme_name(cell.identity["task"])].append(cell)
    rows: list[dict[str, Any]] = []
    losses: list[dict[str, Any]] = []
    for group in groups.values():
        draws: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
        for cell in group:
            draws[pooled(cell.policy)][cell.policy] |= evaluations[cell.id].scores()
        plain = _over_draws(draws.get("none", {}))
        settings = {pooled(cell.policy): cell.columns() for cell in reversed(group)}
        for policy, given in draws.items():
            known = {**settings[policy], "task": "battery", "policy": policy}
            rows += [known | row for row in _rows(_over_draws(given), {} if policy == "none" else plain)]
            losses += [
                {**settings[kind.like], "task": "battery", "policy": kind.like, "match": kind.match, **row}
                for kind in [control(policy)]
                if kind is not None and {"none", kind.like} <= draws.keys() and len(given) >= LEAST_SEEDS
                for row in _compared(plain, _over_draws(draws[kind.like]), list(given.values()))
            ]
    return {name: pd.DataFrame(made) for name, made in (("skills", rows), ("skill_losses", losses)) if made}


def skill_sentences(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """What was concluded, one sentence for each model, policy and control."""
    if "skill_losses" not in tables:
        return []
    keys = ["model", "policy", "match", "verdict", "why"]
    return [
        f"battery, {model}, {policy} beside its {match}-matched control, skill by skill: {verdict} ({why})"
        for model, policy, match, verdict, why in tables["skill_losses"][keys]
        .drop_duplicates()
        .itertuples(index=False)
    ]


def _rows(scores: Scores, plain: Scores) -> list[dict[str, Any]]:
    """One row for each skill and difficulty, and one for all difficulties of a skill (`difficulty` empty).

    Args:
        plain: scores without a policy, to compare with; empty: there are none.
    """
    parts: dict[tuple[str, int | None], list[str]] = defaultdict(list)
    for document in scores:
        stratum = stratum_of(document)
        if stratum is not None:
            parts[stratum.skill, stratum.level].append(document)
            parts[stratum.skill, None].append(document)
    rows = []
    for (skill, level), documents in sorted(
        parts.items(), key=lambda item: (SKILLS.index(item[0][0]), item[0][1] or 0)
    ):
        here = {document: scores[document] for document in documents}
        n, right = len(here), sum(here.values())
        low, high = wilson(min(float(n), right), n)
        row = {"skill": skill, "difficulty": level, "n": n, "accuracy": right / n, "low": low, "high": high}
        if here.keys() <= plain.keys():
            paired = compare(*align(here, {document: plain[document] for document in here}))
            row |= bounded("difference", paired.difference, *paired.interval)
        rows.append(row)
    return rows


def _compared(plain: Scores, policy: Scores, draws: Sequence[Scores]) -> list[dict[str, Any]]:
    """The comparison of skills, one row for each of them; the verdict stands in every row."""
    shared = sorted(set.intersection(*(set(scores) for scores in (plain, policy, *draws))))
    by_skill: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for document in shared:
        stratum = stratum_of(document)
        if stratum is not None:
            by_skill[stratum.skill].append((document, stratum.level))
    answers = {
        skill: SkillAnswers(
            np.array([level for _, level in documents]),
            np.array([plain[document] for document, _ in documents]),
            np.array([policy[document] for document, _ in documents]),
            np.array([[scores[document] for document, _ in documents] for scores in draws]),
        )
        for skill, documents in by_skill.items()
    }
    found = compare_skills(answers)
    told = {"p": found.p, "verdict": found.verdict, "why": found.why, "left_out": " ".join(found.left_out)}
    rows = [
        {
            "skill": loss.skill, "difficulties": " ".join(map(str, loss.levels)), "n": loss.n, "accuracy": loss.accuracy,
            "kept": loss.kept, "control_kept": loss.control_kept, "control_draws": len(draws),
            **bounded("beyond", *loss.beyond), **bounded("apart", *loss.apart), **told,
        }
        for loss in sorted(found.skills, key=lambda loss: SKILLS.index(loss.skill))
    ]  # fmt: skip
    return rows or [{"skill": "", **told}]


def _over_draws(draws: Mapping[str, Scores]) -> Scores:
    """The mean over draws of the documents that all of them answered; empty without any."""
    if not draws:
        return {}
    shared = set.intersection(*(set(scores) for scores in draws.values()))
    return {
        document: sum(scores[document] for scores in draws.values()) / len(draws)
        for document in sorted(shared)
    }
