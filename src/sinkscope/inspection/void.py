"""Flags: measures that mean nothing for a model, and why."""

from __future__ import annotations

import torch

from sinkscope.inspection.observation import Observation


def void(seen: Observation) -> dict[str, str]:
    """Measure → why it is void here; seen from one observation."""
    reasons: dict[str, str] = {}
    if seen.model.spec.causal:
        reasons["movement"] = (
            "a causal model computes the keys and values of a position once; they cannot move"
        )
        reasons["masks"] = "a causal model has no mask tokens"
        reasons["foresight over time"] = "a causal model has no block that is all masks in its first step"
    norms = torch.stack([call.value.float().norm(dim=-1) for call in seen.calls])[
        :, seen.kind[:, None].expand_as(seen.calls[0].value[..., 0]) >= 0
    ]
    if bool((norms.std(-1) < 1e-3 * norms.mean(-1).clamp(min=1e-30)).all()):
        reasons["value norms"] = (
            "values are normalised: all have one length, so a small value cannot mark a drain"
        )
    if any(call.sink is not None for call in seen.calls):
        reasons["drain"] = (
            "the model has learned sinks without a value, which take attention in place of a position"
        )
    if not bool(seen.layer_sinks.any()):
        reasons["sinks"] = "there is no sink (ε = 3) in this step"
    return reasons
