"""Does masking hurt some skills more than others, beyond what random keys do, at equal unmasked accuracy? The tables, too.

Skills differ in how well a model does them, and a policy cannot take what is not there. So three things are held equal: the
keys (the loss of a skill is measured beyond its matched random control, paired by document), the unmasked accuracy (skills are
compared at levels of difficulty where it is the same, within BAND), and the documents (losses are of those that are right without
a policy, so that each skill starts from 1).

Equal losses on one scale are unequal on another, and accuracies within BAND are not quite equal. So skills differ only if they do
on two scales: in the share of right answers that is lost, and in probits, where a policy that makes every answer harder by the
same amount costs the same at every accuracy. And equal accuracy is not equal margin: a skill of which many answers are easy loses
less under any mask. So the losses must not be in proportion to those under the control either.

Skills may be asked together (task `battery`) or in blocks of their own (`battery:logic`, …); what one model answers under one
decoding and scheme is compared together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sinkscope.statistics import (
    CONFIDENCE,
    LEAST_SEEDS,
    Estimate,
    bounded,
    compare,
    difference,
    equal_means,
    equal_ratios,
    equal_shifts,
    paired_interval,
    share_interval,
    wilson,
)  # fmt: skip
from sinkscope.study.names import control, pooled
from sinkscope.tasks.battery import SKILLS
from sinkscope.verdicts import Measure, Reason, Side, Status, Verdict, certain, wording
from sinkscope.verdicts.verdict import point, weighed

Right = Mapping[str, pd.DataFrame]
"""Skill → its documents at its levels that are right without a policy, as `compare_skills` takes them."""
STRATUM = ["skill", "difficulty"]

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
        p: of equal losses beyond the control, the larger one of the two scales; NaN where it was not tested.
        left_out: skills that have no level of the common accuracy, or too few right answers.
        verdict: on the skill that is farthest from the others: "differs", "alike" (no skill is apart by ALIKE), or undecided.
    """

    skills: tuple[SkillLoss, ...]
    p: float
    left_out: tuple[str, ...]
    verdict: Verdict


def compare_skills(answers: pd.DataFrame) -> SkillComparison:
    """The comparison over all skills that share an unmasked accuracy.

    answers: a row for each document with its skill and difficulty, and its scores, 1 right and 0 wrong: plain (without a
    policy), policy, and control (the mean of the draws of the policy's random control, at least 3).
    """
    matched = answers[pd.MultiIndex.from_frame(answers[STRATUM]).isin(matched_levels(answers))]
    right = {str(skill): rows for skill, rows in matched[matched["plain"] >= RIGHT].groupby("skill")}
    left_out = tuple(skill for skill in sorted(set(answers["skill"])) if skill not in right)
    if len(right) < 2:
        nothing = Verdict(measure=Measure.SKILL_APART, reason=Reason.TOO_FEW_RIGHT)
        return SkillComparison((), float("nan"), left_out, nothing)
    losses = _losses(matched, right)
    levels = [
        [(at["control"], at["policy"]) for _, at in rows.groupby("difficulty")] for _, rows in matched.groupby("skill")
    ]
    p = max(equal_means([rows["control"] - rows["policy"] for rows in right.values()]), equal_shifts(levels))
    proportional = equal_ratios([(1 - rows["policy"], 1 - rows["control"]) for rows in right.values()])
    return SkillComparison(losses, p, left_out, _verdict(right, losses, p, proportional))


def _verdict(right: Right, losses: Sequence[SkillLoss], p: float, proportional: float) -> Verdict:
    far = max(losses, key=lambda loss: abs(loss.apart.value))
    verdict = weighed(Measure.SKILL_APART, far.apart, ALIKE if far.apart.value > 0 else -ALIKE, of=far.skill)
    verdict = replace(verdict, n=min(loss.n for loss in losses), unit="document").beside_it(
        (Measure.P, point(p)), *((Measure.OVER_COUNT, loss.beyond, loss.skill) for loss in losses)
    )
    # Where nothing is left, the losses only mirror those of random keys.
    if all(wilson(float(rows["policy"].sum()), len(rows)).high < FLOOR for rows in right.values()):
        return verdict.undecided(Reason.FLOOR)
    if p < LEVEL:
        easy = None if proportional < LEVEL else Reason.EASY_MAY
        return verdict.settled(Status.SUPPORTED, "differs").unless(easy)
    alike = all(certain(loss.apart, -ALIKE) and certain(loss.apart, ALIKE, Side.BELOW) for loss in losses)
    return verdict.settled(Status.CONTRADICTED, "alike") if alike else verdict.undecided(Reason.INTERVAL)


def matched_levels(answers: pd.DataFrame) -> pd.Index[Any]:
    """The (skill, difficulty) with unmasked accuracies within BAND of a common one; no skill with too few right answers.

    Of all accuracies that occur, the one that keeps most skills, then most documents. Only unmasked scores decide.
    """
    levels = answers.assign(right=answers["plain"] >= RIGHT).groupby(STRATUM)
    accuracy, right = levels["plain"].mean(), levels["right"].sum()
    most, best = (0, 0), right.index[:0]
    for target in sorted(set(accuracy)):
        near = right[(accuracy - target).abs() <= BAND]
        of_skill = near.groupby("skill").transform("sum")
        enough = near[of_skill >= LEAST_RIGHT]
        size = (enough.index.get_level_values("skill").nunique(), int(enough.sum()))
        if size > most:
            most, best = size, enough.index
    return best


