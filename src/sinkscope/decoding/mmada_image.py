"""MMaDA's text to image (t2i_generate): MaskGIT over the image slots of a given sequence."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sinkscope.base.errors import InputError
from sinkscope.decoding.base import DECODINGS, Decoding
from sinkscope.decoding.blocks import placed
from sinkscope.decoding.step import Loop, Request, Step, chance, step_of
from sinkscope.models.mmada import codebook_size, image_offset
from sinkscope.models.model import Model


class ImageLoop(Loop["MmadaImageDecoding"]):
    """The loop of `t2i_generate`, whose steps hold the codes [B, N] sampled for the whole picture."""

    def first_state(self, ids: Tensor) -> Tensor:
        """The given sequence."""
        self.here, self.codes = self.options.slots(self.model, ids)
        return ids

    def run(self) -> Iterator[Step]:
        """One step for each of the times."""
        here, offset, mask_id, streams = self.here, self.codes.start, self.engine.mask_id, self.streams
        scale = self.options.temperature
        if streams is None:
            raise RuntimeError("image decoding always draws")
        for number in range(self.options.timesteps):
            x, ratio = self.x, (number + 1) / self.options.timesteps
            scale = scale * (1.0 - ratio)
            spread = self.predict().softmax(-1)
            unknown = x[:, here] == mask_id
            drawn = streams.one_of_each(spread.flatten(0, 1), torch.ones_like(unknown)).view(unknown.shape)
            codes = torch.where(unknown, drawn, x[:, here] - offset)
            likely = chance(spread, codes)
            likely = torch.where(unknown, likely, torch.finfo(likely.dtype).max)
            masks = (unknown.shape[1] * torch.cos(math.pi * 0.5 * torch.tensor(ratio))).floor().to(x.device)
            left = torch.minimum(unknown.sum(-1, keepdim=True) - 1, masks).clamp(min=1)
            noise = streams.uniform((unknown.shape[0], unknown.shape[1]), likely.dtype)
            confidence = _log(likely) + scale * -_log(-_log(noise))
            again = confidence < confidence.sort(-1).values.gather(1, left.long())
            self.x = x.clone()
            self.x[:, here] = torch.where(again, mask_id, codes + offset)
            yield step_of(
                x, self.x, self.alive, mask_id, codes=codes,
                confidence=placed(confidence.masked_fill(~unknown, float("nan")), x, here.start, float("nan")),
                candidate=placed(torch.where(unknown, codes + offset, -1), x, here.start, -1),
                decided=placed(unknown & ~again, x, here.start, False),
            )  # fmt: skip

    def predict(self) -> Tensor:
        """Float [B, N, codes]: logits of the image codes in the image slots, guidance applied."""
        here, head = self.here, self.model.head
        if not self.options.guided or self.twin is None:
            return head(self.engine.forward(Request(self.x))[:, here])[..., self.codes]
        ids, real = self.twin
        other = torch.cat([ids[:, : here.start], self.x[:, here.start :]], 1)
        hidden, free = self.engine.forward(Request(self.x, twin=(other, real))).chunk(2)
        guidance = self.options.guidance
        return ((1 + guidance) * head(hidden[:, here]) - guidance * head(free[:, here]))[..., self.codes]


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
    draws: ClassVar[bool] = True
    loop: ClassVar[type[ImageLoop]] = ImageLoop

    @property
    def max_steps(self) -> int:
        return self.timesteps

    @property
    def guided(self) -> bool:
        return self.guidance > 0

    def answer_columns(self, model: Model, ids: Tensor) -> tuple[int, int | None]:
        columns, _ = self.slots(model, ids)
        return columns.start, columns.stop

    def slots(self, model: Model, x: Tensor) -> tuple[slice, slice]:
        """Columns of the picture: the mask tokens and image codes right before the closing token; and the ids of its codes.

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
        return slice(first, last), slice(offset, offset + codes)


def _log(value: Tensor) -> Tensor:
    return value.clamp(min=1e-20).log()
