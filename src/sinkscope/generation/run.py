"""Run: the result of one generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sinkscope.decoding.base import Decoding

if TYPE_CHECKING:
    from sinkscope.trace.trace import Trace


@dataclass(frozen=True)
class Run:
    """What a generation gave.

    Attributes:
        sequences: Long [B, S], prompt and answer.
        states: Long [steps + 1, B, S]: states[0] is the prompt with masks, states[i + 1] the state after step i. Causal
            models: positions that are not written yet are −1, step 0 is the prefill, after the end comes padding.
        texts: the answers, decoded; token ids as text where there is no tokenizer.
        ties: Long [steps, B]: selections that could have gone to another position of equal confidence.
        forwards: forward passes of each row (guidance counts two per step).
        seed: the seed that was used; drawn, and recorded here, when the decoding needs one and none was given.
        codes: Long [B, N], image codes; None for text.
        trace: what was recorded; None without capture.
        hidden_share: Float [B]: under a policy, the share of attention that it masked, mean over all layers and heads and
            the steps in which it masked anything. A policy that misses the sinks shows here.
        sinks_hit: Float [B]: the share of all sinks (ε = 3) of those steps, pooled over layers and heads, that it masked; NaN
            when there were none.
    """

    sequences: Tensor
    states: Tensor
    texts: list[str]
    ties: Tensor
    forwards: list[int]
    decoding: Decoding
    policy: Any
    seed: int | list[int] | None
    prompt: int
    real: Tensor | None
    codes: Tensor | None = None
    trace: Trace | None = None
    hidden_share: Tensor | None = None
    sinks_hit: Tensor | None = None

    @property
    def steps(self) -> int:
        """How many steps ran."""
        return len(self.states) - 1
