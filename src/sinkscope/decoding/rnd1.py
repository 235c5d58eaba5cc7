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

from sinkscope.decoding.base import DECODINGS, Decoding
from sinkscope.decoding.blocks import top_k_of, top_p_of
from sinkscope.decoding.step import Loop, Request, Step, chance, step_of


class Rnd1Loop(Loop["Rnd1Decoding"]):
    """The loop of `diffusion_sample`."""

    def first_state(self, ids: Tensor) -> Tensor:
        """Prompts followed by masks and a pad token."""
        state = torch.nn.functional.pad(ids, (0, self.options.length), value=self.engine.mask_id)
        return torch.nn.functional.pad(state, (0, 1), value=self.model.ids.pad or 0)

    def run(self) -> Iterator[Step]:
        """Step by step, until no position is open."""
        options, mask_id = self.options, self.engine.mask_id
        columns = torch.arange(self.x.shape[1], device=self.x.device)
        open_ = ((columns >= self.prompt) & (columns < self.prompt + options.length)).expand_as(self.x)
        for left in range(options.steps - 1, -1, -1):
            alive, x = open_.any(1), self.x
            if not bool(alive.any()):
                return
            tokens, scores, entropy = self.score(self.predict(alive), alive)
            rows = [self.written(open_[[row]], scores[[row]], entropy[[row]], left) for row in range(len(x))]
            written = torch.stack(rows) & open_ & alive[:, None]
            self.x, open_ = torch.where(written, tokens, x), open_ & ~written
            others = x != mask_id
            yield step_of(
                x, self.x, alive, mask_id, candidate=tokens.masked_fill(others, -1), decided=written & (tokens != mask_id),
                confidence=(-entropy if options.eb_gamma is None else scores).float().masked_fill(others, float("nan")),
            )  # fmt: skip

    def predict(self, alive: Tensor) -> Tensor:
        """Log-probabilities [B, S, V] of what stands behind each position, after temperature, top_k and top_p."""
        logits = self.model.head(self.engine.forward(Request(self.x, alive))) / max(self.options.temperature, 1e-8)
        # Officially moved after the first was let in: the two most likely tokens always stay.
        return top_p_of(top_k_of(logits, self.options.top_k, exact=True), self.options.top_p, least=2).log_softmax(-1)

    def score(self, logp: Tensor, alive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For every position but the first a token Long [B, S], its log-probability, and the entropy."""
        x = self.x
        if self.options.greedy or self.streams is None:
            token = logp.argmax(-1)
        else:
            where = alive[:, None].expand(x.shape)
            token = x.clone()
            # The distribution that torch's Categorical makes of these logits.
            drawn = (logp[where] - logp[where].logsumexp(-1, keepdim=True)).softmax(-1)
            token[where] = self.streams.one_of_each(drawn, where)
        score, entropy = chance(logp, token), -(logp.exp() * logp).sum(-1)
        lowest = torch.finfo(score.dtype).min
        tokens, scores, entropies = x.clone(), torch.full_like(score, lowest), torch.zeros_like(entropy)
        tokens[:, 1:], scores[:, 1:], entropies[:, 1:] = token[:, :-1], score[:, :-1], entropy[:, :-1]
        return tokens, scores, entropies

    def written(self, open_: Tensor, scores: Tensor, entropy: Tensor, left: int) -> Tensor:
        """Bool [S]: what a row writes, from [1, S] each: open positions, log-probabilities and entropies.

        Args:
            left: steps that follow.
        """
        if not left:
            return open_[0]
        picked = torch.zeros_like(open_[0])
        largest = torch.finfo(scores.dtype).max
        if self.options.eb_gamma is not None:
            order = torch.sort((-scores).masked_fill(~open_, largest), dim=-1).indices
            ordered = entropy.gather(1, order)
            within = (ordered.cumsum(-1) - ordered.cummax(-1).values) <= self.options.eb_gamma
            picked[order[0, : int(within.sum())]] = True
            return picked
        # As many as officially, in float32, of all that were open at the beginning.
        count = int((torch.tensor([self.options.length]) * (left / self.options.steps)).long())
        if count:
            picked[torch.topk(entropy.masked_fill(~open_, -largest), count, dim=-1).indices[0]] = True
        return ~picked


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
    loop: ClassVar[type[Rnd1Loop]] = Rnd1Loop

    @property
    def draws(self) -> bool:
        return not self.greedy

    @property
    def new_tokens(self) -> int:
        """The answer, and the column that is kept for an end token."""
        return self.length + 1
