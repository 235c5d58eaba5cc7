"""Nemotron-Labs-Diffusion's loops: blocks behind a KV cache that was read causally, and the same weights token by token.

A block begins with a seed, the next token of the causal model, and masks. It is denoised in parallel; then a causal forward of
its own stores it and gives the next seed. Blocks are counted from the end of the prompt, and the sequence grows: states hold −1
where it does not reach yet. Denoising and storing forwards are steps; logits of the first kind predict their own position, of the
second the next.

Kept from the official loop: an end token leaves its block at once, with the masks behind it, which are stored; in a batch one
row's end token does so for all rows, and all go on until each has one. With a stream for every row each decides by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sinkscope.attention.visibility import behind_a_prompt
from sinkscope.base.checks import at_least, whole
from sinkscope.base.errors import InputError
from sinkscope.decoding.base import DECODINGS, Decoding, checked_ends, end_ids, even_plan, until
from sinkscope.decoding.blocks import Blocks, block_step, complete, draw, noisy, store_step, transferred
from sinkscope.decoding.causal import CausalDecoding
from sinkscope.decoding.engine import Engine
from sinkscope.decoding.parallel import confident
from sinkscope.decoding.step import Request, Step, Twin
from sinkscope.decoding.streams import Streams
from sinkscope.models.model import Model


@DECODINGS.add
@dataclass(frozen=True)
class NemotronDecoding(Decoding):
    """Nemotron-Labs-Diffusion's generate.

    Attributes:
        length: new tokens, whole blocks of `block` tokens, counted from the end of the prompt.
        threshold: a step writes the masks whose probability reaches it, and the best one in any case; None: one mask a step.
        causal_context: prompt and finished blocks are read causally, and a block begins with the causal model's next token; else
            both ways, and a block begins as masks.
        temperature: 0 takes the arg max; above, candidates come with Gumbel noise, and seeds are drawn.
        eos: ids that end an answer; "model": the model's own, None: none. (**The official `eos_token_id=None` means the model's
            own**: it is `eos="model"` here.)
        max_thinking_tokens, end_think_id: the id that is written behind so many answer tokens, where no earlier block has it.

    >>> ss.NemotronDecoding(length=64, block=32, threshold=0.9).max_steps
    66
    """

    length: int = 128
    block: int = 32
    threshold: float | None = 0.9
    causal_context: bool = True
    temperature: float = 0.0
    eos: str | int | tuple[int, ...] | None = "model"
    max_thinking_tokens: int | None = None
    end_think_id: int | None = None

    kind: ClassVar[str] = "nemotron"
    families: ClassVar[tuple[str, ...]] = ("nemotron",)
    brief: ClassVar[Mapping[str, Any]] = {"length": 64}
    replayable: ClassVar[bool] = False
    cached: ClassVar[bool | None] = True
    whole_blocks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("length", "block"):
            whole(name, getattr(self, name), 1)
        if self.length % self.block:
            raise InputError(f"length should be whole blocks of {self.block} tokens, got {self.length}")
        if self.threshold is not None:
            at_least("threshold", self.threshold, 0.0)
        at_least("temperature", self.temperature, 0.0)
        check_thinking(self.max_thinking_tokens, self.end_think_id)
        object.__setattr__(self, "eos", checked_ends(self.eos))

    @property
    def max_steps(self) -> int:
        """At most one for every token, and one that stores each block."""
        return self.length + self.length // self.block

    @property
    def passes(self) -> int:
        """Steps, and the prompt."""
        return self.max_steps + 1

    def begin(
        self, engine: Engine, ids: Tensor, streams: Streams | None, per_row: bool, twin: Twin | None = None
    ) -> tuple[Tensor, Iterator[Step]]:
        """The prompts with the first block, and the loop; the prompt has been read."""
        prompt = ids.shape[1]

        def seen(request: Request) -> dict[str, Any]:
            end, stored = request.end or request.queries.stop, request.cache is not None
            if not self.causal_context:
                pattern = None if stored else behind_a_prompt(prompt, end, self.block, ids.device)
                return {"block": None, "pattern": pattern}
            if request.kind != "denoise":
                return {"block": None, "causal": True}
            pattern = None if stored else behind_a_prompt(end - self.block, end, None, ids.device)
            return {"block": None, "pattern": pattern}

        blocks = Blocks(engine, self.block, seen=seen)
        x = ids.new_full((len(ids), prompt + self.length), -1)
        x[:, :prompt] = ids
        hidden = blocks.prefill(x, prompt, needed=self.causal_context)
        everybody = torch.ones(len(x), dtype=torch.bool, device=x.device)
        self._open(x, prompt, prompt, engine, hidden, streams, everybody)
        return x, self._steps(blocks, x, prompt, streams)

    def _open(
        self,
        x: Tensor,
        start: int,
        prompt: int,
        engine: Engine,
        hidden: Tensor | None,
        streams: Streams | None,
        rows: Tensor,
    ) -> None:
        """Write a new block in place, in the rows Bool [B]: masks, the seed, and the end of thinking where it is due.

        Args:
            hidden: of the forward that read what stands before; None: blocks have no seed.
        """
        seed = None
        if self.causal_context and hidden is not None:
            logits = engine.model.head(hidden[:, -1:])
            warm = logits / self.temperature if self.temperature > 0 else logits
            seed = draw(warm.softmax(-1) if streams is not None else warm, streams, rows)[:, 0]
        if start + self.block > x.shape[1]:
            return  # it was drawn all the same
        here = x[:, start : start + self.block]
        here[rows] = engine.mask_id
        if seed is not None:
            here[:, 0] = torch.where(rows, seed, here[:, 0])
        if self.max_thinking_tokens is not None and self.end_think_id is not None:
            due = self.max_thinking_tokens - (start - prompt)
            thinking = rows & ~(x[:, prompt:start] == self.end_think_id).any(1)
            if due < self.block:
                column = max(0, due)
                here[:, column] = torch.where(thinking, self.end_think_id, here[:, column])

    def _steps(self, blocks: Blocks, x: Tensor, prompt: int, streams: Streams | None) -> Iterator[Step]:
        engine, mask_id = blocks.engine, blocks.engine.mask_id
        ends = torch.tensor(end_ids(self.eos, engine.model), dtype=torch.long, device=x.device)
        alone = engine.prompts.alone
        alive = torch.ones(len(x), dtype=torch.bool, device=x.device)
        for start in range(prompt, prompt + self.length, self.block):
            end = start + self.block
            left = torch.zeros_like(alive)  # rows that an end token took out of this block
            masks = (x[:, start:end] == mask_id).sum(1).tolist()
            for counts in zip(*(even_plan(count, self.block) for count in masks), strict=True):
                masked = x[:, start:end] == mask_id
                going = alive & ~left
                going = going & masked.any(1) if alone else going & bool(masked.any())
                if not bool(going.any()):
                    break
                logits = engine.model.head(blocks.denoise(x, end, going))
                tokens, confidence = noisy(logits, self.temperature, streams, going)
                if self.threshold is None:
                    chosen, ties = transferred(confidence, masked, counts)
                else:
                    scores = confidence.masked_fill(~masked, float("-inf"))
                    chosen, found = confident(scores, self.threshold, None)
                    ties = found.cpu()
                step = block_step(x, start, tokens, confidence, chosen, ties, going, mask_id)
                x = step.after
                yield step
                ended = complete(x[:, start:end], ends, mask_id) & going
                left = left | ended if alone else left | ended.any()
            hidden = blocks.store(x, end, alive, needed=True, step=True)
            after = x.clone()
            finished = torch.isin(x[:, prompt:end], ends).any(1)
            goes_on = alive & ~finished if alone else alive & ~finished.all()
            # The official loop draws a seed behind its last block too.
            self._open(after, end, prompt, engine, hidden, streams, alive)
            if not bool(goes_on.any()):
                after = x
            elif alone:
                after = torch.where((alive & ~goes_on)[:, None], x, after)
            yield store_step(x, after, alive, mask_id)
            x, alive = after, goes_on
            if not bool(alive.any()):
                return

    def output(self, model: Model, states: Tensor, starts: list[int], alone: bool) -> list[Tensor]:
        """Prompt and answer, cut behind the end token; of a batch behind the last row's, if every row has one."""
        rows, ends = super().output(model, states, starts, alone), end_ids(self.eos, model)
        cuts = [start + len(until(row[start:], ends)) for row, start in zip(rows, starts, strict=True)]
        if not alone:
            ended = all(
                bool(torch.isin(row[start:], torch.tensor(ends)).any()) for row, start in zip(rows, starts, strict=True)
            )
            cuts = [max(cuts) if ended else len(row) for row in rows]
        return [row[:cut] for row, cut in zip(rows, cuts, strict=True)]

    def answer(self, model: Model, sequence: Tensor, start: int) -> Tensor:
        """Up to and including the first end token."""
        return until(super().answer(model, sequence, start), end_ids(self.eos, model))


