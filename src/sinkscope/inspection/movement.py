"""Movement of keys and values: how far they turn from one step to the next, at sinks and elsewhere.

    drift = 1 − cos(k_t, k_t+1), per KV head and position; likewise for v

Only positions whose token stays the same count, so that it is the context that moves them. Elastic-Cache (arXiv 2510.14973)
claims that the most attended token drifts least. Void for causal models: their keys and values are never computed again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.inspection.observation import Observation, row_mean


def movement(before: Observation, after: Observation) -> dict[str, Tensor]:
    """From two steps of the same rows: "key at sinks", "key elsewhere", "value at sinks", "value elsewhere".

    Sinks are those of the first step. Returns Float64 [L, B] each, 0 (still) to 2 (turned around), mean over KV heads and
    positions; NaN where there is none.
    """
    same = (before.tokens == after.tokens) & (before.kind >= 0)
    drifts: dict[str, Tensor] = {}
    calls = list(zip(before.calls, after.calls, strict=True))
    for name in ("key", "value"):
        turned = torch.stack([_drift(getattr(a, name), getattr(b, name)) for a, b in calls])  # [L, B, G, S]
        for where, chosen in (("at sinks", before.kv_sinks), ("elsewhere", ~before.kv_sinks)):
            drifts[f"{name} {where}"] = pooled(turned, chosen & same[None, :, None])
    return drifts


def _drift(before: Tensor, after: Tensor) -> Tensor:
    """1 − cosine of vectors [..., D]; NaN where one of them is 0."""
    lengths = before.double().norm(dim=-1) * after.double().norm(dim=-1)
    dot = (before.double() * after.double()).sum(-1)
    return torch.where(lengths > 0, 1 - dot / lengths.clamp(min=1e-300), float("nan"))


def pooled(values: Tensor, where: Tensor) -> Tensor:
    """Float64 [L, B]: mean of values [L, B, …] over the marked ones; NaN where there is none."""
    where = (where & ~values.isnan()).flatten(2)
    return row_mean(values.flatten(2), where)
