"""Cells: known by everything that can change a result, and by nothing else. Plans of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.study import small

import sinkscope as ss
from sinkscope import policies
from sinkscope.base.errors import InputError
from sinkscope.policies import parse_policy
from sinkscope.study import cells, documents, estimate, run, spec
from sinkscope.study.cells import Cell, identify
from sinkscope.study.facts import Facts, facts_of
from sinkscope.study.spec import StudyModel
from sinkscope.tasks import registry, word_problems

CELL = small.cell("top:1", questions="")
FACTS = {name: Facts(name, family, "float32", "0", 2, 4, 1000) for name, family in (("a", "llada"), ("b", "causal"))}


def study(**changes: object) -> spec.Study:
    data = {
        "name": "s",
        "models": [{"source": "x", "name": "a"}, {"source": "y", "name": "b"}],
        "decodings": {"short": {"llada": {"length": 8, "steps": 4, "block": 4}, "causal": {"length": 8}}},
        "evaluate": [
            {
                "task": "word_problems", "decodings": ["short"], "policies": ["none", "random(top:1)"], "controls": 3,
            }
        ],
    }  # fmt: skip
    return spec.from_data({**data, **changes})


def known(cell: Cell = CELL, **experiment: object) -> str:
    """The id of a cell, with another experiment."""
    (whole,) = identify([replace(cell, experiment=replace(cell.experiment, **experiment))])
    return whole.id


@pytest.mark.parametrize(
    "change",
    [
        {"decoding": replace(small.SHORT, steps=8)},
        {"policy": ss.MaskTop(2)},
        {"extras": {"reuse": ss.parse_reuse("prefix:2")}},
        {"seeds": (1,)},
        {"seeds": (0, 1), "decoding": replace(small.SHORT, remasking="random")},
        {"task": registry.get("small_code", "llada")},
        *({"model": replace(CELL.experiment.model, **one)} for one in (
            {"family": "mmada"}, {"dtype": "bfloat16"}, {"weights": "abd"})),
    ],
)  # fmt: skip
def test_everything_that_can_change_a_result_changes_the_id(change: dict[str, object]) -> None:
    assert known(**change) != known()


@pytest.mark.parametrize(
    "change",
    [
        {"documents": (0, 1)}, {"documents": (0, 1, 3)}, {"kind": "replay"}, {"capture": ss.Capture()},
        {"sinks": {"epsilon": 5.0, "rule": "auto"}}, {"looks": 2},
    ],
)  # fmt: skip
def test_so_does_what_is_done_with_it(change: dict[str, object]) -> None:
    assert known(replace(CELL, **change)) != known()  # type: ignore[arg-type]


def test_another_threshold_or_rule_is_another_trace() -> None:
    def traced(**changes: object) -> list[Cell]:
        wanted = spec.changed("organisms", ["organism/causal"], **changes)  # type: ignore[arg-type]
        facts = {"organism/causal": Facts("c", "causal", "float32", "0", 2, 4, 1000)}
        return [cell for cell in cells.outline(wanted, facts, exact=False) if cell.kind == "trace"]

    assert not any(cell.sinks for cell in (*traced(), *traced(epsilon=3.0)))
    assert traced(epsilon=5.0, rule="sum")[0].sinks == {"epsilon": 5.0, "rule": "sum"}
    with pytest.raises(InputError, match="did you mean sum"):
        traced(rule="sun")


def test_the_science_version_is_part_of_the_id(monkeypatch: pytest.MonkeyPatch) -> None:
    before = known()
    monkeypatch.setattr(cells, "SCIENCE", "study/next")
    assert known() != before


def test_a_task_version_is_part_of_the_id(monkeypatch: pytest.MonkeyPatch) -> None:
    before = known()
    monkeypatch.setattr(word_problems.WordProblems, "version", "word_problems/next")
    assert known() != before


def test_names_and_places_do_not_change_the_id() -> None:
    other = replace(CELL, model=StudyModel("elsewhere", name="n"), decoding_name="other", keep=False)
    assert known(other, model=replace(CELL.experiment.model, source="n")) == known()


def test_a_cell_whose_documents_were_not_read_has_no_id() -> None:
    with pytest.raises(InputError, match="no identity"):
        _ = CELL.id


def test_a_study_reads_each_policy_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells hold policies, not texts: what is parsed is what a person wrote, when it is checked and when cells are made."""
    asked: list[str] = []
    parse = policies.text.parse_policy
    monkeypatch.setattr(policies.text, "parse_policy", lambda text: (asked.append(text), parse(text))[1])
    monkeypatch.setattr(policies, "parse_policy", policies.text.parse_policy)
    path = small.write_study(tmp_path / "study", models=("llada",), samples=2)
    run.run_study(spec.read(path), tmp_path / "out", "here", "cpu")
    assert len(asked) <= 18, Counter(asked)


