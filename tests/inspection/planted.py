"""Two networks with a sink at their first token, built by hand: one that writes and reads information there, and a drain.

Both answer a prompt `<s> m … m f … f` with m at every mask, where m is one of four messages and f a filler. Vocabulary: 0 mask, 1
filler, 2 start, 3–6 messages. Width 16: the token's class (mask, filler, start, message: 0–3), the message (4–7), what the head
reads (8–11), room (12–15).
Two layers, two heads of 16 dimensions; rotations are so slow in the dimensions used for content that they do nothing.

carrier  layer 0: the start attends to messages and masks and writes the message into what the head reads, in its own place.
         layer 1: every mask attends to the start and copies it. What the answer says has passed through the sink.
drain    layer 0: every mask attends to the messages and copies them itself.
         layer 1: every mask attends to the start, whose value is 0; other places' values would add a wrong message.
"""

from __future__ import annotations

from typing import Any

import torch

import sinkscope as ss
from sinkscope.models.model import Model

START, FIRST, MESSAGES, PROMPT, LENGTH = 2, 3, 4, 16, 16
CLASS, MESSAGE, OUT = slice(0, 4), slice(4, 8), slice(8, 12)
IS_MASK, IS_START, IS_MESSAGE = 0, 2, 3
SLOW = 6
"""A dimension of a head that is hardly rotated; with SLOW + 8 it makes a pair."""


def network() -> Any:
    """Embedding, head and layers with nothing in them yet."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=7, hidden_size=16, intermediate_size=4, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        head_dim=16, max_position_embeddings=64, rms_norm_eps=1e-6, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e12},
    )  # fmt: skip
    config.is_causal, config.mask_token_id, config.eos_token_id = False, 0, 1
    made = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.fill_(1.0 if "norm" in name else 0.0)
        table = made.model.embed_tokens.weight
        table[0, IS_MASK] = table[1, 1] = table[START, IS_START] = 1.0
        for message in range(MESSAGES):
            table[FIRST + message, IS_MESSAGE] = table[FIRST + message, 4 + message] = 0.7
            made.lm_head.weight[FIRST + message, 8 + message] = 8.0
    return made


def look(layer: Any, head: int, query: int, key: int, score: float, dimension: int = SLOW) -> None:
    """Places with `query` in their class attend to places with `key` in theirs."""
    row = head * 16 + dimension
    layer.self_attn.q_proj.weight.data[row, query] = score
    layer.self_attn.k_proj.weight.data[row, key] = score


def copy(layer: Any, head: int, source: slice, gain: float, shift: int = 0) -> None:
    """The head copies `source` (four channels) into what the head of the network reads, rotated by `shift` messages."""
    for message in range(MESSAGES):
        layer.self_attn.v_proj.weight.data[head * 16 + message, source.start + message] = gain
        layer.self_attn.o_proj.weight.data[8 + (message + shift) % MESSAGES, head * 16 + message] = 1.0


def ordinary_head(layer: Any) -> None:
    """The other head of a layer: some output of usual size, in a channel that nobody reads."""
    layer.self_attn.v_proj.weight.data[16, CLASS] = 0.1
    layer.self_attn.v_proj.weight.data[16, IS_MESSAGE] = 0.1 * 2**0.5  # a message's class is smaller beside its message
    layer.self_attn.o_proj.weight.data[14, 16] = 1.0


def carrier() -> Model:
    """The sink holds the message, and the share of masks."""
    made = network()
    first, second = made.model.layers
    look(first, 0, IS_START, IS_MESSAGE, 2.0, 6)
    look(first, 0, IS_START, IS_MASK, 1.67, 5)  # so what the start holds moves while masks become messages
    look(first, 0, IS_MASK, IS_MASK, 4.0, 4)
    copy(first, 0, MESSAGE, 1.0)
    first.self_attn.v_proj.weight.data[8, IS_MASK] = 0.5
    first.self_attn.o_proj.weight.data[13, 8] = 1.0
    for kind in (IS_MASK, IS_MESSAGE):
        look(second, 0, kind, IS_START, 3.5)
    second.self_attn.k_proj.weight.data[4, [IS_MASK, 1, IS_MESSAGE]] = 3.5  # as long a key, at a right angle
    copy(second, 0, OUT, 1.0)
    second.self_attn.v_proj.weight.data[9, 13] = 1.0
    for layer in (first, second):
        ordinary_head(layer)
    for dimension, weight in ((16, 2.2), (17, 11.0)):  # it looks at its own place, in dimensions that turn
        first.self_attn.q_proj.weight.data[dimension, CLASS] = weight
        first.self_attn.k_proj.weight.data[dimension, CLASS] = weight
    return ss.wrap(made, family="llada", source="planted/carrier")


def drain() -> Model:
    """The sink holds nothing of its run: a small value that is always the same, and a long key."""
    made = network()
    first, second = made.model.layers
    look(first, 0, IS_MASK, IS_MESSAGE, 3.0)
    copy(first, 0, MESSAGE, 1.0)
    for layer in (first, second):
        look(layer, 0, IS_START, IS_START, 12.0, 5)
        ordinary_head(layer)
    for kind in (IS_MASK, 1, IS_MESSAGE):
        look(second, 0, kind, IS_START, 3.5)
    second.self_attn.k_proj.weight.data[SLOW, [IS_MASK, 1, IS_MESSAGE]] = 0.5
    second.self_attn.k_proj.weight.data[SLOW, IS_START] = 17.5
    copy(second, 0, MESSAGE, 6.0, shift=1)  # the start has no message
    second.self_attn.v_proj.weight.data[8, 12] = 0.002
    made.model.embed_tokens.weight.data[START, 12] = 5.0  # a channel of its own, as massive as this network can have
    return ss.wrap(made, family="llada", source="planted/drain")


def prompts(rows: int) -> torch.Tensor:
    """Long [rows, PROMPT]: the start, a message seven times, fillers; neighbours have different messages."""
    message = FIRST + torch.arange(rows)[:, None] % MESSAGES
    fillers = torch.ones(rows, PROMPT - 8, dtype=torch.long)
    return torch.cat([torch.full((rows, 1), START), message.expand(-1, 7), fillers], 1)


def run_of(model: Model, rows: int = 8) -> ss.Run:
    decoding = ss.LladaDecoding(length=LENGTH, steps=8, block=LENGTH)
    return ss.generate(model, prompts(rows), decoding, seed=list(range(rows)))
