"""Causal models: one token per step with a KV cache, greedy or sampled.

Step 0 is the prefill. A row that has written an end token gets padding (the model's pad id, else its end id) until all rows
have ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sinkscope.base.errors import InputError
from sinkscope.decoding.base import DECODINGS, Decoding, end_ids
from sinkscope.decoding.blocks import placed, top_p_of
from sinkscope.decoding.step import Loop, Request, Step, chance
from sinkscope.decoding.streams import Streams
from sinkscope.models.model import Model


class CausalLoop(Loop[Any]):
    """The loop of all causal decodings: the most likely token at every step.

    Attributes:
        column: where the next token is written.
    """

    grows: ClassVar[bool] = True

    def run(self) -> Iterator[Step]:
        """Token by token, until every row has ended."""
        ends = self.options.ends(self.model)
        filler, cache = self.options.filler(self.model), self.model.new_cache()
        nothing = torch.zeros_like(self.x, dtype=torch.bool)
        for column in range(self.prompt, self.x.shape[1]):
            self.column, fed = column, 0 if column == self.prompt else column - 1
            request = newest(self.x, column, fed, cache, self.alive)
            logits = self.engine.forward_while(self.alive if fed and len(ends) else None, request)
            if logits is None:
                return
            token, confidence = self.choose(logits.float())
            x, alive = self.x, self.alive[:, None]
            self.x = x.clone()
            self.x[:, column] = torch.where(self.alive, token, filler)
            yield Step(
                x, self.x, nothing,
                placed(confidence[:, None].masked_fill(~alive, float("nan")), x, column, float("nan")),
                placed(torch.where(alive, token[:, None], -1), x, column, -1), placed(alive, x, column, False),
                torch.zeros(len(x), dtype=torch.long, device=x.device), self.alive,
            )  # fmt: skip
            if len(ends):
                self.alive = self.alive & ~self.ended(torch.isin(token, ends))

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The next token of each row of logits [B, V], and its probability under what it was chosen from: Long, Float32 [B]."""
        token = logits.argmax(-1)
        return token, chance(logits.softmax(-1), token)

    def ended(self, ends: Tensor) -> Tensor:
        """Bool [B]: the rows that end with this step, of those that wrote an end token in it."""
        return ends


class SamplingLoop(CausalLoop):
    """The same with a draw from the truncated distribution."""

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        logits = top_p_of(logits / self.options.temperature, self.options.top_p, rising=True)
        return one_of_all(logits.softmax(-1), self.streams)


def one_of_all(spread: Tensor, streams: Streams | None) -> tuple[Tensor, Tensor]:
    """A token drawn from each row of Float [B, V], and its probability: Long, Float [B]."""
    if streams is None:
        raise RuntimeError("sampling always draws")
    token = streams.one_of_each(spread, torch.ones(len(spread), 1, dtype=torch.bool, device=spread.device))
    return token, chance(spread, token)


@dataclass(frozen=True)
class CausalDecoding(Decoding):
    """What greedy search and sampling share.

    Attributes:
        length: at most this many new tokens.
        eos: "model": stop at the model's end ids; None: never stop; or the id(s) to stop at. Each declares it itself, as the
            last of its usual arguments.

    >>> isinstance(ss.GreedyDecoding(length=8), ss.CausalDecoding)
    True
    """

    length: int = 128

    families: ClassVar[tuple[str, ...]] = ("causal",)
    brief: ClassVar[Mapping[str, Any]] = {"length": 64}
    causal: ClassVar[bool] = True
    reusable: ClassVar[bool] = True
    written_first: ClassVar[tuple[str, ...]] = ("length", "eos")
    loop: ClassVar[type[CausalLoop]] = CausalLoop

    def ends(self, model: Model) -> Tensor:
        """Long [n]: the ids that end a row."""
        return torch.tensor(end_ids(getattr(self, "eos", None), model), dtype=torch.long, device=model.device)

    def filler(self, model: Model) -> int:
        """The model's pad id, else its first end id."""
        return next((one for one in (model.ids.pad, *self.ends(model).tolist()) if one is not None), 0)

    def alive(self, model: Model, x: Tensor, prompt: int, step: int, per_row: bool) -> Tensor:
        return ~torch.isin(x[:, prompt : prompt + step], self.ends(model).to(x.device)).any(1)


@DECODINGS.add
@dataclass(frozen=True)
class GreedyDecoding(CausalDecoding):
    """A causal model's most likely token at every step.

    >>> ss.generate("organism/causal", prompts, ss.GreedyDecoding(length=12)).texts[0]
    'He has 6*6=36 seeds.\\n'
    """

    eos: str | int | tuple[int, ...] | None = "model"

    kind: ClassVar[str] = "greedy"


@DECODINGS.add
@dataclass(frozen=True)
class SamplingDecoding(CausalDecoding):
    """Sampling from a causal model: temperature first, then the smallest set of tokens with probability top_p.

    >>> sampling = ss.SamplingDecoding(length=4, temperature=0.7, top_p=0.9)
    >>> ss.generate("organism/causal", prompts, sampling, seed=[3]).seed
    [3]
    """

    temperature: float = 1.0
    top_p: float | None = 1.0
    eos: str | int | tuple[int, ...] | None = "model"

    kind: ClassVar[str] = "sampling"
    draws: ClassVar[bool] = True
    loop: ClassVar[type[SamplingLoop]] = SamplingLoop

    def __post_init__(self) -> None:
        if self.top_p is None:  # as in DreamDecoding: no truncation
            object.__setattr__(self, "top_p", 1.0)
        super().__post_init__()
        if self.temperature == 0:
            raise InputError("temperature should be above 0, got 0; use GreedyDecoding for the most likely")


def newest(state: Tensor, written: int, fed: int, cache: Any, alive: Tensor | None = None) -> Request:
    """The forward that feeds the `written` tokens of a causal model of which `fed` are in the cache."""
    return Request(state, alive, slice(fed, written), cache=cache, kind="next" if fed else "prefill")
