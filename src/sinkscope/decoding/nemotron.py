"""Nemotron-Labs-Diffusion's loops: blocks behind a KV cache that was read causally, and the same weights token by token.

A block begins with a seed, the next token of the causal model, and masks. It is denoised in parallel; then a causal forward of
its own stores it and gives the next seed. Blocks are counted from the end of the prompt, and the sequence grows: states hold −1
where it does not reach yet. Denoising and storing forwards are steps; logits of the first kind predict their own position, of the
second the next.

Kept from the official loop: an end token leaves its block at once, with the masks behind it, which are stored; in a batch one
row's end token does so for all rows, and all go on until each has one. With a stream for every row each decides by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sinkscope.attention.visibility import behind_a_prompt
from sinkscope.base.errors import InputError
from sinkscope.decoding.base import DECODINGS, BlockwiseDecoding, end_ids, until
from sinkscope.decoding.blocks import BlockLoop, complete, draw, noisy, transferred
from sinkscope.decoding.causal import CausalDecoding, CausalLoop, one_of_all
from sinkscope.decoding.parallel import confident
from sinkscope.decoding.step import Request, Step, even_plan, step_of
from sinkscope.models.model import Model


class NemotronLoop(BlockLoop["NemotronDecoding"]):
    """The loop of `generate`; the prompt is read before the first step, whose block needs a seed."""

    grows: ClassVar[bool] = True

    def begin(self, *group: Any) -> None:
        super().begin(*group)
        ends = end_ids(self.options.eos, self.model)
        self.ends = torch.tensor(ends, dtype=torch.long, device=self.x.device)
        hidden = self.read(self.prompt, needed=self.options.causal_context)
        self.open(self.x, self.prompt, hidden)

    def seen(self, request: Request) -> dict[str, Any]:
        """Prompt and finished blocks were read causally, or both ways; the active block sees all of itself."""
        end, size, stored = request.end or request.queries.stop, self.options.block, request.cache is not None
        if self.options.causal_context and request.kind != "denoise":
            return {"block": None, "causal": True}
        if stored:
            return {"block": None, "pattern": None}
        first, size_behind = (end - size, None) if self.options.causal_context else (self.prompt, size)
        return {"block": None, "pattern": behind_a_prompt(first, end, size_behind, request.ids.device)}

    def open(self, x: Tensor, start: int, hidden: Tensor | None) -> None:
        """Write a new block in place, in rows that are alive: masks, the seed, and the end of thinking where it is due.

        Args:
            hidden: of the forward that read what stands before.
        """
        options, rows, seed = self.options, self.alive, None
        if options.causal_context and hidden is not None:
            logits = self.model.head(hidden[:, -1:])
            warm = logits / options.temperature if options.temperature > 0 else logits
            seed = draw(warm.softmax(-1) if self.streams is not None else warm, self.streams, rows)[:, 0]
        if start == self.behind:
            return  # it was drawn all the same
        here = x[:, start : start + options.block]
        here[rows] = self.engine.mask_id
        if seed is not None:
            here[:, 0] = torch.where(rows, seed, here[:, 0])
        if options.max_thinking_tokens is not None and options.end_think_id is not None:
            due = options.max_thinking_tokens - (start - self.prompt)
            thinking = rows & ~(x[:, self.prompt : start] == options.end_think_id).any(1)
            if due < options.block:
                column = max(0, due)
                here[:, column] = torch.where(thinking, options.end_think_id, here[:, column])

    def plan(self) -> Iterable[list[int]]:
        """One mask of each row in a step, as long as it has some."""
        masks = (self.x[:, self.here] == self.engine.mask_id).sum(1).tolist()
        return map(list, zip(*(even_plan(count, self.options.block) for count in masks), strict=True))

    def going(self, masked: Tensor, counts: list[int]) -> Tensor:
        return self.staying & (masked.any(1) if self.alone else masked.any())

    def score(self, logits: Tensor, going: Tensor) -> tuple[Tensor, Tensor]:
        return noisy(logits, self.options.temperature, self.streams, going)

    def choose(self, tokens: Tensor, confidence: Tensor, masked: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
        if self.options.threshold is None:
            return transferred(confidence, masked, counts)
        return confident(confidence.masked_fill(~masked, float("-inf")), self.options.threshold, None)

    def leaves(self, tokens: Tensor, chosen: Tensor, going: Tensor) -> bool:
        ended = complete(self.x[:, self.here], self.ends, self.engine.mask_id) & going
        self.staying = self.staying & ~(ended if self.alone else ended.any())
        return False

    def close(self) -> Iterable[Step]:
        """A step, which also writes the seed of the next block."""
        x, alive = self.x, self.alive
        hidden = self.store(self.end, needed=True, step=True)
        after = x.clone()
        finished = torch.isin(x[:, self.prompt : self.end], self.ends).any(1)
        # The official loop draws a seed behind its last block too.
        self.open(after, self.end, hidden)
        self.alive = alive & ~(finished if self.alone else finished.all())
        self.x = torch.where((alive & ~self.alive)[:, None], x, after)  # rows that have ended open no block
        return [step_of(x, self.x, alive, self.engine.mask_id, kind="store")]


@DECODINGS.add
@dataclass(frozen=True)
class NemotronDecoding(BlockwiseDecoding):
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
    whole_blocks: ClassVar[bool] = True
    loop: ClassVar[type[NemotronLoop]] = NemotronLoop
    reads: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length % self.block:
            raise InputError(f"length should be whole blocks of {self.block} tokens, got {self.length}")
        check_thinking(self.max_thinking_tokens, self.end_think_id)

    @property
    def max_steps(self) -> int:
        """At most one for every token, and one that stores each block."""
        return self.length + self.blocks

    def output(self, model: Model, states: Tensor, starts: list[int], alone: bool) -> list[Tensor]:
        """Prompt and answer, cut behind the end token; of a batch behind the last row's, if every row has one."""
        rows, ends = super().output(model, states, starts, alone), end_ids(self.eos, model)
        answers = [row[start:] for row, start in zip(rows, starts, strict=True)]
        cuts = [start + len(until(answer, ends)) for answer, start in zip(answers, starts, strict=True)]
        if not alone:
            ended = all(bool(torch.isin(answer, torch.tensor(ends)).any()) for answer in answers)
            cuts = [max(cuts) if ended else len(row) for row in rows]
        return [row[:cut] for row, cut in zip(rows, cuts, strict=True)]

    def answer_ends(self, model: Model) -> tuple[int, ...]:
        return end_ids(self.eos, model)


