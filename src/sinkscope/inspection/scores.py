"""Why a score is high: q·k = |q| · |k| · cos, at sinks and elsewhere, per layer.

The gap between the mean score of sinks and of other keys has a part from the length of keys and one from their angle to the
queries: with k̄ and c̄ the means over keys, gap / |q| = (k̄ₛ − k̄ₒ)(c̄ₛ + c̄ₒ)/2 + (c̄ₛ − c̄ₒ)(k̄ₛ + k̄ₒ)/2; length first, then angle.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.inspection.movement import pooled
from sinkscope.inspection.observation import Observation, above_zero


def scores(seen: Observation) -> dict[str, Tensor]:
    """Float64 [L, B] each, over heads with a sink: "query length", "key length at sinks", "key length elsewhere", "cosine at
    sinks", "cosine elsewhere", "gap" (nats, softmax scale included), "angle's part" (of the gap, 1 = all of it)."""
    parts: dict[str, list[Tensor]] = {}
    real = seen.kind >= 0
    for layer, call in enumerate(seen.calls):
        query, key = call.query.double(), call.key.double()
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
        q, k = query.norm(dim=-1), key.norm(dim=-1)
        direction = query / q[..., None].clamp(min=1e-12)
        cosine = direction @ (key / k[..., None].clamp(min=1e-12)).mT
        visible = call.visibility.rows(0, call.visibility.queries, q.device)
        seen_pairs = real[:, None, :, None] & real[:, None, None]
        if visible is not None:
            seen_pairs = seen_pairs & visible
        pairs = seen_pairs.expand_as(cosine)
        mean_cosine = torch.where(pairs, cosine, 0.0).sum(2) / above_zero(pairs.sum(2))
        sinks = seen.sinks[layer]
        holds = sinks.any(-1, keepdim=True) & real[:, None]
        at, other = sinks & holds, ~sinks & holds
        values = {
            "query length": (q, holds), "key length at sinks": (k, at), "key length elsewhere": (k, other),
            "cosine at sinks": (mean_cosine, at), "cosine elsewhere": (mean_cosine, other),
        }  # fmt: skip
        here = {
            name: pooled(value[None], where.expand_as(value)[None])[0]
            for name, (value, where) in values.items()
        }
        ks, ko = here["key length at sinks"], here["key length elsewhere"]
        cs, co = here["cosine at sinks"], here["cosine elsewhere"]
        whole, angle = ks * cs - ko * co, (cs - co) * (ks + ko) / 2
        here["gap"] = whole * here["query length"] * call.scale
        here["angle's part"] = angle / whole
        for name, value in here.items():
            parts.setdefault(name, []).append(value)
    return {name: torch.stack(values) for name, values in parts.items()}
