"""Foresight: how well one look tells which keys will matter later, or deeper.

- Over time (MAGE, arXiv 2602.14209): recall of the keys that a block's masks attend to most in a later step, from the block's
  first step, in which all of it is masked.
- Over depth (Focus-dLLM, arXiv 2602.02159): recall of the sinks of the layers behind layer l, from the sinks of layer l.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.inspection.observation import Observation, above_zero
from sinkscope.inspection.union import TOP, block_queries, top_keys


def over_time(first: Observation, later: Observation, k: int = TOP) -> dict[str, Tensor]:
    """ "recall", "recall without sinks", "by chance": Float64 [L, B], mean over heads, 0 to 1.

    A head's top k keys: those with the most attention from the masks that the block has in the later step, in both steps. Without
    sinks: the sinks of the later step are left out of both.
    """
    queries = (block_queries(first) & block_queries(later))[:, None, :, None]
    real = later.kind >= 0
    parts: dict[str, list[Tensor]] = {"recall": [], "recall without sinks": []}
    for layer in range(len(later.calls)):
        received = [(seen.attention(layer) * queries).sum(2) for seen in (first, later)]
        mass = [one.masked_fill(~real[:, None], -1.0) for one in received]
        for name, out in parts.items():
            if name != "recall":
                mass = [one.masked_fill(later.sinks[layer], -1.0) for one in mass]
            before, after = (top_keys(one, k) for one in mass)
            out.append((before & after).sum(-1).double().mean(1) / k)
    found = {name: torch.stack(values) for name, values in parts.items()}
    found["by chance"] = (k / real.sum(1).double())[None].expand(len(later.calls), -1)
    empty = ~queries[:, 0, :, 0].any(1)
    return {name: value.masked_fill(empty[None], float("nan")) for name, value in found.items()}


def over_depth(seen: Observation) -> dict[str, Tensor]:
    """ "recall", "by chance": Float64 [L − 1, B]: the share of (deeper layer, sink) pairs whose position is a sink of layer l.

    By chance: the share of positions that are sinks of layer l. NaN where the deeper layers have none.
    """
    sinks, keys = seen.layer_sinks, (seen.kind >= 0).sum(1)
    recall = []
    for layer in range(len(sinks) - 1):
        deeper = sinks[layer + 1 :]
        hit = (deeper & sinks[layer]).sum((0, 2)).double()
        recall.append(hit / above_zero(deeper.sum((0, 2))))
    chance = sinks[:-1].sum(-1).double() / keys.double()
    found = torch.stack(recall) if recall else torch.zeros_like(chance)
    return {"recall": found, "by chance": chance.masked_fill(found.isnan(), float("nan"))}
