"""Random numbers by key: the same key gives the same number, whatever else is in the batch and whatever the device."""

from __future__ import annotations

import torch
from torch import Tensor


def priorities(seed: int, rows: Tensor, layer: int, heads: int, steps: Tensor, first: Tensor, keys: int) -> Tensor:
    """One pseudo-random number for each row, head and key.

    Args:
        rows: Long [B]: a key of each row (its seed).
        steps: Long [B, h]: the step at which each head draws.
        first: Long [B|1]: index of the first real key; keys are numbered from there, so padding does not matter.

    Returns:
        Long [B, h, K], not negative.
    """
    device = steps.device
    # Filled in on the device: a copy from the host would wait for it.
    number = mixed(torch.full((), wrapped(seed), dtype=torch.long, device=device))
    number = mixed(number + rows.to(device)[:, None, None])
    number = mixed(number + layer)
    number = mixed(number + torch.arange(heads, device=device)[None, :, None])
    number = mixed(number + steps[:, :, None])
    position = torch.arange(keys, device=device) - first.to(device)[:, None, None]
    return mixed(number + position) & torch.iinfo(torch.long).max


def wrapped(number: int) -> int:
    """A whole number of any size as one of 64 bits, so that every seed can be a key."""
    return (number + 2**63) % 2**64 - 2**63


def mixed(value: Tensor) -> Tensor:
    """SplitMix64 (Steele, Lea and Flood 2014): a bijection of 64-bit numbers that scatters neighbours; sums wrap around."""
    value = value + -7046029254386353131
    value = (value ^ _shifted(value, 30)) * -4658895280553007687
    value = (value ^ _shifted(value, 27)) * -7723592293110705685
    return value ^ _shifted(value, 31)


def _shifted(value: Tensor, bits: int) -> Tensor:
    """A logical shift to the right; torch's own keeps the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
