"""dllm's BD3LM sampler, for A2D models that were trained in blocks: prompts padded on the left to whole blocks, and a KV cache.

Padding and positions are made anew from the ids for every block: each pad token is hidden, also one that the model has written,
from all blocks behind it; positions count the others. The sampler reads the whole prefix again for every block; attention stands
in blocks, so that reading the finished block behind a cache gives the same. Steps are denoising forwards; the sequence grows by
blocks, and states hold −1 where it does not reach yet.

Kept from the official loop: a batch goes on until every row has an end token, and rows that have one go on being written. With a
stream for every row each ends by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from sinkscope.base.errors import InputError
from sinkscope.decoding.base import DECODINGS, BlockwiseDecoding
from sinkscope.decoding.blocks import BlockLoop, noisy, transferred
from sinkscope.decoding.mdlm import transfers
from sinkscope.decoding.step import Request, Step
from sinkscope.models.model import Model


class Bd3lmLoop(BlockLoop["Bd3lmDecoding"]):
    """The BD3LM sampler."""

    grows: ClassVar[bool] = True

    def first_state(self, ids: Tensor) -> Tensor:
        x = super().first_state(ids)
        x[:, self.prompt : self.prompt + self.options.block] = self.engine.mask_id
        return x

    def denoise(self) -> Iterator[Step]:
        """Reads the prefix first: what is padding, and the positions, are those of now until the block is done."""
        x, start, shifted = self.x, self.here.start, self.options.shifted
        self.real = x != _pad(self.model)
        self.engine.padding = int((~self.real[:, :start]).sum(1).max())
        hidden = (self.read if start == self.prompt else self.store)(start, needed=shifted)
        # Shifted models predict a token in the column before it: the block's first one comes from what was just read.
        self.before = self.guided(hidden[:, -1:]) if shifted and hidden is not None else None
        yield from super().denoise()

    def seen(self, request: Request) -> dict[str, Any]:
        """Padding, and the unconditional twin, whose prompt is masked."""
        if not self.options.guided:
            return {"real": self.real}
        columns = torch.arange(self.x.shape[1], device=self.x.device)
        prompt = (columns < self.prompt) & (self.x != _pad(self.model))
        other = torch.where(prompt, self.engine.mask_id, self.x)[:, request.queries].clamp(min=0)
        return {"real": self.real, "twin": (other, self.real[:, : request.queries.stop])}

    def plan(self) -> Iterable[list[int]]:
        """By each row's own schedule, or as it is drawn; rows may end in different steps."""
        options, streams, draw = self.options, self.streams, None
        plans = []
        for row, masks in enumerate((self.x[:, self.here] == self.engine.mask_id).sum(1).tolist()):
            if options.stochastic and streams is not None:
                draw = partial(streams.binomial, row)
            plans.append(transfers(masks, options.steps_in_block, draw))
        steps = list(zip_longest(*plans, fillvalue=0))
        for number, counts in enumerate(steps, 1):
            self.last = number == len(steps)
            yield list(counts)

    def going(self, masked: Tensor, counts: list[int]) -> Tensor:
        return self.alive & (torch.tensor(counts, device=masked.device) > 0) if self.alone else self.alive

    def predict(self, going: Tensor) -> Tensor:
        logits = self.guided(self.look(going, size=self.end - self.here.start))
        return logits if self.before is None else torch.cat([self.before, logits[:, :-1]], 1)

    def guided(self, hidden: Tensor) -> Tensor:
        """Logits [B, n, V], guidance applied."""
        logits = self.model.head(hidden)
        if not self.options.guided:
            return logits
        conditional, unconditional = logits.chunk(2)
        return unconditional + (self.options.cfg + 1) * (conditional - unconditional)

    def score(self, logits: Tensor, going: Tensor) -> tuple[Tensor, Tensor]:
        tokens, confidence = noisy(logits, self.options.temperature, self.streams, going)
        if self.options.remasking == "random" and self.streams is not None:
            confidence = self.streams.uniform(tuple(tokens.shape), torch.float32, going.tolist())
        return tokens, confidence

    def choose(self, tokens: Tensor, confidence: Tensor, masked: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
        return transferred(confidence, masked, counts)

    def write(self, *choice: Tensor) -> Step:
        """The masks of the next block belong to the state after the last step: the loop goes on from there."""
        step = super().write(*choice)
        if not self.last:
            return step
        ends = torch.tensor(self.model.ids.eos, dtype=torch.long, device=self.x.device)
        ended = torch.isin(self.x[:, self.prompt : self.end], ends).any(1)
        # The official loop ends a batch when all of its rows have ended; a row that runs alone ends by itself.
        self.alive = self.alive & ~(ended if self.alone else ended.all())
        self.x = self.x.clone()
        self.x[self.alive, self.end : self.end + self.options.block] = self.engine.mask_id
        return replace(step, after=self.x)


@DECODINGS.add
@dataclass(frozen=True)
class Bd3lmDecoding(BlockwiseDecoding):
    """The BD3LM sampler of A2D models.

    Attributes:
        length: new tokens; the last block may be shorter. block: tokens of a block, counted from the padded beginning.
        steps: in all; every block has the same share, rounded up. steps_per_block: of each block; None: that share.
        temperature: 0 takes the arg max; above, candidates come with Gumbel noise.
        remasking: which masks a step writes: the most confident ones, or random ones.
        cfg: guidance by a twin whose prompt is masked. shifted: logits at position j predict token j + 1.
        stochastic: how many masks a step writes is drawn.

    >>> ss.Bd3lmDecoding(length=20, steps=10, block=8).max_steps
    12
    """

    length: int = 128
    block: int = 32
    steps: int = 128
    steps_per_block: int | None = None
    temperature: float = 0.0
    remasking: Literal["low_confidence", "random"] = "low_confidence"
    cfg: float = 0.0
    stochastic: bool = False
    shifted: bool = False

    kind: ClassVar[str] = "bd3lm"
    families: ClassVar[tuple[str, ...]] = ("a2d",)
    loop: ClassVar[type[Bd3lmLoop]] = Bd3lmLoop

    @property
    def steps_in_block(self) -> int:
        """Steps of one block; one that decides nothing is left out."""
        return self.steps_per_block or -(-self.steps // self.blocks)

    @property
    def max_steps(self) -> int:
        return min(self.steps_in_block, self.block) * self.blocks

    @property
    def reads(self) -> int:
        """Every prefix."""
        return self.blocks

    @property
    def draws(self) -> bool:
        return super().draws or self.stochastic

    def padded_length(self, length: int) -> int:
        return -(-length // self.block) * self.block

    def prompted(self, model: Model, prompts: Any) -> Any:
        """Shifted models predict the first token from one before it: an empty prompt becomes the beginning token."""
        rows = prompts.tolist() if isinstance(prompts, Tensor) else prompts
        if not self.shifted or model.ids.bos is None or not isinstance(rows, (list, tuple)):
            return prompts
        empty = [isinstance(row, list) and not row for row in rows]
        first = [model.ids.bos]
        return [first if none else row for row, none in zip(rows, empty, strict=True)] if any(empty) else prompts

    def laid_out(self, model: Model, ids: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor | None] | None:
        """Padded on the left to whole blocks of the longest one."""
        pad = _pad(model)
        rows = [row if real is None else row[real[index]] for index, row in enumerate(ids)]
        columns = self.padded_length(max(map(len, rows)))
        found = ids.new_full((len(rows), columns), pad)
        for index, row in enumerate(rows):
            found[index, columns - len(row) :] = row
        valid = found != pad
        return found, None if bool(valid.all()) else valid

    def answer_ends(self, model: Model) -> tuple[int, ...]:
        return model.ids.eos


def _pad(model: Model) -> int:
    """The token that pads, which nothing sees."""
    pad = model.ids.pad if model.ids.pad is not None else next(iter(model.ids.eos), None)
    if pad is None:
        raise InputError(f"{model.source} names no pad and no end token, with which BD3LM's loop fills blocks")
    return pad