def _losses(matched: pd.DataFrame, right: Right) -> tuple[SkillLoss, ...]:
    # Together these intervals hold with 95 %: Bonferroni's, one for each skill.
    together = 1 - (1 - CONFIDENCE) / len(right)
    pairs = {skill: (rows["control"], rows["policy"]) for skill, rows in right.items()}
    wide = {skill: paired_interval(*pair, confidence=together) for skill, pair in pairs.items()}
    losses = []
    for skill, (random, policy) in pairs.items():
        others = _mean([wide[other] for other in pairs if other != skill])
        asked = matched[matched["skill"] == skill]
        losses.append(
            SkillLoss(
                skill, tuple(sorted(set(asked["difficulty"]))), float(asked["plain"].mean()), len(policy), float(policy.mean()),
                float(random.mean()), paired_interval(random, policy), difference(wide[skill], others),
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


# ---- tables --------------------------------------------------------------------------------------


def skill_tables(records: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """`skills` and `skill_losses` from the records of a study; none without the battery."""
    if "skill" not in records:
        return {}
    setting = list(records)[: list(records).index("cell") + 1]
    asked = records[records["skill"].notna()].assign(name=records["policy"].map(pooled), task="battery")
    rows: list[dict[str, Any]] = []
    losses: list[dict[str, Any]] = []
    for _, group in asked.groupby(["model", "decoding_name", "scheme"], sort=False):
        scores = group.astype({"passed": float}).pivot_table("passed", [*STRATUM, "document"], "policy")
        texts = group.groupby("name", sort=False)["policy"].unique()
        draws = {str(name): scores[list(texts[name])].dropna() for name in texts.index}
        first: Any = group.drop_duplicates("name").set_index("name")[setting]
        about: dict[str, dict[str, Any]] = first.to_dict("index")
        plain = draws["none"].mean(axis=1) if "none" in draws else pd.Series(dtype=float)
        for name, of_policy in draws.items():
            compared = plain if name != "none" else plain[:0]
            rows += [{**about[name], "policy": name, **row} for row in _rows(of_policy.mean(axis=1), compared)]
            kind = control(name)
            if kind is not None and {"none", kind.like} <= draws.keys() and of_policy.shape[1] >= LEAST_SEEDS:
                about_losses = {**about[kind.like], "policy": kind.like, "match": kind.match}
                losses += [about_losses | row for row in _compared(plain, draws[kind.like].mean(axis=1), of_policy)]
    return {name: pd.DataFrame(made) for name, made in (("skills", rows), ("skill_losses", losses)) if made}


def _rows(scores: pd.Series, plain: pd.Series) -> list[dict[str, Any]]:
    """One row for each skill and difficulty, and one for all difficulties of a skill (`difficulty` empty).

    Args:
        plain: scores without a policy, to compare with; empty: there are none.
    """
    rows = []
    for skill in SKILLS:
        of_skill = scores[scores.index.get_level_values("skill") == skill]
        parts = [(None, of_skill), *of_skill.groupby("difficulty")] if len(of_skill) else []
        for level, at_level in parts:
            n, right = len(at_level), float(at_level.sum())
            low, high = share_interval(at_level)
            row = {"skill": skill, "difficulty": level, "n": n, "accuracy": right / n, "low": low, "high": high}
            if at_level.index.isin(plain.index).all():
                paired = compare(at_level.to_numpy(), plain[at_level.index].to_numpy())
                row |= bounded("difference", *paired.difference)
            rows.append(row)
    return rows


def _compared(plain: pd.Series, policy: pd.Series, draws: pd.DataFrame) -> list[dict[str, Any]]:
    """The comparison of skills, one row for each of them; the verdict stands in every row."""
    shared = pd.concat([plain.rename("plain"), policy.rename("policy"), draws], axis=1).dropna()
    comparison = compare_skills(shared.assign(control=shared[list(draws)].mean(axis=1)).reset_index())
    outcome = {
        "p": comparison.p, "answer": wording.answer(comparison.verdict), "evidence": wording.evidence(comparison.verdict),
        "left_out": " ".join(comparison.left_out), "verdict": comparison.verdict.to_json(),
    }  # fmt: skip
    rows = [
        {
            "skill": loss.skill, "difficulties": " ".join(map(str, loss.levels)), "n": loss.n, "accuracy": loss.accuracy,
            "kept": loss.kept, "control_kept": loss.control_kept, "control_draws": draws.shape[1],
            **bounded("beyond", *loss.beyond), **bounded("apart", *loss.apart), **outcome,
        }
        for loss in sorted(comparison.skills, key=lambda loss: SKILLS.index(loss.skill))
    ]  # fmt: skip
    return rows or [{"skill": "", **outcome}]