class NemotronCausalLoop(CausalLoop):
    """The loop of `ar_generate`."""

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The most likely token, or one that is drawn; where it is due, the end of thinking."""
        options, answer = self.options, self.x[:, self.prompt : self.column]
        if self.streams is None:
            token, confidence = super().choose(logits)
        else:
            token, confidence = one_of_all((logits / options.temperature).softmax(-1), self.streams)
        if options.max_thinking_tokens is not None and answer.shape[1] >= options.max_thinking_tokens:
            thinking = ~(answer == options.end_think_id).any(1)
            token = torch.where(thinking, options.end_think_id, token)
        return token, confidence

    def ended(self, ends: Tensor) -> Tensor:
        """Of a batch with one stream all rows at once, when each wrote an end token in the same step."""
        return ends if self.alone else ends.all().expand_as(ends)


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

    temperature: float = 0.0
    eos: str | int | tuple[int, ...] | None = "model"
    max_thinking_tokens: int | None = None
    end_think_id: int | None = None

    kind: ClassVar[str] = "nemotron_causal"
    families: ClassVar[tuple[str, ...]] = ("nemotron_causal", "nemotron")
    loop: ClassVar[type[NemotronCausalLoop]] = NemotronCausalLoop

    def __post_init__(self) -> None:
        super().__post_init__()
        check_thinking(self.max_thinking_tokens, self.end_think_id)

    def alive(self, model: Model, x: Tensor, prompt: int, step: int, per_row: bool) -> Tensor:
        """Rows that had not ended before this step."""
        if per_row or len(x) == 1:
            return super().alive(model, x, prompt, step, per_row)
        together = torch.isin(x[:, prompt : prompt + step], self.ends(model).to(x.device)).all(0).any()
        return ~together.expand(len(x))


def check_thinking(tokens: int | None, end_id: int | None) -> None:
    """Both options or none."""
    if (tokens is None) != (end_id is None):
        raise InputError("max_thinking_tokens and end_think_id go together: give both or none")
