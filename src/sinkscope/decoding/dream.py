"""Dream's loop (diffusion_generate / _sample): no blocks, a float32 time schedule, logits shifted by one.

The number of positions decided per step comes from the mean number of masks over the batch; with a stream per row it is the
row's own. Where truncation leaves one candidate, confidence is the same at many positions and `torch.topk` decides: that is
part of the official behaviour, so its call is kept as it is and ties are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from sinkscope.base.checks import share, whole
from sinkscope.base.errors import InputError
from sinkscope.decoding.base import CHECKS, DECODINGS, Decoding, later_option
from sinkscope.decoding.blocks import top_k_of, top_p_of
from sinkscope.decoding.engine import MaskedStep
from sinkscope.decoding.parallel import check_parallel, confident
from sinkscope.decoding.step import Loop, Request, Step, Wanted, chance, select, shifted


class DreamLoop(Loop["DreamDecoding"]):
    """The algorithm: every step predicts, scores, chooses and writes.

    Attributes:
        masked: Bool [B, S]: the masks of the state.
    """

    def run(self) -> Iterator[Step]:
        """Step by step along the schedule, until no row has anything to do."""
        options = self.options
        times = torch.linspace(1, options.eps, options.steps + 1, device=self.x.device)
        for number in range(options.steps):
            self.masked = self.x == self.engine.mask_id
            if not self.goes_on():
                return
            part = 1 - times[number + 1] / times[number]  # of the masks that are left
            step = self.step(part, last=number == options.steps - 1)
            self.x = step.after
            yield step

    def goes_on(self) -> bool:
        """Whether any row goes on."""
        return True

    def step(self, part: Tensor, last: bool) -> Step:
        """One step, which decides a part of the masks, or all."""
        if self.options.algorithm == "origin":
            return self.by_chance(part, last)
        counts = self.counts(part, last)
        if not self.options.draws and not any(counts):
            return self.engine.idle_step(self.x, self.alive)
        return self.by_confidence(counts)

    def counts(self, part: Tensor, last: bool) -> list[int]:
        """How many positions each row decides, rounded down in float32 as officially."""
        masked = self.masked
        left = masked.sum(1) / 1 if self.per_row else (masked.sum() / len(masked)).expand(len(masked))
        return (left if last else left * part).int().tolist()

    def by_confidence(self, counts: list[int]) -> Step:
        """Candidates and confidence of all masks; the best ones are written.

        A batch mean can exceed a row's masks: the official loop then writes the mask token over other tokens.
        """
        masks = MaskedStep(self.engine, self.x, self.masked)
        confidence = masks.look(self.score, self.predict())
        return masks.write(*self.choose(confidence, counts), self.alive)

    def by_chance(self, part: Tensor, last: bool) -> Step:
        """Each masked position is decided with probability `part`; all of them in the last step."""
        if self.streams is None:
            raise RuntimeError("the origin algorithm needs a random stream")
        masks, hidden = MaskedStep(self.engine, self.x, self.masked), self.predict()
        picked = self.streams.uniform_where(self.masked) < (1.0 if last else part)
        chosen = self.masked.masked_scatter(self.masked, picked)

        def score(hidden: Tensor) -> tuple[Tensor, Tensor]:
            logits = self.model.head(hidden)
            likely, candidate = self.probabilities(logits).max(-1)
            if self.options.temperature > 0:
                candidate[picked], likely[picked] = self.sample(logits[picked], chosen)
            return candidate, likely

        masks.look(score, hidden)
        return masks.write(chosen, torch.zeros_like(self.alive, dtype=torch.long), self.alive)

    def predict(self) -> Tensor:
        """Float [B, S, width]: the hidden states that predict each position, which are read before it."""
        x, masked = self.x, self.masked

        def wanted() -> Wanted:
            start = x.shape[1] - self.options.length
            before = torch.cat([masked[:, 1:], masked[:, :1]], 1)  # a mask in column 0 reads itself
            before[:, 0] |= masked[:, 0]
            before[:, -1] = False
            answer = (torch.arange(x.shape[1], device=x.device) >= start - 1).expand_as(x)
            return Wanted(answer | before | masked, before, start)

        return shifted(self.engine.forward(Request(x, self.alive, wanted=wanted)))

    def score(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Candidates Long [N] and confidence Float [N] of the masks, from hidden states [N, width]."""
        return self.sample(self.model.head(hidden), self.masked)

    def sample(self, logits: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
        """A candidate for each row of logits [N, V], with the algorithm's confidence: Long [N], Float [N].

        Args:
            where: Bool [B, S] with N marked positions: whose logits these are.
        """
        spread = self.probabilities(logits)
        if self.options.temperature > 0 and self.streams is not None:
            candidate = self.streams.one_of_each(spread / spread.sum(-1, keepdim=True), where)
            likely = chance(spread, candidate)
        else:
            likely, candidate = spread.max(-1)
        return candidate, self.confidence(spread, likely)

    def confidence(self, spread: Tensor, likely: Tensor) -> Tensor:
        """The algorithm's confidence, Float [N], from Float [N, V] and the candidate's probability in it, Float [N]."""
        if self.options.algorithm == "topk_margin":
            ordered, _ = torch.sort(spread, -1, descending=True)
            return ordered[:, 0] - ordered[:, 1]
        return self.negative_entropy(spread) if self.options.algorithm == "entropy" else likely

    def choose(self, confidence: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
        """The positions that are decided, Bool [B, S], and ties Long [B], by Float [B, S], −inf where nothing is masked."""
        if self.options.alg_temp and self.streams is not None:
            spread = (confidence / self.options.alg_temp).softmax(-1)
            chosen = torch.zeros_like(confidence, dtype=torch.bool)
            for row, columns in enumerate(self.streams.some_without_replacement(spread, counts)):
                chosen[row, columns] = True
            return chosen, torch.zeros_like(chosen[:, 0], dtype=torch.long)
        return select(confidence, counts)

    def probabilities(self, logits: Tensor) -> Tensor:
        """The distribution after temperature, top_p and top_k: Float [N, V]."""
        return self.truncated(logits).softmax(-1)

    def truncated(self, logits: Tensor) -> Tensor:
        """Logits [N, V] after temperature, top_p and top_k."""
        options, lowest = self.options, torch.finfo(logits.dtype).min
        if options.temperature > 0:
            logits = logits / options.temperature
        return top_k_of(top_p_of(logits, options.top_p, lowest), options.top_k, lowest)

    def negative_entropy(self, spread: Tensor) -> Tensor:
        """Σ p log p of each row of Float [N, V]."""
        return (spread * torch.log(spread + 1e-10)).sum(-1)

    def best(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        spread = self.probabilities(logits)
        likely, candidate = spread.max(-1)
        return candidate, self.confidence(spread, likely).double()


class ParallelDream(DreamLoop):
    """The loop in which confidence decides how many masks a step writes, and a row without masks has ended."""

    def goes_on(self) -> bool:
        self.alive = self.masked.any(1)
        return bool(self.alive.any())

    def step(self, part: Tensor, last: bool) -> Step:
        return self.by_confidence([])

    def choose(self, confidence: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
        return confident(confidence, self.options.threshold, self.options.factor)


@DECODINGS.add
@dataclass(frozen=True)
class DreamDecoding(Decoding):
    """Dream's diffusion_generate: no blocks, any masked position may be decided.

    Attributes:
        steps: by default one per new token.
        algorithm: origin (random positions), maskgit_plus (probability), topk_margin (p1 − p2), entropy (its negative).
        top_p, top_k: candidates outside are cut off, and confidence is that of the truncated distribution; None: off.
            (The official loop uses top_k = 50 if a caller leaves it out; here None means no limit.)
        alg_temp: above 0 positions are drawn by softmax(confidence / alg_temp) instead of taken from the top.
        eps: where the time schedule ends.
        threshold, factor: a step decides every mask that the model is sure of, and at least one, until none is left (not
            official; see LladaDecoding and `parallel`); for maskgit_plus and topk_margin.

    >>> ss.generate("organism/adapted", prompts, ss.DreamDecoding(length=8, temperature=0.0, top_p=None)).states.shape
    torch.Size([9, 1, 44])
    """

    length: int = 128
    steps: int = None  # type: ignore[assignment]  # filled in below
    algorithm: Literal["origin", "maskgit_plus", "topk_margin", "entropy"] = "entropy"
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    alg_temp: float | None = 0.0
    eps: float = 1e-3
    threshold: float | None = later_option()
    factor: float | None = later_option()

    kind: ClassVar[str] = "dream"
    families: ClassVar[tuple[str, ...]] = ("dream",)
    brief: ClassVar[Mapping[str, Any]] = {"length": 64, "steps": 32, "algorithm": "entropy", "temperature": 0.0}
    reusable: ClassVar[bool] = True
    checks: ClassVar[Mapping[str, Any]] = {**CHECKS, "top_k": partial(whole, least=1)}

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", self.length if self.steps is None else self.steps)
        super().__post_init__()
        if share("eps", self.eps, "; the official value is 1e-3") == 1:
            raise InputError("eps should lie between 0 and 1, got 1; the official value is 1e-3")
        other = f"algorithm is {self.algorithm}; use maskgit_plus"
        if self.algorithm in ("maskgit_plus", "topk_margin"):
            other = "alg_temp draws positions" if self.alg_temp else ""
        check_parallel(self.threshold, self.factor, self.length, self.steps, other or None)

    @property
    def loop(self) -> type[DreamLoop]:
        return DreamLoop if self.threshold is None and self.factor is None else ParallelDream

    @property
    def draws(self) -> bool:
        return self.temperature > 0 or self.algorithm == "origin" or bool(self.alg_temp)
