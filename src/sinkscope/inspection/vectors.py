"""Vectors at sinks and elsewhere: how far keys and values turn, why scores are high, the largest entries of the stream."""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.inspection.observation import Observation, above_zero, row_mean


def movement(before: Observation, after: Observation) -> dict[str, Tensor]:
    """How far keys and values turn between two steps of the same rows: "key at sinks", "key elsewhere", "value at sinks", …

    drift = 1 − cos(k_t, k_t+1), per KV head and position; likewise for v. Only positions whose token stays the same count, so
    that it is the context that moves them. Elastic-Cache (arXiv 2510.14973) claims that the most attended token drifts least.
    Void for causal models: their keys and values are never computed again. Sinks are those of the first step. Returns Float64
    [L, B] each, 0 (still) to 2 (turned around), mean over KV heads and positions; NaN where there is none.
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


def scores(seen: Observation) -> dict[str, Tensor]:
    """Why a score is high, q·k = |q| · |k| · cos: Float64 [L, B] each, over heads with a sink.

    "query length", "key length at sinks", "key length elsewhere", "cosine at sinks", "cosine elsewhere", "gap" (nats, softmax
    scale included), "gap by angle" (of it, in nats; sums tell what part that is, since a single gap may be near 0). The gap
    between the mean score of sinks and of other keys has a part from the length of keys and one from their angle to the queries:
    with k̄ and c̄ the means over keys, gap / |q| = (k̄ₛ − k̄ₒ)(c̄ₛ + c̄ₒ)/2 + (c̄ₛ − c̄ₒ)(k̄ₛ + k̄ₒ)/2; length first, then angle.
    """
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
        here = {name: pooled(value[None], where.expand_as(value)[None])[0] for name, (value, where) in values.items()}
        ks, ko = here["key length at sinks"], here["key length elsewhere"]
        cs, co = here["cosine at sinks"], here["cosine elsewhere"]
        whole, angle = ks * cs - ko * co, (cs - co) * (ks + ko) / 2
        here["gap"] = whole * here["query length"] * call.scale
        here["gap by angle"] = angle * here["query length"] * call.scale
        for name, value in here.items():
            parts.setdefault(name, []).append(value)
    return {name: torch.stack(values) for name, values in parts.items()}


def channels(seen: Observation) -> dict[str, Tensor]:
    """The largest entries of the stream entering each layer, and leaving the last, [L + 1, B] each.

    "at sinks", "elsewhere": Float64: max |x| over channels relative to the row's median |x|, mean over positions (sinks of the
    layer that the stream enters; for the last one those of the last layer). "channel": Long: the channel of the largest entry.
    "same channel": Float64: share of the sinks whose largest entry lies in it. "massive": Float64: share of positions with an
    entry that is massive: |x| > 100 and |x| ≥ 1000 · median |x| of its hidden state (Sun et al. 2024, arXiv 2402.17762).
    """
    size, real = seen.residual.abs(), seen.kind >= 0
    shape = size.shape[:2]
    medians = [row[here].median() for layer in size for row, here in zip(layer, real, strict=True)]
    median = torch.stack(medians).view(shape).clamp(min=1e-30)[..., None]
    largest, channel = size.max(-1)  # [L + 1, B, S]
    sinks = torch.cat([seen.layer_sinks, seen.layer_sinks[-1:]])
    relative = largest / median
    top = size.masked_fill(~real[None, ..., None], 0.0).flatten(2).argmax(-1) % size.shape[-1]
    massive = (largest > 100) & (relative >= 1000)
    every = real[None].expand(*shape, -1)
    return {
        "at sinks": row_mean(relative, sinks),
        "elsewhere": row_mean(relative, ~sinks & every),
        "channel": top,
        "same channel": row_mean(channel == top[..., None], sinks),
        "massive": row_mean(massive, every),
    }
