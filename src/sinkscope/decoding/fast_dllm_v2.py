"""Fast-dLLM v2's loops: blocks behind a KV cache, their sub-blocks from left to right, logits shifted by one.

A finished block is stored by a forward of its own, which also gives the next token, the first of the next block: here it is a
step. The sequence grows, so states hold −1 where it does not reach yet. One row follows the model's own `generate`, and so does
every row with a random stream of its own, or when tokens are sampled; other batches follow the repository's `batch_sample`: all
rows get as many blocks as the longest prompt needs, and a row ends with the block in which a stop token is written.

Kept from the official code: a prompt of exactly one block is never shown to the model; in a batch the last token of a longest
prompt of whole blocks plus one is overwritten. Where a mask token is predicted again and again, the official loop does not end;
here the row does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from sinkscope.base.checks import whole
from sinkscope.base.errors import InputError
from sinkscope.decoding.base import DECODINGS, BlockwiseDecoding, until
from sinkscope.decoding.blocks import BlockLoop, complete, draw, top_p_of
from sinkscope.decoding.step import Request, Step, chance, shifted, step_of
from sinkscope.models.fast_dllm_v2 import BLOCK
from sinkscope.models.model import Model

STALLED = 8
"""Steps, as a multiple of the sub-block, after which a sub-block with masks left is given up."""


class FastDllmLoop(BlockLoop["FastDllmDecoding"]):
    """The loop of `generate` and of `batch_sample`; whole blocks that all prompts have are read before the first step.

    Attributes:
        opened: the first column that the active block decides. ended: Bool [B]: rows that wrote a stop token in it.
    """

    reach: ClassVar[int] = BLOCK

    def begin(self, *group: Any) -> None:
        super().begin(*group)
        prompts, size = self.engine.prompts, self.options.block
        if self.options.block_cache and not self.engine.cached:
            raise InputError("block_cache=True is a cache of the active block: it does not go with cache=False")
        self.stop = self.options.stop_id(self.model)
        self.pad = self.stop if self.model.ids.pad is None else self.model.ids.pad
        self.first, self.behind = prompts.shortest // size * size, self.x.shape[1] - 1
        hidden = self.read(self.first, needed=self.prompt == self.first)
        if hidden is not None and self.prompt == self.first:
            self.x[:, self.prompt] = self.model.head(hidden[:, -1]).argmax(-1)
        if self.alone:
            self.alive = self.x[:, self.prompt] != self.stop
        self.open(self.x, self.first, self.alive)

    def first_state(self, ids: Tensor) -> Tensor:
        x = ids.new_full((len(ids), self.options.columns(self.engine.prompts.longest)), -1)
        x[:, : self.prompt] = ids
        return x

    def open(self, x: Tensor, start: int, rows: Tensor) -> None:
        """Write masks in place where the block from column `start` on holds nothing yet, in the rows Bool [B]."""
        here = x[:, start : start + self.options.block]
        behind = torch.arange(start, start + here.shape[1], device=x.device) >= self.prompt
        here[(here < 0) & behind & rows[:, None]] = self.engine.mask_id

    def denoise(self) -> Iterator[Step]:
        """Sub-block by sub-block."""
        start, self.opened, self.ended = self.here.start, self.prompt, torch.zeros_like(self.alive)
        if self.alone:  # the round that fills the block begins where any row is masked
            columns = (self.x[:, start:] == self.engine.mask_id).any(0).nonzero()
            self.opened = start + (int(columns[0]) if len(columns) else 0)
        if self.cache is not None:
            self.cache.block = None
        for column in range(start, self.end, self.options.small_block):
            self.here = slice(column, column + self.options.small_block)
            yield from super().denoise()

    def plan(self) -> Iterable[None]:
        return [None] * (STALLED * self.options.small_block)

    def going(self, masked: Tensor, counts: None) -> Tensor:
        going = super().going(masked, counts)
        return going & ~self.complete() if self.alone else going

    def complete(self) -> Tensor:
        """Bool [B]: rows with a stop token in the block before which nothing is masked."""
        return complete(self.x[:, self.opened : self.end], self.stop, self.engine.mask_id)

    def predict(self, going: Tensor) -> Tensor:
        """Of the positions before those of the sub-block, the block's first one its own."""
        size, start = self.options.small_block, self.here.start
        first = start - (self.end - self.options.block)
        part = slice(first, first + size)
        if not self.options.block_cache:
            hidden = self.look(going)
        elif self.cache.block is None or bool((self.x[:, start] == self.engine.mask_id).any()):
            self.cache.block = {}  # filled by this forward
            hidden = self.look(going)
        else:  # over the active block's keys and values, which may be stale outside of the sub-block
            self.cache.at, part = first, slice(None)
            hidden = self.passing(Request(self.x, going, self.here, self.end, active=size, block=None))
            self.cache.at = None
        return self.model.head(shifted(hidden)[:, part])

    def score(self, logits: Tensor, going: Tensor) -> tuple[Tensor, Tensor]:
        temperature = self.options.temperature
        if temperature == 0 or self.streams is None:
            spread = logits.softmax(-1)
        else:
            spread = top_p_of((logits / temperature).softmax(-1), self.options.top_p, 0.0, spread=True)
            spread = spread / spread.sum(-1, keepdim=True)
        tokens = draw(spread, self.streams, going)
        return tokens, chance(spread, tokens)

    def choose(self, tokens: Tensor, confidence: Tensor, masked: Tensor, counts: None) -> tuple[Tensor, Tensor]:
        """All above the threshold, and the best one in any case."""
        scores = confidence.masked_fill(~masked, float("-inf"))
        chosen = (scores > self.options.threshold).scatter(1, scores.argmax(1, keepdim=True), True) & masked
        return chosen, torch.zeros(len(masked), dtype=torch.long)

    def leaves(self, tokens: Tensor, chosen: Tensor, going: Tensor) -> bool:
        self.ended = self.ended | (((tokens == self.stop) & chosen).any(1) & going)
        return False

    def close(self) -> Iterable[Step]:
        """A step, which also writes the next token."""
        prompts, prompt, end, mask_id = self.engine.prompts, self.prompt, self.end, self.engine.mask_id
        if self.alone:
            left = (self.x[:, end - self.options.block : end] == mask_id).any(1)
            self.alive = self.alive & ~left & ~self.complete()
            if not bool(self.alive.any()):
                return ()
        else:
            self.x = torch.where(self.behind_stop() & self.ended[:, None] & (self.x >= 0), self.pad, self.x)
        x, alive = self.x, self.alive
        hidden = self.store(end, needed=True, step=True)
        if hidden is None:
            raise RuntimeError("the next token needs the block's forward")
        token = torch.where(self.ended & (not self.alone), self.pad, self.model.head(hidden[:, -1]).argmax(-1))
        self.x = x.clone()
        if self.alone or prompts.longest <= end + 1 or prompt < end:
            # In a batch, while longer prompts still have tokens here, only rows whose own prompt has ended take theirs.
            self.x[:, end] = torch.where(alive, token, x[:, end])
        stopped = (self.x[:, prompt : end + 1] == self.stop).any(1) if self.alone else self.ended
        self.alive = alive & ~stopped
        if end < self.behind:
            self.open(self.x, end, self.alive)
        return [step_of(x, self.x, alive, mask_id, kind="store")]

    def behind_stop(self) -> Tensor:
        """Bool [B, S]: columns behind the first stop token of the answer."""
        columns = torch.arange(self.x.shape[1], device=self.x.device)
        stops = (self.x == self.stop) & (columns >= self.prompt)
        return (stops.long().cumsum(1) - stops.long()) > 0


