"""Causal models: one token per step with a KV cache, greedy or sampled.

Step 0 is the prefill. A row that has written an end token gets padding (the model's pad id, else its end id) until all rows
have ended.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from sinkscope.decoding.engine import Engine, Step
from sinkscope.decoding.options import GreedyDecoding, SamplingDecoding
from sinkscope.decoding.streams import Streams


def steps(
    engine: Engine, prompt: Tensor, decoding: GreedyDecoding, streams: Streams | None
) -> Iterator[Step]:
    """Yields one Step per new token.

    Args:
        prompt: Long [B, P]. States have P + length columns, −1 where nothing is written.
    """
    from transformers import DynamicCache

    rows, length = prompt.shape
    x = torch.full((rows, length + decoding.length), -1, dtype=torch.long, device=prompt.device)
    x[:, :length] = prompt
    ends = torch.tensor(end_ids(engine, decoding), dtype=torch.long, device=prompt.device)
    filler = pad_id(engine, decoding)
    alive = torch.ones(rows, dtype=torch.bool, device=prompt.device)
    # A cache of full length for every layer: columns must mean the same key in all of them, sliding windows included.
    cache = DynamicCache()
    nothing = torch.zeros_like(x, dtype=torch.bool)
    for i in range(decoding.length):
        column = length + i
        engine.alive = alive
        logits = engine.next_logits(x, column, 0 if i == 0 else column - 1, cache)
        token, confidence = choose(logits, decoding, streams)
        after = x.clone()
        after[:, column] = torch.where(alive, token, filler)
        seen = torch.full(x.shape, float("nan"), dtype=torch.float32, device=x.device)
        seen[:, column] = confidence.masked_fill(~alive, float("nan"))
        candidate = torch.full_like(x, -1)
        candidate[:, column] = torch.where(alive, token, -1)
        decided = nothing.clone()
        decided[:, column] = alive
        yield Step(x, after, nothing, seen, candidate, decided, torch.zeros(rows, dtype=torch.long), alive)
        x = after
        alive = alive & ~torch.isin(token, ends)
        if not bool(alive.any()):
            return


def choose(logits: Tensor, decoding: GreedyDecoding, streams: Streams | None) -> tuple[Tensor, Tensor]:
    """The next token of each row and its probability under what it was chosen from: Long [B], Float32 [B]."""
    logits = logits.float()
    if not isinstance(decoding, SamplingDecoding) or streams is None:
        token = logits.argmax(-1)
        return token, logits.softmax(-1).gather(-1, token[:, None])[:, 0]
    logits = logits / decoding.temperature
    if decoding.top_p is not None and decoding.top_p < 1:
        ordered, order = torch.sort(logits, descending=False)
        outside = ordered.softmax(-1).cumsum(-1) <= 1 - decoding.top_p
        outside[:, -1] = False
        logits = logits.masked_fill(torch.zeros_like(outside).scatter_(1, order, outside), float("-inf"))
    spread = logits.softmax(-1)
    token = streams.one_of_each(spread, torch.ones(len(spread), 1, dtype=torch.bool, device=spread.device))
    return token, spread.gather(-1, token[:, None])[:, 0]


def end_ids(engine: Engine, decoding: GreedyDecoding) -> tuple[int, ...]:
    """The ids that end a row."""
    if decoding.eos == "model":
        return engine.model.ids.eos
    return decoding.eos if isinstance(decoding.eos, tuple) else ()


def pad_id(engine: Engine, decoding: GreedyDecoding) -> int:
    """What a row that has ended is filled with."""
    if engine.model.ids.pad is not None:
        return engine.model.ids.pad
    ends = end_ids(engine, decoding)
    return ends[0] if ends else 0
