"""From the keys that rules choose to the mask of one attention call: for which queries, heads and branches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sinkscope.attention.key_mask import Band, KeyMask
from sinkscope.attention.visibility import Visibility
from sinkscope.base.errors import InputError

if TYPE_CHECKING:
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


@dataclass(frozen=True)
class Chosen:
    """What the rules of a policy choose in one call.

    Attributes:
        keys: Bool [B|1, H|1, K], or None. band: a window. rules: which of the rules chose keys.
        most: keys that they mask for a head at most; None: not known.
    """

    keys: Tensor | None
    band: Band | None
    rules: list[int]
    most: int | None


def key_mask(
    chosen: Chosen, runtime: PolicyRuntime, layer: int, query: Tensor, visibility: Visibility
) -> KeyMask | None:
    """The mask of a call; None where nothing is masked."""
    keys, branches = chosen.keys, runtime.now.branches
    # A GPU would have to wait for the answer.
    if keys is not None and not (keys.is_cuda and chosen.most is not None) and not bool(keys.any()):
        keys = None
    if keys is None and chosen.band is None:
        return None
    if keys is not None and branches > 1 and keys.shape[0] > 1:  # both guidance branches are masked alike
        keys = keys.repeat(branches, 1, 1)
    acting = acting_queries(runtime, query, visibility)
    mask = KeyMask(
        keys,
        chosen.band,
        silence=runtime.rules[0].effect == "silence",
        most=chosen.most if keys is not None else None,
        # A guided twin may have padding of its own.
        least=runtime.now.least if branches == 1 else None,
        queries=None if acting is None or visibility.queries == 1 else acting.repeat(branches, 1),
    )
    return _listed(mask, chosen.rules, runtime, layer, query, visibility)


def _listed(
    mask: KeyMask, rules: list[int], runtime: PolicyRuntime, layer: int, query: Tensor, visibility: Visibility
) -> KeyMask:
    """The mask, listed and turned into a bias once for all layers: a handful of kernels in place of as many for each."""
    if not query.is_cuda or len(rules) != 1 or mask.most is None or runtime.now.branches > 1:
        return mask
    rule, chosen = runtime.rules[rules[0]], runtime.chosen.get(rules[0])
    single = mask.alike and rule.heads is None and rule.control is None
    if chosen is None or not single or not mask.strands_none(visibility):
        return mask
    place = chosen.layers[layer]
    listed, bias = chosen.for_kernels(mask.most, query, visibility)
    return replace(mask, listed=(listed[0][place], listed[1][place]), bias=bias[place])


def acting_queries(runtime: PolicyRuntime, query: Tensor, visibility: Visibility) -> Tensor | None:
    """Bool [B|1, Q]: the queries for which keys are masked; None: all."""
    rule, now = runtime.rules[0], runtime.now
    name = rule.queries
    if name == "all":
        rows = None
    elif name == "masked" or (name == "scored" and now.scored is None and not runtime.causal):
        rows = now.masked
    elif name == "decided":
        rows = None if now.masked is None else ~now.masked
    elif now.scored is not None:  # where one forward holds many steps, those are the newest of each
        rows = now.scored
    else:
        rows = (torch.arange(visibility.queries, device=query.device) == visibility.queries - 1)[None]
    if rows is None and name != "all":
        raise InputError(f"{runtime.policy}: which queries are {name} is not known in this forward; use ss.generate")
    if now.spared is not None and rule.prefill is False:
        rows = ~now.spared if rows is None else rows & ~now.spared
    return rows


def restricted(
    keys: Tensor, runtime: PolicyRuntime, heads: tuple[int, ...] | None, query: Tensor, acting: Tensor | None
) -> Tensor:
    """The keys Bool [B|1, h, K] that a rule chose, for its heads alone, and in rows that have a query to act on."""
    if heads is not None:
        if heads[-1] >= query.shape[1]:
            raise InputError(
                f"{runtime.policy} names head {heads[-1]}, but the model has heads 0 to {query.shape[1] - 1}"
            )
        index = torch.arange(query.shape[1], device=query.device)
        keys = keys & torch.stack([index == head for head in heads]).any(0)[None, :, None]
    return keys if acting is None else keys & acting.any(-1)[:, None, None]


def in_force(mask: KeyMask, visibility: Visibility, rows: int) -> Tensor | None:
    """Bool [B|1, H|1, K]: the masked keys of so many rows, but for queries that would lose every key and keep them."""
    if mask.keys is None or mask.strands_none(visibility):
        return None if mask.keys is None else mask.keys[:rows]
    # The last query that the policy acts on stands for all.
    stranded = mask.stranded(visibility, mask.keys.device)[:rows]
    if mask.queries is None:
        stranded = stranded[:, :, -1:]
    else:
        index = torch.arange(visibility.queries, device=stranded.device)
        last = (mask.queries[:rows] * index).argmax(-1).expand(len(stranded))
        stranded = stranded.gather(2, last[:, None, None].expand(-1, stranded.shape[1], 1))
    return mask.keys[:rows] & ~stranded
