"""One query over a cache on a CPU: the softmax that makes the output is what a recorder reads.

A newest token of a causal model is bound by the number of operations, and for one query plain products are as fast as the
fused kernel at any length, which keeps its weights to itself. Traced and untraced calls make the same operations; hidden keys
and padding are added to the scores, so that hiding nothing changes no bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.attention.key_mask import KeyMask
from sinkscope.attention.short import Attended
from sinkscope.attention.visibility import Visibility

LEAST = torch.finfo(torch.float32).min
"""Added to the score of a key that may not be used: its weight is then 0. Not −inf: a row of nothing but padding stays finite."""


def suits(
    query: Tensor, key: Tensor, value: Tensor, visibility: Visibility, key_mask: KeyMask | None
) -> bool:
    """Whether a call is computed here: one causal query in float32 on a CPU that sees every real key, without gradients."""
    if not visibility.causal or visibility.queries != 1 or not visibility.alike:
        return False
    if query.device.type != "cpu" or query.dtype != torch.float32:
        return False
    if torch.is_grad_enabled() and any(one.requires_grad for one in (query, key, value)):
        return False
    return key_mask is None or key_mask.alike


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visibility: Visibility,
    masked: Tensor | None,
    scale: float,
    lse: bool = False,
) -> Attended:
    """softmax(q·k·scale over the real keys that are not masked) · v, and the softmax itself as column sums of one query.

    Args:
        query: Float32 [B, H, 1, D]; key, value: [B, G, K, D], [B, G, K, E], G dividing H.
        masked: Bool [B|1, H|1, K], None: none; every head keeps a real key.
        lse: whether the log-sum-exp is wanted; with `masked` it comes in any case, with and without those keys.
    """
    B, H, _, D = query.shape
    G, K, E = value.shape[1:]
    unused = query.new_empty(1, 1, 1)  # beta=0 leaves it out, but the product must be given it
    keys = key.reshape(B * G, K, D).transpose(1, 2)
    scores = torch.baddbmm(unused, query.reshape(B * G, -1, D), keys, beta=0, alpha=scale).view(B, H, K)
    if visibility.real is not None:
        scores = scores + _forbidden(~visibility.real[:, None])
    kept = scores if masked is None else scores + _forbidden(masked)
    share = kept.softmax(-1)
    output = torch.bmm(share.view(B * G, -1, K), value.reshape(B * G, K, E)).view(B, H, 1, E)
    if masked is None:
        total = kept.logsumexp(-1, keepdim=True) if lse else None
        return Attended(output, total, acted=share[:, :, None])
    total = kept.logsumexp(-1, keepdim=True)
    # Added to the sum of the others, so that a head that loses nothing has the same bits in both.
    gone = scores.masked_fill(~masked, float("-inf")).logsumexp(-1, keepdim=True)
    raw = scores.softmax(-1)[:, :, None]
    return Attended(output, total, torch.logaddexp(total, gone), share[:, :, None], raw)


def _forbidden(keys: Tensor) -> Tensor:
    return torch.where(keys, LEAST, 0.0)
