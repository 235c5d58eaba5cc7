"""Attention output and log-sum-exp with keys masked, without an S×S matrix.

Padding and masked keys enter the kernel as a bias of shape [B, H, 1, K] that it broadcasts over queries; where only a few
keys are left they are gathered and the kernel runs on those; windows run a tile of queries at a time over the keys in reach.
Blocks do the same. On a CPU, short inputs take the path of `short` and a newest token that of `single`, recorded or not.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sinkscope.attention import columns, short, single
from sinkscope.attention.kernels import kernel
from sinkscope.attention.key_mask import TILE, KeyMask
from sinkscope.attention.received import TILE_BYTES
from sinkscope.attention.short import Attended
from sinkscope.attention.visibility import Visibility

GATHER_BELOW = 0.5
"""Keys are gathered instead of biased away when at most this share of them is left: then the gathering pays."""


def attend(
    query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, key_mask: KeyMask | None, scale: float
) -> tuple[Tensor, Tensor]:
    """softmax(q·k·scale over the keys that are visible and not key_mask) · v, and the log-sum-exp of each row.

    Args:
        query: Float [B, H, Q, D].
        key: Float [B, G, K, D], G dividing H (grouped heads arrive unrepeated).
        value: Float [B, G, K, E].
        key_mask: the keys that may not be used; None: the plain call. A query that would lose every visible key keeps its
            scores.

    Returns:
        Output [B, H, Q, E] in the dtype of value, and log-sum-exp Float32 [B, H, Q] over the kept keys (finite but
        meaningless for rows without a key).
    """
    found = attend_and_sum(query, key, value, visibility, key_mask, scale, lse=True)
    if found.lse is None:
        raise RuntimeError("the log-sum-exp was asked for and did not come")
    return found.output, found.lse


def attend_and_sum(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visibility: Visibility,
    key_mask: KeyMask | None,
    scale: float,
    weights: Tensor | None = None,
    lse: bool = False,
) -> Attended:
    """`attend`, and the column sums of `weights` [B, C, Q] where they come with it: for short inputs on a CPU.

    For a newest token on a CPU the sums are those of its one query, whatever `weights`; elsewhere `acted` and `raw` are None.
    Both give the log-sum-exp only when `lse` asks for it or something is masked.
    """
    if visibility.queries == 1 and single.suits(query, key, value, visibility, key_mask):
        found = single.attend(query, key, value, visibility, _in_force(key_mask, visibility), scale, lse)
    elif short.suits(query, key, value, visibility, key_mask):
        masked = _in_force(key_mask, visibility)
        found = short.attend(query, key, value, visibility, masked, scale, weights, lse)
    else:
        if key_mask is None:
            out, total = _visible(query, key, value, visibility, None, scale)
        elif not key_mask.alike:
            out, total = _tiled(query, key, value, visibility, key_mask, scale)
        else:
            out, total = _without_keys(query, key, value, visibility, key_mask, scale)
        if visibility.real is not None:
            # Kernels differ in what they give for a row without a key (0, −inf, +inf); shares of it must stay finite.
            total = total.nan_to_num(0.0, 0.0, 0.0)
        found = Attended(out, total)
    output = _padded_rows(found.output, value, visibility)
    return found if output is found.output else replace(found, output=output)


def _in_force(key_mask: KeyMask | None, visibility: Visibility) -> Tensor | None:
    """Bool [B|1, H|1, K]: the keys that are masked for all queries alike; None: none."""
    return None if key_mask is None or key_mask.keys is None else key_mask.keys_in_force(visibility)


def _without_keys(
    query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, key_mask: KeyMask, scale: float
) -> tuple[Tensor, Tensor]:
    masked, rows = key_mask.keys, visibility.queries
    if masked is None:
        return _visible(query, key, value, visibility, None, scale)
    if key_mask.bias is not None and key_mask.strands_none(visibility):
        return kernel(query, key, value, key_mask.bias, False, scale)
    patterned = visibility.dense is not None or visibility.ranged
    if rows == 1 or not patterned:
        masked = key_mask.keys_in_force(visibility)
        few = key_mask.most is not None and key_mask.most < (1 - GATHER_BELOW) * visibility.keys
        if not few and not visibility.banded and visibility.dense is None:
            left = int((~masked).sum(-1).max())
            if left <= GATHER_BELOW * visibility.keys:
                return _gathered(query, key, value, visibility, masked, left, scale)
        return _visible(query, key, value, visibility, masked, scale)
    stranded = key_mask.stranded(visibility, query.device)
    if visibility.dense is not None or visibility.banded or visibility.blocked or rows < visibility.keys:
        return _tiled(query, key, value, visibility, key_mask, scale)
    out, lse = _visible(query, key, value, visibility, masked, scale)
    alone = stranded.flatten(0, -2).any(0).nonzero()
    if alone.numel():
        # In a causal call the stranded queries stand at the beginning: only that prefix is computed again.
        count = int(alone.max()) + 1
        plain_out, plain_lse = _visible(
            query[:, :, :count], key[:, :, :count], value[:, :, :count], visibility.prefix(count), None, scale
        )
        again = stranded[..., :count]
        out = torch.cat([torch.where(again[..., None], plain_out, out[:, :, :count]), out[:, :, count:]], 2)
        lse = torch.cat([torch.where(again, plain_lse, lse[:, :, :count]), lse[:, :, count:]], 2)
    return out, lse


def _visible(
    query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, masked: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """One kernel call where the pattern is "all", "causal" or "one row", with keys masked by a bias."""
    rows = visibility.queries
    explicit = visibility.dense is not None or (visibility.banded and rows > 1) or visibility.blocked
    if explicit or (visibility.causal and 1 < rows < visibility.keys):
        return _tiled(query, key, value, visibility, KeyMask(masked), scale)
    if visibility.banded:
        first, _ = visibility.key_range(0, rows)
        out_of_reach = torch.arange(visibility.keys, device=query.device) < first
        masked = out_of_reach[None, None] if masked is None else masked | out_of_reach
    bias = visibility.bias if masked is None else None
    if bias is None:
        bias = _key_bias(visibility.real, masked)
    return kernel(query, key, value, bias, visibility.causal and rows > 1, scale)


def _gathered(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visibility: Visibility,
    masked: Tensor,
    left: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The kernel over the `left` kept keys of each head only; heads that keep fewer are filled up and biased."""
    B, H = query.shape[:2]
    groups = H // key.shape[1]
    kept = ~masked.expand(B, H, -1)
    order = kept.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[
        ..., :left
    ]  # kept keys first, in order
    usable = kept.gather(-1, order)
    if visibility.real is not None:
        usable = usable & visibility.real[:, None].expand(B, H, -1).gather(-1, order)
    keys = key.repeat_interleave(groups, 1).gather(2, order[..., None].expand(-1, -1, -1, key.shape[-1]))
    values = value.repeat_interleave(groups, 1).gather(
        2, order[..., None].expand(-1, -1, -1, value.shape[-1])
    )
    bias = None
    if not bool(usable.all()):
        bias = torch.where(usable, 0.0, float("-inf"))[:, :, None, :]
    return kernel(query, keys, values, bias, False, scale)


