"""`ss.wrap`: a transformers network that is already in memory becomes a Model."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from sinkscope.attention.interface import NAME, register
from sinkscope.base.errors import CheckpointError, InputError, nearest
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import Family
from sinkscope.models.load import FAMILIES, family_of
from sinkscope.models.model import Model
from sinkscope.models.probe import probe


@dataclass(frozen=True)
class InMemory(Checkpoint):
    """A network in place of a folder: its config, and a digest of its weights as they are."""

    network: Any = field(kw_only=True)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The network's own config, and its class, which a config that was never saved does not name."""
        return {**self.network.config.to_dict(), "architectures": [type(self.network).__name__]}

    @cached_property
    def generation_config(self) -> dict[str, Any]:
        generation = getattr(self.network, "generation_config", None)
        return {} if generation is None else dict(generation.to_dict())

    @cached_property
    def digest(self) -> str:
        """SHA-256 over names, shapes and values of all tensors, adapters included."""
        total = hashlib.sha256()
        for name, tensor in sorted(self.network.state_dict().items()):
            total.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}\n".encode())
            total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return total.hexdigest()


def wrap(network: Any, tokenizer: Any = None, family: str | None = None, source: str | None = None) -> Model:
    """Make a model of a transformers network that is already in memory; PEFT adapters stay active.

    The network itself is used, not a copy: it is put into eval mode, and its attention goes through sinkscope's function
    from now on.

    Args:
        network: a causal or masked language model of transformers, or the network of a diffusion family; a PEFT model around one.
        tokenizer: None: prompts are token ids.
        family: the family of a diffusion network ("llada", "dream", …); None: as its config says.
        source: what to call it in traces and tables; None: the name it was loaded from, or its class.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=64)
    >>> wrapped = ss.wrap(LlamaForCausalLM(LlamaConfig(**sizes)), source="tiny")
    >>> wrapped.family, wrapped.attention(torch.arange(6)[None]).shape    # [layer, B, head, query, key]
    ('causal', torch.Size([2, 1, 4, 6, 6]))
    """
    outer = network
    network = network.get_base_model() if hasattr(network, "get_base_model") else network
    if not isinstance(network, torch.nn.Module) or not hasattr(network, "set_attn_implementation"):
        raise InputError(
            f"wrap takes a transformers network, got {type(network).__name__}; ss.load takes folders and hub ids"
        )
    if tokenizer is not None and not callable(getattr(tokenizer, "convert_ids_to_tokens", None)):
        raise InputError(
            f"tokenizer should be one of transformers, such as AutoTokenizer.from_pretrained gives, got {tokenizer!r}"
        )
    _refuse_other_kinds(network)
    name = source or getattr(network, "name_or_path", "") or type(network).__name__
    checkpoint = InMemory(Path(), name, network=network)
    chosen = _family(checkpoint, family)
    register()
    anything: Any = network  # torch types attributes of modules as tensors
    before = anything.config._attn_implementation
    device = next(network.parameters()).device
    try:
        chosen.adopt(network)
        anything.set_attn_implementation(NAME)
        model = Model(checkpoint, chosen, network.eval(), tokenizer, device)
        if not chosen.probed:
            probe(model)
    except CheckpointError as error:  # it came from memory, and goes back as it was
        anything.set_attn_implementation(before)
        raise InputError(str(error)) from error
    outer.eval()  # an adapter's own flag too, which people read
    return model


def _refuse_other_kinds(network: Any) -> None:
    """Refuse what is not one stack of self-attention with a language-model head, by what the network says of itself."""
    name = f"transformers' {type(network).__name__}"
    if getattr(network.config, "is_encoder_decoder", False):
        raise InputError(f"{name} is an encoder–decoder; sinkscope measures networks with one stack of self-attention")
    if not hasattr(network.config.get_text_config(), "vocab_size"):
        raise InputError(f"{name} reads no text tokens; sinkscope measures language models")
    if network.get_output_embeddings() is None:
        raise InputError(
            f"{name} has no language-model head; give the network with one, such as …ForCausalLM or …ForMaskedLM"
        )


def _family(checkpoint: InMemory, name: str | None) -> Family:
    chosen = family_of(checkpoint, name)
    if name is None and chosen.causal and checkpoint.config.get("is_causal") is False:
        diffusion = [known.name for known in FAMILIES.values() if not known.causal]
        raise InputError(
            f"{checkpoint.source} looks both ways, so it is no causal model; say which family it is of: "
            f"family= {nearest('', diffusion)}"
        )
    return chosen
