"""SDAR's loops: small blocks from left to right behind a KV cache; every position is sampled, masked or not.

`scoring="filtered"` is the repository's generate.py, "raw" its evaluation loop, with which the published scores were made: there
confidence is the probability before top_k and top_p, only masks are written, and every step draws noise that is not used (it is
part of the random stream). In generate.py, where fewer masks are left than a step decides, `torch.topk` takes other positions of
the block too, and prompt tokens may be overwritten; that is kept. When sampled mask tokens use up all steps of a block, the
official loop fails; here the masks stay, and the next block begins. The official loops take one row; each row of a batch decides
by itself here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from sinkscope.base.errors import InputError
from sinkscope.decoding.base import DECODINGS, BlockwiseDecoding, checked_ends, end_ids
from sinkscope.decoding.blocks import BlockLoop, draw, top_k_of, top_p_of, transferred
from sinkscope.decoding.step import Step, chance, even_plan
from sinkscope.models.model import Model


class SdarLoop(BlockLoop["SdarDecoding"]):
    """SDAR's loop."""

    def plan(self) -> Iterable[int]:
        return even_plan(self.options.block, self.options.steps)

    def score(self, logits: Tensor, going: Tensor) -> tuple[Tensor, Tensor]:
        """Drawn from what top_k and top_p leave; the evaluation loop's confidence is the probability before them."""
        options, raw = self.options, self.options.scoring == "raw"
        warm = logits if options.temperature == 1 else logits / options.temperature
        spread = top_p_of(top_k_of(warm, options.top_k), options.top_p).softmax(-1)
        if raw and self.streams is not None:  # officially drawn, and not used
            self.streams.uniform(tuple(logits.shape), torch.float64, going.tolist())
        tokens = draw(spread, self.streams, going)
        return tokens, chance(warm.softmax(-1) if raw else spread, tokens)

    def choose(self, tokens: Tensor, confidence: Tensor, masked: Tensor, counts: int) -> tuple[Tensor, Tensor]:
        if self.options.remasking == "sequential":
            first = masked.long().argmax(1, keepdim=True)
            columns = torch.arange(masked.shape[1], device=masked.device)[None]
            chosen, ties = (columns >= first) & (columns < first + counts), torch.zeros(len(masked), dtype=torch.long)
        else:
            threshold = self.options.threshold if self.options.remasking == "low_confidence_dynamic" else None
            chosen, ties = transferred(confidence, masked, counts, threshold, overflow=True)
        return chosen & masked if self.options.scoring == "raw" else chosen, ties

    def close(self) -> Iterable[Step]:
        self.store(self.end)
        stops = torch.tensor(self.options.stops(self.model), dtype=torch.long, device=self.x.device)
        self.alive = self.alive & ~torch.isin(self.x[:, self.prompt :], stops).any(1)
        return ()


@DECODINGS.add
@dataclass(frozen=True)
class SdarDecoding(BlockwiseDecoding):
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
    rounded: ClassVar[bool] = True
    loop: ClassVar[type[SdarLoop]] = SdarLoop

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature == 0:
            raise InputError("SDAR's loops divide by the temperature: give top_k=1 for greedy decoding")
        self.stops(None)
        if self.scoring == "raw" and self.block % self.steps:
            raise InputError(
                f"the evaluation loop (scoring='raw') needs steps that divide the block, got {self.steps} for {self.block}"
            )

    def stops(self, model: Model | None) -> tuple[int, ...]:
        """The ids after whose block a row ends, checked."""
        return end_ids(checked_ends("stop", None if self.stop == () else self.stop), model)

    @property
    def draws(self) -> bool:
        return self.top_k != 1

    @property
    def edits(self) -> bool:
        """In generate.py prompt tokens may be overwritten."""
        return self.scoring == "filtered"

    @property
    def max_steps(self) -> int:
        return self.steps * self.blocks

    @property
    def reads(self) -> int:
        """The prompt, and every block that is stored."""
        return self.blocks + 1
