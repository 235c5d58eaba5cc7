"""The training monitor asks and grades as the tasks do; pictures and captions determine each other."""

from __future__ import annotations

import pytest
import torch

from sinkscope.generation.generate import generate
from sinkscope.models.load import load
from sinkscope.tasks import registry
from sinkscope.tasks.evaluate import decoding_for
from sinkscope_train import monitor, pictures
from sinkscope_train.pictures import CELLS, PictureShape, Scene, caption, describes, parse, render, scene
from sinkscope_train.recipe import recipe
from sinkscope_train.vocabulary import shipped

CPU = torch.device("cpu")
COUNT = 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["causal", "scratch"])
def test_it_asks_held_out_questions_by_the_official_loop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(f"organism/{name}", device="cpu")
    with monkeypatch.context() as patch:
        patch.setattr(monitor, "TASKS", ("word_problems",))  # the other is asked below
        answered = monitor.held_out_answers(model, COUNT, batch=1)
    task = registry.get("word_problems", model.family)
    texts = [document.question for document in task.documents(COUNT)]
    assert answered["word_problems"]["answers"] == generate(model, texts, decoding_for(task, model.family)).texts
    said: list[str] = []
    layout = recipe(name).layout
    found = monitor.accuracies(model.network, layout, shipped(layout), COUNT, CPU, said.append)
    right = monitor.right_answers("word_problems", model.family, answered["word_problems"]["answers"])
    assert found["word_problems"] == round(sum(right) / COUNT, 4) == 1.0
    assert said == [f"answers {COUNT} held-out questions of {task}" for task in ("word_problems", "small_code")]


def test_programs_are_compared_with_the_worked_answer_where_they_are_not_run() -> None:
    documents = registry.get("small_code", "llada").documents(3)
    answers = [documents[0].answer, f" {documents[1].answer}\n", "return None"]
    assert monitor.right_answers("small_code", "llada", answers, run_programs=False) == [True, True, False]


def test_pictures_are_graded_in_both_directions() -> None:
    scenes = [pictures.scene(index, held_out=True) for index in range(2)]
    drawings = [list(pictures.render(scenes[0])), list(pictures.render(scenes[0]))]
    assert monitor.right_answers("drawing", "mmada", drawings) == [True, False]
    captions = [pictures.caption(scenes[0]), "A red ring."]
    assert monitor.right_answers("caption", "mmada", captions) == [True, False]


def test_every_caption_gives_back_its_scene() -> None:
    for seed in range(500):
        drawn = scene(seed)
        assert parse(caption(drawn)) == drawn
        assert describes(caption(drawn), render(drawn))


def test_one_wrong_cell_is_a_wrong_drawing() -> None:
    drawn = scene(3)
    for cell in range(CELLS):
        codes = list(render(drawn))
        codes[cell] = (codes[cell] + 1) % pictures.CODES
        assert not describes(caption(drawn), codes)


TWO = Scene("white", (PictureShape("ring", "red", "top left"), PictureShape("dot", "blue", "bottom right")))


@pytest.mark.parametrize(
    "text",
    [
        "A red ring top left on white.",
        "A red ring top left and a blue dot bottom left on white.",
        "A red ring top left and a blue dot bottom right on black.",
        "A red ring top left and a blue dot bottom right on white. And more.",
        "A red ring top left and a blue dot top left on white.",
        "red ring blue dot",
        "",
    ],
)
def test_wrong_captions_are_refused(text: str) -> None:
    assert not describes(text, render(TWO))


def test_the_order_of_shapes_is_free() -> None:
    assert describes("A blue dot bottom right and a red ring top left on white.", render(TWO))


def test_no_held_out_scene_is_drawn_for_training() -> None:
    training = {scene(seed) for seed in range(20_000)}
    held_out = {scene(seed, held_out=True) for seed in range(500)}
    assert len(held_out) > 400
    assert not training & held_out
