"""SDAR's loops: small blocks from left to right behind a KV cache; every position is sampled, masked or not.

`scoring="filtered"` is the repository's generate.py, "raw" its evaluation loop, with which the published scores were made: there
confidence is the probability before top_k and top_p, only masks are written, and every step draws noise that is not used (it is
part of the random stream). In generate.py, where fewer masks are left than a step decides, `torch.topk` takes other positions of
the block too, and prompt tokens may be overwritten; that is kept. When sampled mask tokens use up all steps of a block, the
official loop fails; here the masks stay, and the next block begins. The official loops take one row; each row of a batch decides
by itself here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from sinkscope.base.checks import at_least, one_of, share, whole
from sinkscope.base.errors import InputError
from sinkscope.decoding.base import DECODINGS, Decoding, checked_ends, end_ids, even_plan
from sinkscope.decoding.blocks import Blocks, block_step, draw, filtered, transferred
from sinkscope.decoding.engine import Engine
from sinkscope.decoding.step import Step, Twin
from sinkscope.decoding.streams import Streams
from sinkscope.models.model import Model

REMASKING = ("low_confidence_dynamic", "low_confidence_static", "sequential")
SCORING = ("filtered", "raw")


@DECODINGS.add
@dataclass(frozen=True)
class SdarDecoding(Decoding):
    """SDAR's block_diffusion_generate.

    Attributes:
        length: new tokens at least; the canvas is rounded up to whole blocks. block: tokens of a block, counted from column 0.
        steps: steps of a block at most. temperature: above 0; `top_k=1` is greedy.
        top_k, top_p: candidates outside are cut off; 0 and 1.0: off.
        remasking: which masks a step writes: all above the threshold if they are enough, else the most confident ones
            (low_confidence_dynamic); always those (low_confidence_static); the next ones from the left (sequential).
        stop: ids after whose block a row ends; None: rows never end, "model": the model's own end ids.
        scoring: "filtered", or "raw": the evaluation loop.

    >>> ss.SdarDecoding(length=30, block=4, top_k=1).block
    4
    """

    length: int = 256
    block: int = 4
    steps: int = 4
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    remasking: Literal["low_confidence_dynamic", "low_confidence_static", "sequential"] = "low_confidence_dynamic"
    threshold: float = 0.85
    stop: int | Sequence[int] | Literal["model"] | None = None
    scoring: Literal["filtered", "raw"] = "filtered"

    kind: ClassVar[str] = "sdar"
    families: ClassVar[tuple[str, ...]] = ("sdar",)
    brief: ClassVar[Mapping[str, Any]] = {
        "length": 64, "top_k": 1, "scoring": "raw", "threshold": 0.95, "stop": "model",
    }  # fmt: skip
    replayable: ClassVar[bool] = False
    cached: ClassVar[bool | None] = True

    def __post_init__(self) -> None:
        for name in ("length", "block", "steps"):
            whole(name, getattr(self, name), 1)
        if at_least("temperature", self.temperature, 0.0) == 0:
            raise InputError("SDAR's loops divide by the temperature: give top_k=1 for greedy decoding")
        whole("top_k", self.top_k, 0)
        share("top_p", self.top_p, "; 1.0 keeps all tokens")
        at_least("threshold", self.threshold, 0.0)
        one_of("remasking", self.remasking, REMASKING)
        one_of("scoring", self.scoring, SCORING)
        if isinstance(self.stop, list):
            object.__setattr__(self, "stop", tuple(self.stop))
        self._stops(None)
        if self.scoring == "raw" and self.block % self.steps:
            raise InputError(
                f"the evaluation loop (scoring='raw') needs steps that divide the block, got {self.steps} for {self.block}"
            )

    @property
    def draws(self) -> bool:
        """Unless one candidate is left."""
        return self.top_k != 1

    @property
    def edits(self) -> bool:
        """In generate.py prompt tokens may be overwritten."""
        return self.scoring == "filtered"

    @property
    def max_steps(self) -> int:
        """Of all blocks, one more than the answer fills, because the prompt need not end with a block."""
        return self.steps * (-(-self.length // self.block) + 1)

    @property
    def passes(self) -> int:
        """Steps, the prompt, and one more for every block that is stored."""
        return self.max_steps + self.max_steps // self.steps + 1

    def columns(self, prompt: int) -> int:
        """Prompt and answer, rounded up to whole blocks."""
        return -(-(prompt + self.length) // self.block) * self.block

    def _stops(self, model: Model | None) -> tuple[int, ...]:
        return () if self.stop == () else end_ids(checked_ends(self.stop, "stop"), model)

    def begin(
        self, engine: Engine, ids: Tensor, streams: Streams | None, per_row: bool, twin: Twin | None = None
    ) -> tuple[Tensor, Iterator[Step]]:
        """Prompts followed by masks up to the end of a block, and the loop."""
        B, prompt = ids.shape
        state = torch.cat([ids, ids.new_full((B, self.columns(prompt) - prompt), engine.mask_id)], 1)
        return state, self._steps(engine, state, prompt, streams)

    def _steps(self, engine: Engine, x: Tensor, prompt: int, streams: Streams | None) -> Iterator[Step]:
        blocks = Blocks(engine, self.block)
        stops = torch.tensor(self._stops(engine.model), dtype=torch.long, device=x.device)
        alive = torch.ones(len(x), dtype=torch.bool, device=x.device)
        first = prompt // self.block * self.block
        blocks.prefill(x, first)
        for start in range(first, x.shape[1], self.block):
            end = start + self.block
            for count in even_plan(self.block, self.steps):
                masked = x[:, start:end] == engine.mask_id
                going = alive & masked.any(1)
                if not bool(going.any()):
                    break
                tokens, confidence = self._candidates(blocks, x, end, going, streams)
                chosen, ties = self._chosen(confidence, masked, count)
                if self.scoring == "raw":
                    chosen = chosen & masked
                step = block_step(x, start, tokens, confidence, chosen, ties, going, engine.mask_id)
                x = step.after
                yield step
            blocks.store(x, end, alive)
            alive = alive & ~torch.isin(x[:, prompt:], stops).any(1)
            if not bool(alive.any()):
                return

    def _candidates(
        self, blocks: Blocks, x: Tensor, end: int, rows: Tensor, streams: Streams | None
    ) -> tuple[Tensor, Tensor]:
        """Tokens Long [B, block] and their probability for every position of the block, masked or not."""
        logits = blocks.engine.model.head(blocks.denoise(x, end, rows))
        warm = logits if self.temperature == 1 else logits / self.temperature
        spread = filtered(warm, self.top_k, self.top_p).softmax(-1)
        if self.scoring == "raw" and streams is not None:
            streams.skip(rows, logits.shape[1:], torch.float64)
        tokens = draw(spread, streams, rows)
        scored = warm.softmax(-1) if self.scoring == "raw" else spread
        return tokens, scored.gather(-1, tokens[..., None])[..., 0]

    def _chosen(self, confidence: Tensor, masked: Tensor, count: int) -> tuple[Tensor, Tensor]:
        if self.remasking == "sequential":
            first = masked.long().argmax(1, keepdim=True)
            columns = torch.arange(masked.shape[1], device=masked.device)[None]
            chosen = (columns >= first) & (columns < first + count)
            return chosen, torch.zeros(len(masked), dtype=torch.long)
        threshold = self.threshold if self.remasking == "low_confidence_dynamic" else None
        return transferred(confidence, masked, count, threshold, overflow=True)
