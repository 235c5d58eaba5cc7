"""RND1's loop (sampling.py): the positions of highest entropy stay masked, all others are written.

The canvas is prompt, masks and one reserved pad token; logits are shifted by one. With top_k or top_p the official entropy is not
a number (0 · log 0), and `torch.topk` then orders what it finds: kept. With `eb_gamma` a step writes, in the order of their
probability, as many positions as the entropy bound allows, which may be none. The official loop takes one row; each row of a
batch decides by itself here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sinkscope.base.checks import at_least, share, whole
from sinkscope.decoding.base import DECODINGS, Decoding
from sinkscope.decoding.engine import Engine
from sinkscope.decoding.step import Request, Step, Twin
from sinkscope.decoding.streams import Streams


@DECODINGS.add
@dataclass(frozen=True)
class Rnd1Decoding(Decoding):
    """RND1's diffusion_sample.

    Attributes:
        length: new tokens. steps: forward passes at most.
        temperature: divides the logits, in greedy decoding too. greedy: the most likely token, else one is drawn.
        top_k, top_p: candidates outside are cut off; None: off.
        eb_gamma: the bound on entropy that decides how many positions a step writes; None: an even schedule.

    >>> ss.Rnd1Decoding(length=32, steps=16).steps
    16
    """

    length: int = 256
    steps: int = 256
    temperature: float = 1.0
    greedy: bool = True
    top_k: int | None = None
    top_p: float | None = None
    eb_gamma: float | None = None

    kind: ClassVar[str] = "rnd1"
    families: ClassVar[tuple[str, ...]] = ("rnd1",)
    brief: ClassVar[Mapping[str, Any]] = {"length": 64, "steps": 32}
    replayable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        whole("length", self.length, 1)
        whole("steps", self.steps, 1)
        at_least("temperature", self.temperature, 0.0)
        if self.top_k is not None:
            whole("top_k", self.top_k, 0)
        if self.top_p is not None:
            share("top_p", self.top_p, "; leave it out to keep all tokens")
        if self.eb_gamma is not None:
            at_least("eb_gamma", self.eb_gamma, 0.0)

    @property
    def draws(self) -> bool:
        """Unless greedy."""
        return not self.greedy

    @property
    def new_tokens(self) -> int:
        """The answer, and the column that is kept for an end token."""
        return self.length + 1

    def begin(
        self, engine: Engine, ids: Tensor, streams: Streams | None, per_row: bool, twin: Twin | None = None
    ) -> tuple[Tensor, Iterator[Step]]:
        """Prompts followed by masks and a pad token, and the loop."""
        state = torch.nn.functional.pad(ids, (0, self.length), value=engine.mask_id)
        state = torch.nn.functional.pad(state, (0, 1), value=engine.model.ids.pad or 0)
        return state, self._steps(engine, state, ids.shape[1], streams)

    def _steps(self, engine: Engine, x: Tensor, prompt: int, streams: Streams | None) -> Iterator[Step]:
        columns = torch.arange(x.shape[1], device=x.device)
        open_ = ((columns >= prompt) & (columns < prompt + self.length)).expand_as(x)
        for left in range(self.steps - 1, -1, -1):
            alive = open_.any(1)
            if not bool(alive.any()):
                return
            tokens, scores, entropy = self._predictions(engine, x, streams, alive)
            written = torch.stack(
                [self._written(open_[[row]], scores[[row]], entropy[[row]], left) for row in range(len(x))]
            )
            written = written & open_ & alive[:, None]
            after = torch.where(written, tokens, x)
            masked = x == engine.mask_id
            seen = (-entropy if self.eb_gamma is None else scores).float().masked_fill(~masked, float("nan"))
            decided = written & (tokens != engine.mask_id)
            ties = torch.zeros(len(x), dtype=torch.long)
            yield Step(x, after, masked, seen, tokens.masked_fill(~masked, -1), decided, ties, alive)
            x, open_ = after, open_ & ~written

    def _written(self, open_: Tensor, scores: Tensor, entropy: Tensor, left: int) -> Tensor:
        """Bool [S]: what a row writes, from [1, S] each: open positions, log-probabilities and entropies.

        Args:
            left: steps that follow.
        """
        if not left:
            return open_[0]
        picked = torch.zeros_like(open_[0])
        largest = torch.finfo(scores.dtype).max
        if self.eb_gamma is not None:
            order = torch.sort((-scores).masked_fill(~open_, largest), dim=-1).indices
            ordered = entropy.gather(1, order)
            within = (ordered.cumsum(-1) - ordered.cummax(-1).values) <= self.eb_gamma
            picked[order[0, : int(within.sum())]] = True
            return picked
        # As many as officially, in float32, of all that were open at the beginning.
        count = int((torch.tensor([self.length]) * (left / self.steps)).long())
        if count:
            picked[torch.topk(entropy.masked_fill(~open_, -largest), count, dim=-1).indices[0]] = True
        return ~picked

    def _predictions(
        self, engine: Engine, x: Tensor, streams: Streams | None, alive: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """For every position but the first a token Long [B, S], its log-probability, and the entropy."""
        logits = engine.model.head(engine.forward(Request(x, alive))) / max(self.temperature, 1e-8)
        if self.top_k:
            best = torch.topk(logits, min(self.top_k, logits.shape[-1]), dim=-1)
            logits = torch.full_like(logits, float("-inf")).scatter_(-1, best.indices, best.values)
        if self.top_p is not None and 0 < self.top_p < 1:
            ordered, order = torch.sort(logits, descending=True, dim=-1)
            outside = ordered.softmax(-1).cumsum(-1) > self.top_p
            # Officially moved after the first was let in: the two most likely tokens always stay.
            outside = torch.cat([torch.zeros_like(outside[..., :2]), outside[..., 1:-1]], -1)
            logits = logits.masked_fill(torch.zeros_like(outside).scatter_(-1, order, outside), float("-inf"))
        logp = logits.log_softmax(-1)
        spread = logp.exp()
        if self.greedy or streams is None:
            token = logp.argmax(-1)
        else:
            where = alive[:, None].expand(x.shape)
            token = x.clone()
            # The distribution that torch's Categorical makes of these logits.
            drawn = (logp[where] - logp[where].logsumexp(-1, keepdim=True)).softmax(-1)
            token[where] = streams.one_of_each(drawn, where)
        score = logp.gather(-1, token[..., None])[..., 0]
        entropy = -(spread * logp).sum(-1)
        lowest = torch.finfo(score.dtype).min
        tokens, scores, entropies = x.clone(), torch.full_like(score, lowest), torch.zeros_like(entropy)
        tokens[:, 1:], scores[:, 1:], entropies[:, 1:] = token[:, :-1], score[:, :-1], entropy[:, :-1]
        return tokens, scores, entropies
