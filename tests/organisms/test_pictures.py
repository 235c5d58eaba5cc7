"""Pictures: caption and drawing determine each other, and the checkers refuse everything else."""

from __future__ import annotations

import pytest

from sinkscope.organisms import pictures
from sinkscope.organisms.pictures import (
    CELLS,
    Scene,
    Shape,
    caption,
    describes,
    parse,
    render,
    scene,
)


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


TWO = Scene("white", (Shape("ring", "red", "top left"), Shape("dot", "blue", "bottom right")))


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
