"""Cells: known by everything that can change a result, and by nothing else. Plans of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sinkscope.errors import InputError
from sinkscope.study import cells, documents, estimate, spec
from sinkscope.study.cells import Cell, identified
from sinkscope.study.facts import Facts, facts_of
from sinkscope.study.spec import StudyModel

WEIGHTS = Facts("llada", "float32", "abc")
CELL = Cell(
    kind="evaluate", model=StudyModel("somewhere", name="m"), family="llada", task="word_problems",
    decoding='{"kind": "llada", "length": 8, "steps": 4, "block": 4}', decoding_name="short", policy="top:1", seeds=(0,),
    documents=(0, 1, 2),
)  # fmt: skip
FACTS = {
    name: Facts(family, "float32", "0", 2, 4, 1000) for name, family in (("a", "llada"), ("b", "causal"))
}


def study(**changes: object) -> spec.Study:
    data = {
        "name": "s",
        "models": [{"source": "x", "name": "a"}, {"source": "y", "name": "b"}],
        "decodings": {"short": {"llada": {"length": 8, "steps": 4, "block": 4}, "causal": {"length": 8}}},
        "evaluate": [
            {
                "task": "word_problems",
                "decodings": ["short"],
                "policies": ["none", "random(top:1)"],
                "controls": 3,
            }
        ],
    }
    return spec.from_data({**data, **changes})


@pytest.mark.parametrize(
    "change",
    [
        {"decoding": '{"kind": "llada", "length": 8, "steps": 8, "block": 4}'},
        {"policy": "top:2"},
        {"seeds": (1,)},
        {"seeds": (0, 1)},
        {"documents": (0, 1)},
        {"documents": (0, 1, 3)},
        {"task": "small_code"},
        {"kind": "replay"},
        {"capture": '{"level": "heads"}'},
        {"sinks": '{"epsilon": 5.0, "rule": "auto"}'},
    ],
)
def test_everything_that_can_change_a_result_changes_the_id(change: dict[str, object]) -> None:
    before = identified(CELL, WEIGHTS).id
    assert identified(replace(CELL, **change), WEIGHTS).id != before  # type: ignore[arg-type]


def test_another_threshold_or_rule_is_another_trace() -> None:
    def traced(**changes: object) -> list[Cell]:
        wanted = spec.changed("organisms", ["organism/causal"], **changes)  # type: ignore[arg-type]
        facts = {"organism/causal": Facts("causal", "float32", "0", 2, 4, 1000)}
        return [cell for cell in cells.outline(wanted, facts, exact=False) if cell.kind == "trace"]

    assert {cell.sinks for cell in traced()} == {cell.sinks for cell in traced(epsilon=3.0)} == {""}
    assert json.loads(traced(epsilon=5.0, rule="sum")[0].sinks) == {"epsilon": 5.0, "rule": "sum"}
    with pytest.raises(InputError, match="did you mean sum"):
        traced(rule="sun")


@pytest.mark.parametrize("change", [{"family": "mmada"}, {"dtype": "bfloat16"}, {"weights": "abd"}])
def test_another_model_is_another_cell(change: dict[str, str]) -> None:
    assert identified(CELL, replace(WEIGHTS, **change)).id != identified(CELL, WEIGHTS).id


def test_the_science_version_is_part_of_the_id(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identified(CELL, WEIGHTS).id
    monkeypatch.setattr(cells, "SCIENCE", "study/next")
    assert identified(CELL, WEIGHTS).id != before


def test_a_task_version_is_part_of_the_id(monkeypatch: pytest.MonkeyPatch) -> None:
    from sinkscope.tasks import word_problems

    before = identified(CELL, WEIGHTS).id
    monkeypatch.setattr(word_problems.WordProblems, "version", "word_problems/next")
    assert identified(CELL, WEIGHTS).id != before


def test_names_and_places_do_not_change_the_id() -> None:
    other = replace(CELL, model=StudyModel("elsewhere", name="n"), decoding_name="other", sandbox="none")
    assert identified(other, WEIGHTS).id == identified(CELL, WEIGHTS).id


def test_a_cell_without_identity_has_no_id() -> None:
    with pytest.raises(InputError, match="no identity"):
        _ = CELL.id


def test_controls_are_drawn_with_several_seeds() -> None:
    assert cells.expanded(["none", "top:1", "random(top:1)", "window:8 & random(top:1)"], 2) == [
        "none", "top:1", "random(top:1)", "random(top:1),seed=1", "window:8 & random(top:1)", "window:8 & random(top:1),seed=1",
    ]  # fmt: skip


def test_forward_passes_are_counted_by_hand() -> None:
    found = cells.outline(study(), FACTS, samples=5)
    assert len(found) == 2 * (1 + 3)
    assert (
        sum(map(estimate.forwards, found)) == 4 * 5 * 4 + 4 * 5 * 8
    )  # steps of llada, tokens of the causal model


def test_samples_follow_from_speed_within_the_budgets_bounds() -> None:
    wanted = study(budget={"seconds": 100, "least": 16, "most": 64})
    one = estimate.seconds(
        cells.outline(wanted, FACTS, 1), {"a": estimate.Speed(1, 1, 1), "b": estimate.Speed(1, 1, 1)}, 2
    )
    assert one == (4 * 4 + 4 * 8) / 2
    for seconds, expected in ((100.0, 16), (0.1, 40), (1e-6, 64)):  # 100 s / (24 · 0.1 s) = 41.7, in eights
        speeds = dict.fromkeys(("a", "b"), estimate.Speed(seconds, seconds, seconds))
        assert estimate.choose_samples(wanted, FACTS, speeds, 2) == expected


def test_seeds_are_used_only_where_the_decoding_draws() -> None:
    wanted = study(evaluate=[{"task": "word_problems", "decodings": ["short"], "seeds": [0, 1, 2]}])
    assert {one.seeds for one in cells.outline(wanted, FACTS, 4)} == {(0,)}
    random = {
        "short": {
            "llada": {"length": 8, "steps": 4, "block": 4, "remasking": "random"},
            "causal": {"length": 8},
        }
    }
    found = cells.outline(replace(wanted, decodings=random), FACTS, 4)
    assert {one.family: one.seeds for one in found} == {"llada": (0, 1, 2), "causal": (0,)}


def test_traced_prompts_vary_in_length() -> None:
    wanted = study(evaluate=[], trace=[{"task": "word_problems", "decodings": ["short"], "samples": 4}])
    places = cells.outline(wanted, FACTS)[0].documents
    first = CELL.parsed_task().documents(documents.TRACED_FROM)
    lengths = sorted(len(first[place].question) for place in places)
    every = sorted(len(document.question) for document in first)
    assert len(set(places)) == 4
    assert (lengths[0], lengths[-1]) == (every[0], every[-1])


def test_exemplars_are_the_ones_nearest_to_the_median() -> None:
    assert documents.exemplars({0: 9.0, 4: 1.0, 7: 2.0}, 1) == (7,)
    assert documents.exemplars({0: 1.0, 4: 1.0, 7: 5.0}, 1) == (0,)
    assert documents.exemplars({}, 1) == ()
    assert len(documents.exemplars({0: 9.0, 4: 1.0, 7: 2.0}, 2)) == 2


def test_maps_take_more_room_than_heads() -> None:
    heads = replace(
        CELL,
        kind="trace",
        capture=json.dumps({"level": "heads", "by_query": False, "anatomy": False, "every": 1}),
    )
    maps = replace(heads, capture=heads.capture.replace("heads", "maps"))
    assert (
        estimate.storage(CELL, FACTS["a"])
        < estimate.storage(heads, FACTS["a"])
        < estimate.storage(maps, FACTS["a"])
    )


def test_a_plan_of_models_that_are_not_here_downloads_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    facts = {model.name: facts_of(model, "cpu", fetch=False) for model in spec.read("paper").models}
    assert {one.family for one in facts.values()} == {"llada", "dream", "mmada", "causal"}
    assert not any(one.here for one in facts.values())
    assert sum(map(estimate.forwards, cells.outline(spec.read("paper"), facts, exact=False))) > 10**7


def test_a_block_for_some_families_leaves_out_models_of_others() -> None:
    block = {"task": "word_problems", "decodings": ["short"], "samples": 2}
    wanted = study(
        evaluate=[
            {**block, "families": ["causal"], "policies": ["top:1,prefill=yes"]},
            {**block, "families": ["diffusion"], "policies": ["top:1"]},
        ]
    )
    made = cells.outline(wanted, FACTS)
    assert [(cell.model.name, cell.policy) for cell in made] == [("b", "top:1,prefill=yes"), ("a", "top:1")]
    alone = study(evaluate=[{**block, "families": ["mmada"]}])
    with pytest.raises(InputError, match="no block of study s takes models of the family causal, llada"):
        cells.outline(alone, FACTS)
    with pytest.raises(InputError, match=r"unknown family 'cuasal': .*causal"):
        study(evaluate=[{**block, "families": ["cuasal"]}])