def _tiled(
    query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, key_mask: KeyMask, scale: float
) -> tuple[Tensor, Tensor]:
    """Query tiles with an explicit mask each, over the keys that the tile can reach."""
    device = query.device
    stranded = key_mask.stranded(visibility, device)
    outs, lses = [], []
    for start in range(0, visibility.queries, TILE):
        stop = min(start + TILE, visibility.queries)
        reach = _reach(visibility, key_mask, stranded, start, stop, device)
        visible = ~key_mask.in_force(visibility, start, stop, stranded, device)
        seen = visibility.rows(start, stop, device)
        if seen is not None:
            visible = visible & seen
        if visible.shape[-1] == 1:
            visible = visible.expand(*visible.shape[:-1], visibility.keys)
        bias = torch.where(visible[..., reach], 0.0, float("-inf"))
        out, lse = kernel(query[:, :, start:stop], key[:, :, reach], value[:, :, reach], bias, False, scale)
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs, 2), torch.cat(lses, 2)


def _reach(
    visibility: Visibility, key_mask: KeyMask, stranded: Tensor, start: int, stop: int, device: torch.device
) -> Tensor | slice:
    """The keys that a tile of queries needs; a tile with a stranded query needs all it can see."""
    narrow = key_mask.band is not None and key_mask.queries is None
    if narrow and key_mask.band is not None and not bool(stranded[..., start:stop].any()):
        return key_mask.band.reach(visibility, start, stop, device)
    return slice(*visibility.key_range(start, stop))


