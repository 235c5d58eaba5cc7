"""Open-dCoder's loop: Dream's, with a schedule for every row, and the algorithm p2, which may take tokens back.

Officially one pad token in the prompt makes attention causal; here attention looks both ways in any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from sinkscope.decoding.base import CHECKS, DECODINGS
from sinkscope.decoding.dream import DreamDecoding, DreamLoop
from sinkscope.decoding.step import Request, Step, select, shifted, step_of

EPS = 1e-3
"""Where the time schedule ends."""


class OpenDcoderLoop(DreamLoop):
    """Dream's loop, in which every row counts for itself."""

    options: OpenDcoderDecoding

    def goes_on(self) -> bool:
        """While any row has masks; in a batch with one random stream all rows go on until then."""
        self.alive = self.masked.any(1)
        going = bool(self.alive.any())
        if not self.per_row:
            self.alive = torch.ones_like(self.alive)
        return going

    def begin(self, *group: Any) -> None:
        super().begin(*group)
        self.given, self.number = self.x != self.engine.mask_id, 0

    def step(self, part: Tensor, last: bool) -> Step:
        """As Dream's, or of p2."""
        self.number += 1
        if self.options.algorithm == "p2":
            return self.taking_back(self.number / self.options.steps)
        return super().step(part, last)

    def counts(self, part: Tensor, last: bool) -> list[int]:
        """A part of each row's own masks."""
        left = self.masked.sum(1)
        return (left if last else (left.float() * part).long()).tolist()

    def taking_back(self, done: float) -> Step:
        """A step of p2, after which the share `done` of the answer's positions is written."""
        x, masked, given, mask_id = self.x, self.masked, self.given, self.engine.mask_id
        hidden = self.engine.forward(Request(x))
        # One draw for every position, the prompt's too, as the official random stream has it.
        logits, everywhere = self.model.head(shifted(hidden).flatten(0, 1)), torch.ones_like(given)
        candidate, confidence = self.sample(logits, everywhere)
        candidate, confidence = candidate.view(x.shape), confidence.view(x.shape)
        scores = confidence.masked_fill(given, float("inf"))
        free = (~given).sum(1)
        counts = (free.float() * (1.0 - done)).floor().long().minimum(free)
        order = torch.argsort(scores, dim=1)
        rank = torch.empty_like(order).scatter_(1, order, torch.arange(x.shape[1], device=x.device).expand_as(order))
        again = (rank < counts[:, None]) & self.alive[:, None]
        after = torch.where(masked & ~again & self.alive[:, None], candidate, x)
        after = torch.where(again, mask_id, after)
        tokens, seen = candidate.masked_fill(~masked, -1), confidence.masked_fill(~masked, float("nan"))
        return step_of(x, after, self.alive, mask_id, confidence=seen, candidate=tokens)

    def sample(self, logits: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        """As Dream's; confidence in the dtype of the logits, but for p2."""
        candidate, confidence = super().sample(logits, where)
        return candidate, confidence if self.options.algorithm == "p2" else confidence.to(logits.dtype)

    def probabilities(self, logits: Tensor) -> Tensor:
        """As Dream's, but the softmax is in float32."""
        return self.truncated(logits).float().softmax(-1)

    def negative_entropy(self, spread: Tensor) -> Tensor:
        """Σ p log p of each row of Float [N, V], with another floor than Dream's."""
        return (spread * spread.clamp(min=1e-10).log()).sum(-1)

    def choose(self, confidence: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
        """From the top of confidence, or of confidence / alg_temp with Gumbel noise."""
        if not self.options.alg_temp or self.streams is None or not any(counts):
            return select(confidence, counts)
        shape, rows = (confidence.shape[0], confidence.shape[1]), [count > 0 for count in counts]
        noise = self.streams.uniform(shape, confidence.dtype, rows).clamp_(min=1e-20, max=1 - 1e-20)
        chosen, _ = select(confidence / self.options.alg_temp - (-noise.log()).log(), counts)
        return chosen, torch.zeros_like(chosen[:, 0], dtype=torch.long)


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
    brief: ClassVar[Mapping[str, Any]] = {"length": 64, "steps": 32}

    loop: ClassVar[type[OpenDcoderLoop]] = OpenDcoderLoop
    checks: ClassVar[Mapping[str, Any]] = CHECKS

    @property
    def edits(self) -> bool:
        """With p2 tokens may become masks again."""
        return self.algorithm == "p2"
