"""GPU-hours before a study runs, for models that are not here too, and the cheapest runs that decide on a claim."""

from __future__ import annotations

import pytest

from sinkscope.policies import parse_policy
from sinkscope.report.study.claims import CLAIMS, needs
from sinkscope.report.study.evidence import ACCURACIES
from sinkscope.study import estimate as hours
from sinkscope.study import spec
from sinkscope.study.cells import Cell, outline
from sinkscope.study.facts import Facts, facts_of


@pytest.fixture(scope="module")
def paper() -> tuple[list[Cell], dict[str, Facts]]:
    study = spec.read("paper")
    facts = {model.name: facts_of(model, "cpu", fetch=False) for model in study.models}
    return outline(study, facts, exact=False), facts


def test_hours_by_hand(paper: tuple[list[Cell], dict[str, Facts]]) -> None:
    cells, facts = paper
    cell = next(
        c for c in cells if c.family == "llada" and c.task == "gsm8k:paper-llada" and c.policy == "none"
    )
    tokens = 1319 * 256 * (1047 + 256)
    step = 0.1333 / 6144 * facts[cell.model.name].parameters / 8015581184
    assert hours.gpu_hours([cell], facts, "H200") == pytest.approx(tokens * step / 3600)
    assert hours.gpu_hours([cell], facts, "A100") == pytest.approx(tokens * step / 3600 * 989 / 312)
    masked = next(c for c in cells if c.family == "llada" and c.task == cell.task and c.policy == "top:1")
    assert hours.gpu_hours([masked], facts, "H200") == pytest.approx(1.1 * tokens * step / 3600)


def test_new_tokens_of_a_causal_model_follow_the_memory(paper: tuple[list[Cell], dict[str, Facts]]) -> None:
    cells, facts = paper
    cell = next(
        c for c in cells if c.family == "causal" and c.task.startswith("gsm8k:") and c.policy == "none"
    )
    here, there = (hours.gpu_hours([cell], facts, gpu) for gpu in ("H200", "H100"))
    assert here is not None
    assert there is not None
    assert here < there < here * 4.80 / 3.35  # the prompt's part has the same rate on both


def test_models_that_do_not_fit_or_are_too_small_have_no_hours(
    paper: tuple[list[Cell], dict[str, Facts]],
) -> None:
    cells, facts = paper
    name = cells[0].model.name
    for size in (6_000_000, 40_000_000_000):
        changed = {**facts, name: Facts("llada", "bfloat16", None, parameters=size)}
        assert hours.gpu_hours(cells[:1], changed, "RTX-4090") is None


def test_the_cheapest_runs(paper: tuple[list[Cell], dict[str, Facts]]) -> None:
    cells, facts = paper
    subsets = {subset.power.claim: subset for subset in hours.cheapest(cells, needs())}
    collapse = subsets["collapse"].cells
    assert sorted(cell.policy for cell in collapse) == [
        "none", "random(top:1)", "random(top:1),seed=1", "random(top:1),seed=2", "top:1",
    ]  # fmt: skip
    assert {(cell.family, len(cell.documents)) for cell in collapse} == {("causal", 64)}
    # Of two tasks with enough documents the one with less work is taken: 256 new tokens, not 1,024.
    assert {cell.task for cell in collapse} == {"gsm8k:paper-llama"}
    assert {cell.task.partition(":")[0] for cell in subsets["robust-1"].cells} == {
        "gsm8k"
    }  # HumanEval has 164
    assert subsets["rival-model"].missing == "without random(top:1@model), top:1@model"
    union = hours.together(list(subsets.values()))
    assert len(union) == len({(c.model, c.task, c.policy) for s in subsets.values() for c in s.cells})
    assert max(len(cell.documents) for cell in union) == 500
    whole, part = (hours.gpu_hours(some, facts, "H200") for some in (cells, union))
    assert whole is not None
    assert part is not None
    assert part < whole / 4


def test_every_claim_on_accuracies_says_what_it_needs() -> None:
    powers = {power.claim: power for power in needs()}
    claims = {claim.name: claim for claim in CLAIMS if claim.kind == ACCURACIES}
    assert powers.keys() == claims.keys()
    for name, power in powers.items():
        assert set(claims[name].families) <= set(power.families)
        assert power.documents in (16, 64, 200, 500)  # those of lab.verdict_simulation
        assert all(text == "none" or str(parse_policy(text)) == text for text in power.policies)
