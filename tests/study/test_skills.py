"""Skills compared: no verdict where nothing differs, the planted difference found, accuracies held equal; tables and report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import special
from tests.study import small
from tests.study.small import run_here, write_blocks

from sinkscope.base.errors import InputError
from sinkscope.report.study.source import StudySource
from sinkscope.report.study.tables import skills as skills_section
from sinkscope.statistics import equal_means, equal_shifts
from sinkscope.study.skills import STRATUM, compare_skills, matched_levels, skill_tables
from sinkscope.study.tables import with_columns
from sinkscope.tasks.battery import SKILLS, stratum_of
from sinkscope.verdicts import Reason

NAMES = SKILLS[:6]
DRAWS = 3


def simulated(
    rng: np.random.Generator,
    accuracy: Mapping[int, float] | Mapping[str, Mapping[int, float]],
    each: int,
    kept: Mapping[str, float],
    control: Mapping[str, float],
) -> pd.DataFrame:
    """Skills with these unmasked accuracies by level; what is right stays right with probability `kept`, or `control`."""
    made = []
    for skill in kept:
        own: Any = accuracy.get(skill, accuracy)  # type: ignore[call-overload]
        level = np.repeat(list(own), each)
        plain = rng.random(len(level)) < np.repeat(list(own.values()), each)
        policy = plain & (rng.random(len(level)) < kept[skill])
        draws = plain & (rng.random((DRAWS, len(level))) < control[skill])
        made.append(scores_of(skill, level, plain, policy, draws))
    return pd.concat(made)


def scores_of(skill: str, level: Any, plain: Any, policy: Any, draws: Any) -> pd.DataFrame:
    columns = {"skill": skill, "difficulty": level, "plain": plain, "policy": policy, "control": draws.mean(0)}
    return pd.DataFrame(columns).astype(dict.fromkeys(("plain", "policy", "control"), float))


LEVELS = {2: 0.9, 4: 0.7, 8: 0.4}
NULLS = {
    "alike": ({}, {}),
    "fragile skills lose more under both": (
        dict(zip(NAMES, (0.6, 0.5, 0.4, 0.3, 0.2, 0.15), strict=True)),
        dict(zip(NAMES, (0.9, 0.8, 0.7, 0.6, 0.5, 0.45), strict=True)),
    ),
    "nothing is lost": (dict.fromkeys(NAMES, 1.0), dict.fromkeys(NAMES, 1.0)),
    "little is lost": (dict.fromkeys(NAMES, 0.95), dict.fromkeys(NAMES, 0.98)),
}


@pytest.mark.parametrize(
    ("null", "each", "runs"),
    [
        # Every truth at one of the sizes in `make test`; at both, and more often, in `make soak`.
        *(pytest.param(null, (20, 60)[number % 2], 100, marks=pytest.mark.slow) for number, null in enumerate(NULLS)),
        *(pytest.param(null, each, 200, marks=pytest.mark.soak) for null in NULLS for each in (20, 60)),
    ],
)
def test_no_difference_gives_a_verdict_in_at_most_five_per_cent(null: str, each: int, runs: int) -> None:
    kept, control = NULLS[null]
    rng = np.random.default_rng(each)
    wrong = apart = 0
    for _ in range(runs):
        found = compare_skills(
            simulated(
                rng, LEVELS, each, kept or dict.fromkeys(NAMES, 0.5), control or dict.fromkeys(NAMES, 0.9),
            )
        )  # fmt: skip
        wrong += found.verdict.answer == "differs"
        apart += any(loss.apart.low > 0 or loss.apart.high < 0 for loss in found.skills)
    assert wrong <= 0.05 * runs
    assert apart <= 0.05 * runs  # the intervals hold together


@pytest.mark.slow
@pytest.mark.parametrize("each", [60, 150])
def test_easy_answers_make_no_difference(each: int) -> None:
    """One policy, one control; of some skills up to 70 % of the answers cannot be broken, at one accuracy."""
    rng, wrong, before = np.random.default_rng(4), 0, 0
    for _ in range(40):
        easy = dict(zip(NAMES, np.linspace(0.0, 0.7, len(NAMES)), strict=True))
        kept, control = ({skill: e + (1 - e) * left for skill, e in easy.items()} for left in (0.4, 0.7))
        found = compare_skills(simulated(rng, {2: 0.8}, each, kept, control))
        wrong += found.verdict.answer == "differs"
        before += found.verdict.reason == Reason.EASY_MAY
    assert wrong <= 2
    assert before >= 5


def margins(rng: np.random.Generator, each: int, shift: Mapping[str, float], control: float) -> pd.DataFrame:
    """Skills whose answers are right where a margin is above 0, at accuracies of their own; a policy lowers every margin."""
    made = []
    for skill, lowered in shift.items():
        level = np.repeat([1, 2, 3], each)
        margin = rng.normal(np.repeat(rng.uniform(-0.25, 2.0, 3), each))
        noise = 0.3 * rng.normal(size=(DRAWS + 2, len(level)))
        scores = [margin > 0, margin - lowered + noise[0] > 0, margin - control + noise[2:] > 0]
        made.append(scores_of(skill, level, *scores))
    return pd.concat(made)


@pytest.mark.slow
@pytest.mark.parametrize(("shift", "control"), [(0.8, 0.2), (1.5, 0.3)])
@pytest.mark.parametrize(
    ("each", "runs"), [(20, 60), *(pytest.param(each, 100, marks=pytest.mark.soak) for each in (20, 100))]
)
def test_accuracies_that_are_not_quite_equal_make_no_difference(
    each: int, runs: int, shift: float, control: float
) -> None:
    rng, wrong, one_scale = np.random.default_rng(5), 0, 0
    for _ in range(runs):
        given = margins(rng, each, dict.fromkeys(SKILLS, shift), control)
        wrong += compare_skills(given).verdict.answer == "differs"
        matched = pd.MultiIndex.from_frame(given[STRATUM]).isin(matched_levels(given))
        right = given[matched & (given["plain"] == 1)]
        lost = [rows["control"] - rows["policy"] for _, rows in right.groupby("skill", sort=False)]
        one_scale += equal_means(lost, draws=200) < 0.025
    assert wrong <= 0.05 * runs
    assert one_scale > 0.1 * runs  # which is why one scale is not enough
    planted = margins(rng, 200, {**dict.fromkeys(SKILLS, 0.5), "logic": 2.0}, control)
    found = compare_skills(planted)
    assert found.verdict.answer == "differs" or "logic" in found.left_out


@pytest.mark.slow
def test_a_planted_difference_is_found() -> None:
    rng = np.random.default_rng(0)
    kept = {**dict.fromkeys(NAMES, 0.7), "planning": 0.2}
    found = [compare_skills(simulated(rng, LEVELS, 120, kept, dict.fromkeys(NAMES, 0.85))) for _ in range(30)]
    assert sum(one.verdict.answer == "differs" for one in found) >= 27
    for one in found[:5]:
        losses = {loss.skill: loss for loss in one.skills}
        assert max(losses, key=lambda skill: losses[skill].beyond.value) == "planning"
        assert losses["planning"].apart.low > 0
        assert one.verdict.of == "planning"


@pytest.mark.slow
def test_an_equal_loss_is_certified_with_many_documents() -> None:
    rng = np.random.default_rng(1)
    same = simulated(rng, {2: 0.9}, 3000, dict.fromkeys(NAMES, 0.6), dict.fromkeys(NAMES, 0.9))
    assert compare_skills(same).verdict.answer == "alike"


def test_skills_are_compared_where_the_model_does_them_equally_well() -> None:
    rng = np.random.default_rng(2)
    accuracy = {
        "retrieval": {2: 1.0, 4: 0.98, 8: 0.6},
        "logic": {1: 0.62, 3: 0.3, 5: 0.1},
        "state": {1: 0.95, 2: 0.58, 4: 0.2},
        "planning": {2: 0.1, 4: 0.0, 6: 0.0},
    }
    given = simulated(rng, accuracy, 200, dict.fromkeys(accuracy, 0.5), dict.fromkeys(accuracy, 0.9))
    assert set(matched_levels(given)) == {("retrieval", 8), ("logic", 1), ("state", 2)}
    found = compare_skills(given)
    assert found.left_out == ("planning",)
    for loss in found.skills:
        assert loss.accuracy == pytest.approx(0.6, abs=0.1)
        own = given[(given["skill"] == loss.skill) & given["difficulty"].isin(loss.levels) & (given["plain"] == 1)]
        assert loss.n == len(own)
        assert loss.kept == pytest.approx(own["policy"].mean())
        assert loss.control_kept == pytest.approx(own["control"].mean())
        assert loss.beyond.value == pytest.approx(loss.control_kept - loss.kept)
        assert loss.beyond.low < loss.beyond.value < loss.beyond.high


def test_nothing_is_decided_without_ground() -> None:
    rng = np.random.default_rng(3)
    poor = simulated(rng, {2: 0.05}, 60, dict.fromkeys(NAMES, 0.5), dict.fromkeys(NAMES, 0.9))
    found = compare_skills(poor)
    assert found.verdict.reason == Reason.TOO_FEW_RIGHT
    assert math.isnan(found.p)
    # All skills collapse, and random keys hurt some: what differs is the control alone.
    control = dict(zip(NAMES, (1.0, 0.9, 0.8, 0.5, 0.4, 0.3), strict=True))
    floor = compare_skills(simulated(rng, LEVELS, 60, dict.fromkeys(NAMES, 0.0), control))
    assert floor.p < 0.025
    assert floor.verdict.reason == Reason.FLOOR


def test_equal_means_by_hand() -> None:
    assert equal_means([[1.0, 1.0], [1.0, 1.0, 1.0]]) == 1.0
    # Two groups of two: 6 ways to deal them, of which the observed one and its mirror are the farthest apart.
    p = equal_means([[0.0, 1.0], [10.0, 11.0]], draws=20_000)
    assert p == pytest.approx(2 / 6, abs=0.02)
    assert equal_means([[0.0] * 20, [1.0] * 20]) < 0.001
    with pytest.raises(InputError, match="at least two"):
        equal_means([[0.0, 1.0]])


def test_equal_shifts_by_hand() -> None:
    """The same shift of a normal margin at three accuracies is one shift, though three differences of accuracy."""
    grid = (np.arange(4000) + 0.5) / 4000
    margin = special.ndtri(grid)

    def group(*at: float, shift: float = 0.7) -> list[tuple[Any, Any]]:
        return [((margin + one > 0).astype(float), (margin + one - shift > 0).astype(float)) for one in at]

    same = [group(0.0), group(0.7), group(0.0, 1.5)]  # the last of two strata
    drops = [np.mean([before.mean() - after.mean() for before, after in strata]) for strata in same]
    assert max(drops) - min(drops) > 0.05
    assert equal_shifts(same) > 0.9
    assert equal_shifts([*same, group(0.7, shift=1.0)]) < 1e-3
    assert equal_shifts([[([1.0] * 9, [0.0] * 9)]] * 2) == pytest.approx(1.0)
    with pytest.raises(InputError, match="at least two"):
        equal_shifts(same[:1])


# ---- tables --------------------------------------------------------------------------------------


def graded(policy: str, scores: dict[str, float], task: str = "battery") -> pd.DataFrame:
    """The records of a cell, as far as the tables read them."""
    strata = [stratum_of(name) for name in scores]
    frame = pd.DataFrame({"document": list(scores), "passed": list(scores.values())})
    if all(strata):
        frame = frame.assign(skill=[s.skill for s in strata if s], difficulty=[s.level for s in strata if s])
    return with_columns(frame, small.cell(policy, task).columns())


def made(frames: list[pd.DataFrame]) -> dict[str, pd.DataFrame]:
    return skill_tables(pd.concat(frames, ignore_index=True))


def test_tables_by_skill_and_difficulty() -> None:
    documents = [f"{skill}@{level}/test-{i}" for skill in ("logic", "state") for level in (1, 2) for i in range(40)]

    def scores(share: float, only: str = "") -> dict[str, float]:
        rng = np.random.default_rng(int(share * 100))
        return {name: float(rng.random() < share or not name.startswith(only)) for name in documents}

    runs = {
        "none": scores(1.0),
        "top:1": scores(0.3, "logic"),
        **{f"random(top:1){tail}": scores(0.9 + i / 50) for i, tail in enumerate(("", ",seed=1", ",seed=2"))},
    }
    together = made([graded(policy, given) for policy, given in runs.items()])
    skills = together["skills"].set_index(["policy", "skill", "difficulty"]).sort_index()
    assert len(skills) == 3 * 2 * 3
    row = skills.loc[("top:1", "logic", 1)]
    own = [score for name, score in runs["top:1"].items() if name.startswith("logic@1/")]
    assert row["n"] == 40
    assert row["accuracy"] == pytest.approx(np.mean(own))
    assert row["difference"] == pytest.approx(np.mean(own) - 1)
    assert row["difference_low"] <= row["difference"] <= row["difference_high"]
    losses = together["skill_losses"]
    assert list(losses["skill"]) == ["logic", "state"]
    assert set(losses["answer"]) == {"differs"}
    assert losses["beyond"].iloc[0] > 0.4 > losses["beyond"].iloc[1]
    assert set(losses["policy"]) == {"top:1"}
    assert set(losses["match"]) == {"count"}
    (evidence,) = set(losses["evidence"])
    assert "more lost than by the other skills" in evidence
    # The report shows the same numbers, each with its place in the table.
    study = SimpleNamespace(models=[SimpleNamespace(name=name) for name in set(losses["model"])])
    ((_, verdict, _, shown),) = skills_section(StudySource(Path(), study, together, {}))["groups"]  # type: ignore[arg-type,index]
    cells = {cell.at: cell.text for row in shown.rows for cell in row}
    for at, loss in losses.iterrows():
        for name in ("kept", "control_kept"):
            assert cells[f"skill_losses/{at}/{name}"] == f"{loss[name]:.3f}"
        (beyond,) = (text for place, text in cells.items() if f"skill_losses/{at}/beyond" in place.split())
        assert beyond.split()[0] == f"{loss['beyond']:+.3f}".replace("-", "−")
    assert verdict.answer == "differs"
    assert {verdict.to_json()} == set(losses["verdict"])
    # Asked skill by skill, the same is concluded.
    parts = [
        graded(policy, {name: score for name, score in given.items() if name.startswith(skill)}, f"battery:{skill}")
        for skill in ("logic", "state")
        for policy, given in runs.items()
    ]
    columns = ["skill", "n", "kept", "control_kept", "beyond", "p", "answer"]
    pd.testing.assert_frame_equal(made(parts)["skill_losses"][columns], losses[columns])
    # Without a run without a policy there is nothing to compare with, and that run has no difference from itself.
    assert skills.loc["none"]["difference"].isna().all()
    alone = made([graded("top:1", runs["top:1"])])
    assert list(alone) == ["skills"]
    assert "difference" not in alone["skills"]
    # Two draws of a control are too few, and other tasks have no skills.
    assert "skill_losses" not in made([graded(policy, given) for policy, given in list(runs.items())[:-1]])
    assert made([graded("none", {"test-0": 1.0})]) == {}


BLOCKS = """
[decodings.short]
causal = { length = 6 }
[[evaluate]]
task = "battery"
decodings = ["short"]
samples = 9
controls = 3
policies = ["none", "top:1", "random(top:1)"]
[[evaluate]]
task = "battery:copying@4"
decodings = ["short"]
samples = 2
"""


@pytest.mark.slow
def test_a_study_names_the_battery_and_its_skills(tmp_path: Path) -> None:
    out = tmp_path / "out"
    printed = run_here(write_blocks(tmp_path, ("llama",), BLOCKS), out)
    tables = {
        name: pd.read_parquet(out / "tables" / f"{name}.parquet")
        for name in ("results", "records", "skills", "skill_losses")
    }
    assert set(tables["results"]["task"]) == {"battery", "battery:copying@4"}
    assert set(tables["records"]["skill"]) == set(SKILLS)
    assert set(tables["skills"]["policy"]) == {"none", "top:1", "random(top:1)"}
    assert set(tables["skills"]["skill"]) == set(SKILLS)
    assert set(tables["skill_losses"]["answer"]) == {"undecided"}  # nine documents, and no skill
    assert "skill by skill: undecided" in printed
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Which skills" in page
    assert "ask more documents" in page
