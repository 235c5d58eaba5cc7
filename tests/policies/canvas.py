"""DiffusionGemma for the dense reference: transformers' own network in float64, whose attention is the dense one.

Its layers see different keys: in sliding ones the encoder looks back a window, and the canvas at the newest cached keys and at
all of itself.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from tests.policies.dense import Attend, Dense
from torch import Tensor
from transformers import AttentionInterface, DynamicCache

import sinkscope as ss

ACTING: list[Any] = []
"""What computes attention in the forward that runs now."""


def dense_attention(module: Any, *call: Any, **_: Any) -> tuple[Tensor, None]:
    """transformers' attention function: asks the dense reference, which knows itself what is visible."""
    return ACTING[-1](module, *call[:3]).transpose(1, 2), None


AttentionInterface.register("dense", dense_attention)


@cache
def official(folder: Path) -> Any:
    """transformers' network; its experts one by one, as no other way takes float64."""
    kind = transformers.DiffusionGemmaForBlockDiffusion
    network = kind.from_pretrained(folder, dtype=torch.float64, experts_implementation="eager").eval()
    network.set_attn_implementation("dense")
    return network


class CanvasNetwork:
    """What `Dense` asks of a network, and transformers' in float64."""

    causal, reads_before, mask, groups = False, False, -1, 1

    def __init__(self, model: ss.Model) -> None:
        self.official = official(model.checkpoint.folder)
        self.window = self.official.config.text_config.sliding_window
        self.cap = self.official.config.text_config.final_logit_softcapping


class CanvasDense(Dense):
    """The same for a canvas: every forward that stores is the encoder's, and begins a canvas."""

    def __init__(self, model: ss.Model, policy: Any, prompt: int, real: Tensor, decoding: Any) -> None:
        super().__init__(model, policy, prompt, real, decoding.block, prompt, CanvasNetwork(model))
        self.decoding, self.encoded = decoding, DynamicCache()
        self.soft: Tensor | None = None
        self.left = decoding.steps

    @property
    def stored(self) -> int:
        return int(self.encoded.get_seq_length())

    @torch.no_grad()
    def through(self, ids: Tensor, real: Tensor, stores: bool, onward: bool, attend: Attend) -> Tensor:
        net, network, before, K = self.network, self.network.official, self.stored, real.shape[1]
        at, keys = torch.arange(before, K)[:, None], torch.arange(K)[None]

        def attention(module: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            seen = keys <= at if stores else torch.ones(len(at), K, dtype=torch.bool)
            if module.is_sliding:
                seen = seen & (at - keys < net.window if stores else keys >= before - (net.window - 1))
            k, v = (one.repeat_interleave(q.shape[1] // k.shape[1], 1) for one in (k, v))
            # Its scores are not divided by the root of the head's size.
            return attend(module.layer_idx, q * q.shape[-1] ** 0.5, k, v, seen[None] & real[:, None])

        ACTING.append(attention)
        if stores:
            encoder, self.soft, self.left = network.model.encoder.language_model, None, self.decoding.steps
            hidden = encoder(input_ids=ids, position_ids=at.T, past_key_values=self.encoded).last_hidden_state
        else:
            hidden = network.model.decoder(
                decoder_input_ids=ids, past_key_values=self.encoded, self_conditioning_logits=self.soft,
                decoder_attention_mask={"full_attention": None, "sliding_attention": None}, decoder_position_ids=at.T,
            ).last_hidden_state  # fmt: skip
        ACTING.pop()
        logits: Tensor = net.cap * torch.tanh(network.lm_head(hidden) / net.cap)
        if not stores:
            low, high = self.decoding.t_min, self.decoding.t_max
            self.soft = logits / (low + (high - low) * self.left / self.decoding.steps)
            self.left -= 1
        return logits
