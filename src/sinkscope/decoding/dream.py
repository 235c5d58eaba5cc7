"""Dream's loop (diffusion_generate / _sample): no blocks, a float32 time schedule, logits shifted by one.

The number of positions decided per step comes from the mean number of masks over the batch; with a stream per row it is the
row's own. Where truncation leaves one candidate, confidence is the same at many positions and `torch.topk` decides: that is
part of the official behaviour, so its call is kept as it is and ties are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sinkscope.checks import at_least, one_of, share, whole
from sinkscope.decoding.base import DECODINGS, Decoding, Twin, shifted
from sinkscope.decoding.engine import Engine, marked, select
from sinkscope.decoding.parallel import check_parallel, confident, later_option
from sinkscope.decoding.step import Step
from sinkscope.decoding.streams import Streams
from sinkscope.errors import InputError
from sinkscope.models.model import Model
from sinkscope.reuse.rule import Wanted

ALGORITHMS = ("origin", "maskgit_plus", "topk_margin", "entropy")


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
    reusable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        whole("length", self.length, 1)
        object.__setattr__(self, "steps", self.length if self.steps is None else self.steps)
        whole("steps", self.steps, 1)
        one_of("algorithm", self.algorithm, ALGORITHMS)
        at_least("temperature", self.temperature, 0.0)
        if self.top_p is not None:
            share("top_p", self.top_p, "; leave it out to keep all tokens")
        if self.top_k is not None:
            whole("top_k", self.top_k, 1)
        if self.alg_temp is not None:
            at_least("alg_temp", self.alg_temp, 0.0)
        if share("eps", self.eps, "; the official value is 1e-3") == 1:
            raise InputError("eps should lie between 0 and 1, got 1; the official value is 1e-3")
        other = f"algorithm is {self.algorithm}; use maskgit_plus"
        if self.algorithm in ("maskgit_plus", "topk_margin"):
            other = "alg_temp draws positions" if self.alg_temp else ""
        check_parallel(self.threshold, self.factor, self.length, self.steps, other or None)

    @property
    def parallel(self) -> bool:
        """Whether confidence decides how many masks a step writes."""
        return self.threshold is not None or self.factor is not None

    @property
    def draws(self) -> bool:
        """Above temperature 0, with alg_temp, and where positions are random."""
        return self.temperature > 0 or self.algorithm == "origin" or bool(self.alg_temp)

    def begin(
        self, engine: Engine, ids: Tensor, streams: Streams | None, per_row: bool, twin: Twin | None = None
    ) -> tuple[Tensor, Iterator[Step]]:
        """Prompts followed by masks, and the loop."""
        state = torch.cat([ids, ids.new_full((len(ids), self.length), engine.mask_id)], 1)
        return state, self._steps(engine, state, streams, per_row)

    def _steps(self, engine: Engine, x: Tensor, streams: Streams | None, per_row: bool) -> Iterator[Step]:
        times = torch.linspace(1, self.eps, self.steps + 1, device=x.device)
        alive = torch.ones(len(x), dtype=torch.bool, device=x.device)
        for i in range(self.steps):
            part = 1 - times[i + 1] / times[i]  # of the masks that are left
            last = i == self.steps - 1
            masked = x == engine.mask_id
            if self.parallel:
                alive = masked.any(1)
                if not bool(alive.any()):
                    return
            if self.algorithm == "origin":
                step = self._random_positions(engine, x, masked, part, last, streams, alive)
            elif self.parallel:
                step = self._best_positions(engine, x, masked, [], streams, alive)
            else:
                counts = _counts(masked, part, last, per_row)
                if not self.draws and not any(counts):
                    step = engine.idle_step(x, alive)
                else:
                    step = self._best_positions(engine, x, masked, counts, streams, alive)
            x = step.after
            yield step

    def _best_positions(
        self,
        engine: Engine,
        x: Tensor,
        masked: Tensor,
        counts: list[int],
        streams: Streams | None,
        alive: Tensor,
    ) -> Step:
        logits = engine.model.head(shifted(self._hidden(engine, x, masked, alive), masked))
        candidate, confidence = self.sample(logits, streams, masked)
        tokens, seen = placed(x, masked, candidate, confidence)
        chosen, ties = self.choose(seen.masked_fill(~masked, float("-inf")), counts, streams)
        # A batch mean can exceed a row's masks: the official loop then writes the mask token over other tokens.
        written = torch.where(masked, tokens, engine.mask_id)
        decided = chosen & (written != engine.mask_id)
        return Step(x, torch.where(chosen, written, x), masked, seen, tokens, decided, ties, alive)

    def choose(self, scores: Tensor, counts: list[int], streams: Streams | None) -> tuple[Tensor, Tensor]:
        """The positions that are decided, Bool [B, S], and ties Long [B]; scores: Float [B, S], −inf where nothing is masked."""
        if self.parallel:
            return confident(scores, self.threshold, self.factor)
        if self.alg_temp and streams is not None:
            spread = (scores / self.alg_temp).softmax(-1)
            chosen = marked(streams.some_without_replacement(spread, counts), scores)
            return chosen, torch.zeros(len(scores), dtype=torch.long)
        return select(scores, counts)

    def _random_positions(
        self,
        engine: Engine,
        x: Tensor,
        masked: Tensor,
        part: Tensor,
        last: bool,
        streams: Streams | None,
        alive: Tensor,
    ) -> Step:
        logits = engine.model.head(shifted(self._hidden(engine, x, masked, alive), masked))
        chosen = _by_chance(masked, part, last, streams)
        confidence, candidate = self.probabilities(logits).max(-1)
        if self.temperature > 0:
            picked = chosen[masked]
            candidate[picked], confidence[picked] = self.sample(logits[picked], streams, chosen)
        tokens, seen = placed(x, masked, candidate, confidence)
        after = x.clone()
        after[chosen] = tokens[chosen]
        decided = chosen & (tokens != engine.mask_id)
        return Step(x, after, masked, seen, tokens, decided, torch.zeros(len(x), dtype=torch.long), alive)

    def _hidden(self, engine: Engine, x: Tensor, masked: Tensor, alive: Tensor) -> Tensor:
        """Hidden states [B, S, width]; under a reuse rule the answer, and the columns before masks, are what is wanted."""
        if engine.reuse is None:
            return engine.hidden(x, alive if self.parallel else None)
        start = x.shape[1] - self.length
        before = torch.cat([masked[:, 1:], masked[:, :1]], 1)  # a mask in column 0 reads itself
        before[:, 0] |= masked[:, 0]
        before[:, -1] = False
        answer = (torch.arange(x.shape[1], device=x.device) >= start - 1).expand_as(x)
        return engine.hidden(x, alive, Wanted(answer | before | masked, before, start))

    def probabilities(self, logits: Tensor) -> Tensor:
        """The distribution after temperature, top_p and top_k: Float [N, V]."""
        return self.truncated(logits).softmax(-1)

    def truncated(self, logits: Tensor) -> Tensor:
        """Logits [N, V] after temperature, top_p and top_k."""
        if self.temperature > 0:
            logits = logits / self.temperature
        lowest = torch.finfo(logits.dtype).min
        if self.top_p is not None and self.top_p < 1:
            ordered, order = torch.sort(logits, descending=True)
            outside = ordered.softmax(-1).cumsum(-1) > self.top_p
            # Moved by one, so that the token which passes the bound is still inside, and the first always is.
            outside = torch.cat([torch.zeros_like(outside[:, :1]), outside[:, :-1]], 1)
            logits = logits.masked_fill(torch.zeros_like(outside).scatter_(-1, order, outside), lowest)
        if self.top_k:
            most = min(self.top_k, logits.shape[-1])
            logits = logits.masked_fill(logits < torch.topk(logits, most)[0][..., -1, None], lowest)
        return logits

    def sample(self, logits: Tensor, streams: Streams | None, where: Tensor) -> tuple[Tensor, Tensor]:
        """A candidate for each row of logits [N, V], with the algorithm's confidence: Long [N], Float [N].

        Args:
            where: Bool [B, S] with N marked positions: whose logits these are.
        """
        spread = self.probabilities(logits)
        if self.temperature > 0 and streams is not None:
            candidate = streams.one_of_each(spread / spread.sum(-1, keepdim=True), where)
            confidence = spread.gather(-1, candidate[:, None])[:, 0]
        else:
            confidence, candidate = spread.max(-1)
        return candidate, self._confidence(spread, confidence)

    def _confidence(self, spread: Tensor, confidence: Tensor) -> Tensor:
        if self.algorithm == "topk_margin":
            ordered, _ = torch.sort(spread, -1, descending=True)
            return ordered[:, 0] - ordered[:, 1]
        if self.algorithm == "entropy":
            return self.negative_entropy(spread)
        return confidence

    def negative_entropy(self, spread: Tensor) -> Tensor:
        """Σ p log p of each row of Float [N, V]."""
        return (spread * torch.log(spread + 1e-10)).sum(-1)

    def best(self, model: Model, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The most likely token, and the algorithm's confidence in it."""
        spread = self.probabilities(logits)
        confidence, candidate = spread.max(-1)
        return candidate, self._confidence(spread, confidence).double()


def placed(x: Tensor, masked: Tensor, candidate: Tensor, confidence: Tensor) -> tuple[Tensor, Tensor]:
    """Candidates and confidence of the masked positions in frames of the state: Long [B, S] (−1), Float [B, S] (NaN)."""
    tokens = torch.full_like(x, -1)
    seen = torch.full(x.shape, float("nan"), dtype=confidence.dtype, device=x.device)
    tokens[masked], seen[masked] = candidate, confidence
    return tokens, seen


def _by_chance(masked: Tensor, part: Tensor, last: bool, streams: Streams | None) -> Tensor:
    """Bool [B, S]: each masked position with probability `part`; all of them in the last step."""
    chosen = torch.zeros_like(masked)
    if streams is None:
        raise RuntimeError("the origin algorithm needs a random stream")
    chosen[masked] = streams.uniform_where(masked) < (1.0 if last else part)
    return chosen


def _counts(masked: Tensor, part: Tensor, last: bool, per_row: bool) -> list[int]:
    """How many positions each row decides, rounded down in float32 as officially."""
    left = masked.sum(1) / 1 if per_row else (masked.sum() / len(masked)).expand(len(masked))
    return (left if last else left * part).int().tolist()
