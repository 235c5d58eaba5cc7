"""The tables of the battery: every skill at every difficulty under every policy, and what `study.skills` concludes from them.

Skills may be asked together (task `battery`) or in blocks of their own (`battery:logic`, …); what one model answers under one
decoding and scheme is compared together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sinkscope.statistics import LEAST_SEEDS, align, compare, wilson
from sinkscope.study.columns import settings_of
from sinkscope.study.names import control, pooled
from sinkscope.study.skills import SkillAnswers, compare_skills
from sinkscope.tasks.battery import SKILLS, stratum_of
from sinkscope.tasks.evaluation import Evaluation
from sinkscope.tasks.task import scheme_name

if TYPE_CHECKING:
    import pandas as pd

    from sinkscope.study.cells import Cell

Scores = Mapping[str, float]
"""By document."""


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
        plain = _mean(draws.get("none", {}))
        settings = {pooled(cell.policy): settings_of(cell) for cell in reversed(group)}
        for policy, given in draws.items():
            known = {**settings[policy], "task": "battery", "policy": policy}
            rows += [known | row for row in _rows(_mean(given), {} if policy == "none" else plain)]
            losses += [
                {**settings[kind.like], "task": "battery", "policy": kind.like, "match": kind.match, **row}
                for kind in [control(policy)]
                if kind is not None and {"none", kind.like} <= draws.keys() and len(given) >= LEAST_SEEDS
                for row in _losses(plain, _mean(draws[kind.like]), list(given.values()))
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
            row |= {
                "difference": paired.difference,
                "difference_low": paired.interval.low,
                "difference_high": paired.interval.high,
            }
        rows.append(row)
    return rows


def _losses(plain: Scores, policy: Scores, draws: Sequence[Scores]) -> list[dict[str, Any]]:
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
            "beyond": loss.beyond.value, "beyond_low": loss.beyond.low, "beyond_high": loss.beyond.high,
            "apart": loss.apart.value, "apart_low": loss.apart.low, "apart_high": loss.apart.high, **told,
        }
        for loss in sorted(found.skills, key=lambda loss: SKILLS.index(loss.skill))
    ]  # fmt: skip
    return rows or [{"skill": "", **told}]


def _mean(draws: Mapping[str, Scores]) -> Scores:
    """The mean over draws of the documents that all of them answered; empty without any."""
    if not draws:
        return {}
    shared = set.intersection(*(set(scores) for scores in draws.values()))
    return {
        document: sum(scores[document] for scores in draws.values()) / len(draws)
        for document in sorted(shared)
    }
