"""Adapting a causal checkpoint: every objective, layout and way of training saves what was trained, and resumes exactly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import sinkscope as ss
from sinkscope.attention.visibility import Visibility
from sinkscope.base.errors import InputError
from sinkscope_train import adapt as adapting
from sinkscope_train import text
from sinkscope_train.adapt import AdaptTraining, adapt, source_of
from sinkscope_train.documents import prose
from sinkscope_train.network import hidden_states, rotation
from sinkscope_train.options import AdaptOptions
from sinkscope_train.parallel import World
from sinkscope_train.recipe import adaptation
from sinkscope_train.vocabulary import FILE, tokenizer_config

CPU = torch.device("cpu")
MASK = "<|soi|>"
"""A token that the text does not hold."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal checkpoint of the SmolLM2 kind: tied embeddings, grouped heads, a tokenizer without a mask token."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("source")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "vocab_size": 1762, "tie_word_embeddings": True}
    LlamaForCausalLM(LlamaConfig(**sizes, max_position_embeddings=64)).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(FILE.read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config("llama")))
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    (folder / "train-00000.txt").write_text("\n\f\n".join(prose(seed) for seed in range(60)), encoding="utf-8")
    (folder / "valid-00000.txt").write_text("\n\f\n".join(prose(seed) for seed in range(60, 70)), encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapting, "PROBED_ROWS", 2)


def small(source: Path, corpus: Path, out: Path, **changes: Any) -> AdaptOptions:
    names = {"probe", "stop_after", "rows_at_a_time", "check_every", "quiet"}
    run: dict[str, Any] = {"probe": False, "quiet": True, "check_every": 0, "check_rows": 4, "rows_at_a_time": 2}
    run |= {name: changes.pop(name) for name in list(changes) if name in names}
    settings = {"steps": 4, "batch": 4, "length": 32, "mask_token": MASK, **changes}
    if settings.get("objective") == "causal":
        del settings["mask_token"]
    return AdaptOptions(adaptation=adaptation(str(source), **settings), text=str(corpus), out=out, device="cpu", **run)


WAYS = {
    "dream": ({}, "dream"),
    "dream, LoRA": ({"lora": 2}, "dream"),
    "llada": ({"shift": False}, "llada"),
    "llada, LoRA": ({"shift": False, "lora": 2}, "llada"),
    "causal": ({"objective": "causal"}, "causal"),
    "causal, LoRA": ({"objective": "causal", "lora": 2}, "causal"),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", list(WAYS))
def test_what_is_saved_is_what_was_trained(way: str, source: Path, corpus: Path, tmp_path: Path) -> None:
    changes, family = WAYS[way]
    options = small(source, corpus, tmp_path, learning_rate=0.05, **changes)
    begin = source_of(options.adaptation)
    text.tokenise(options.text, begin.tokenizer, begin.vocabulary.bos, begin.vocabulary.mask, tmp_path / "text")
    training = AdaptTraining(options, begin, World(0, 1, CPU))
    about = training.run()
    assert about == json.loads((tmp_path / "training.json").read_text())
    assert set(about["held_out"]) == ({"nats"} if family == "causal" else {"0.1", "0.5", "0.9"})
    model = ss.load(tmp_path, device="cpu", dtype="float32")
    assert model.family == family
    ids = torch.arange(100, 140).view(2, 20)
    with torch.no_grad():
        hidden = hidden_states(
            begin.network, ids, rotation(begin.network, 20, CPU), Visibility(20, 20, None, family == "causal")
        )
        torch.testing.assert_close(model.logits(ids), begin.network.lm_head(hidden), atol=0.05, rtol=0.05)
        before = ss.load(source, device="cpu").logits(ids)
    assert (model.logits(ids) - before).abs().max() > 0.2, "something was learned"
    assert ("lora" in changes and family != "llada") == (tmp_path / "adapter_model.safetensors").exists()
    if family != "causal":
        assert model.ids.mask == model.tokenizer.mask_token_id == model.tokenizer.get_vocab()[MASK]
    assert model.tokenizer("Tom has 3 pens.").input_ids == begin.tokenizer("Tom has 3 pens.").input_ids


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"lora": 2}, {"objective": "causal"}])
def test_killed_and_resumed_is_bit_for_bit_the_same(
    changes: dict[str, Any], source: Path, corpus: Path, tmp_path: Path
) -> None:
    whole, broken = (small(source, corpus, tmp_path / name, probe=True, **changes) for name in ("whole", "broken"))
    adapt(whole)
    adapt(replace(broken, stop_after=2))
    with pytest.raises(InputError, match="the settings differ"):
        adapt(replace(broken, adaptation=replace(broken.adaptation, seed=1)))
    adapt(broken)
    weights = "adapter_model.safetensors" if "lora" in changes else "model.safetensors"
    for file in (weights, "emergence.json"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "broken" / file).read_bytes(), file
    assert adapt(broken)["loss"] == json.loads((tmp_path / "whole" / "training.json").read_text())["loss"]
    with pytest.raises(InputError, match="finished run of another recipe, start or settings"):
        adapt(replace(whole, adaptation=replace(whole.adaptation, steps=5)))


