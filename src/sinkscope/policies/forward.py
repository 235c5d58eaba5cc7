"""What a policy knows of a forward pass before it runs, and for which of its queries a rule acts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sinkscope.base.errors import InputError
from sinkscope.policies.policy import Rule


@dataclass(frozen=True)
class Forward:
    """What a policy knows of a forward before it runs.

    Attributes:
        branches: 2 with guidance. least: real keys that every row has at least, where that is known.
        active: how many of the last queries give the scores, those of the block that is being denoised; None: all.
        step: whether it is a step of the loop. One between two steps (a prefill, a block that is stored) is masked by the scores
            of the step before it, and gives none itself.
        tokens: Long [B, K]: the token ids so far. masked: Bool [B, Q]: queries at mask tokens. scored: Bool [B|1, Q]: queries
            whose predictions are read; None: the newest (causal), or those at mask tokens.
        prefill: the prompt is read into the cache. reading: for its scores only, without the policy.
        spared: Bool [1, Q]: queries of the prompt, in a forward that also holds what follows; rules with prefill=no leave them
            alone.
    """

    branches: int = 1
    least: int | None = None
    active: int | None = None
    step: bool = True
    tokens: Tensor | None = None
    masked: Tensor | None = None
    scored: Tensor | None = None
    prefill: bool = False
    reading: bool = False
    spared: Tensor | None = None

    def queries_of(self, rule: Rule, causal: bool, query: Tensor) -> Tensor | None:
        """Bool [B|1, Q]: the queries for which a rule masks keys; None: all. The newest alone are those of Float [B, H, Q, D]."""
        name, rows = rule.queries, self.scored  # where one forward holds many steps, these are the newest of each
        if name in ("all", "decided"):
            rows = None if name == "all" or self.masked is None else ~self.masked
        elif name == "masked" or (rows is None and name == "scored" and not causal):
            rows = self.masked
        elif rows is None:
            rows = (torch.arange(query.shape[2], device=query.device) == query.shape[2] - 1)[None]
        if rows is None and name != "all":
            raise InputError(f"{rule}: which queries are {name} is not known in this forward; use ss.generate")
        if self.spared is not None and rule.prefill is False:
            rows = ~self.spared if rows is None else rows & ~self.spared
        return rows