@DECODINGS.add
@dataclass(frozen=True)
class NemotronCausalDecoding(CausalDecoding):
    """Nemotron-Labs-Diffusion's ar_generate: the same weights as a causal model, one token a step.

    Attributes:
        temperature: 0 takes the most likely token; above, one is drawn from all.
        max_thinking_tokens, end_think_id: the id that is written behind so many tokens, where it was not written before.

    >>> ss.NemotronCausalDecoding(length=8).draws
    False
    """

    length: int = 128
    temperature: float = 0.0
    eos: str | int | tuple[int, ...] | None = "model"
    max_thinking_tokens: int | None = None
    end_think_id: int | None = None

    kind: ClassVar[str] = "nemotron_causal"
    families: ClassVar[tuple[str, ...]] = ("nemotron_causal", "nemotron")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("temperature", self.temperature, 0.0)
        check_thinking(self.max_thinking_tokens, self.end_think_id)

    def settled(self, token: Tensor, answer: Tensor) -> Tensor:
        """The end of thinking, where it is due."""
        if self.max_thinking_tokens is None or self.end_think_id is None:
            return token
        due = answer.shape[1] >= self.max_thinking_tokens
        thinking = due & ~(answer == self.end_think_id).any(1)
        return torch.where(thinking, self.end_think_id, token)

    def ended(self, ends: Tensor, alone: bool) -> Tensor:
        """Of a batch with one stream all rows at once, when each wrote an end token in the same step."""
        return ends if alone else ends.all().expand_as(ends)

    def alive(self, model: Model, x: Tensor, prompt: int, step: int, per_row: bool) -> Tensor:
        """Rows that had not ended before this step."""
        if per_row or len(x) == 1:
            return super().alive(model, x, prompt, step, per_row)
        ends = torch.tensor(end_ids(self.eos, model), dtype=torch.long, device=x.device)
        together = torch.isin(x[:, prompt : prompt + step], ends).all(0).any()
        return ~together.expand(len(x))

    def choose(self, logits: Tensor, streams: Streams | None) -> tuple[Tensor, Tensor]:
        """The most likely token of each row of logits [B, V], or one that is drawn."""
        if streams is None:
            return super().choose(logits, streams)
        spread = (logits / self.temperature).softmax(-1)
        everybody = torch.ones(len(spread), 1, dtype=torch.bool, device=spread.device)
        token = streams.one_of_each(spread, everybody)
        return token, spread.gather(-1, token[:, None])[:, 0]


def check_thinking(tokens: int | None, end_id: int | None) -> None:
    """Both options or none."""
    if (tokens is None) != (end_id is None):
        raise InputError("max_thinking_tokens and end_think_id go together: give both or none")
    if tokens is not None:
        whole("max_thinking_tokens", tokens, 0)
        whole("end_think_id", end_id, 0)
