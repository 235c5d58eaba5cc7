"""LLaDA2's loops: blocks from left to right, all confident positions of a block at once; 2.1 also edits what it has written.

The canvas is prompt and answer, rounded up to whole blocks. Every step computes the window up to the end of the active block
again; with `ss.generate(…, cache=True)` finished blocks are kept instead, which gives the same states. A batch of one follows the
models' own `generate`, and so does every row with a random stream of its own; other batches follow dllm's sampler, which does not
stop at end tokens and returns the whole canvas. At temperature 0 the arg max is taken (the first published file sampled there).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sinkscope.base.checks import at_least, share, whole
from sinkscope.base.errors import InputError
from sinkscope.decoding.base import DECODINGS, Decoding, even_plan
from sinkscope.decoding.blocks import Blocks, block_step, draw, filtered, transferred
from sinkscope.decoding.engine import Engine
from sinkscope.decoding.step import Request, Step, Twin
from sinkscope.decoding.streams import Streams
from sinkscope.models.model import Model

STALLED = 8
"""Steps, as a multiple of the block, after which an editing block with masks left is given up; officially it goes on for ever."""


@dataclass
class _BlockRows:
    """What the loop knows of its rows while it runs.

    Attributes:
        prompt: the first column of the answer. alive: Bool [B]: rows that have not ended.
        stops: rows end at end tokens, each by itself. end_id: the end token; −1: there is none.
    """

    prompt: int
    alive: Tensor
    stops: bool
    end_id: int


@DECODINGS.add
@dataclass(frozen=True)
class Llada2Decoding(Decoding):
    """LLaDA2's generate: 2.0, and with `editing_threshold` 2.1.

    Attributes:
        length: new tokens at most. block: tokens of a block, counted from the first column.
        steps: steps of a block; at most length // minimal_topk.
        temperature: 0 takes the arg max; above, every position of the block is sampled after top_k and top_p.
        threshold: all positions with a higher probability are written; too few of them, and the step's share of the most
            confident ones is.
        eos_early_stop: stop as soon as nothing before the first end token is masked. 2.0 stops after a block with an end
            token in any case, 2.1 only so.
        editing_threshold: written tokens are replaced by others of a higher probability than this (LLaDA2.1); None: never.
        max_post_steps: steps of a block, at most, in which only edits are left. num_to_transfer: masks that a step of 2.1
            decides at least.

    >>> ss.Llada2Decoding(length=64, block=32, editing_threshold=0.9).new_tokens
    64
    """

    length: int = 256
    block: int = 32
    steps: int = 32
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    threshold: float = 0.95
    minimal_topk: int = 1
    eos_early_stop: bool = False
    editing_threshold: float | None = None
    max_post_steps: int = 16
    num_to_transfer: int = 1

    kind: ClassVar[str] = "llada2"
    families: ClassVar[tuple[str, ...]] = ("llada2",)
    brief: ClassVar[Mapping[str, Any]] = {"length": 64}
    replayable: ClassVar[bool] = False
    cached: ClassVar[bool | None] = False

    def __post_init__(self) -> None:
        for name in ("length", "block", "steps", "minimal_topk", "num_to_transfer"):
            whole(name, getattr(self, name), 1)
        whole("max_post_steps", self.max_post_steps, 0)
        for name in ("temperature", "threshold", "editing_threshold"):
            if getattr(self, name) is not None:
                at_least(name, getattr(self, name), 0.0)
        if self.top_p is not None:
            share("top_p", self.top_p, "; leave it out to keep all tokens")
        if self.top_k is not None:
            whole("top_k", self.top_k, 0)
        if self.minimal_topk > self.length:
            raise InputError(f"minimal_topk {self.minimal_topk} leaves no step for {self.length} tokens")

    @property
    def edits(self) -> bool:
        """With an editing threshold."""
        return self.editing_threshold is not None

    @property
    def block_steps(self) -> int:
        """Steps of one block at most."""
        if self.edits:
            return STALLED * self.block + self.max_post_steps
        return min(self.steps, self.length // self.minimal_topk)

    @property
    def max_steps(self) -> int:
        """Of all blocks, one more than the answer fills, because the prompt need not end with a block."""
        usual = self.block + self.max_post_steps if self.edits else self.block_steps
        return usual * (-(-self.length // self.block) + 1)

    def columns(self, prompt: int) -> int:
        """Prompt and answer, rounded up to whole blocks."""
        return -(-(prompt + self.length) // self.block) * self.block

    def begin(
        self, engine: Engine, ids: Tensor, streams: Streams | None, per_row: bool, twin: Twin | None = None
    ) -> tuple[Tensor, Iterator[Step]]:
        """Prompts followed by masks up to the end of a block, and the loop."""
        B, prompt = ids.shape
        state = torch.cat([ids, ids.new_full((B, self.columns(prompt) - prompt), engine.mask_id)], 1)
        alive = torch.ones(B, dtype=torch.bool, device=ids.device)
        rows = _BlockRows(prompt, alive, engine.prompts.alone, _end_id(engine.model))
        return state, self._steps(engine, state, rows, streams)

    def _steps(self, engine: Engine, x: Tensor, rows: _BlockRows, streams: Streams | None) -> Iterator[Step]:
        blocks = Blocks(engine, self.block)
        first = rows.prompt // self.block * self.block
        blocks.prefill(x, first)
        for start in range(first, x.shape[1], self.block):
            loop = self._editing_block if self.edits else self._block
            for step in loop(blocks, x, start, rows, streams):
                x = step.after
                yield step
            rows.alive = rows.alive & ~self._ended(x, start + self.block, rows, engine.mask_id)
            if not bool(rows.alive.any()):
                return
            if start + self.block < x.shape[1]:
                blocks.store(x, start + self.block, rows.alive)

    def _block(
        self, blocks: Blocks, x: Tensor, start: int, rows: _BlockRows, streams: Streams | None
    ) -> Iterator[Step]:
        """The steps of one block of 2.0."""
        end, mask_id = start + self.block, blocks.engine.mask_id
        for count in even_plan(self.block, self.block_steps):
            masked = x[:, start:end] == mask_id
            going = rows.alive & masked.any(1)
            if not bool(going.any()):
                return
            tokens, confidence = self._candidates(blocks, x, end, going, streams)
            chosen, ties = transferred(confidence, masked, count, self.threshold)
            step = block_step(x, start, tokens, confidence, chosen, ties, going, mask_id)
            x = step.after
            yield step
            if self.eos_early_stop and rows.stops:
                ended = ((tokens == rows.end_id) & chosen).any(1) & going
                rows.alive = rows.alive & ~(ended & _complete(x[:, :end], rows, mask_id))
            elif self.eos_early_stop and bool((x[:, start:end] == rows.end_id).any()):
                return  # as dllm's sampler: on to the next block

    def _editing_block(
        self, blocks: Blocks, x: Tensor, start: int, rows: _BlockRows, streams: Streams | None
    ) -> Iterator[Step]:
        """The steps of one block of 2.1: as many as it takes."""
        end, mask_id = start + self.block, blocks.engine.mask_id
        post = torch.zeros(len(x), dtype=torch.long, device=x.device)
        in_prompt = torch.arange(start, end, device=x.device) < rows.prompt
        going = rows.alive.clone()
        for _ in range(self.block_steps):
            masked = x[:, start:end] == mask_id
            filled = ~masked.any(1)
            post = post + (filled & going)
            going = going & (post <= self.max_post_steps)
            if not bool(going.any()):
                return
            tokens, confidence = self._candidates(blocks, x, end, going, streams)
            chosen, ties = transferred(confidence, masked, self.num_to_transfer, self.threshold)
            better = confidence > float(self.editing_threshold or 0.0)
            edited = ~masked & ~in_prompt & better & (tokens != x[:, start:end])
            step = block_step(x, start, tokens, confidence, chosen | edited, ties, going, mask_id)
            x = step.after
            yield step
            going = going & ~(filled & ~edited.any(1))

    def _candidates(
        self, blocks: Blocks, x: Tensor, end: int, rows: Tensor, streams: Streams | None
    ) -> tuple[Tensor, Tensor]:
        """Tokens Long [B, block] and their probability for every position of the block, masked or not."""
        logits = blocks.engine.model.head(blocks.denoise(x, end, rows))
        if self.temperature > 0:
            logits = filtered(logits if self.temperature == 1 else logits / self.temperature, self.top_k, self.top_p)
        spread = logits.softmax(-1)
        tokens = draw(spread, streams, rows)
        return tokens, spread.gather(-1, tokens[..., None])[..., 0]

    def hidden(self, engine: Engine, x: Tensor) -> Tensor:
        """With attention in blocks, as in every step; a plain forward of these models would look at everything."""
        return engine.forward(Request(x, active=x.shape[1], block=self.block))

    def _ended(self, x: Tensor, end: int, rows: _BlockRows, mask_id: int) -> Tensor:
        """Bool [B]: rows that end after the block before column `end`."""
        answer = x[:, rows.prompt : end]
        ended = (answer == rows.end_id).any(1)
        if not rows.stops or (self.edits and not self.eos_early_stop):
            return torch.zeros_like(ended)
        return ended & ~(answer == mask_id).any(1) if self.edits else ended

    def output(self, model: Model, states: Tensor, starts: list[int], alone: bool) -> list[Tensor]:
        """The answers, each up to its first end token, as `generate` returns them; of a batch the canvas, as the sampler."""
        if not alone:
            return super().output(model, states, starts, alone)
        return [
            self._early(model, states[:, row], start)
            if self.eos_early_stop and not self.edits
            else self.answer(model, states[-1, row], start)
            for row, start in enumerate(starts)
        ]

    def _early(self, model: Model, states: Tensor, start: int) -> Tensor:
        """What 2.0 returns for the states Long [steps + 1, S] of a row when it may stop early.

        The first end token is looked for in the prompt too: with one there, officially nothing of the answer is returned.
        """
        last, end_id = states[-1], _end_id(model)
        moved = (states[1:] != states[:-1]).any(1).nonzero()
        before = states[int(moved[-1])] if len(moved) else last
        written = bool(((last == end_id) & (before != last)).any())
        ends = (last == end_id).nonzero()
        first = int(ends[0]) if len(ends) else 0
        if written and model.ids.mask not in last[start:first].tolist():
            return last[start : first + 1]
        return self.answer(model, last, start)

    def answer(self, model: Model, sequence: Tensor, start: int) -> Tensor:
        """Up to and including the first end token, and at most `length` tokens."""
        answer = sequence[start : start + self.length]
        ends = (answer == _end_id(model)).nonzero()
        return answer[: int(ends[0]) + 1] if len(ends) else answer


def _end_id(model: Model) -> int:
    return model.ids.eos[0] if model.ids.eos else -1


def _complete(x: Tensor, rows: _BlockRows, mask_id: int) -> Tensor:
    """Bool [B]: rows with an end token, searched from the first column on, before which no answer token is masked."""
    ends = x == rows.end_id
    columns = torch.arange(x.shape[1], device=x.device)[None]
    before = (columns >= rows.prompt) & (columns < ends.long().argmax(1)[:, None])
    return ends.any(1) & ~((x == mask_id) & before).any(1)
