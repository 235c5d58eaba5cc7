"""The organisms that come with the package: sizes, provenance, and that they answer as their files say."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from lab.card import FACTS
from lab.cards import accuracy
from lab.profile import MIDDLE
from tests.helpers.marks import needs_sandbox

from sinkscope.generation.generate import generate
from sinkscope.models.load import ORGANISMS as WEIGHTS
from sinkscope.models.load import load
from sinkscope.models.model import Model
from sinkscope.statistics import wilson
from sinkscope.tasks import registry
from sinkscope.tasks.evaluate import decoding_for
from sinkscope_train import pictures
from sinkscope_train.monitor import CAPTION, IMAGE, to_describe, to_draw
from sinkscope_train.recipe import MIXES, RECIPES

TARGETS = {
    "causal": {"word_problems": 0.95, "small_code": 0.8},
    "scratch": {"word_problems": 0.95, "small_code": 0.8},
    "adapted": {"word_problems": 0.95, "small_code": 0.8},
    "multimodal": {"word_problems": 0.85, "drawing": 0.85, "caption": 0.85},
}


def read(name: str, file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((WEIGHTS / name / file).read_text(encoding="utf-8"))
    return found


def test_sizes() -> None:
    sizes = [(WEIGHTS / name / "model.safetensors").stat().st_size for name in RECIPES]
    assert max(sizes) <= 14e6
    assert sum(sizes) <= 46e6
    everything = sum(path.stat().st_size for path in WEIGHTS.rglob("*") if path.is_file())
    assert everything <= 46.6e6


@pytest.mark.parametrize("name", list(RECIPES))
def test_weights_come_from_the_committed_recipe(name: str) -> None:
    about = read(name, "training.json")
    # Two were trained when the mix was not yet called by a name in the recipe; what it was made of stands beside.
    assert about["mix"] == MIXES[RECIPES[name].mix]
    assert {"mix": RECIPES[name].mix, **about["recipe"]} == RECIPES[name].as_dict()
    assert about["tokens"] == RECIPES["causal"].tokens, "every recipe reads as many tokens"
    base = RECIPES[name].starts_from
    if base is not None:
        assert about["start_digest"] == load(f"organism/{base}", device="cpu").digest
        assert about["starts_from"] == f"organism/{base}"


@pytest.mark.parametrize("name", list(RECIPES))
def test_measured_accuracy_is_of_these_weights_and_reaches_the_target(name: str) -> None:
    measured = read(name, "accuracy.json")
    assert measured["digest"] == load(f"organism/{name}", device="cpu").digest
    for task, least in TARGETS[name].items():
        entry = measured["tasks"][task]
        assert entry["n"] >= 500
        assert entry["accuracy"] >= least, task
        assert entry["interval"] == [round(bound, 4) for bound in wilson(entry["right"], entry["n"])]


def test_the_causal_one_has_a_sink_at_its_first_token() -> None:
    """Small values and large hidden states, on the mean of the layers, with the whole interval on the right side."""
    measured = read("causal", "profile.json")
    assert measured["digest"] == load("organism/causal", device="cpu").digest
    mean = next(row for row in measured["first_token"] if row["layer"] == MIDDLE)
    assert mean["value_ratio_high"] <= FACTS["MOST_VALUE"]
    assert mean["hidden_ratio_low"] >= FACTS["LEAST_HIDDEN"]
    assert mean["received_low"] > 1.0


@pytest.mark.parametrize("name", list(RECIPES))
def test_no_file_names_a_machine(name: str) -> None:
    for file in ("training.json", "config.json", "tokenizer_config.json", "log.jsonl", "README.md", "profile.json"):
        assert "/tmp" not in (WEIGHTS / name / file).read_text(encoding="utf-8")


def organism(name: str) -> Model:
    torch.manual_seed(0)
    return load(f"organism/{name}", device="cpu")


@pytest.mark.parametrize(
    ("count", "least"), [pytest.param(2, 2, marks=pytest.mark.slow), pytest.param(6, 5, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("name", list(RECIPES))
def test_it_solves_word_problems_that_it_never_saw(name: str, count: int, least: int) -> None:
    model = organism(name)
    task = registry.get("word_problems", model.family)
    documents = task.documents(count)
    texts = [task.prompt(document).turns[-1].content for document in documents]
    written = generate(model, texts, decoding_for(task, model.family)).texts
    right = sum(task.grade(document, text).passed for document, text in zip(documents, written, strict=True))
    assert right >= least


@pytest.mark.slow
def test_multimodal_draws_and_describes() -> None:
    model = organism("multimodal")
    scenes = [pictures.scene(seed, held_out=True) for seed in range(4)]
    ids, real = to_draw(scenes)
    drawn = generate(model, ids, IMAGE, attention_mask=real, seed=0).codes
    assert drawn is not None
    assert (
        sum(
            pictures.describes(pictures.caption(scene), codes)
            for scene, codes in zip(scenes, drawn.tolist(), strict=True)
        )
        >= 3
    )
    told = generate(model, to_describe(scenes), CAPTION).texts
    assert sum(pictures.describes(text, pictures.render(scene)) for scene, text in zip(scenes, told, strict=True)) >= 3


@needs_sandbox
@pytest.mark.slow
def test_answers_are_graded_by_the_task() -> None:
    measured = accuracy(WEIGHTS / "causal", 8)
    assert measured["digest"] == read("causal", "accuracy.json")["digest"]
    assert set(measured["tasks"]) == {"word_problems", "small_code"}
    for entry in measured["tasks"].values():
        assert entry["n"] == 8
        assert entry["right"] >= 7
        assert entry["interval"] == [round(bound, 4) for bound in wilson(entry["right"], 8)]
