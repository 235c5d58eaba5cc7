"""Attention output and log-sum-exp with keys masked, without an S×S matrix.

Padding and masked keys enter the kernel as a bias of shape [B, H, 1, K] that it broadcasts over queries; where only a few
keys are left they are gathered and the kernel runs on those; windows run a tile of queries at a time over the keys in reach.
Blocks do the same. On a CPU, short inputs and a newest token are computed by `cpu`, recorded or not.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sinkscope.attention import cpu
from sinkscope.attention.kernels import column_kernels, kernel
from sinkscope.attention.key_mask import TILE, KeyMask, key_bias, listed
from sinkscope.attention.received import TILE_BYTES
from sinkscope.attention.visibility import Scores, per_head

GATHER_BELOW = 0.5
"""Keys are gathered instead of biased away when at most this share of them is left: then the gathering pays."""


def attend(scores: Scores, value: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(scores over the keys that are visible and not masked) · v, and the log-sum-exp of each row.

    Args:
        value: Float [B, G, K, E].

    Returns:
        Output [B, H, Q, E] in the dtype of value, and log-sum-exp Float32 [B, H, Q] over the keys that were used (finite
        but meaningless for rows without a key).
    """
    attended = cpu.attend(scores, value, lse=True)
    if attended is not None and attended.lse is not None:
        return attended.output, attended.lse
    out, lse = _by_kernel(scores, value)
    return scores.visibility.padded_rows(out, value), lse


def _by_kernel(scores: Scores, value: Tensor) -> tuple[Tensor, Tensor]:
    if scores.key_mask is None:
        out, lse = _visible(scores, value, None)
    elif not scores.key_mask.alike:
        out, lse = _tiled(scores, value)
    else:
        out, lse = _without_keys(scores, scores.key_mask, value)
    # Kernels differ in what they give for a row without a key (0, −inf, +inf); shares of it must stay finite.
    return out, lse if scores.visibility.real is None else lse.nan_to_num(0.0, 0.0, 0.0)


def _without_keys(scores: Scores, key_mask: KeyMask, value: Tensor) -> tuple[Tensor, Tensor]:
    """The same keys masked for all queries."""
    masked, visibility = key_mask.keys, scores.visibility
    if masked is None:
        return _visible(scores, value, None)
    if key_mask.bias is not None and key_mask.strands_none(visibility):  # made once for all layers
        return kernel(scores.query, scores.key, value, key_mask.bias, False, scores.scale)
    if visibility.queries == 1 or visibility.alike:
        masked = key_mask.keys_in_force(visibility)
        # Whether gathering pays is asked of the keys only where the policy does not say it: a GPU would have to wait.
        few = key_mask.most is not None and key_mask.most < (1 - GATHER_BELOW) * visibility.keys
        if not few and not visibility.banded and visibility.dense is None:
            left = int((~masked).sum(-1).max())
            if left <= GATHER_BELOW * visibility.keys:
                return _gathered(scores, value, masked, left)
        return _visible(scores, value, masked)
    stranded = key_mask.stranded(visibility, scores.device)
    behind_a_cache = visibility.queries < visibility.keys
    if visibility.dense is not None or visibility.banded or visibility.blocked or behind_a_cache:
        return _tiled(scores, value)  # patterns that the kernel has no word for
    out, lse = _visible(scores, value, masked)
    alone = stranded.flatten(0, -2).any(0).nonzero()
    if alone.numel():
        # In a causal call the stranded queries stand at the beginning: only that prefix is computed again.
        count = int(alone.max()) + 1
        query, key, values = (x[:, :, :count] for x in (scores.query, scores.key, value))
        prefix = Scores(query, key, visibility.prefix(count), scores.scale)
        plain_out, plain_lse = _visible(prefix, values, None)
        again = stranded[..., :count]
        out = torch.cat([torch.where(again[..., None], plain_out, out[:, :, :count]), out[:, :, count:]], 2)
        lse = torch.cat([torch.where(again, plain_lse, lse[:, :, :count]), lse[:, :, count:]], 2)
    return out, lse


def _visible(scores: Scores, value: Tensor, masked: Tensor | None) -> tuple[Tensor, Tensor]:
    """One kernel call where the pattern is "all", "causal" or "one row", with keys masked by a bias."""
    visibility, rows = scores.visibility, scores.visibility.queries
    explicit = visibility.dense is not None or (visibility.banded and rows > 1) or visibility.blocked
    if explicit or (visibility.causal and 1 < rows < visibility.keys):
        return _tiled(replace(scores, key_mask=KeyMask(masked)), value)
    if visibility.banded:
        first, _ = visibility.key_range(0, rows)
        out_of_reach = torch.arange(visibility.keys, device=scores.device) < first
        masked = out_of_reach[None, None] if masked is None else masked | out_of_reach
    bias = visibility.bias if masked is None else None
    if bias is None:
        bias = key_bias(visibility.real, masked)
    return kernel(scores.query, scores.key, value, bias, visibility.causal and rows > 1, scores.scale)


