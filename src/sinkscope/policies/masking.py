"""From the keys that rules choose to the mask of one attention call: for which queries, heads and branches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sinkscope.attention.key_mask import Band, KeyMask
from sinkscope.base.errors import InputError

if TYPE_CHECKING:
    from sinkscope.policies.layer_view import LayerView
    from sinkscope.policies.policy import Rule
    from sinkscope.policies.runtime import PolicyRuntime


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


def key_mask(
    keys: Tensor | None, band: Band | None, rules: list[int], acting: Tensor | None, view: LayerView
) -> KeyMask | None:
    """The mask of a call; None where nothing is masked.

    Args:
        keys: Bool [B|1, H|1, K], the keys that the rules of these numbers mask together. acting: see `acting_queries`.
    """
    runtime, visibility = view.runtime, view.whole
    now, counts = runtime.now, [runtime.rules[number].most for number in rules]
    most = None if None in counts else sum(count or 0 for count in counts)
    # A GPU would have to wait for the answer.
    if keys is not None and not (keys.is_cuda and most is not None) and not bool(keys.any()):
        keys = None
    if keys is None and band is None:
        return None
    if keys is not None and now.branches > 1 and keys.shape[0] > 1:  # both guidance branches are masked alike
        keys = keys.repeat(now.branches, 1, 1)
    mask = KeyMask(
        keys,
        band,
        silence=runtime.rules[0].effect == "silence",
        most=most if keys is not None else None,
        # A guided twin may have padding of its own.
        least=now.least if now.branches == 1 else None,
        queries=None if acting is None or visibility.queries == 1 else acting.repeat(now.branches, 1),
    )
    if not view.query.is_cuda or len(rules) != 1 or mask.most is None or now.branches > 1:
        return mask
    rule, chosen = runtime.rules[rules[0]], runtime.chosen.get(rules[0])
    single = mask.alike and rule.heads is None and rule.original is rule
    if chosen is None or not single or not mask.strands_none(visibility):
        return mask
    # Listed and turned into a bias once for all layers: a handful of kernels in place of as many for each.
    (indices, used), bias = chosen.for_kernels(mask.most, view.query, visibility)
    number = chosen.number(view.layer)
    return replace(mask, listed=(indices[number], used[number]), bias=bias[number])


def acting_queries(runtime: PolicyRuntime, query: Tensor) -> Tensor | None:
    """Bool [B|1, Q]: the queries for which keys are masked; None: all."""
    rule, now, rows = runtime.rules[0], runtime.now, None
    name = rule.queries
    if name == "masked" or (name == "scored" and now.scored is None and not runtime.causal):
        rows = now.masked
    elif name == "decided":
        rows = None if now.masked is None else ~now.masked
    elif name != "all" and now.scored is not None:  # where one forward holds many steps, those are the newest of each
        rows = now.scored
    elif name != "all":
        rows = (torch.arange(query.shape[2], device=query.device) == query.shape[2] - 1)[None]
    if rows is None and name != "all":
        raise InputError(f"{runtime.policy}: which queries are {name} is not known in this forward; use ss.generate")
    if now.spared is not None and rule.prefill is False:
        rows = ~now.spared if rows is None else rows & ~now.spared
    return rows


def in_heads(rule: Rule, count: int, device: torch.device) -> Tensor:
    """Bool [H]: the query heads of so many in which a rule acts."""
    index = torch.arange(count, device=device)
    if rule.heads is None:
        return torch.ones_like(index, dtype=torch.bool)
    # One by one: a captured step cannot copy a list of indices from the host.
    return torch.stack([index == head for head in rule.heads]).any(0)
