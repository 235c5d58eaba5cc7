"""Causal models: one token per step with a KV cache, greedy or sampled.

Step 0 is the prefill. A row that has written an end token gets padding (the model's pad id, else its end id) until all rows
have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from sinkscope.base.checks import share, whole
from sinkscope.base.errors import InputError
from sinkscope.decoding.base import DECODINGS, Decoding, checked_ends, end_ids
from sinkscope.decoding.engine import Engine, asked
from sinkscope.decoding.step import Request, Step, Twin
from sinkscope.decoding.streams import Streams
from sinkscope.models.model import Model


@dataclass(frozen=True)
class CausalDecoding(Decoding):
    """The loop that greedy search and sampling share.

    Attributes:
        length: at most this many new tokens.
        eos: "model": stop at the model's end ids; None: never stop; or the id(s) to stop at.

    >>> isinstance(ss.GreedyDecoding(length=8), ss.CausalDecoding)
    True
    """

    length: int = 128
    eos: str | int | tuple[int, ...] | None = "model"

    families: ClassVar[tuple[str, ...]] = ("causal",)
    brief: ClassVar[Mapping[str, Any]] = {"length": 64}
    causal: ClassVar[bool] = True
    reusable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        whole("length", self.length, 1)
        object.__setattr__(self, "eos", checked_ends(self.eos))

    def end_ids(self, model: Model) -> tuple[int, ...]:
        """The ids that end a row."""
        return end_ids(self.eos, model)

    def filler(self, model: Model) -> int:
        """The model's pad id, else its first end id."""
        return next((one for one in (model.ids.pad, *self.end_ids(model)) if one is not None), 0)

    def begin(
        self, engine: Engine, ids: Tensor, streams: Streams | None, per_row: bool, twin: Twin | None = None
    ) -> tuple[Tensor, Iterator[Step]]:
        """Prompts followed by −1 for what is not written yet, and the loop."""
        state = torch.cat([ids, ids.new_full((len(ids), self.length), -1)], 1)
        return state, self._steps(engine, state, ids.shape[1], streams)

    def _steps(self, engine: Engine, x: Tensor, prompt: int, streams: Streams | None) -> Iterator[Step]:
        ends = torch.tensor(self.end_ids(engine.model), dtype=torch.long, device=x.device)
        filler = self.filler(engine.model)
        alive = torch.ones(len(x), dtype=torch.bool, device=x.device)
        cache = engine.model.new_cache()
        nothing = torch.zeros_like(x, dtype=torch.bool)
        going: Callable[[], bool] | None = None
        for column in range(prompt, prompt + self.length):
            logits = engine.forward_while(going, newest(x, column, 0 if column == prompt else column - 1, cache, alive))
            if logits is None:
                return
            token, confidence = self.choose(logits.float(), streams)
            token = self.settled(token, x[:, prompt:column])
            after = x.clone()
            after[:, column] = torch.where(alive, token, filler)
            seen = torch.full(x.shape, float("nan"), dtype=torch.float32, device=x.device)
            seen[:, column] = confidence.masked_fill(~alive, float("nan"))
            candidate = torch.full_like(x, -1)
            candidate[:, column] = torch.where(alive, token, -1)
            decided = nothing.clone()
            decided[:, column] = alive
            ties = torch.zeros(len(x), dtype=torch.long, device=x.device)
            yield Step(x, after, nothing, seen, candidate, decided, ties, alive)
            x = after
            if len(ends):
                alive = alive & ~self.ended(torch.isin(token, ends), engine.prompts.alone)
                going = asked(partial(_any, alive), x.device)

    def settled(self, token: Tensor, answer: Tensor) -> Tensor:
        """The token Long [B] that is written behind an answer Long [B, n] where one was chosen."""
        return token

    def ended(self, ends: Tensor, alone: bool) -> Tensor:
        """Bool [B]: the rows that end with this step, of those that wrote an end token in it; alone: each by itself."""
        return ends

    def choose(self, logits: Tensor, streams: Streams | None) -> tuple[Tensor, Tensor]:
        """The next token of each row of logits [B, V], and its probability under what it was chosen from: Long, Float32 [B]."""
        token = logits.argmax(-1)
        return token, logits.softmax(-1).gather(-1, token[:, None])[:, 0]

    def alive(self, model: Model, x: Tensor, prompt: int, step: int, per_row: bool) -> Tensor:
        """Rows that have not written an end token yet."""
        ends = torch.tensor(self.end_ids(model), dtype=torch.long, device=x.device)
        return ~torch.isin(x[:, prompt : prompt + step], ends).any(1)


@DECODINGS.add
@dataclass(frozen=True)
class GreedyDecoding(CausalDecoding):
    """A causal model's most likely token at every step.

    >>> ss.generate("organism/causal", prompts, ss.GreedyDecoding(length=12)).texts[0]
    'He has 6*6=36 seeds.\\n'
    """

    kind: ClassVar[str] = "greedy"


@DECODINGS.add
@dataclass(frozen=True)
class SamplingDecoding(CausalDecoding):
    """Sampling from a causal model: temperature first, then the smallest set of tokens with probability top_p.

    >>> sampling = ss.SamplingDecoding(length=4, temperature=0.7, top_p=0.9)
    >>> ss.generate("organism/causal", prompts, sampling, seed=[3]).seed
    [3]
    """

    length: int = 128
    temperature: float = 1.0
    top_p: float | None = 1.0
    eos: str | int | tuple[int, ...] | None = "model"

    kind: ClassVar[str] = "sampling"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_p is None:  # as in DreamDecoding: no truncation
            object.__setattr__(self, "top_p", 1.0)
        warm = isinstance(self.temperature, (int, float)) and not isinstance(self.temperature, bool)
        if not warm or not self.temperature > 0:
            raise InputError(
                f"temperature should be above 0, got {self.temperature!r}; use GreedyDecoding for the most likely"
            )
        share("top_p", self.top_p, "; leave it out to keep all tokens")

    @property
    def draws(self) -> bool:
        """Always."""
        return True

    def choose(self, logits: Tensor, streams: Streams | None) -> tuple[Tensor, Tensor]:
        """A draw from the truncated distribution."""
        if streams is None:
            raise RuntimeError("sampling always draws")
        logits = logits / self.temperature
        if self.top_p is not None and self.top_p < 1:
            ordered, order = torch.sort(logits, descending=False)
            outside = ordered.softmax(-1).cumsum(-1) <= 1 - self.top_p
            outside[:, -1] = False
            logits = logits.masked_fill(torch.zeros_like(outside).scatter_(1, order, outside), float("-inf"))
        spread = logits.softmax(-1)
        token = streams.one_of_each(spread, torch.ones(len(spread), 1, dtype=torch.bool, device=spread.device))
        return token, spread.gather(-1, token[:, None])[:, 0]


def _any(rows: Tensor) -> bool:
    return bool(rows.any())


def next_logits(
    engine: Engine, state: Tensor, written: int, fed: int, cache: Any, alive: Tensor | None = None
) -> Tensor:
    """Logits [B, V] behind the last of the `written` tokens of a causal model, of which `fed` are in the cache."""
    return engine.forward(newest(state, written, fed, cache, alive))


def newest(state: Tensor, written: int, fed: int, cache: Any, alive: Tensor | None = None) -> Request:
    """The forward that feeds the `written` tokens of a causal model of which `fed` are in the cache."""
    return Request(state, alive, slice(fed, written), cache=cache, kind="next" if fed else "prefill")