def test_the_number_of_rows_at_a_time_changes_no_gradient(source: Path, corpus: Path, tmp_path: Path) -> None:
    gradients = []
    for size in (1, 4):
        options = small(source, corpus, tmp_path, rows_at_a_time=size)
        begin = source_of(options.adaptation)
        text.tokenise(options.text, begin.tokenizer, begin.vocabulary.bos, begin.vocabulary.mask, tmp_path / "text")
        training = AdaptTraining(options, begin, World(0, 1, CPU))
        for loss in training.losses(0):
            loss.backward()
        gradients.append([weight.grad.clone() for weight in training.trained.values()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_adapters_train_little_and_leave_the_rest_as_it_was(source: Path, corpus: Path, tmp_path: Path) -> None:
    options = small(source, corpus, tmp_path, lora=2)
    adapt(options)
    stored = load_file(tmp_path / "adapter_model.safetensors")
    assert len(stored) == 2 * 7 * 2 + 1
    base, model = ss.load(source, device="cpu"), ss.load(tmp_path, device="cpu")
    old, new = base.network.model.embed_tokens.weight, model.network.model.embed_tokens.weight
    changed = (old != new).any(1)
    assert changed.nonzero().flatten().tolist() == [model.ids.mask], "of the tokens only the mask's row"
    assert torch.equal(base.network.model.norm.weight, model.network.model.norm.weight)


def test_peft_reads_the_adapter_as_we_do(source: Path, corpus: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install peft")
    from transformers import AutoModelForCausalLM

    adapt(small(source, corpus, tmp_path, objective="causal", lora=2, learning_rate=0.05))
    network = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="eager")
    official = peft.PeftModel.from_pretrained(network, tmp_path).eval()
    ids = torch.arange(100, 140).view(2, 20)
    with torch.no_grad():
        torch.testing.assert_close(
            ss.load(tmp_path, device="cpu").logits(ids), official(ids).logits, atol=1e-3, rtol=1e-3
        )


def test_rows_begin_with_a_separator_and_hold_the_text_in_order(source: Path, corpus: Path, tmp_path: Path) -> None:
    begin = source_of(small(source, corpus, tmp_path).adaptation)
    separator = begin.vocabulary.bos
    assert begin.tokenizer.convert_ids_to_tokens(separator) == "<|endoftext|>"
    about = text.tokenise(str(corpus), begin.tokenizer, separator, begin.vocabulary.mask, tmp_path / "text")
    assert (about["train_documents"], about["held_out_documents"]) == (60, 10)
    rows = text.open_rows(tmp_path / "text", "train", 32, separator)
    batch = rows.batch([0, 1, len(rows) - 1], CPU)
    assert batch.ids[:, 0].eq(separator).all()
    expected = [number for seed in range(60) for number in [separator, *begin.tokenizer(prose(seed)).input_ids]]
    assert batch.ids[:2, 1:].flatten().tolist() == expected[:62]
    assert batch.targets(causal=False).equal(batch.ids != separator)
    assert np.load(tmp_path / "text" / "train.npy").dtype == np.uint16
    assert text.tokenise(str(corpus), begin.tokenizer, separator, None, tmp_path / "text") == about, "once"


def test_documents_of_a_file_are_held_out_by_their_hash(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("\n\n".join(f"Paragraph number {number} of many." for number in range(1000)))
    train, held_out = text.read_documents(str(path))
    assert len(train) + len(held_out) == 1000
    assert 2 <= len(held_out) <= 25
    assert not set(train) & set(held_out)


def test_without_a_mask_token_one_is_added(source: Path, corpus: Path, tmp_path: Path) -> None:
    options = small(source, corpus, tmp_path)
    adapt(replace(options, adaptation=replace(options.adaptation, mask_token=None, steps=1)))
    model = ss.load(tmp_path, device="cpu")
    # The organisms' tokenizer knows Dream's mask token, though this one did not call it that.
    assert model.tokenizer.mask_token == "<|mask|>"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"objective": "casual"}, "did you mean causal"),
        ({"lora": -1}, "lora should be a whole number of at least 0"),
        ({"length": 128}, "longer than the context"),
        ({"mask_token": "<nothing>"}, "has no token '<nothing>'"),
        ({"separator": "<nothing>"}, "to stand between documents"),
        ({"mask_token": "."}, "the text holds the mask token"),
        ({"steps": 0}, "at least 1"),
    ],
)
def test_bad_settings_say_what_to_do(
    changes: dict[str, Any], said: str, source: Path, corpus: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        adapt(small(source, corpus, tmp_path, **changes))


def test_only_causal_models_are_adapted_and_text_must_be_there(source: Path, corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="organism/scratch is a llada model"):
        adapt(small(Path("organism/scratch"), corpus, tmp_path))
    with pytest.raises(InputError, match="there is no text"):
        adapt(small(source, tmp_path / "nowhere.txt", tmp_path))
    (tmp_path / "few.txt").write_text("One paragraph.")
    with pytest.raises(InputError, match="too few to hold one in 100 out"):
        adapt(small(source, tmp_path / "few.txt", tmp_path))


def test_sinks_are_probed_on_held_out_rows(source: Path, corpus: Path, tmp_path: Path) -> None:
    adapt(small(source, corpus, tmp_path, probe=True, steps=2))
    points = json.loads((tmp_path / "emergence.json").read_text())["points"]
    assert [point["step"] for point in points] == [0, 1, 2]
    assert set(points[0]["levels"]) == {"0.25", "0.5", "0.75", "1"}
    assert points[-1]["tokens"] == 2 * 4 * 32
