"""Where attention goes: to which kinds of positions, to how many different keys, and to which of them later or deeper."""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.inspection.observation import KINDS, Observation, above_zero

DESTINATIONS = (*KINDS, "itself")
TOP = 8
BLOCK = 32
"""Queries of a causal model that count as its block: the last ones."""


def destinations(seen: Observation) -> dict[str, Tensor]:
    """ "prompt", "mask", "written", "itself", "sinks": Float64 [L, B, H]: shares of attention; the first four add up to 1.

    Queries are those that predict: masks, or the places of a causal model whose next token is part of the answer (MaskKV, arXiv
    2510.09309, scores prompt keys by mask queries). And "even: prompt", …: Float64 [L, B, H]: the shares if every visible key
    got as much. NaN for rows that predict nothing. With a learned sink the four add up to less: the rest goes to it.
    """
    rows = len(seen.rows)
    queries = seen.predicted.roll(-seen.shift, 1) if seen.shift else seen.predicted
    count = above_zero(queries.sum(1))[:, None]
    itself = torch.eye(seen.kind.shape[1], dtype=torch.bool, device=seen.kind.device)
    shares: dict[str, list[Tensor]] = {}

    def add(name: str, attention: Tensor, where: Tensor) -> None:
        share = torch.where(where, attention, 0.0).sum(-1)  # [B, H, Q]
        shares.setdefault(name, []).append((share * queries[:, None]).double().sum(-1) / count)

    for layer, call in enumerate(seen.calls):
        attention = seen.attention(layer)
        visible = call.visibility.rows(0, call.visibility.queries, attention.device)
        allowed = torch.ones_like(attention[:, :, :1, :1], dtype=torch.bool) if visible is None else visible
        even = allowed.expand_as(attention).double()
        even = even * (seen.kind >= 0)[:, None, None]
        even = even / even.sum(-1, keepdim=True).clamp(min=1)
        for number, name in enumerate(KINDS):
            of_kind = (seen.kind == number)[:, None, None] & ~itself
            add(name, attention, of_kind)
            add(f"even: {name}", even, of_kind)
        add("itself", attention, itself)
        add("even: itself", even, itself)
        add("sinks", attention, seen.sinks[layer][:, :, None])
    return {name: torch.stack(layers).view(len(seen.calls), rows, -1) for name, layers in shares.items()}


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
    """How many different keys a block of queries needs, when each takes its own top k: |∪_q top_k(q)| / k.

    "with sinks", "without sinks" (keys that are sinks of the head are left out before each query takes its k), "by chance" (k
    random keys for each query): Float64 [L, B], mean over heads. 1: all queries want the same keys. LoSA's observation: they
    share few, so that sparse attention over a block costs far more than k keys. NaN for rows with fewer than two queries or
    fewer than 2k keys.
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
            top = top_keys(attention, min(k, attention.shape[-1])) & queries[:, None, :, None]
            sizes[name].append(top.any(2).sum(-1).double().mean(1) / k)
    chance = keys / k * (1 - (1 - k / keys.double()) ** asked)
    measures = {name: torch.stack(layers) for name, layers in sizes.items()}
    measures["by chance"] = chance[None].expand(len(seen.calls), -1)
    return {name: value.masked_fill(~usable[None], float("nan")) for name, value in measures.items()}


def over_time(first: Observation, later: Observation, k: int = TOP) -> dict[str, Tensor]:
    """How well a block's first step, in which all of it is masked, tells the keys that matter later (MAGE, arXiv 2602.14209).

    "recall", "recall without sinks", "by chance": Float64 [L, B], mean over heads, 0 to 1. A head's top k keys: those with the
    most attention from the masks that the block has in the later step, in both steps. Without sinks: the sinks of the later
    step are left out of both.
    """
    queries = (block_queries(first) & block_queries(later))[:, None, :, None]
    real = later.kind >= 0
    recalls: dict[str, list[Tensor]] = {"recall": [], "recall without sinks": []}
    for layer in range(len(later.calls)):
        received = [(seen.attention(layer) * queries).sum(2) for seen in (first, later)]
        mass = [each.masked_fill(~real[:, None], -1.0) for each in received]
        for name, out in recalls.items():
            if name != "recall":
                mass = [each.masked_fill(later.sinks[layer], -1.0) for each in mass]
            before, after = (top_keys(each, k) for each in mass)
            out.append((before & after).sum(-1).double().mean(1) / k)
    measures = {name: torch.stack(layers) for name, layers in recalls.items()}
    measures["by chance"] = (k / real.sum(1).double())[None].expand(len(later.calls), -1)
    empty = ~queries[:, 0, :, 0].any(1)
    return {name: value.masked_fill(empty[None], float("nan")) for name, value in measures.items()}


def over_depth(seen: Observation) -> dict[str, Tensor]:
    """How well the sinks of layer l tell those of the layers behind it (Focus-dLLM, arXiv 2602.02159).

    "recall", "by chance": Float64 [L − 1, B]: the share of (deeper layer, sink) pairs whose position is a sink of layer l. By
    chance: the share of positions that are sinks of layer l. NaN where the deeper layers have none.
    """
    sinks, keys = seen.layer_sinks, (seen.kind >= 0).sum(1)
    recall = []
    for layer in range(len(sinks) - 1):
        deeper = sinks[layer + 1 :]
        hit = (deeper & sinks[layer]).sum((0, 2)).double()
        recall.append(hit / above_zero(deeper.sum((0, 2))))
    chance = sinks[:-1].sum(-1).double() / keys.double()
    share = torch.stack(recall) if recall else torch.zeros_like(chance)
    return {"recall": share, "by chance": chance.masked_fill(share.isnan(), float("nan"))}
