"""Studies as data: what is built in, what is refused, and that writing and reading agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from sinkscope.base.errors import InputError
from sinkscope.policies import parse_policy
from sinkscope.policies.policy import check_policy
from sinkscope.study import spec
from sinkscope.study.facts import present
from sinkscope.study.names import SINK, role
from sinkscope.verdicts.measures import Kind
from sinkscope.verdicts.questions import CLAIMS

SMALL = {"name": "s", "models": ["organism/scratch"], "evaluate": [{"task": "word_problems", "samples": 4}]}


def test_the_built_in_studies() -> None:
    own = [name for name, path in spec.builtin().items() if path.parent == spec.BUILTIN]
    assert own == [
        "battery", "english", "families", "full", "inside", "mechanisms", "organisms", "pairs", "paper", "protocol", "quick",
    ]  # fmt: skip


@pytest.mark.parametrize("name", list(spec.builtin()))
def test_a_study_is_read_back_as_it_was_written(name: str, tmp_path: Path) -> None:
    study = spec.read(name)
    (tmp_path / "copy.toml").write_text(spec.to_toml(study), encoding="utf-8")
    assert spec.read(tmp_path / "copy.toml") == study


def test_the_default_study_is_the_one_described() -> None:
    study = spec.read("organisms")
    assert [model.source for model in study.models] == [
        "organism/causal", "organism/scratch", "organism/adapted", "organism/multimodal",
    ]  # fmt: skip
    causal, diffusion = study.evaluate
    assert {diffusion.task, causal.task} == {"word_problems"}
    assert {"strongest sink", "random(strongest sink)", "random(strongest sink),match=mass", "strongest key, no sink"} <= {
        role(policy, causal=False) for policy in diffusion.policies
    }  # fmt: skip
    assert [role(policy, causal=True) for policy in causal.policies if role(policy, causal=True)] == [
        role(policy, causal=False) for policy in diffusion.policies if role(policy, causal=False)
    ]
    papers = {
        "none", "top:1", "random(top:1)", "random(top:1),match=mass", "top:1,effect=silence", "top:1@model",
    }  # fmt: skip
    assert all(papers <= set(grid.policies) for grid in study.evaluate)
    assert study.budget.least >= 16
    for options in study.decodings["short"].values():
        assert options["length"] <= 64
        assert options.get("steps", 32) == 32


def test_the_paper_study_has_the_papers_models_and_settings() -> None:
    study = spec.read("paper")
    assert len(study.models) == 4
    table = {"top:1", "top:5", "top:10", "above:0", "above:1", "above:2"}
    assert sum(table <= set(grid.policies) for grid in study.evaluate) == 2  # GSM8K and HumanEval
    asked = {policy for grid in study.evaluate for policy in grid.policies}
    assert {
        "random(top:1),match=mass", "top:1@layer", "top:1@model", "top:1,scores=masked", "top:1,effect=silence", "first:1",
        "first:1,prefill=no", "top:1,queries=scored", "top:1,epsilon=3", "top:1,epsilon=3,among=others",
    } <= asked  # fmt: skip
    for grid in (grid for grid in study.evaluate if table <= set(grid.policies)):
        masks = [policy for policy in grid.policies if policy.startswith("top:") and ",e" not in policy]
        assert {name for mask in masks for name in (f"random({mask})", f"random({mask}),match=mass")} <= set(
            grid.policies
        )
    assert {tuple(grid.families) for grid in study.evaluate} >= {("causal",), ("diffusion",)}
    for claim in (claim for claim in CLAIMS if claim.kind == Kind.ACCURACIES):
        policy = claim.options["policy"]
        if policy == SINK:  # a role, which the study organisms has
            continue
        assert {policy, f"random({policy})"} <= asked, claim.name
    generations, _, sequences = study.trace
    assert generations.samples == 30
    assert study.decodings["traced"]["llada"] == {"length": 128, "steps": 128, "block": 32}
    assert all(options["length"] == 64 for options in study.decodings["sequences"].values())
    assert sequences.maps > 0


def test_the_mechanisms_study_crosses_blocks_orders_and_windows() -> None:
    study = spec.read("mechanisms")
    found = {
        (one["llada"]["block"], one["llada"].get("remasking", "low_confidence"))
        for one in study.decodings.values()
        if "llada" in one
    }
    assert found == {(block, order) for block in (1, 8, 32, 64) for order in ("low_confidence", "random")}
    assert study.replay
    assert [grid.models for grid in study.trace][-1] == ("organism/adapted",)  # Dream's loop has no blocks: pairs alone
    assert {"window:32", "window:32,first=4", "window:192,future=0"} <= set(study.evaluate[0].policies)


def test_a_task_that_another_section_asks_anyway_is_asked_once() -> None:
    """`quick --task text`: the sections of generated questions go, those of texts stay."""
    for task, tasks in (("text", ["text", "text"]), ("gsm8k", ["text", "text", "gsm8k", "gsm8k"])):
        study = spec.changed("quick", ["organism/scratch"], task)
        assert [grid.task for grid in study.evaluate] == tasks
        assert len(study.trace) == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"modls": []}, "it has no 'modls'; did you mean models"),
        ({"evaluate": [{"task": "word_problem"}]}, "did you mean word_problems"),
        ({"evaluate": [{"task": "word_problems", "policys": []}]}, "did you mean policies"),
        ({"evaluate": [{"task": "word_problems", "policies": ["tpo:1"]}]}, "'tpo' is not known; did you mean top"),
        ({"evaluate": [{"task": "word_problems", "decodings": ["short"]}]}, "has no decoding 'short'"),
        ({"evaluate": [{"task": "word_problems", "models": ["organism/scrach"]}]}, "did you mean organism/scratch"),
        ({"evaluate": [{"task": "word_problems", "samples": 0}]}, "samples should be a whole number of at least 1"),
        ({"evaluate": []}, "does nothing"),
        ({"trace": [{"task": "word_problems", "capture": {"levl": 1}}]}, "did you mean level"),
        ({"decodings": {"a": {"lada": {}}}}, "did you mean llada"),
        ({"decodings": {"a": {"llada": {"blok": 3}}}}, "did you mean block"),
        ({"models": ["organism/scratch", "organism/scratch"]}, "two models of the same name"),
        ({"budget": {"least": 1}}, "least should be a whole number of at least 2"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_what_was_meant(change: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        spec.from_data({**SMALL, **change})


def test_an_unknown_study_is_answered_with_the_nearest_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean organisms"):
        spec.read("organism")
    (tmp_path / "bad.toml").write_text("name = ", encoding="utf-8")
    with pytest.raises(InputError, match="should be a TOML file"):
        spec.read(tmp_path / "bad.toml")


def test_a_twin_is_another_model_of_the_study() -> None:
    for twin in ("organism/scrath", "organism/scratch"):
        models = [{"source": "organism/scratch", "twin": twin}, "organism/causal"]
        with pytest.raises(InputError, match="twin of organism/scratch"):
            spec.from_data({**SMALL, "models": models})
    pairs = spec.read("pairs")
    causal = [model.twin for model in pairs.models if model.twin]
    assert causal == [model.name for model in pairs.models if not model.twin]


def test_the_policies_of_the_protocol_study_suit_the_models_they_are_for() -> None:
    study = spec.read("protocol")
    for grid in study.evaluate:
        kind = "causal" if grid.families == ("causal",) else "masked"
        policies = [parse_policy(text) for text in grid.policies]
        assert all(check_policy(policy, 4, 64, kind) is policy for policy in policies)
        rules = [rule for policy in policies if policy for rule in policy.parts()]
        assert {rule.effect for rule in rules} >= {"hide"}
        assert {getattr(rule, "match", "") for rule in rules} == {"", "count", "mass"}


def test_a_model_that_no_block_names_takes_the_blocks_that_name_others() -> None:
    study = spec.changed("protocol", ["mine"])
    assert [grid.models for grid in study.evaluate] == [("mine",)] * 5
    organism = spec.changed("protocol", ["organism/causal"])
    assert {grid.task for grid in organism.evaluate} == {"word_problems"}


def test_optional_models_that_are_not_here_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINKSCOPE_CACHE", str(tmp_path))
    study, line = present(spec.read("protocol"))
    assert [model.name for model in study.models] == [
        "organism/causal", "organism/scratch", "organism/adapted", "organism/multimodal",
    ]  # fmt: skip
    assert {grid.task for grid in study.evaluate} == {"word_problems"}
    assert line.startswith("left out: smollm2, smollm2-twin, nvidia/Nemotron-Labs-Diffusion-3B, ")
    assert "(smollm2 is not on this machine" in line
    assert present(study) == (study, "")
