"""Run: the result of one generation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sinkscope.decoding.base import Decoding
from sinkscope.reuse.rule import Reuse
from sinkscope.reuse.work import Work
from sinkscope.text import html_table

if TYPE_CHECKING:
    from sinkscope.trace.trace import Trace


ACCOUNT = {
    "hidden_share": "attention removed",
    "sinks_hit": "sinks masked",
    "strongest_hit": "strongest sink masked",
    "sink_removed": "attention on sinks removed",
}
"""What is said of a policy: the name of each share, and how a person reads it."""


@dataclass(frozen=True, repr=False)
class Run:
    """What a generation gave.

    Attributes:
        sequences: Long [B, S]: the last state, prompt and answer; −1 where a row has no column.
        output: Long [B, n]: what the official function returns; −1 after the end of shorter rows. None: read from a trace.
        answers: the token ids of each answer.
        states: Long [steps + 1, B, S]: states[0] is the prompt with masks, states[i + 1] the state after step i. Causal
            models: positions that are not written yet are −1, step 0 is the prefill, after the end comes padding. Fast-dLLM's
            sequence grows too.
        texts: the answers, decoded; token ids as text where there is no tokenizer.
        ties: Long [steps, B]: selections in which another position had the same confidence.
        forwards: forward passes of each row (guidance counts two per step).
        seed: the seed that was used; drawn, and recorded here, when the decoding needs one and none was given.
        codes: Long [B, N], image codes; None for text.
        trace: what was recorded; None without capture.
        hidden_share: Float [B]: under a policy, the fraction of attention that it removed, mean over all layers and heads and
            the steps in which it masked anything.
        reuse: the rule by which steps were approximate; None: they were exact.
        work: multiply-adds of every row under a reuse rule, and as the exact loop would have done them; None without one.
        error: Float64 [steps, B]: with shadow=True, KL(exact ‖ approximate) of each step's predictions in nats, mean over the
            positions that were read; NaN where no forward ran.
        sinks_hit: Float [B]: the share of all sinks (ε = 3) of those steps, pooled over layers and heads, that it masked; NaN
            when there were none.
        strongest_hit: Float [B]: the share of heads with a sink, over layers and those steps, whose strongest one it masked.
        sink_removed: Float [B]: the share of the attention on sinks that it masked.

    >>> run.texts[0], run.sequences.shape, run.states.shape
    ('He has 6*6=36 seeds.\\nThen 36', torch.Size([1, 55]), torch.Size([17, 1, 55]))
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
    strongest_hit: Tensor | None = None
    sink_removed: Tensor | None = None
    output: Tensor | None = None
    answers: list[list[int]] = field(default_factory=list)
    reuse: Reuse | None = None
    work: Work | None = None
    error: Tensor | None = None

    @property
    def steps(self) -> int:
        """How many steps ran."""
        return len(self.states) - 1

    def __repr__(self) -> str:
        rows, length = self.sequences.shape
        traced = "" if self.trace is None else ", traced"
        reuse = "" if self.reuse is None else f", reuse {self.reuse}"
        return f"<sinkscope run: {rows} × {length} tokens, {self.steps} steps, policy {self.policy or 'none'}{reuse}{traced}>"

    def _repr_html_(self) -> str:
        """The answers and how they were made, for a notebook."""
        facts = [
            ("decoding", self.decoding), ("policy", self.policy or "none"), ("seed", self.seed), ("steps", self.steps),
            ("forward passes", ", ".join(map(str, self.forwards))),
        ]  # fmt: skip
        if self.reuse is not None:
            saved = "" if self.work is None else f", {self.work.saved:.0%} of the multiply-adds saved"
            facts.append(("reuse (approximate steps)", f"{self.reuse}{saved}"))
        shares = zip(ACCOUNT.values(), (getattr(self, name) for name in ACCOUNT), strict=True)
        facts += [
            (name, ", ".join(f"{share:.1%}" for share in values.tolist()))
            for name, values in shares
            if values is not None
        ]
        answers = [(f"answer {row}", text) for row, text in enumerate(self.texts)]
        table = html_table("sinkscope run", (), [*answers, *facts])
        return table if self.trace is None else table + self.trace._repr_html_()
