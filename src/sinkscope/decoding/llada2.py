"""LLaDA2's loops: blocks from left to right, all confident positions of a block at once; 2.1 also edits what it has written.

The canvas is prompt and answer, rounded up to whole blocks. Every step computes the window up to the end of the active block
again; with `ss.generate(…, cache=True)` finished blocks are kept instead, which gives the same states. A batch of one follows the
models' own `generate`, and so does every row with a random stream of its own; other batches follow dllm's sampler, which does not
stop at end tokens and returns the whole canvas. At temperature 0 the arg max is taken (the first published file sampled there).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sinkscope.base.errors import InputError
from sinkscope.decoding.base import DECODINGS, BlockwiseDecoding
from sinkscope.decoding.blocks import BlockLoop, draw, top_k_of, top_p_of, transferred
from sinkscope.decoding.step import Request, Step, chance, even_plan
from sinkscope.models.model import Model

STALLED = 8
"""Steps, as a multiple of the block, after which an editing block with masks left is given up; officially it goes on for ever."""


class Llada2Loop(BlockLoop["Llada2Decoding"]):
    """The loop of 2.0."""

    def plan(self) -> Iterable[int]:
        return even_plan(self.options.block, self.options.block_steps)

    def score(self, logits: Tensor, going: Tensor) -> tuple[Tensor, Tensor]:
        temperature = self.options.temperature
        if temperature > 0:
            logits = logits if temperature == 1 else logits / temperature
            logits = top_p_of(top_k_of(logits, self.options.top_k), self.options.top_p)
        spread = logits.softmax(-1)
        tokens = draw(spread, self.streams, going)
        return tokens, chance(spread, tokens)

    def choose(self, tokens: Tensor, confidence: Tensor, masked: Tensor, counts: int) -> tuple[Tensor, Tensor]:
        return transferred(confidence, masked, counts, self.options.threshold)

    def leaves(self, tokens: Tensor, chosen: Tensor, going: Tensor) -> bool:
        """Rows that may stop early do; dllm's sampler then goes on to the next block."""
        if not self.options.eos_early_stop:
            return False
        end_id = _end_id(self.model)
        if not self.alone:
            return bool((self.x[:, self.here] == end_id).any())
        ended = ((tokens == end_id) & chosen).any(1) & going
        self.alive = self.staying = self.alive & ~(ended & self._complete(end_id))
        return False

    def _complete(self, end_id: int) -> Tensor:
        """Bool [B]: rows with an end token, searched from the first column on, before which no answer token is masked."""
        x = self.x[:, : self.end]
        ends, columns = x == end_id, torch.arange(self.end, device=x.device)[None]
        before = (columns >= self.prompt) & (columns < ends.long().argmax(1)[:, None])
        return ends.any(1) & ~((x == self.engine.mask_id) & before).any(1)

    def close(self) -> Iterable[Step]:
        if self.alone:
            self.alive = self.alive & ~self.ended(self.x[:, self.prompt : self.end])
        if self.end < self.behind and bool(self.alive.any()):
            self.store(self.end)
        return ()

    def ended(self, answer: Tensor) -> Tensor:
        """Bool [B]: rows that end with their answers Long [B, n]."""
        return (answer == _end_id(self.model)).any(1)

    def hidden(self, x: Tensor) -> Tensor:
        """With attention in blocks, as in every step; a plain forward of these models would look at everything."""
        return self.engine.forward(Request(x, active=x.shape[1], block=self.options.block))


class EditingLoop(Llada2Loop):
    """The loop of 2.1: a block has as many steps as it takes, and written tokens may change."""

    def plan(self) -> Iterable[int]:
        self.after_masks = torch.zeros(len(self.x), dtype=torch.long, device=self.x.device)
        return [self.options.num_to_transfer] * self.options.block_steps

    def going(self, masked: Tensor, counts: int) -> Tensor:
        """Rows without masks go on for some steps, in which they edit."""
        self.filled = ~masked.any(1)
        self.after_masks = self.after_masks + (self.filled & self.staying)
        self.staying = self.staying & (self.after_masks <= self.options.max_post_steps)
        return self.staying

    def choose(self, tokens: Tensor, confidence: Tensor, masked: Tensor, counts: int) -> tuple[Tensor, Tensor]:
        chosen, ties = super().choose(tokens, confidence, masked, counts)
        better = confidence > float(self.options.editing_threshold or 0.0)
        in_prompt = torch.arange(self.here.start, self.here.stop, device=tokens.device) < self.prompt
        self.edited = ~masked & ~in_prompt & better & (tokens != self.x[:, self.here])
        return chosen | self.edited, ties

    def leaves(self, tokens: Tensor, chosen: Tensor, going: Tensor) -> bool:
        self.staying = self.staying & ~(self.filled & ~self.edited.any(1))
        return False

    def ended(self, answer: Tensor) -> Tensor:
        complete = ~(answer == self.engine.mask_id).any(1)
        return super().ended(answer) & complete & self.options.eos_early_stop


@DECODINGS.add
@dataclass(frozen=True)
class Llada2Decoding(BlockwiseDecoding):
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
    cached: ClassVar[bool | None] = False
    rounded: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.minimal_topk > self.length:
            raise InputError(f"minimal_topk {self.minimal_topk} leaves no step for {self.length} tokens")

    @property
    def loop(self) -> type[Llada2Loop]:
        return EditingLoop if self.edits else Llada2Loop

    @property
    def edits(self) -> bool:
        return self.editing_threshold is not None

    @property
    def block_steps(self) -> int:
        """Steps of one block at most."""
        if self.edits:
            return STALLED * self.block + self.max_post_steps
        return min(self.steps, self.length // self.minimal_topk)

    @property
    def max_steps(self) -> int:
        usual = self.block + self.max_post_steps if self.edits else self.block_steps
        return usual * self.blocks

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
        return super().answer(model, sequence[: start + self.length], start)

    def answer_ends(self, model: Model) -> tuple[int, ...]:
        return model.ids.eos[:1]


def _end_id(model: Model) -> int:
    return model.ids.eos[0] if model.ids.eos else -1
