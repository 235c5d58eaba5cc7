"""Adapters in PEFT's layout: merged as PEFT merges them, over a base found by name; what is not plain LoRA is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import sinkscope as ss
from sinkscope.base.errors import CheckpointError

IDS = torch.arange(24).view(2, 12)
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"num_key_value_heads": 1, "vocab_size": 40}
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.fixture(scope="module")
def peft() -> Any:
    return pytest.importorskip("peft", reason="peft is not installed: pip install peft")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("base")
    LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)).save_pretrained(folder)
    return folder


@pytest.fixture
def adapter(base: Path, tmp_path: Path, peft: Any) -> Path:
    """As PEFT writes it, with random matrices and a trained token row."""
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = peft.LoraConfig(r=2, lora_alpha=6, target_modules=MODULES, trainable_token_indices=[3])
    adapted = peft.get_peft_model(network, config)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in adapted.parameters():
            if weight.requires_grad:
                weight.copy_(torch.randn_like(weight))
    adapted.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def test_a_merged_adapter_is_what_peft_makes_of_it(base: Path, adapter: Path, peft: Any) -> None:
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    official = peft.PeftModel.from_pretrained(network, adapter).eval()
    model = ss.load(adapter, device="cpu")
    assert model.family == "causal"
    with torch.no_grad():
        torch.testing.assert_close(model.logits(IDS), official(IDS).logits, atol=1e-4, rtol=1e-4)
    assert (ss.load(base, device="cpu").logits(IDS) - model.logits(IDS)).abs().max() > 0.1
    assert model.network.lm_head.weight is model.network.model.embed_tokens.weight
    assert model.digest not in (ss.load(base, device="cpu").digest, "")
    assert model.check().passed


def test_a_dream_config_beside_it_makes_it_a_diffusion_model(base: Path, adapter: Path) -> None:
    """The same weights, q, k, v biases at zero, attention in both directions."""
    config = json.loads((base / "config.json").read_text())
    config |= {"model_type": "Dream", "architectures": ["DreamModel"], "mask_token_id": 3, "rope_theta": 10000.0}
    (adapter / "config.json").write_text(json.dumps(config))
    twin = ss.load(adapter, device="cpu")
    assert (twin.family, twin.ids.mask) == ("dream", 3)
    (adapter / "config.json").unlink()
    causal = ss.load(adapter, device="cpu")
    for name, weight in causal.network.named_parameters():
        assert torch.equal(dict(twin.network.named_parameters())[name], weight), name
    changed = IDS.clone()
    changed[:, -1] = 30
    assert torch.equal(causal.logits(IDS)[:, :-1], causal.logits(changed)[:, :-1])
    assert not torch.allclose(twin.logits(IDS)[:, :-1], twin.logits(changed)[:, :-1], atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"use_dora": True}, "adapter with use_dora"),
        ({"peft_type": "IA3"}, "peft_type 'IA3'"),
        ({"bias": "all"}, "bias all"),
        ({"r": 0}, "has r 0"),
        ({"base_model_name_or_path": None}, "names no base model"),
        ({"base_model_name_or_path": "/no/such/base"}, "adapter over /no/such/base, which cannot be had"),
        ({"trainable_token_indices": [1, 2]}, "trained token rows do not fit"),
    ],
)
def test_other_adapters_are_refused(adapter: Path, changes: dict[str, Any], said: str) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(CheckpointError, match=said):
        ss.load(adapter, device="cpu")


def test_tensors_that_do_not_fit_are_named(adapter: Path, tmp_path: Path) -> None:
    path = adapter / "adapter_model.safetensors"
    tensors = load_file(path)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    save_file({**tensors, "base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight": torch.ones(2, 16)}, path)
    with pytest.raises(CheckpointError, match=r"do not fit the model: base_model.model.model.layers.9"):
        ss.load(adapter, device="cpu")
    save_file({**tensors, name: torch.ones(2, 8)}, path)
    with pytest.raises(CheckpointError, match=r"matrices for model.layers.0.self_attn.q_proj.weight do not fit"):
        ss.load(adapter, device="cpu")
    shutil.copy(adapter / "adapter_config.json", path)
    with pytest.raises(CheckpointError, match="not a complete safetensors file"):
        ss.load(adapter, device="cpu")


def test_an_adapter_over_itself_is_refused(adapter: Path) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": str(adapter)}))
    with pytest.raises(CheckpointError, match="itself an adapter"):
        ss.load(adapter, device="cpu")
