"""Dream's loop (diffusion_generate / _sample): no blocks, a float32 time schedule, logits shifted by one.

The number of positions decided per step comes from the mean number of masks over the batch; with a stream per row it is the
row's own. Where truncation leaves one candidate, confidence is the same at many positions and `torch.topk` decides: that is
part of the official behaviour, so its call is kept as it is and ties are counted.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from sinkscope.decoding.engine import Engine, Step, marked, select
from sinkscope.decoding.options import DreamDecoding
from sinkscope.decoding.streams import Streams


def steps(
    engine: Engine, x: Tensor, decoding: DreamDecoding, streams: Streams | None, per_row: bool
) -> Iterator[Step]:
    """Yields one Step per forward; x: Long [B, S], prompt and masks, is not changed.

    Args:
        per_row: counts are each row's own, as in a batch of one.
    """
    times = torch.linspace(1, decoding.eps, decoding.steps + 1, device=x.device)
    for i in range(decoding.steps):
        share = 1 - times[i + 1] / times[i]  # of the masks that are left
        step = _step(engine, x, decoding, streams, per_row, share, last=i == decoding.steps - 1)
        x = step.after
        yield step


def _step(
    engine: Engine,
    x: Tensor,
    decoding: DreamDecoding,
    streams: Streams | None,
    per_row: bool,
    share: Tensor,
    last: bool,
) -> Step:
    masked = x == engine.mask_id
    logits = engine.model.head(shifted(engine.hidden(x), masked))
    after = x.clone()
    tokens = torch.full_like(x, -1)
    seen = torch.full(x.shape, float("nan"), dtype=logits.dtype, device=x.device)
    ties = torch.zeros(len(x), dtype=torch.long)
    if decoding.algorithm == "origin":
        chosen = _by_chance(masked, share, last, streams)
        candidate, confidence = most_likely(logits, decoding)
        if decoding.temperature > 0:
            picked = chosen[masked]
            drawn, drawn_confidence = sample(logits[picked], decoding, streams, chosen)
            candidate[picked], confidence[picked] = drawn, drawn_confidence
        tokens[masked], seen[masked] = candidate, confidence
        after[chosen] = tokens[chosen]
        decided = chosen & (tokens != engine.mask_id)
    else:
        candidate, confidence = sample(logits, decoding, streams, masked)
        tokens[masked], seen[masked] = candidate, confidence
        scores = seen.masked_fill(~masked, float("-inf"))
        counts = _counts(masked, share, last, per_row)
        if decoding.alg_temp and streams is not None:
            spread = (scores / decoding.alg_temp).softmax(-1)
            chosen = marked(streams.some_without_replacement(spread, counts), masked)
        else:
            chosen, ties = select(scores, counts)
        # A batch mean can exceed a row's masks: the official loop then writes the mask token over other tokens.
        written = torch.where(masked, tokens, engine.mask_id)
        after = torch.where(chosen, written, x)
        decided = chosen & (written != engine.mask_id)
    return Step(
        x, after, masked, seen, tokens, decided, ties, torch.ones(len(x), dtype=torch.bool, device=x.device)
    )


def shifted(hidden: Tensor, masked: Tensor) -> Tensor:
    """Hidden states [N, width] whose logits predict the masked positions: those of the position before.

    Position 0 has none before it and keeps its own, as in the official shift.
    """
    row, column = masked.nonzero(as_tuple=True)
    return hidden[row, (column - 1).clamp(min=0)]


def _by_chance(masked: Tensor, share: Tensor, last: bool, streams: Streams | None) -> Tensor:
    """Bool [B, S]: each masked position with probability `share`; all of them in the last step."""
    chosen = torch.zeros_like(masked)
    if streams is None:
        raise RuntimeError("the origin algorithm needs a random stream")
    chosen[masked] = streams.uniform_where(masked) < (1.0 if last else share)
    return chosen


def _counts(masked: Tensor, share: Tensor, last: bool, per_row: bool) -> list[int]:
    """How many positions each row decides, rounded down in float32 as officially."""
    left = masked.sum(1) / 1 if per_row else (masked.sum() / len(masked)).expand(len(masked))
    return (left if last else left * share).int().tolist()


def probabilities(logits: Tensor, decoding: DreamDecoding) -> Tensor:
    """The distribution after temperature, top_p and top_k: Float [N, V]."""
    if decoding.temperature > 0:
        logits = logits / decoding.temperature
    lowest = torch.finfo(logits.dtype).min
    if decoding.top_p is not None and decoding.top_p < 1:
        ordered, order = torch.sort(logits, descending=True)
        outside = ordered.softmax(-1).cumsum(-1) > decoding.top_p
        # Moved by one, so that the token which passes the bound is still inside, and the first always is.
        outside = torch.cat([torch.zeros_like(outside[:, :1]), outside[:, :-1]], 1)
        logits = logits.masked_fill(torch.zeros_like(outside).scatter_(-1, order, outside), lowest)
    if decoding.top_k is not None:
        many = min(decoding.top_k, logits.shape[-1])
        logits = logits.masked_fill(logits < torch.topk(logits, many)[0][..., -1, None], lowest)
    return logits.softmax(-1)


def sample(
    logits: Tensor, decoding: DreamDecoding, streams: Streams | None, where: Tensor
) -> tuple[Tensor, Tensor]:
    """A candidate for each row of logits [N, V], with the algorithm's confidence: Long [N], Float [N].

    Args:
        where: Bool [B, S] with N marked positions: whose logits these are.
    """
    spread = probabilities(logits, decoding)
    if decoding.temperature > 0 and streams is not None:
        candidate = streams.one_of_each(spread / spread.sum(-1, keepdim=True), where)
        confidence = spread.gather(-1, candidate[:, None])[:, 0]
    else:
        confidence, candidate = spread.max(-1)
    return candidate, _confidence(spread, confidence, decoding)


def best(logits: Tensor, decoding: DreamDecoding) -> tuple[Tensor, Tensor]:
    """The most likely token of each row, and the algorithm's confidence in it, without any draw."""
    spread = probabilities(logits, decoding)
    confidence, candidate = spread.max(-1)
    return candidate, _confidence(spread, confidence, decoding)


def most_likely(logits: Tensor, decoding: DreamDecoding) -> tuple[Tensor, Tensor]:
    """The most likely token of each row and its probability."""
    confidence, candidate = probabilities(logits, decoding).max(-1)
    return candidate, confidence


def _confidence(spread: Tensor, confidence: Tensor, decoding: DreamDecoding) -> Tensor:
    if decoding.algorithm == "topk_margin":
        ordered, _ = torch.sort(spread, -1, descending=True)
        return ordered[:, 0] - ordered[:, 1]
    if decoding.algorithm == "entropy":
        return (spread * torch.log(spread + 1e-10)).sum(-1)
    return confidence
