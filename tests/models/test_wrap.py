"""A transformers network in memory: the same numbers as from its folder, adapters included, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import golden

import sinkscope as ss
from sinkscope.base.errors import InputError
from sinkscope.cli.models import facts
from sinkscope.models.load import find


def transformers_llama() -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(golden.checkpoint("llama"), dtype=torch.float32)


def test_a_network_in_memory_is_the_checkpoint_it_was_loaded_from() -> None:
    loaded, wrapped = golden.model("llama"), ss.wrap(transformers_llama())
    ids = golden.tensor("llama", "forward_T24.npz", "input_ids")
    assert wrapped.family == "causal"
    assert torch.equal(wrapped.logits(ids), loaded.logits(ids))
    assert wrapped.ids == loaded.ids
    assert wrapped.check().passed
    runs = [
        ss.generate(model, ids, ss.GreedyDecoding(6), policy="top:2", capture=ss.Capture())
        for model in (wrapped, loaded)
    ]
    assert torch.equal(runs[0].states, runs[1].states)
    assert (runs[0].trace.dataset["received"] == runs[1].trace.dataset["received"]).any()


def test_the_digest_follows_the_weights() -> None:
    network = transformers_llama()
    before = ss.wrap(network).digest
    assert ss.wrap(transformers_llama()).digest == before
    with torch.no_grad():
        next(network.parameters())[0, 0] += 1
    assert ss.wrap(network).digest != before


def test_adapters_stay_active() -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed (pip install peft)")
    ids = golden.tensor("llama", "forward_T24.npz", "input_ids")
    network = peft.get_peft_model(
        transformers_llama(), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    )
    network.eval()
    with torch.no_grad():
        expected = network(input_ids=ids).logits
    wrapped = ss.wrap(network)
    torch.testing.assert_close(wrapped.logits(ids), expected, atol=1e-4, rtol=1e-4)
    assert not torch.equal(wrapped.logits(ids), golden.model("llama").logits(ids))


def test_a_diffusion_network_says_its_family() -> None:
    network = golden.model("llada").network
    with pytest.raises(InputError, match="looks both ways"):
        ss.wrap(network)
    wrapped = ss.wrap(network, family="llada")
    ids = golden.tensor("llada", "forward_T24.npz", "input_ids")
    assert torch.equal(wrapped.logits(ids), golden.model("llada").logits(ids))
    with pytest.raises(InputError, match="did you mean llada"):
        ss.wrap(network, family="lada")


@pytest.mark.parametrize("name", ["Bert", "Roberta", "ModernBert"])
def test_a_masked_language_model_that_was_never_saved(name: str) -> None:
    import transformers

    config = getattr(transformers, f"{name}Config")(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, vocab_size=60, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    network = getattr(transformers, f"{name}ForMaskedLM")(config).eval()
    ids = torch.arange(5, 17)[None]
    with torch.no_grad():
        expected = network(input_ids=ids).logits
    wrapped = ss.wrap(network)
    assert wrapped.family == "masked"
    assert wrapped.check().passed
    torch.testing.assert_close(wrapped.logits(ids), expected, atol=1e-5, rtol=1e-5)


def test_a_tokenizer_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="tokenizer should be"):
        ss.wrap(transformers_llama(), "gpt2")


def test_load_names_wrap_for_a_network() -> None:
    with pytest.raises(InputError, match=r"got LlamaForCausalLM; ss\.wrap"):
        ss.load(transformers_llama())


@pytest.mark.parametrize("thing", ["gpt2", Path("x"), torch.nn.Linear(1, 1), None])
def test_what_is_no_network_is_refused(thing: object) -> None:
    with pytest.raises(InputError, match="wrap takes a transformers network"):
        ss.wrap(thing)


def test_generate_says_what_to_do_with_a_bare_network() -> None:
    with pytest.raises(InputError, match=r"ss\.wrap"):
        ss.generate(transformers_llama(), [[1, 2, 3]])


def test_adapters_leave_training_mode_with_the_network() -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed (pip install peft)")
    network = peft.get_peft_model(
        transformers_llama(), peft.LoraConfig(r=2, target_modules=["q_proj"], lora_dropout=0.5)
    )
    network.train()
    wrapped = ss.wrap(network)
    assert not any(module.training for module in network.modules())
    ids = torch.arange(5, 15)[None]
    assert torch.equal(wrapped.logits(ids), wrapped.logits(ids))


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 64}
OTHER_KINDS = {
    "ViTForImageClassification": (SIZES, "reads no text tokens", "no causal language model of this type"),
    "ViTModel": (SIZES, "reads no text tokens", "no causal language model of this type"),
    "T5ForConditionalGeneration": (T5, "encoder–decoder", "encoder–decoder"),
    "T5EncoderModel": (T5, "no language-model head", "no causal language model of this type"),
    "LlamaModel": ({**SIZES, "vocab_size": 64}, "no language-model head", "holds a LlamaModel, which has no language-model head"),
    "BertModel": ({**SIZES, "vocab_size": 64}, "no language-model head", "holds a BertModel, which has no language-model head"),
    "BertForSequenceClassification": (
        {**SIZES, "vocab_size": 64}, "no language-model head", "which has no language-model head",
    ),
}  # fmt: skip
"""Class → sizes, and what is said when it is wrapped, and when it is loaded."""


@pytest.mark.parametrize("name", OTHER_KINDS)
def test_the_true_reason_when_wrapped_and_when_loaded(name: str, tmp_path: Path) -> None:
    import transformers

    sizes, wrapped, loaded = OTHER_KINDS[name]
    kind: Any = getattr(transformers, name)
    network = kind(kind.config_class(**sizes))
    with pytest.raises(InputError, match=wrapped):
        ss.wrap(network)
    network.save_pretrained(tmp_path)
    for tell in (lambda: ss.load(tmp_path), lambda: facts(find(tmp_path))):
        with pytest.raises(ss.CheckpointError, match=loaded):
            tell()


UNMEASURED = {
    "Gemma2": "softcap",
    "Mamba": "no layer .* softmax attention",
    "Bloom": "by itself",
    "Falcon": "list of its own",
}


@pytest.mark.parametrize("name", UNMEASURED)
def test_a_description_tells_what_a_load_would_refuse(name: str, tmp_path: Path) -> None:
    """Before the weights are read, which may be many gigabytes."""
    import transformers

    kind: Any = getattr(transformers, f"{name}ForCausalLM")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64}
    sizes |= {} if name == "Mamba" else {"num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64} if name == "Gemma2" else {}
    kind(kind.config_class(**sizes)).save_pretrained(tmp_path)
    for tell in (lambda: facts(find(tmp_path)), lambda: ss.load(tmp_path)):
        with pytest.raises(ss.CheckpointError, match=UNMEASURED[name]):
            tell()


@pytest.mark.parametrize(
    "name", ["LlamaModel", "BertModel", "BertForSequenceClassification", "BertForTokenClassification"]
)
def test_networks_without_a_language_model_head_are_refused_when_wrapped(name: str) -> None:
    import transformers

    sizes = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64,
    }  # fmt: skip
    config = getattr(transformers, f"{name.split('Model')[0].split('For')[0]}Config")(**sizes)
    network = getattr(transformers, name)(config)
    before = network.config._attn_implementation
    with pytest.raises(InputError, match="language-model head"):
        ss.wrap(network)
    assert network.config._attn_implementation == before


def test_a_wrapped_network_that_cannot_be_measured_is_refused_and_left_alone() -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    sizes = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64,
    }  # fmt: skip
    network = Gemma2ForCausalLM(Gemma2Config(**sizes, num_key_value_heads=2, head_dim=8))
    before = network.config._attn_implementation
    with pytest.raises(InputError, match="softcap"):
        ss.wrap(network)
    assert network.config._attn_implementation == before
