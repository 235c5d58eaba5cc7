"""The recipes: what the shipped ones have in common, and the little in which they are meant to differ."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from sinkscope.base.errors import InputError
from sinkscope_train.recipe import RECIPES, Recipe, recipe

COMMON = replace(recipe("scratch"), name="common")
"""Scratch has nothing of its own: diffusion from random weights, on text, a row for each document."""


def own(chosen: Recipe) -> dict[str, Any]:
    """Where a recipe differs from what is common, its name apart."""
    pairs = ((one.name, getattr(chosen, one.name), getattr(COMMON, one.name)) for one in fields(Recipe))
    return {name: here for name, here, common in pairs if here != common and name != "name"}


def test_shipped_recipes_differ_only_in_what_they_are_about() -> None:
    """Size, documents, their number and order, seed, learning rate and optimiser are the same for all four."""
    assert {name: own(chosen) for name, chosen in RECIPES.items()} == {
        "causal": {"layout": "llama", "objective": "next", "targets": "all", "packed": 4},
        "scratch": {},
        "adapted": {"layout": "dream", "objective": "shifted", "starts_from": "causal"},
        "multimodal": {"layout": "mmada", "starts_from": "scratch", "pictures": 0.5},
    }
    assert (COMMON.targets, COMMON.packed, COMMON.pictures) == ("answers", 1, 0.0)


def test_shipped_recipes_read_the_mix_with_text_that_cannot_be_foreseen() -> None:
    assert {chosen.mix for chosen in RECIPES.values()} == {"surprising"}
    assert len({chosen.tokens for chosen in RECIPES.values()}) == 1


def test_rows_beyond_the_context_that_the_checkpoint_states_are_refused() -> None:
    with pytest.raises(InputError, match="8 documents of 128 tokens do not fit into rows of 512; pack fewer"):
        recipe("causal", packed=8)


def test_text_only_differs_from_multimodal_in_the_pictures_alone() -> None:
    text, pictured = recipe("text_only"), recipe("multimodal")
    assert replace(text, name="multimodal", layout="mmada", pictures=0.5) == pictured
    assert (text.pictures, text.layout) == (0.0, recipe("scratch").layout)


def test_a_batch_that_the_rows_of_the_recipe_do_not_divide_has_shorter_ones() -> None:
    """So that a smoke test with any batch runs; who asks for a packing gets that or an error."""
    assert [recipe("causal", batch=batch).packed for batch in (1, 2, 3, 6, 8)] == [1, 2, 1, 2, 4]
    assert recipe("scratch", batch=6).packed == 1
    with pytest.raises(InputError, match="must divide the batch of 6"):
        recipe("causal", batch=6, packed=4)