def _gathered(scores: Scores, value: Tensor, masked: Tensor, left: int) -> tuple[Tensor, Tensor]:
    """The kernel over the `left` other keys of each head only; heads that have fewer are filled up and biased."""
    B, H = scores.query.shape[:2]
    used = ~masked.expand(B, H, -1)
    # Those that are used first, in their order.
    order = used.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[..., :left]
    usable = used.gather(-1, order)
    if scores.visibility.real is not None:
        usable = usable & scores.visibility.real[:, None].expand(B, H, -1).gather(-1, order)
    keys, values = (
        per_head(x, scores.query).gather(2, order[..., None].expand(-1, -1, -1, x.shape[-1]))
        for x in (scores.key, value)
    )
    bias = None
    if not bool(usable.all()):
        bias = torch.where(usable, 0.0, float("-inf"))[:, :, None, :]
    return kernel(scores.query, keys, values, bias, False, scores.scale)


def _tiled(scores: Scores, value: Tensor) -> tuple[Tensor, Tensor]:
    """Query tiles with an explicit mask each, over the keys that the tile can reach."""
    outs, lses = [], []
    for start in range(0, scores.visibility.queries, TILE):
        stop = min(start + TILE, scores.visibility.queries)
        reach, allowed = _reach(scores, start, stop), scores.allowed(start, stop)
        allowed = allowed.expand(*allowed.shape[:-1], scores.visibility.keys)
        bias = torch.where(allowed[..., reach], 0.0, float("-inf"))
        query, key, values = scores.query[:, :, start:stop], scores.key[:, :, reach], value[:, :, reach]
        out, lse = kernel(query, key, values, bias, False, scores.scale)
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs, 2), torch.cat(lses, 2)


def _reach(scores: Scores, start: int, stop: int) -> Tensor | slice:
    """The keys that a tile of queries needs; a tile with a stranded query needs all it can see."""
    visibility, key_mask = scores.visibility, scores.key_mask
    everything = slice(*visibility.key_range(start, stop))
    if key_mask is None or key_mask.band is None or key_mask.queries is not None:
        return everything
    stranded = key_mask.stranded(visibility, scores.device)[..., start:stop]
    return everything if bool(stranded.any()) else key_mask.band.reach(visibility, start, stop, scores.device)


def raw_lse(scores: Scores, lse: Tensor) -> Tensor:
    """The log-sum-exp over all visible keys, from that over the others and the scores of the masked ones.

    Args:
        lse: Float32 [B, H, Q]: over the keys that are not masked, as `attend` returned it.

    Returns:
        Float32 [B, H, Q]. Stranded queries lose nothing: theirs stays.
    """
    key_mask, visibility, device = scores.key_mask, scores.visibility, scores.device
    if key_mask is None:
        return lse
    B, H, Q, D = scores.query.shape
    kernels = column_kernels(scores.query) if key_mask.alike else None
    if kernels is not None and key_mask.keys is not None and key_mask.strands_none(visibility):
        if visibility.real is not None:
            key_mask = replace(key_mask, keys=key_mask.keys & visibility.real[:, None])
        total: Tensor = kernels.lse_over_all(scores.query, scores.key, lse, key_mask, scores.scale)
        return total
    exact = scores.exact
    stranded = key_mask.stranded(visibility, device).expand(B, H, Q)
    if key_mask.band is None and key_mask.keys is not None:
        # Only the masked keys are scored: a policy masks a few of hundreds.
        masked = key_mask.keys.expand(B, H, -1)
        if visibility.real is not None:
            masked = masked & visibility.real[:, None]
        count = int(masked.sum(-1).max()) if key_mask.most is None else min(key_mask.most, visibility.keys)
        order, values = listed(masked, count)
        used = values > 0
        keys = per_head(scores.key, scores.query).gather(2, order[..., None].expand(-1, -1, -1, D)).to(exact)
    else:
        order, used, count = None, None, visibility.keys
        keys = per_head(scores.key, scores.query).to(exact)
    sums = []
    # A tile holds scores of the masked keys, and the pattern over all keys: with few masked keys that is the larger one.
    rows = max(1, min(Q, TILE_BYTES // max(1, B * H * count * 4, B * visibility.keys * 8)))
    for start in range(0, Q, rows):
        stop = min(start + rows, Q)
        tile = scores.query[:, :, start:stop].to(exact) @ keys.transpose(-1, -2) * scores.scale
        seen = visibility.rows(start, stop, device)
        if order is not None and used is not None:
            removed = used[:, :, None, :].expand(B, H, stop - start, count)
            if seen is not None:
                whole = seen.expand(B, H, stop - start, visibility.keys)
                removed = removed & whole.gather(-1, order[:, :, None, :].expand(-1, -1, stop - start, -1))
            if key_mask.queries is not None:
                removed = removed & key_mask.queries[:, None, start:stop, None]
        else:
            removed = key_mask.rows(visibility, start, stop, device)
            removed = removed if seen is None else removed & seen
        removed = removed & ~stranded[:, :, start:stop, None]
        sums.append(tile.masked_fill(~removed, float("-inf")).logsumexp(-1))
    return torch.logaddexp(lse.to(exact), torch.cat(sums, 2)).to(torch.float32)
