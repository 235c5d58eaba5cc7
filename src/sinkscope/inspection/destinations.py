"""Where attention goes, by kind of head: to the prompt, to masks, to written tokens, to itself; and how much of it to sinks.

Queries are those that predict: masks, or the places of a causal model whose next token is part of the answer (MaskKV, arXiv
2510.09309, scores prompt keys by mask queries). A head's kind is the destination that gets the most beyond its share of the keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.inspection.observation import KINDS, Observation, above_zero

DESTINATIONS = (*KINDS, "itself")


def destinations(seen: Observation) -> dict[str, Tensor]:
    """ "prompt", "mask", "written", "itself", "sinks": Float64 [L, B, H]: shares of attention; the first four add up to 1.

    And "even: prompt", …: Float64 [L, B, H]: the shares if every visible key got as much. NaN for rows that predict nothing. With
    a learned sink the four add up to less: the rest goes to it.
    """
    rows = len(seen.rows)
    queries = seen.predicted.roll(-seen.shift, 1) if seen.shift else seen.predicted
    count = above_zero(queries.sum(1))[:, None]
    itself = torch.eye(seen.kind.shape[1], dtype=torch.bool, device=seen.kind.device)
    found: dict[str, list[Tensor]] = {}

    def add(name: str, attention: Tensor, where: Tensor) -> None:
        share = torch.where(where, attention, 0.0).sum(-1)  # [B, H, Q]
        found.setdefault(name, []).append((share * queries[:, None]).double().sum(-1) / count)

    for layer, call in enumerate(seen.calls):
        attention = seen.attention(layer)
        visible = call.visibility.rows(0, call.visibility.queries, attention.device)
        allowed = torch.ones_like(attention[:, :, :1, :1], dtype=torch.bool) if visible is None else visible
        even = allowed.expand_as(attention).double()
        even = even * (seen.kind >= 0)[:, None, None]
        even = even / even.sum(-1, keepdim=True).clamp(min=1)
        for number, name in enumerate(KINDS):
            here = (seen.kind == number)[:, None, None] & ~itself
            add(name, attention, here)
            add(f"even: {name}", even, here)
        add("itself", attention, itself)
        add("even: itself", even, itself)
        add("sinks", attention, seen.sinks[layer][:, :, None])
    return {name: torch.stack(parts).view(len(seen.calls), rows, -1) for name, parts in found.items()}


def head_kinds(shares: dict[str, Tensor]) -> Tensor:
    """Long [L, H]: index into DESTINATIONS: what a head attends to most beyond even, from shares averaged over rows."""
    beyond = [shares[name].nanmean(1) - shares[f"even: {name}"].nanmean(1) for name in DESTINATIONS]
    return torch.stack(beyond).argmax(0)
