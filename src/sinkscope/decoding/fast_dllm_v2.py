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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from sinkscope.base.checks import at_least, share, whole
from sinkscope.base.errors import InputError
from sinkscope.decoding.base import DECODINGS, Decoding
from sinkscope.decoding.blocks import Blocks, block_step, complete, draw, store_step
from sinkscope.decoding.engine import Engine
from sinkscope.decoding.step import Step, Twin
from sinkscope.decoding.streams import Streams
from sinkscope.models.fast_dllm_v2 import BLOCK
from sinkscope.models.model import Model

STALLED = 8
"""Steps, as a multiple of the sub-block, after which a sub-block with masks left is given up."""


@DECODINGS.add
@dataclass(frozen=True)
class FastDllmDecoding(Decoding):
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
    replayable: ClassVar[bool] = False
    cached: ClassVar[bool | None] = True

    def __post_init__(self) -> None:
        for name in ("length", "block", "small_block"):
            whole(name, getattr(self, name), 1)
        if self.block % self.small_block:
            raise InputError(f"block {self.block} is not a multiple of small_block {self.small_block}")
        if self.length < self.block:
            raise InputError(f"length {self.length} is less than one block of {self.block}; give at least that")
        at_least("threshold", self.threshold, 0.0)
        at_least("temperature", self.temperature, 0.0)
        share("top_p", self.top_p, "; 1.0 keeps all tokens")
        if isinstance(self.stop, str) and self.stop != "model":
            raise InputError(f"stop should be an id, 'model' or None, got {self.stop!r}")
        if isinstance(self.stop, int):
            whole("stop", self.stop, 0)

    @property
    def max_steps(self) -> int:
        """One for every token, and one for every block that is stored."""
        return self.length + self.length // self.block

    @property
    def passes(self) -> int:
        """Steps, and the prompt."""
        return self.max_steps + 1

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

    def begin(
        self, engine: Engine, ids: Tensor, streams: Streams | None, per_row: bool, twin: Twin | None = None
    ) -> tuple[Tensor, Iterator[Step]]:
        """The prompts with masks up to the end of a block, and the loop; whole blocks that all prompts have are run already."""
        if self.block_cache and not engine.cached:
            raise InputError("block_cache=True is a cache of the active block: it does not go with cache=False")
        prompt, prompts = ids.shape[1], engine.prompts
        blocks = Blocks(engine, self.block, BLOCK)
        x = ids.new_full((len(ids), self.columns(prompts.longest)), -1)
        x[:, :prompt] = ids
        first = prompts.shortest // self.block * self.block
        hidden = blocks.prefill(x, first, needed=prompt == first)
        if hidden is not None and prompt == first:
            x[:, prompt] = engine.model.head(hidden[:, -1]).argmax(-1)
        alive = torch.ones(len(x), dtype=torch.bool, device=x.device)
        if prompts.alone:
            alive = x[:, prompt] != self.stop_id(engine.model)
        self._open(x, first, prompt, alive, engine.mask_id)
        return x, self._steps(blocks, x, prompt, alive, streams)

    def _open(self, x: Tensor, start: int, prompt: int, rows: Tensor, mask_id: int) -> None:
        """Write masks in place where the block from column `start` on holds nothing yet, in the rows Bool [B]."""
        here = x[:, start : start + self.block]
        behind = torch.arange(start, start + here.shape[1], device=x.device) >= prompt
        here[(here < 0) & behind & rows[:, None]] = mask_id

    def _steps(self, blocks: Blocks, x: Tensor, prompt: int, alive: Tensor, streams: Streams | None) -> Iterator[Step]:
        prompts, model, mask_id = blocks.engine.prompts, blocks.engine.model, blocks.engine.mask_id
        stop = self.stop_id(model)
        blocks_in_all = prompts.longest // self.block + self.length // self.block
        for index in range(prompts.shortest // self.block, blocks_in_all):
            end = (index + 1) * self.block
            opened = _first_open(x, end - self.block, mask_id) if prompts.alone else prompt
            ended = torch.zeros_like(alive)
            for step, stopped in self._denoise(blocks, x, end, opened, alive, streams):
                x, ended = step.after, ended | stopped
                yield step
            if prompts.alone:
                left = (x[:, end - self.block : end] == mask_id).any(1)
                alive = alive & ~left & ~complete(x[:, opened:end], stop, mask_id)
                if not bool(alive.any()):
                    return
            else:
                x = torch.where(_behind(x, prompt, stop) & ended[:, None] & (x >= 0), self._pad(model), x)
            hidden = blocks.store(x, end, alive, needed=True, step=True)
            if hidden is None:
                raise RuntimeError("the next token needs the block's forward")
            token = torch.where(ended & (not prompts.alone), self._pad(model), model.head(hidden[:, -1]).argmax(-1))
            after = x.clone()
            if prompts.alone or prompts.longest <= end + 1 or prompt < end:
                # In a batch, while longer prompts still have tokens here, only rows whose own prompt has ended take theirs.
                after[:, end] = torch.where(alive, token, x[:, end])
            goes_on = alive & ~(ended if not prompts.alone else (after[:, prompt : end + 1] == stop).any(1))
            if index + 1 < blocks_in_all:
                self._open(after, end, prompt, goes_on, mask_id)
            yield store_step(x, after, alive, mask_id)
            x, alive = after, goes_on
            if not bool(alive.any()):
                return

    def _denoise(
        self, blocks: Blocks, x: Tensor, end: int, opened: int, alive: Tensor, streams: Streams | None
    ) -> Iterator[tuple[Step, Tensor]]:
        """The steps of one block, and Bool [B]: rows in which a step wrote a stop token."""
        model, mask_id, stop = blocks.engine.model, blocks.engine.mask_id, self.stop_id(blocks.engine.model)
        alone = blocks.engine.prompts.alone
        blocks.forget()
        for sub in range(0, self.block, self.small_block):
            start = end - self.block + sub
            here = slice(start, start + self.small_block)
            for _ in range(STALLED * self.small_block):
                masked = x[:, here] == mask_id
                going = alive & masked.any(1)
                if alone:
                    going = going & ~complete(x[:, opened:end], stop, mask_id)
                if not bool(going.any()):
                    break
                logits = model.head(self._shifted(blocks, x, end, sub, going))
                tokens, confidence = self.candidates(logits, streams, going)
                scores = confidence.masked_fill(~masked, float("-inf"))
                chosen = (scores > self.threshold).scatter(1, scores.argmax(1, keepdim=True), True) & masked
                ties = torch.zeros(len(x), dtype=torch.long)
                step = block_step(x, start, tokens, confidence, chosen, ties, going, mask_id)
                x = step.after
                yield step, ((tokens == stop) & chosen).any(1) & going

    def _shifted(self, blocks: Blocks, x: Tensor, end: int, sub: int, rows: Tensor) -> Tensor:
        """Hidden states [B, small_block, width] that predict the sub-block: of the positions before, the first its own."""
        part = slice(sub, sub + self.small_block)
        if not self.block_cache:
            hidden = blocks.denoise(x, end, rows)
        elif not blocks.kept or bool((x[:, end - self.block + sub] == blocks.engine.mask_id).any()):
            hidden = blocks.refresh(x, end, None, self.block, rows)
        else:
            hidden, part = blocks.refresh(x, end, sub, self.small_block, rows), slice(None)
        return torch.cat([hidden[:, :1], hidden[:, :-1]], 1)[:, part]

    def _pad(self, model: Model) -> int:
        return self.stop_id(model) if model.ids.pad is None else model.ids.pad

    def candidates(self, logits: Tensor, streams: Streams | None, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens Long [B, n] and their probability, from logits [B, n, V]."""
        if self.temperature == 0 or streams is None:
            spread = logits.softmax(-1)
        else:
            spread = (logits / self.temperature).softmax(-1)
            ordered, order = torch.sort(spread, descending=True)
            outside = ordered.cumsum(-1) > self.top_p
            outside = torch.cat([torch.zeros_like(outside[..., :1]), outside[..., :-1]], -1)
            spread = spread.masked_fill(torch.zeros_like(outside).scatter_(-1, order, outside), 0.0)
            spread = spread / spread.sum(-1, keepdim=True)
        tokens = draw(spread, streams, rows)
        return tokens, spread.gather(-1, tokens[..., None])[..., 0]

    def output(self, model: Model, states: Tensor, starts: list[int], alone: bool) -> list[Tensor]:
        """Prompt and answer, cut behind the first stop token; rows of a batch end with a block, and the token behind it."""
        rows = super().output(model, states, starts, alone)
        stop = self.stop_id(model)
        if alone:
            return [self._cut(row, start, stop) for row, start in zip(rows, starts, strict=True)]
        widest = max(map(len, rows))
        # A stop token ends a row where it replaced a mask; as the token that follows a block it does not.
        ends = (states[-1] == stop) & (states == int(model.ids.mask or 0)).any(0)
        if all(bool(end[: widest - 1].any()) for end, row in zip(ends, rows, strict=True) if len(row) == widest):
            # All rows ended with the last block, so it was not stored and nothing follows it.
            rows = [row[:-1] if len(row) == widest else row for row in rows]
        return rows

    def answer(self, model: Model, sequence: Tensor, start: int) -> Tensor:
        """Up to and including the first stop token."""
        row = sequence[sequence >= 0]
        return self._cut(row, start, self.stop_id(model))[start:]

    def _cut(self, row: Tensor, start: int, stop: int) -> Tensor:
        ends = (row[start:] == stop).nonzero()
        return row[: start + int(ends[0]) + 1] if len(ends) else row


def _first_open(x: Tensor, start: int, mask_id: int) -> int:
    """The first column of a block, from `start` on, that is masked in any row: where the round that fills it begins."""
    columns = (x[:, start:] == mask_id).any(0).nonzero()
    return start + (int(columns[0]) if len(columns) else 0)


def _behind(x: Tensor, prompt: int, stop: int) -> Tensor:
    """Bool [B, S]: columns behind the first stop token of the answer."""
    answer = (x == stop) & (torch.arange(x.shape[1], device=x.device) >= prompt)
    return (answer.long().cumsum(1) - answer.long()) > 0
