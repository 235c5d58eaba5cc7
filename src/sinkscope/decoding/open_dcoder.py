"""Open-dCoder's loop: Dream's, with a schedule for every row, and the algorithm p2, which may take tokens back.

Officially one pad token in the prompt makes attention causal; here attention looks both ways in any case.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sinkscope.checks import at_least, one_of, share, whole
from sinkscope.decoding.base import DECODINGS
from sinkscope.decoding.dream import ALGORITHMS, DreamDecoding, placed
from sinkscope.decoding.engine import Engine, select
from sinkscope.decoding.step import Step
from sinkscope.decoding.streams import Streams

EPS = 1e-3
"""Where the time schedule ends."""


@DECODINGS.add
@dataclass(frozen=True)
class OpenDcoderDecoding(DreamDecoding):
    """Open-dCoder's diffusion_generate.

    Attributes:
        algorithm: Dream's, or p2: in every step all answer positions are scored,
            the least confident become masks again, and the other masks are written.
        top_k: None or 0: off. alg_temp: above 0 positions are drawn by Gumbel noise on confidence / alg_temp (not with p2).

    >>> ss.OpenDcoderDecoding(length=32, steps=16, algorithm="p2").steps
    16
    """

    steps: int = 128
    algorithm: Literal["origin", "maskgit_plus", "topk_margin", "entropy", "p2"] = "entropy"  # type: ignore[assignment]

    eps: ClassVar[float] = EPS  # type: ignore[misc]
    threshold: ClassVar[float | None] = None  # type: ignore[misc]
    factor: ClassVar[float | None] = None  # type: ignore[misc]
    kind: ClassVar[str] = "open_dcoder"
    families: ClassVar[tuple[str, ...]] = ("open_dcoder",)

    def __post_init__(self) -> None:
        whole("length", self.length, 1)
        whole("steps", self.steps, 1)
        one_of("algorithm", self.algorithm, (*ALGORITHMS, "p2"))
        at_least("temperature", self.temperature, 0.0)
        if self.top_p is not None:
            share("top_p", self.top_p, "; leave it out to keep all tokens")
        if self.top_k is not None:
            whole("top_k", self.top_k, 0)
        if self.alg_temp is not None:
            at_least("alg_temp", self.alg_temp, 0.0)

    @property
    def edits(self) -> bool:
        """With p2 tokens may become masks again."""
        return self.algorithm == "p2"

    def _steps(self, engine: Engine, x: Tensor, streams: Streams | None, per_row: bool) -> Iterator[Step]:
        times = torch.linspace(1, EPS, self.steps + 1, device=x.device)
        given = x != engine.mask_id
        for i in range(self.steps):
            masked = x == engine.mask_id
            alive = masked.any(1)
            if not bool(alive.any()):
                return
            if not per_row:
                alive = torch.ones_like(alive)
            last, part = i == self.steps - 1, 1 - times[i + 1] / times[i]
            if self.algorithm == "p2":
                step = self._remasking(engine, x, given, (i + 1) / self.steps, streams, alive)
            elif self.algorithm == "origin":
                step = self._random_positions(engine, x, masked, part, last, streams, alive)
            else:
                left = masked.sum(1)
                counts = (left if last else (left.float() * part).long()).tolist()
                if not self.draws and not any(counts):
                    step = engine.idle_step(x, alive)
                else:
                    step = self._best_positions(engine, x, masked, counts, streams, alive)
            x = step.after
            yield step

    def _remasking(
        self, engine: Engine, x: Tensor, given: Tensor, done: float, streams: Streams | None, alive: Tensor
    ) -> Step:
        """A step of p2, after which the share `done` of the answer's positions is written."""
        hidden = engine.hidden(x)
        shifted = torch.cat([hidden[:, :1], hidden[:, :-1]], 1).flatten(0, 1)
        # One draw for every position, the prompt's too, as the official random stream has it.
        candidate, confidence = self.sample(engine.model.head(shifted), streams, torch.ones_like(given))
        candidate, confidence = candidate.view(x.shape), confidence.view(x.shape)
        scores = confidence.masked_fill(given, float("inf"))
        free = (~given).sum(1)
        counts = (free.float() * (1.0 - done)).floor().long().minimum(free)
        order = torch.argsort(scores, dim=1)
        rank = torch.empty_like(order).scatter_(
            1, order, torch.arange(x.shape[1], device=x.device).expand_as(order)
        )
        again = (rank < counts[:, None]) & alive[:, None]
        masked = x == engine.mask_id
        after = torch.where(masked & ~again & alive[:, None], candidate, x)
        after = torch.where(again, engine.mask_id, after)
        tokens, seen = placed(x, masked, candidate[masked], confidence[masked])
        decided = (after != x) & (after != engine.mask_id)
        return Step(x, after, masked, seen, tokens, decided, torch.zeros(len(x), dtype=torch.long), alive)

    def sample(self, logits: Tensor, streams: Streams | None, where: Tensor) -> tuple[Tensor, Tensor]:
        """As Dream's; confidence in the dtype of the logits, but for p2."""
        candidate, confidence = super().sample(logits, streams, where)
        return candidate, confidence if self.algorithm == "p2" else confidence.to(logits.dtype)

    def probabilities(self, logits: Tensor) -> Tensor:
        """As Dream's, but the softmax is in float32."""
        return self.truncated(logits).float().softmax(-1)

    def negative_entropy(self, spread: Tensor) -> Tensor:
        """Σ p log p of each row of Float [N, V], with another floor than Dream's."""
        return (spread * spread.clamp(min=1e-10).log()).sum(-1)

    def choose(self, scores: Tensor, counts: list[int], streams: Streams | None) -> tuple[Tensor, Tensor]:
        """From the top of confidence, or of confidence / alg_temp with Gumbel noise."""
        if not self.alg_temp or streams is None or not any(counts):
            return select(scores, counts)
        shape, rows = (scores.shape[0], scores.shape[1]), [count > 0 for count in counts]
        noise = streams.uniform(shape, scores.dtype, rows).clamp_(min=1e-20, max=1 - 1e-20)
        chosen, _ = select(scores / self.alg_temp - (-noise.log()).log(), counts)
        return chosen, torch.zeros(len(scores), dtype=torch.long)