@DECODINGS.add
@dataclass(frozen=True)
class FastDllmDecoding(BlockwiseDecoding):
    """Fast-dLLM v2's generate, and its batch_sample.

    Attributes:
        length: new tokens; whole blocks of them are made, counting the one in which the prompt ends. block: tokens of a block.
        small_block: tokens of a sub-block, decided in parallel. threshold: all masks of it with a higher probability are
            written, and the most confident one in any case.
        temperature: 0 takes the arg max; above, tokens are sampled from the smallest set with probability top_p.
        stop: the id that ends an answer; "model": the model's end id, None: none.
        block_cache: keys and values of the active block are kept too, and those of other sub-blocks grow stale: another
            trajectory.

    >>> ss.FastDllmDecoding(length=64, threshold=0.8).new_tokens
    64
    """

    length: int = 256
    block: int = 32
    small_block: int = 8
    threshold: float = 0.9
    temperature: float = 0.0
    top_p: float = 0.95
    stop: int | Literal["model"] | None = "model"
    block_cache: bool = False

    kind: ClassVar[str] = "fast_dllm_v2"
    families: ClassVar[tuple[str, ...]] = ("fast_dllm_v2",)
    brief: ClassVar[Mapping[str, Any]] = {"length": 64}
    loop: ClassVar[type[FastDllmLoop]] = FastDllmLoop
    reads: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block % self.small_block:
            raise InputError(f"block {self.block} is not a multiple of small_block {self.small_block}")
        if self.length < self.block:
            raise InputError(f"length {self.length} is less than one block of {self.block}; give at least that")
        if isinstance(self.stop, str) and self.stop != "model":
            raise InputError(f"stop should be an id, 'model' or None, got {self.stop!r}")
        if isinstance(self.stop, int):
            whole("stop", self.stop, 0)

    @property
    def max_steps(self) -> int:
        """One for every token, and one for every block that is stored."""
        return self.length + self.length // self.block

    def columns(self, prompt: int) -> int:
        """Whole blocks, and the token that follows the last one."""
        return max(prompt, (prompt // self.block + self.length // self.block) * self.block) + 1

    def alone(self, rows: int, per_row: bool) -> bool:
        """Sampling officially works for one row only."""
        return super().alone(rows, per_row) or self.draws

    def unseen(self, shortest: int) -> int:
        """A prompt of exactly one block is not put into the cache, and the forwards begin behind it."""
        return self.block if shortest == self.block else 0

    def stop_id(self, model: Model) -> int:
        """The id that ends an answer; −2, which no state holds, for none."""
        if self.stop == "model":
            return model.ids.eos[0] if model.ids.eos else -2
        return -2 if self.stop is None else int(self.stop)

    def output(self, model: Model, states: Tensor, starts: list[int], alone: bool) -> list[Tensor]:
        """Prompt and answer, cut behind the first stop token; rows of a batch end with a block, and the token behind it."""
        rows = super().output(model, states, starts, alone)
        stop = self.stop_id(model)
        if alone:
            return [
                torch.cat([row[:start], until(row[start:], (stop,))]) for row, start in zip(rows, starts, strict=True)
            ]
        widest = max(map(len, rows))
        # A stop token ends a row where it replaced a mask; as the token that follows a block it does not.
        ends = (states[-1] == stop) & (states == int(model.ids.mask or 0)).any(0)
        if all(bool(end[: widest - 1].any()) for end, row in zip(ends, rows, strict=True) if len(row) == widest):
            # All rows ended with the last block, so it was not stored and nothing follows it.
            rows = [row[:-1] if len(row) == widest else row for row in rows]
        return rows

    def answer_ends(self, model: Model) -> tuple[int, ...]:
        return (self.stop_id(model),)
