"""Channels: the largest entries of the residual stream, at sinks and elsewhere, step by step (massive activations through time).

Sun et al. 2024 (arXiv 2402.17762) call an entry massive when |x| > 100 and |x| ≥ 1000 · median |x| of its hidden state.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.inspection.observation import Observation, row_mean


def channels(seen: Observation) -> dict[str, Tensor]:
    """Of the stream entering each layer, and leaving the last, [L + 1, B] each.

    "at sinks", "elsewhere": Float64: max |x| over channels relative to the row's median |x|, mean over positions (sinks of the
    layer that the stream enters; for the last one those of the last layer). "channel": Long: the channel of the largest entry.
    "same channel": Float64: share of the sinks whose largest entry lies in it. "massive": Float64: share of positions with an
    entry that is massive by Sun's rule.
    """
    size, real = seen.residual.abs(), seen.kind >= 0
    shape = size.shape[:2]
    medians = [row[here].median() for layer in size for row, here in zip(layer, real, strict=True)]
    median = torch.stack(medians).view(shape).clamp(min=1e-30)[..., None]
    largest, place = size.max(-1)  # [L + 1, B, S]
    sinks = torch.cat([seen.layer_sinks, seen.layer_sinks[-1:]])
    relative = largest / median
    top = size.masked_fill(~real[None, ..., None], 0.0).flatten(2).argmax(-1) % size.shape[-1]
    massive = (largest > 100) & (relative >= 1000)
    every = real[None].expand(*shape, -1)
    return {
        "at sinks": row_mean(relative, sinks),
        "elsewhere": row_mean(relative, ~sinks & every),
        "channel": top,
        "same channel": row_mean(place == top[..., None], sinks),
        "massive": row_mean(massive, every),
    }