def test_controls_are_drawn_with_several_seeds() -> None:
    asked = ["none", "top:1", "random(top:1)", "window:8 & random(top:1)"]
    found = cells.draws(map(parse_policy, asked), 2)
    assert [str(policy or "none") for policy in found] == [
        "none", "top:1", "random(top:1)", "random(top:1),seed=1", "window:8 & random(top:1)", "window:8 & random(top:1),seed=1",
    ]  # fmt: skip


def test_forward_passes_are_counted_by_hand() -> None:
    found = cells.outline(study(), FACTS, samples=5)
    assert len(found) == 2 * (1 + 3)
    assert sum(map(estimate.forwards, found)) == 4 * 5 * 4 + 4 * 5 * 8  # steps of llada, tokens of the causal model


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
    assert {one.experiment.seeds for one in cells.outline(wanted, FACTS, 4)} == {(0,)}
    random = {"short": {"llada": {"length": 8, "steps": 4, "block": 4, "remasking": "random"}, "causal": {"length": 8}}}
    found = cells.outline(replace(wanted, decodings=random), FACTS, 4)
    seeds = {one.experiment.model.family: one.experiment.seeds for one in found}
    assert seeds == {"llada": (0, 1, 2), "causal": (0,)}


def test_traced_prompts_vary_in_length() -> None:
    wanted = study(evaluate=[], trace=[{"task": "word_problems", "decodings": ["short"], "samples": 4}])
    places = cells.outline(wanted, FACTS)[0].documents
    first = CELL.experiment.task.documents(documents.TRACED_FROM)
    lengths = sorted(len(first[place].question) for place in places)
    every = sorted(len(document.question) for document in first)
    assert len(set(places)) == 4
    assert (lengths[0], lengths[-1]) == (every[0], every[-1])


def test_exemplars_are_traced_documents_of_middle_length() -> None:
    block = {"task": "word_problems", "decodings": ["short"], "samples": 5}
    traced, maps = (
        cell
        for cell in cells.outline(study(evaluate=[], trace=[{**block, "maps": 1, "maps_every": 2}]), FACTS)
        if cell.model.name == "a"
    )
    asked = CELL.experiment.task.documents(documents.TRACED_FROM)
    order = sorted(traced.documents, key=lambda number: len(asked[number].question))
    assert maps.documents == (order[2],)
    assert (maps.kind, maps.capture.level, maps.capture.every) == ("maps", "maps", 2)
    assert len(documents.exemplars(CELL.experiment.task, traced.documents, 9, exact=True)) == 5
    assert documents.exemplars(CELL.experiment.task, (3, 5), 1, exact=False) == (3,)


def test_maps_take_more_room_than_heads() -> None:
    heads = replace(CELL, kind="trace", capture=ss.Capture())
    maps = replace(heads, capture=ss.Capture(level="maps"))
    assert estimate.storage(CELL, FACTS["a"]) < estimate.storage(heads, FACTS["a"]) < estimate.storage(maps, FACTS["a"])


def test_a_plan_of_models_that_are_not_here_downloads_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
    with pytest.raises(InputError, match="no section of study s takes models of the family causal, llada"):
        cells.outline(alone, FACTS)
    with pytest.raises(InputError, match=r"family 'cuasal' is not known; did you mean causal"):
        study(evaluate=[{**block, "families": ["cuasal"]}])
