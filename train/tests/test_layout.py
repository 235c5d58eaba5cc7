"""Official layouts: what is saved is what `load` reads, with the logits of the network in training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sinkscope.attention.visibility import Visibility
from sinkscope.models.load import load
from sinkscope_train.layout import DTYPE, save
from sinkscope_train.network import build, hidden_states, rotation
from sinkscope_train.pictures import CODES
from sinkscope_train.recipe import RECIPES, SIZES, Recipe
from sinkscope_train.start import as_dream, resize
from sinkscope_train.vocabulary import shipped

GOLDEN = Path(__file__).parents[2] / "tests" / "golden"
CPU = torch.device("cpu")


def rows(layout: str) -> int:
    return shipped(layout).rows + (CODES if layout == "mmada" else 0)


@pytest.mark.parametrize("name", list(RECIPES))
def test_saved_and_loaded_logits_are_those_of_training(name: str, tmp_path: Path) -> None:
    recipe = RECIPES[name]
    network = build(SIZES["smoke"], rows(recipe.layout), recipe.layout, seed=3)
    network.to(DTYPE).float()  # what saving rounds to
    save(network, recipe.layout, shipped(recipe.layout), tmp_path)
    model = load(tmp_path, device="cpu", dtype="float32")
    assert model.family == {"llama": "causal"}.get(recipe.layout, recipe.layout)
    ids = torch.randint(0, model.shape.vocabulary, (2, 50), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        hidden = hidden_states(network, ids, rotation(network, 50, CPU), Visibility(50, 50, None, recipe.causal))
        ours = network.lm_head(hidden)  # type: ignore[operator]
    assert torch.allclose(model.logits(ids), ours, atol=1e-5)
    words = shipped(recipe.layout)
    assert (model.ids.bos, model.ids.pad, model.ids.eot, model.ids.mask) == (
        words.bos,
        words.pad,
        words.eot,
        words.mask,
    )
    assert words.eos in model.ids.eos


@pytest.mark.parametrize(
    ("layout", "family"), [("llada", "llada"), ("dream", "dream"), ("mmada", "mmada"), ("llama", "llama")]
)
def test_configs_have_every_official_key(layout: str, family: str, tmp_path: Path) -> None:
    save(build(SIZES["smoke"], rows(layout), layout), layout, shipped(layout), tmp_path)
    ours = set(json.loads((tmp_path / "config.json").read_text()))
    official = set(json.loads((GOLDEN / family / "checkpoint" / "config.json").read_text()))
    assert official - ours <= {"auto_map", "transformers_version"}


def test_padded_rows_are_those_of_the_loaded_model(tmp_path: Path) -> None:
    """Training pads on the right, generation on the left: real positions must agree."""
    network = build(SIZES["smoke"], rows("llada"), "llada", seed=4).to(DTYPE).float()
    save(network, "llada", shipped("llada"), tmp_path)
    model = load(tmp_path, device="cpu", dtype="float32")
    ids = torch.randint(20, 500, (1, 30), generator=torch.Generator().manual_seed(0))
    padding = torch.zeros(1, 10, dtype=torch.long)
    right, left = torch.cat((ids, padding), 1), torch.cat((padding, ids), 1)
    real = torch.arange(40)[None] < 30
    with torch.no_grad():
        ours = network.lm_head(hidden_states(network, right, rotation(network, 40, CPU), Visibility(40, 40, real)))[
            :, :30
        ]  # type: ignore[operator]
    assert torch.allclose(model.logits(left, attention_mask=real.flip(1))[:, 10:], ours, atol=1e-5)


def test_the_same_seed_gives_the_same_weights_in_every_layout() -> None:
    llama, dream = (
        dict(build(SIZES["smoke"], 128, layout, seed=5).named_parameters()) for layout in ("llama", "dream")
    )
    assert all(llama[name].equal(dream[name]) for name in llama)
    assert all(not dream[name].any() and not dream[name].requires_grad for name in set(dream) - set(llama))
    assert len(set(dream) - set(llama)) == 3 * SIZES["smoke"].layers


def test_converted_to_dream_nothing_but_the_names_changes() -> None:
    network = build(SIZES["smoke"], 128, "llama", seed=6)
    ids = torch.arange(24)[None]
    with torch.no_grad():
        before, after = (
            hidden_states(one, ids, rotation(one, 24, CPU), Visibility(24, 24)) for one in (network, as_dream(network))
        )
    assert before.equal(after)


def test_growing_keeps_the_old_rows() -> None:
    network = build(SIZES["smoke"], 128, "llada", seed=7)
    old = network.model.embed_tokens.weight.detach().clone()  # type: ignore[union-attr, operator]
    resize(network, 144)
    assert network.model.embed_tokens.weight[:128].equal(old)  # type: ignore[union-attr, index]
    assert network.lm_head.weight.shape[0] == network.config.vocab_size == 144  # type: ignore[union-attr]


def test_four_organisms_stay_within_46_megabytes() -> None:
    sizes = []
    for recipe in RECIPES.values():
        with torch.device("meta"):
            network = build_meta(recipe)
        sizes.append(2 * sum(parameter.numel() for parameter in network.parameters()))
    assert max(sizes) <= 14e6
    assert sum(sizes) <= 46e6


def build_meta(recipe: Recipe) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    size = recipe.size
    settings = {
        "vocab_size": rows(recipe.layout),
        "hidden_size": size.width,
        "intermediate_size": size.mlp,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads,
        "tie_word_embeddings": False,
    }
    if recipe.layout == "dream":
        return Qwen2ForCausalLM(Qwen2Config(**settings))
    return LlamaForCausalLM(LlamaConfig(**settings))
