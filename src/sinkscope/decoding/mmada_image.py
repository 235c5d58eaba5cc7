"""MMaDA's text to image (t2i_generate): MaskGIT over the image slots of a given sequence."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sinkscope.base.checks import at_least, whole
from sinkscope.base.errors import InputError
from sinkscope.decoding.base import DECODINGS, Decoding
from sinkscope.decoding.engine import Engine
from sinkscope.decoding.step import Request, Step, Twin
from sinkscope.decoding.streams import Streams
from sinkscope.models.mmada import codebook_size, image_offset
from sinkscope.models.model import Model


@dataclass(frozen=True)
class ImageSlots:
    """Where the picture is: columns first..last−1 of the sequence, whose ids are offset + code."""

    first: int
    last: int
    offset: int
    codes: int


@DECODINGS.add
@dataclass(frozen=True)
class MmadaImageDecoding(Decoding):
    """MMaDA's t2i_generate.

    In the last step at least one slot stays masked in the state, as in the official loop; the codes have none.

    Attributes:
        timesteps: forward passes.
        guidance: above 0, logits are (1 + g)·conditional − g·unconditional; needs `unconditional=` in generate.
        temperature: scale of the Gumbel noise on confidence; it is multiplied by (1 − ratio) cumulatively, as officially.
        offset: id of image code 0; None: len(tokenizer), else the official 126349.

    >>> ss.MmadaImageDecoding(timesteps=18, guidance=3.0).timesteps
    18
    """

    timesteps: int = 18
    guidance: float = 0.0
    temperature: float = 1.0
    offset: int | None = None

    kind: ClassVar[str] = "mmada_image"
    families: ClassVar[tuple[str, ...]] = ("mmada",)
    replayable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        whole("timesteps", self.timesteps, 1)
        at_least("guidance", self.guidance, 0.0)
        at_least("temperature", self.temperature, 0.0)
        if self.offset is not None:
            whole("offset", self.offset, 0)

    @property
    def max_steps(self) -> int:
        """timesteps."""
        return self.timesteps

    @property
    def guided(self) -> bool:
        """Above guidance 0."""
        return self.guidance > 0

    @property
    def draws(self) -> bool:
        """Always: codes are sampled."""
        return True

    def answer_columns(self, model: Model, ids: Tensor) -> tuple[int, int | None]:
        """The image slots."""
        slots = self.slots(model, ids)
        return slots.first, slots.last

    def slots(self, model: Model, x: Tensor) -> ImageSlots:
        """The image slots of a prompt: the mask tokens and image codes right before the closing token.

        Args:
            x: Long [B, S]: the whole sequence, image slots masked, one closing token at the end.
        """
        checkpoint, mask_id = model.checkpoint, model.ids.mask
        offset = image_offset(checkpoint, model.tokenizer) if self.offset is None else self.offset
        codes = codebook_size(checkpoint)
        if offset + codes > model.shape.vocabulary:
            raise InputError(
                f"image codes {offset} to {offset + codes - 1} pass the vocabulary of {model.shape.vocabulary}; give offset"
            )
        masked = torch.eq(x, mask_id if mask_id is not None else -1)
        slot = masked | ((x >= offset) & (x < offset + codes))
        everywhere = slot.all(0).tolist()
        last = first = x.shape[1] - 1
        while first > 0 and everywhere[first - 1]:
            first -= 1
        if first == last or not bool(masked[:, first:last].any(1).all()):
            raise InputError(
                "text to image needs ids that hold the whole sequence: text, image slots filled with the mask token "
                f"{mask_id}, and one closing token; found no masked slot before the last token"
            )
        return ImageSlots(first, last, offset, codes)

    def begin(
        self, engine: Engine, ids: Tensor, streams: Streams | None, per_row: bool, twin: Twin | None = None
    ) -> tuple[Tensor, Iterator[Step]]:
        """The given sequence, and the loop, whose steps hold the codes [B, N] sampled for the whole picture."""
        if streams is None:
            raise RuntimeError("image decoding always draws")
        return ids, self._steps(engine, ids, streams, self.slots(engine.model, ids), twin)

    def _steps(
        self, engine: Engine, x: Tensor, streams: Streams, slots: ImageSlots, twin: Twin | None
    ) -> Iterator[Step]:
        size = slots.last - slots.first
        scale = self.temperature
        for i in range(self.timesteps):
            ratio = (i + 1) / self.timesteps
            scale = scale * (1.0 - ratio)
            logits = self._logits(engine, x, slots, twin)
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
            yield _image_step(x, after, engine.mask_id, unknown, confidence, codes, again, slots)
            x = after

    def _logits(self, engine: Engine, x: Tensor, slots: ImageSlots, twin: Twin | None) -> Tensor:
        """Float [B, N, codes]: logits of the image codes in the image slots, guidance applied."""
        here, those = slice(slots.first, slots.last), slice(slots.offset, slots.offset + slots.codes)
        if self.guided and twin is not None:
            ids, real = twin
            other = torch.cat([ids[:, : slots.first], x[:, slots.first :]], 1)
            hidden, free = engine.forward(Request(x, twin=(other, real))).chunk(2)
            given, unconditional = engine.model.head(hidden[:, here]), engine.model.head(free[:, here])
            logits = (1 + self.guidance) * given - self.guidance * unconditional
        else:
            logits = engine.model.head(engine.forward(Request(x))[:, here])
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
    return Step(x, after, x == mask_id, seen, tokens, decided, ties, alive, codes)


def _log(value: Tensor) -> Tensor:
    return value.clamp(min=1e-20).log()
