"""Run: the result of one generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sinkscope.base.extras import Outcome
from sinkscope.base.masked import MASK
from sinkscope.base.text import html_table
from sinkscope.decoding.base import Decoding

if TYPE_CHECKING:
    from sinkscope.trace.trace import Trace


@dataclass(frozen=True, repr=False)
class Run:
    """What a generation gave.

    Attributes:
        sequences: Long [B, S]: the last state, prompt and answer; −1 where a row has no column.
        output: Long [B, n]: what the official function returns; −1 after the end of shorter rows. None: read from a trace.
        answers: the token ids of each answer, the same in any batch: what stands behind the end of a row is not part of it.
        states: Long [steps + 1, B, S]: states[0] is the prompt with masks, states[i + 1] the state after step i. Causal
            models: positions that are not written yet are −1, step 0 is the prefill, after the end comes padding. Fast-dLLM's
            sequence grows too.
        texts: the answers, decoded; token ids as text where there is no tokenizer.
        ties: Long [steps, B]: selections in which another position had the same confidence.
        forwards: forward passes of each row (guidance counts two per step). taken: steps of each row.
        seed: the seed that was used; drawn, and recorded here, when the decoding needs one and none was given.
        codes: Long [B, N], image codes; None for text.
        trace: what was recorded; None without capture.
        hidden_share: Float [B]: under a policy, the fraction of attention that it removed, mean over all layers and heads and
            the steps in which it masked anything.
        extras: what each extra did (`sinkscope.base.extras`), by name.
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
    taken: list[int] = field(default_factory=list)
    extras: Mapping[str, Outcome] = field(default_factory=dict)

    def __len__(self) -> int:
        """How many steps ran."""
        return len(self.states) - 1

    def answer(self, row: int) -> list[int]:
        """The token ids of a row's answer, without padding: the same in any batch."""
        return self.answers[row]

    def steps(self, row: int) -> int:
        """The steps in which a row took part: until it had ended."""
        return self.taken[row]

    def row_extras(self, row: int) -> dict[str, Any]:
        """What the record of a row says of extras."""
        return {name: value for extra in self.extras.values() for name, value in extra.row(row).items()}

    @property
    def exact(self) -> bool:
        """Whether every step is that of the decoding's own loop."""
        return all(extra.exact for extra in self.extras.values())

    def __repr__(self) -> str:
        rows, length = self.sequences.shape
        traced = "" if self.trace is None else ", traced"
        more = "".join(f", {name} {extra}" for name, extra in self.extras.items())
        return f"<sinkscope run: {rows} × {length} tokens, {len(self)} steps, policy {self.policy or 'none'}{more}{traced}>"

    def _repr_html_(self) -> str:
        """The answers and how they were made, for a notebook."""
        facts = [
            ("decoding", self.decoding), ("policy", self.policy or "none"), ("seed", self.seed), ("steps", len(self)),
            ("forward passes", ", ".join(map(str, self.forwards))),
        ]  # fmt: skip
        facts += list(self.extras.items())
        shares = ((share.heading, getattr(self, share)) for share in MASK)
        facts += [
            (name, ", ".join(f"{share:.1%}" for share in values.tolist()))
            for name, values in shares
            if values is not None
        ]
        answers = [(f"answer {row}", text) for row, text in enumerate(self.texts)]
        table = html_table("sinkscope run", (), [*answers, *facts])
        return table if self.trace is None else table + self.trace._repr_html_()
