"""Union: how many different keys a block of queries needs, when each takes its own top k.

    inflation = |∪_q top_k(q)| / k

LoSA's observation: queries share few of their top keys, so that sparse attention over a block costs far more than k keys. 1: all
queries want the same keys. Without sinks: keys that are sinks of the head are left out before each query takes its k.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.inspection.observation import Observation

TOP = 8
BLOCK = 32
"""Queries of a causal model that count as its block: the last ones."""


def block_queries(seen: Observation) -> Tensor:
    """Bool [B, S]: masks of the block that the step can write in; of a causal model the last 32 places that predict."""
    if not seen.model.spec.causal:
        return seen.predicted & seen.reachable
    reads = seen.predicted.roll(-seen.shift, 1)
    return reads & (reads.flip(1).cumsum(1).flip(1) <= BLOCK)


def top_keys(attention: Tensor, k: int) -> Tensor:
    """Bool [..., K]: the k keys with the most attention."""
    return torch.zeros_like(attention, dtype=torch.bool).scatter_(-1, attention.topk(k, -1).indices, True)


def union(seen: Observation, k: int = TOP) -> dict[str, Tensor]:
    """ "with sinks", "without sinks", "by chance" (k random keys for each query): Float64 [L, B], mean over heads.

    NaN for rows with fewer than two queries or fewer than 2k keys.
    """
    queries, real = block_queries(seen), seen.kind >= 0
    keys, asked = real.sum(1), queries.sum(1)
    usable = (asked >= 2) & (keys >= 2 * k)
    sizes: dict[str, list[Tensor]] = {"with sinks": [], "without sinks": []}
    for layer in range(len(seen.calls)):
        attention = seen.attention(layer).masked_fill(~real[:, None, None], -1.0)  # [B, H, Q, K]
        for name in sizes:
            if name == "without sinks":
                attention = attention.masked_fill(seen.sinks[layer][:, :, None], -1.0)
            wanted = top_keys(attention, min(k, attention.shape[-1])) & queries[:, None, :, None]
            sizes[name].append(wanted.any(2).sum(-1).double().mean(1) / k)
    chance = keys / k * (1 - (1 - k / keys.double()) ** asked)
    found = {name: torch.stack(parts) for name, parts in sizes.items()}
    found["by chance"] = chance[None].expand(len(seen.calls), -1)
    return {name: value.masked_fill(~usable[None], float("nan")) for name, value in found.items()}
