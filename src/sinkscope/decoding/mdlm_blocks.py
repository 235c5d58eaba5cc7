"""dllm's BD3LM sampler, for A2D models that were trained in blocks: prompts padded on the left to whole blocks, and a KV cache.

Padding and positions are made anew from the ids for every block: each pad token is hidden, also one that the model has written,
from all blocks behind it; positions count the others. The sampler reads the whole prefix again for every block; attention stands
in blocks, so that reading the finished block behind a cache gives the same. Steps are denoising forwards; the sequence grows by
blocks, and states hold −1 where it does not reach yet.

Kept from the official loop: a batch goes on until every row has an end token, and rows that have one go on being written. With a
stream for every row each ends by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from sinkscope.base.checks import at_least, one_of, whole
from sinkscope.base.errors import InputError
from sinkscope.decoding.base import DECODINGS, Decoding, until
from sinkscope.decoding.blocks import Blocks, block_step, noisy, transferred
from sinkscope.decoding.engine import Engine
from sinkscope.decoding.llada import REMASKING
from sinkscope.decoding.mdlm import transfers
from sinkscope.decoding.step import Step, Twin
from sinkscope.decoding.streams import Streams
from sinkscope.models.model import Model


@DECODINGS.add
@dataclass(frozen=True)
class Bd3lmDecoding(Decoding):
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
    remasking: str = "low_confidence"
    cfg: float = 0.0
    stochastic: bool = False
    shifted: bool = False

    kind: ClassVar[str] = "bd3lm"
    families: ClassVar[tuple[str, ...]] = ("a2d",)
    replayable: ClassVar[bool] = False
    cached: ClassVar[bool | None] = True

    def __post_init__(self) -> None:
        for name in ("length", "block", "steps"):
            whole(name, getattr(self, name), 1)
        if self.steps_per_block is not None:
            whole("steps_per_block", self.steps_per_block, 1)
        at_least("temperature", self.temperature, 0.0)
        at_least("cfg", self.cfg, 0.0)
        one_of("remasking", self.remasking, REMASKING)
        for name in ("stochastic", "shifted"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} should be true or false, got {getattr(self, name)!r}")

    @property
    def blocks(self) -> int:
        """Blocks of the answer."""
        return -(-self.length // self.block)

    @property
    def most_per_block(self) -> int:
        """Steps of one block at most; one that decides nothing is left out."""
        return min(self.steps_per_block or -(-self.steps // self.blocks), self.block)

    @property
    def max_steps(self) -> int:
        """Steps of all blocks at most."""
        return self.most_per_block * self.blocks

    @property
    def passes(self) -> int:
        """Steps, and one forward for every prefix."""
        return (self.max_steps + self.blocks) * (2 if self.guided else 1)

    @property
    def draws(self) -> bool:
        """Where anything is drawn."""
        return self.temperature > 0 or self.remasking == "random" or self.stochastic

    def padded_length(self, length: int) -> int:
        """Whole blocks."""
        return -(-length // self.block) * self.block

    def prompted(self, model: Model, prompts: Any) -> Any:
        """Shifted models predict the first token from one before it: an empty prompt becomes the beginning token."""
        rows = prompts.tolist() if isinstance(prompts, Tensor) else prompts
        if not self.shifted or model.ids.bos is None or not isinstance(rows, (list, tuple)):
            return prompts
        empty = [isinstance(row, list) and not row for row in rows]
        return (
            [[model.ids.bos] if none else row for row, none in zip(rows, empty, strict=True)] if any(empty) else prompts
        )

    def laid_out(self, model: Model, ids: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor | None] | None:
        """Prompts padded on the left to whole blocks of the longest one."""
        pad = _pad(model)
        rows = [row if real is None else row[real[index]] for index, row in enumerate(ids)]
        columns = self.padded_length(max(map(len, rows)))
        found = ids.new_full((len(rows), columns), pad)
        for index, row in enumerate(rows):
            found[index, columns - len(row) :] = row
        valid = found != pad
        return found, None if bool(valid.all()) else valid

    def begin(
        self, engine: Engine, ids: Tensor, streams: Streams | None, per_row: bool, twin: Twin | None = None
    ) -> tuple[Tensor, Iterator[Step]]:
        """The padded prompts with the first block of masks, and the loop."""
        prompt = ids.shape[1]
        x = ids.new_full((len(ids), prompt + self.length), -1)
        x[:, :prompt] = ids
        x[:, prompt : prompt + self.block] = engine.mask_id
        return x, self._steps(engine, x, prompt, streams)

    def _steps(self, engine: Engine, x: Tensor, prompt: int, streams: Streams | None) -> Iterator[Step]:
        blocks, pad, mask_id = Blocks(engine, self.block), _pad(engine.model), engine.mask_id
        ends = torch.tensor(engine.model.ids.eos, dtype=torch.long, device=x.device)
        prompt_tokens = torch.zeros_like(x, dtype=torch.bool)
        prompt_tokens[:, :prompt] = x[:, :prompt] != pad
        alive = torch.ones(len(x), dtype=torch.bool, device=x.device)
        alone = engine.prompts.alone
        for start in range(prompt, x.shape[1], self.block):
            end = min(start + self.block, x.shape[1])
            real = x != pad
            engine.padding = int((~real[:, :start]).sum(1).max())
            asked = partial(self._request, x, prompt_tokens, mask_id, real)
            read = (
                blocks.prefill(x, start, self.shifted, **asked(slice(0, start)))
                if start == prompt
                else blocks.store(x, start, alive, self.shifted, **asked(slice(blocks.stored, start)))
            )
            # Shifted models predict a token in the column before it: the block's first one comes from what was just read.
            before = self._logits(engine, read[:, -1:]) if self.shifted and read is not None else None
            masks = (x[:, start:end] == mask_id).sum(1).tolist()
            plans = [self._plan(row, count, streams) for row, count in enumerate(masks)]
            for number in range(max(map(len, plans))):
                counts = [plan[number] if number < len(plan) else 0 for plan in plans]
                going = alive & (torch.tensor(counts, device=x.device) > 0) if alone else alive
                if not bool(going.any()):
                    break
                seen = self._request(x, prompt_tokens, mask_id, real, slice(blocks.stored, end))
                hidden = blocks.denoise(x, end, going, size=end - start, **seen)
                logits = self._logits(engine, hidden)
                if before is not None:
                    logits = torch.cat([before, logits[:, :-1]], 1)
                masked = x[:, start:end] == mask_id
                tokens, confidence = noisy(logits, self.temperature, streams, going)
                if self.remasking == "random" and streams is not None:
                    confidence = streams.uniform(tuple(tokens.shape), torch.float32, going.tolist())
                chosen, ties = transferred(confidence, masked, counts)
                step = block_step(x, start, tokens, confidence, chosen, ties, going, mask_id)
                last = all(number + 1 >= len(plan) for plan, row in zip(plans, alive.tolist(), strict=True) if row)
                if last:
                    ended = torch.isin(step.after[:, prompt:end], ends).any(1)
                    # The official loop ends a batch when all of its rows have ended; a row that runs alone ends by itself.
                    alive = alive & ~(ended if alone else ended.all())
                    # The next block's masks belong to the state after this step: the loop goes on from there.
                    after = step.after.clone()
                    after[alive, end : end + self.block] = mask_id
                    step = replace(step, after=after)
                x = step.after
                yield step
            if not bool(alive.any()):
                return

    def _plan(self, row: int, masks: int, streams: Streams | None) -> list[int]:
        """How many masks of a row each step of a block decides."""
        steps = self.steps_per_block or -(-self.steps // self.blocks)
        if not self.stochastic or streams is None:
            return transfers(masks, steps)
        return transfers(masks, steps, lambda left, due: streams.binomial(row, left, due))

    def _request(self, x: Tensor, given: Tensor, mask_id: int, real: Tensor, queries: slice) -> dict[str, Any]:
        """What a forward of these columns says of padding and of its unconditional twin."""
        if not self.guided:
            return {"real": real}
        other = torch.where(given, mask_id, x)[:, queries].clamp(min=0)
        return {"real": real, "twin": (other, real[:, : queries.stop])}

    def _logits(self, engine: Engine, hidden: Tensor) -> Tensor:
        """Logits [B, n, V], guidance applied."""
        logits = engine.model.head(hidden)
        if not self.guided:
            return logits
        conditional, unconditional = logits.chunk(2)
        return unconditional + (self.cfg + 1) * (conditional - unconditional)

    def answer(self, model: Model, sequence: Tensor, start: int) -> Tensor:
        """Up to and including the first end token."""
        return until(super().answer(model, sequence, start), model.ids.eos)


def _pad(model: Model) -> int:
    """The token that pads, which nothing sees."""
    pad = model.ids.pad if model.ids.pad is not None else next(iter(model.ids.eos), None)
    if pad is None:
        raise InputError(f"{model.source} names no pad and no end token, with which BD3LM's loop fills blocks")
    return pad
