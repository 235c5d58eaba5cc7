"""MMaDA's loops: text (LLaDA's loop of February 2025 with confidence in float64) and text to image tokens (MaskGIT).

With guidance the official text loop drops the padding mask; ours honours it, so that a padded row equals its run alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sinkscope.decoding import llada
from sinkscope.decoding.engine import Engine, Step
from sinkscope.decoding.options import MmadaDecoding, MmadaImageDecoding
from sinkscope.decoding.streams import Streams
from sinkscope.errors import InputError
from sinkscope.models.mmada import codebook_size, image_offset


def text_steps(
    engine: Engine, x: Tensor, prompt: int, decoding: MmadaDecoding, streams: Streams | None, per_row: bool
) -> Iterator[Step]:
    """generate / mmu_generate / mmu_generate_fast; x: Long [B, S] is not changed."""
    rules = llada.Rules(exact=True, stop_at=decoding.stop_at, each_stops=per_row)
    return llada.steps(engine, x, prompt, decoding, streams, rules)


@dataclass(frozen=True)
class ImageSlots:
    """Where the picture is: columns first..last−1 of the sequence, whose ids are offset + code."""

    first: int
    last: int
    offset: int
    codes: int


def find_slots(engine: Engine, x: Tensor, decoding: MmadaImageDecoding) -> ImageSlots:
    """The image slots of a prompt: the mask tokens and image codes right before the closing token.

    Args:
        x: Long [B, S]: the whole sequence, image slots masked, one closing token at the end.
    """
    checkpoint = engine.model.checkpoint
    offset = image_offset(checkpoint, engine.model.tokenizer) if decoding.offset is None else decoding.offset
    codes = codebook_size(checkpoint)
    if offset + codes > engine.model.shape.vocabulary:
        raise InputError(
            f"image codes {offset} to {offset + codes - 1} pass the vocabulary of {engine.model.shape.vocabulary}; give offset"
        )
    slot = (x == engine.mask_id) | ((x >= offset) & (x < offset + codes))
    everywhere = slot.all(0).tolist()
    last = first = x.shape[1] - 1
    while first > 0 and everywhere[first - 1]:
        first -= 1
    if first == last or not bool((x[:, first:last] == engine.mask_id).any(1).all()):
        raise InputError(
            "text to image needs ids that hold the whole sequence: text, image slots filled with the mask token "
            f"{engine.mask_id}, and one closing token; found no masked slot before the last token"
        )
    return ImageSlots(first, last, offset, codes)


def image_steps(
    engine: Engine,
    x: Tensor,
    decoding: MmadaImageDecoding,
    streams: Streams,
    slots: ImageSlots,
    unconditional: tuple[Tensor, Tensor | None] | None,
) -> Iterator[tuple[Step, Tensor]]:
    """Yields one Step per forward, with the codes [B, N] that were sampled for the whole picture.

    In the last step at least one slot stays masked in the state, as in the official loop; the codes have none.
    """
    size = slots.last - slots.first
    scale = decoding.temperature
    for i in range(decoding.timesteps):
        ratio = (i + 1) / decoding.timesteps
        scale = scale * (1.0 - ratio)
        logits = _image_logits(engine, x, decoding, slots, unconditional)
        picture = x[:, slots.first : slots.last]
        unknown = picture == engine.mask_id
        spread = logits.softmax(-1)
        everywhere = torch.ones_like(unknown)
        drawn = streams.one_of_each(spread.reshape(-1, slots.codes), everywhere).view(unknown.shape)
        codes = torch.where(unknown, drawn, picture - slots.offset)
        chosen = spread.gather(-1, codes[..., None])[..., 0]
        chosen = torch.where(unknown, chosen, torch.finfo(chosen.dtype).max)
        portion = math.pi * 0.5 * torch.tensor(ratio)
        masks = (size * torch.cos(portion)).floor().to(x.device)
        left = torch.minimum(unknown.sum(-1, keepdim=True) - 1, masks).clamp(min=1)
        noise = streams.uniform((unknown.shape[0], unknown.shape[1]), chosen.dtype)
        confidence = _log(chosen) + scale * -_log(-_log(noise))
        bound = confidence.sort(-1).values.gather(1, left.long())
        again = confidence < bound
        after = x.clone()
        after[:, slots.first : slots.last] = torch.where(again, engine.mask_id, codes + slots.offset)
        yield _image_step(x, after, engine.mask_id, unknown, confidence, codes, again, slots), codes
        x = after


def _image_logits(
    engine: Engine,
    x: Tensor,
    decoding: MmadaImageDecoding,
    slots: ImageSlots,
    unconditional: tuple[Tensor, Tensor | None] | None,
) -> Tensor:
    """Float [B, N, codes]: logits of the image codes in the image slots, guidance applied."""
    here, those = slice(slots.first, slots.last), slice(slots.offset, slots.offset + slots.codes)
    if decoding.guidance > 0 and unconditional is not None:
        ids, real = unconditional
        twin = torch.cat([ids[:, : slots.first], x[:, slots.first :]], 1)
        conditional, other = engine.guided(x, twin, real)
        given, free = engine.model.head(conditional[:, here]), engine.model.head(other[:, here])
        logits = (1 + decoding.guidance) * given - decoding.guidance * free
    else:
        logits = engine.model.head(engine.hidden(x)[:, here])
    return logits[..., those]


def _image_step(
    x: Tensor,
    after: Tensor,
    mask_id: int,
    unknown: Tensor,
    confidence: Tensor,
    codes: Tensor,
    again: Tensor,
    slots: ImageSlots,
) -> Step:
    here = slice(slots.first, slots.last)
    seen = torch.full(x.shape, float("nan"), dtype=confidence.dtype, device=x.device)
    seen[:, here] = confidence.masked_fill(~unknown, float("nan"))
    tokens = torch.full_like(x, -1)
    tokens[:, here] = torch.where(unknown, codes + slots.offset, -1)
    decided = torch.zeros_like(x, dtype=torch.bool)
    decided[:, here] = unknown & ~again
    ties = torch.zeros(len(x), dtype=torch.long)
    alive = torch.ones(len(x), dtype=torch.bool, device=x.device)
    return Step(x, after, x == mask_id, seen, tokens, decided, ties, alive)


def _log(value: Tensor) -> Tensor:
    return value.clamp(min=1e-20).log()