def _key_bias(real: Tensor | None, masked: Tensor | None) -> Tensor | None:
    """Float32 [B|1, H|1, 1, K]: 0 for keys that may be used, −inf for the others; None when all may."""
    if real is None:
        if masked is None:
            return None
        out = masked[:, :, None, :]
    else:
        out = ~real[:, None, None, :]
        if masked is not None:
            out = out | masked[:, :, None, :]
    return torch.where(out, float("-inf"), 0.0)


def _padded_rows(out: Tensor, value: Tensor, visibility: Visibility) -> Tensor:
    """Gives the rows of padded queries what the official code gives them (see Visibility.padded)."""
    real = visibility.real_queries()
    if real is None or visibility.padded == "keys":
        return out
    if visibility.padded == "none":
        return out.masked_fill(~real[:, None, :, None], 0.0)
    mean = value.mean(2, keepdim=True).repeat_interleave(out.shape[1] // value.shape[1], 1)
    return torch.where(real[:, None, :, None], out, mean)


def raw_lse(
    query: Tensor, key: Tensor, lse: Tensor, visibility: Visibility, key_mask: KeyMask, scale: float
) -> Tensor:
    """The log-sum-exp over all visible keys, from that over the kept ones and the scores of the masked ones.

    Args:
        lse: Float32 [B, H, Q]: over the kept keys, as `attend` returned it.

    Returns:
        Float32 [B, H, Q]. Stranded queries lose nothing: theirs stays.
    """
    device = query.device
    B, H, Q, D = query.shape
    G = key.shape[1]
    listed = key_mask.alike and key_mask.keys is not None and key_mask.strands_none(visibility)
    if listed and key_mask.keys is not None and columns.available(query):
        if visibility.real is not None:
            key_mask = replace(key_mask, keys=key_mask.keys & visibility.real[:, None])
        return columns.lse_over_all(query, key, lse, key_mask, scale)
    exact = torch.promote_types(query.dtype, torch.float32)
    stranded = key_mask.stranded(visibility, device).expand(B, H, Q)
    if key_mask.band is None and key_mask.keys is not None:
        masked = key_mask.keys.expand(B, H, -1)
        if visibility.real is not None:
            masked = masked & visibility.real[:, None]
        count = int(masked.sum(-1).max()) if key_mask.most is None else min(key_mask.most, visibility.keys)
        order = masked.to(torch.float16).topk(count, -1).indices
        used = masked.gather(-1, order)
        keys = key.repeat_interleave(H // G, 1).gather(2, order[..., None].expand(-1, -1, -1, D)).to(exact)
    else:
        order, used, count = None, None, visibility.keys
        keys = key.repeat_interleave(H // G, 1).to(exact)
    parts = []
    # A tile holds scores of the masked keys, and the pattern over all keys: with few masked keys that is the larger part.
    rows = max(1, min(Q, TILE_BYTES // max(1, B * H * count * 4, B * visibility.keys * 8)))
    for start in range(0, Q, rows):
        stop = min(start + rows, Q)
        scores = query[:, :, start:stop].to(exact) @ keys.transpose(-1, -2) * scale
        seen = visibility.rows(start, stop, device)
        if order is not None and used is not None:
            masked = used[:, :, None, :].expand(B, H, stop - start, count)
            if seen is not None:
                whole = seen.expand(B, H, stop - start, visibility.keys)
                masked = masked & whole.gather(-1, order[:, :, None, :].expand(-1, -1, stop - start, -1))
            if key_mask.queries is not None:
                masked = masked & key_mask.queries[:, None, start:stop, None]
        else:
            masked = key_mask.rows(visibility, start, stop, device)
            masked = masked if seen is None else masked & seen
        masked = masked & ~stranded[:, :, start:stop, None]
        parts.append(scores.masked_fill(~masked, float("-inf")).logsumexp(-1))
    return torch.logaddexp(lse.to(exact), torch.cat(parts, 2)).to(torch.float32)
