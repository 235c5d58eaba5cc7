"""Dormant heads: heads whose output is small beside that of their layer, and what zeroing them costs.

A head is dormant in a row when the norm of its output, mean over the row's queries, is under a tenth of the mean of its layer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.inspection.observation import Observation, above_zero, drawn, predictions_under
from sinkscope.inspection.patch import effects

SHARE = 0.1


class _Zero:
    """Zeroes the outputs of the marked heads, Bool [L, B, H]."""

    def __init__(self, heads: Tensor) -> None:
        self.heads = heads

    def inputs(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return key, value

    def output(self, layer: int, output: Tensor) -> Tensor:
        return output.masked_fill(self.heads[layer][:, :, None, None], 0.0)


def output_norms(seen: Observation) -> Tensor:
    """Float32 [L, B, H]: mean norm of each head's output over the real queries, relative to the mean of its layer (= 1)."""
    real = (seen.kind >= 0)[:, None].float()
    sizes = [call.output.float().norm(dim=-1) for call in seen.calls]
    norms = torch.stack([(size * real).sum(-1) / real.sum(-1) for size in sizes])
    return norms / norms.mean(-1, keepdim=True).clamp(min=1e-30)


def dormant(seen: Observation, share: float = SHARE) -> dict[str, Tensor]:
    """Float64 [B] each: "heads" (share of all heads that are dormant), "sink heads" (share of the dormant heads that have a
    sink), "cost" (nats: KL of the predictions when they are zeroed), "cost of others" (as many random other heads of the same
    layers). Costs are NaN for rows without a dormant head."""
    sleeping = output_norms(seen) < share
    number = sleeping.sum((0, 2)).double()
    has_sink = seen.sinks.any(-1)
    draws = drawn([key + 4 for key in seen.keys], sleeping[:, 0].shape).to(sleeping.device)
    rank = draws.masked_fill(sleeping, 2.0).argsort(-1).argsort(-1)
    others = (rank < sleeping.sum(-1, keepdim=True)) & ~sleeping
    measures = {
        "heads": sleeping.double().mean((0, 2)),
        "sink heads": (sleeping & has_sink).sum((0, 2)) / above_zero(number),
    }
    nowhere = torch.zeros_like(seen.kv_sinks)
    for name, heads in (("cost", sleeping), ("cost of others", others)):
        cost = torch.full_like(number, float("nan"))
        if bool(sleeping.any()):
            after = predictions_under(seen, _Zero(heads))
            cost = effects(seen, after, nowhere)["kl"].masked_fill(number == 0, float("nan"))
        measures[name] = cost
    return measures
