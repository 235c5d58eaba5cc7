"""DiffusionGemma: Gemma 4's text network used twice, by a causal encoder and by a decoder that denoises a canvas.

The encoder reads the prompt and every finished canvas into a KV cache; the decoder's queries are those of the canvas, and see
the cached keys and the whole canvas. There is no mask token: a canvas begins as random tokens. In sliding layers the canvas sees
the last `sliding_window − 1` cached keys only. What the last step predicted comes back as an input (`ForwardContext.soft`).

transformers builds the network; its vision tower is loaded and not used. Checked against transformers' own forward and loop at
float32 (tests/golden/diffusion_gemma).
"""

from __future__ import annotations

from dataclasses import replace
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.attention.context import current, forward
from sinkscope.base.errors import CheckpointError, nearest
from sinkscope.models.causal import pretrained
from sinkscope.models.checkpoint import ORIGINAL, Checkpoint
from sinkscope.models.family import FAMILIES, TEXT_ORDERS, Family
from sinkscope.models.settings import check_settings

TEXT_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "max_position_embeddings", "sliding_window", "num_experts", "top_k_experts", "moe_intermediate_size",
)  # fmt: skip
"""Settings of the text network that are whole numbers above 0."""
TABLES = {"per_layer_config": (dict, NoneType), "rope_parameters": (dict, NoneType), "layer_types": (list, NoneType)}
"""Settings that are tables or lists."""
OLDER = ("global_head_dim", "num_global_key_value_heads", "per_layer_config")
"""Settings that the text network's class reads besides its own."""
PICTURES = ("vision_soft_tokens_per_image",)
"""Settings of the released file, beside its text network, that only say how pictures become tokens."""


class DiffusionGemma(Family):
    """The DiffusionGemma family (google/diffusiongemma-26B-A4B-it)."""

    def config(self, checkpoint: Checkpoint) -> Any:
        return _architecture(checkpoint)[1].text_config

    def build(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> nn.Module:
        return pretrained(checkpoint, *_architecture(checkpoint), device, dtype)

    def states(self, network: Any, ids: Tensor, real: Tensor | None, positions: Tensor, cache: Any = None) -> Tensor:
        """The last hidden states [B, Q, width]: of the encoder for a cache that stores, else of the canvas.

        Without a cache the last `canvas_length` columns of ids are the canvas, and the others are encoded before it.
        """
        if cache is not None and cache.stores:
            encoder = network.model.encoder.language_model
            states: Tensor = encoder(input_ids=ids, position_ids=positions, past_key_values=cache).last_hidden_state
            return states
        if cache is None:
            from transformers import DynamicCache

            # Full length in every layer, so that a column is the same key in all of them.
            cache, before = DynamicCache(), ids.shape[1] - network.config.canvas_length
            if before < 1:
                raise CheckpointError(
                    f"a canvas is the last {network.config.canvas_length} of the ids; give a prompt before it"
                )
            prompt = None if real is None else real[:, :before]
            with forward(replace(current(), real=prompt)):
                network.model.encoder.language_model(
                    input_ids=ids[:, :before], position_ids=positions[:, :before], past_key_values=cache
                )
            ids, positions = ids[:, before:], positions[:, before:]
        keys = cache.get_seq_length() + ids.shape[1]
        output = network.model.decoder(
            decoder_input_ids=ids,
            past_key_values=cache,
            self_conditioning_logits=current().soft,
            decoder_attention_mask={
                "full_attention": None,
                "sliding_attention": _in_reach(keys, ids.shape[1], network.config.text_config.sliding_window, ids),
            },
            decoder_position_ids=positions,
        )
        canvas: Tensor = output.last_hidden_state
        return canvas

    def head(self, network: Any, hidden: Tensor) -> Tensor:
        """Logits [..., V] in float32, soft-capped as the official forward returns them."""
        logits = network.lm_head(hidden).float()
        cap = float(network.final_logit_softcapping)
        capped: Tensor = torch.tanh(logits / cap) * cap
        return capped


def _in_reach(keys: int, canvas: int, window: int, like: Tensor) -> Tensor:
    """Bool [1, 1, canvas, K]: in a sliding layer all of the canvas sees the newest cached keys and itself."""
    first = keys - canvas - (window - 1)
    return (torch.arange(keys, device=like.device) >= first).expand(1, 1, canvas, keys)


def _check(checkpoint: Checkpoint, config_class: Any, sizes: tuple[str, ...], besides: tuple[str, ...]) -> None:
    """Refuse settings that transformers' class does not have, which it would take and ignore, and sizes that are none.

    Args:
        besides: settings that the class does not have, and that may stand there.
    """
    check_settings(checkpoint, {*config_class().to_dict(), *dir(config_class), *besides})
    for name in sizes:
        checkpoint.size(name)
    for name, kind in TABLES.items():
        if not isinstance(checkpoint.config.get(name), kind):
            raise checkpoint.misfit(name, f"which is not what the class of transformers reads; {ORIGINAL}")


def _architecture(checkpoint: Checkpoint) -> tuple[Any, Any]:
    """transformers' network class and config."""
    import transformers
    from transformers.activations import ACT2FN

    if not hasattr(transformers, "DiffusionGemmaForBlockDiffusion"):
        raise CheckpointError(
            f"{checkpoint.source}: transformers {transformers.__version__} has no DiffusionGemma; pip install -U transformers"
        )
    # What is wrong is told in the words of config.json, before transformers fails on it in its own.
    checkpoint.check_sizes(partial=True)
    _check(checkpoint, transformers.DiffusionGemmaConfig, ("canvas_length",), PICTURES)
    text = checkpoint.section("text_config")
    _check(text, transformers.DiffusionGemmaTextConfig, TEXT_SIZES, OLDER)
    if "final_logit_softcapping" in text.config:
        text.number("final_logit_softcapping")
    activation = text.config.get("hidden_activation", "gelu_pytorch_tanh")
    if activation not in ACT2FN:
        raise text.misfit("hidden_activation", nearest(str(activation), ACT2FN))
    if text.config.get("use_bidirectional_attention") not in (None, "vision"):
        raise text.misfit(
            "use_bidirectional_attention",
            "which should be 'vision': released models have an encoder that reads text causally, and transformers runs no other",
        )
    if text.size("top_k_experts") > text.size("num_experts"):
        raise text.misfit("top_k_experts", f"more than num_experts {text.config['num_experts']}")
    with checkpoint.described():
        config = transformers.DiffusionGemmaConfig.from_dict(dict(checkpoint.config))
    return transformers.DiffusionGemmaForBlockDiffusion, config


FAMILY = FAMILIES.add(
    DiffusionGemma(
        name="diffusion_gemma",
        about="a canvas of random tokens, denoised behind a causal encoder; Gemma 4 with a mixture of experts",
        label="block diffusion from uniform noise (as DiffusionGemma)",
        model_types=("diffusion_gemma",),
        counts_padding=True,
        mixed=True,
        passes=2,
        texts={"eot": "<turn|>"},
        orders=TEXT_ORDERS,
    )
)
