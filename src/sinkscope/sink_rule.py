"""The sink rule, the one place that states it: a key is a sink when it exceeds the mean of the other keys by more than ε.

Source: "Attention Sinks in Diffusion Language Models" (arXiv 2510.15731), equation 3, on column sums (received attention,
uniform = 1), so that ε = 3 means about four times uniform. With T = Σ received over n keys,
`r_j > (T − r_j) / (n − 1) + ε` is the same as `r_j > T/n + ε (n − 1)/n`: one threshold for a whole row. Sums are in double
precision in both forms, so that numpy and torch decide alike. Other rules (mean, percent, zscore) are in `sinks/detection.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 3.0
"""The paper's ε; it filters out at least 96 % of the tokens there."""


def threshold_line(received: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """(base, slope, keys), each float [..., 1]: the threshold of a row is base + ε · slope.

    received: float [..., K], uniform = 1, NaN where there is no key. A row with fewer than two keys has no others to compare
    with: its base is +inf.
    """
    missing = np.isnan(received)
    keys = received.shape[-1] - np.count_nonzero(missing, axis=-1, keepdims=True).astype(np.float64)
    filled = np.where(missing, received.dtype.type(0), received) if missing.any() else received
    safe = np.maximum(keys, 1.0)
    mean = np.sum(filled, axis=-1, keepdims=True, dtype=np.float64) / safe
    return np.where(keys >= 2, mean, np.inf), (keys - 1) / safe, keys


def sinks_of(received: npt.NDArray[Any], epsilon: float = EPSILON) -> npt.NDArray[np.bool_]:
    """Bool [..., K]: the keys that are sinks. received: float [..., K], uniform = 1, NaN = no key, never a sink."""
    base, slope, _ = threshold_line(received)
    with np.errstate(invalid="ignore"):
        return np.asarray(received > base + epsilon * slope)


def torch_sinks_of(received: Tensor, epsilon: float = EPSILON) -> Tensor:
    """`sinks_of` of a tensor, on its device."""
    import torch

    real = ~received.isnan()
    keys = real.sum(-1, keepdim=True)
    safe = keys.clamp(min=1).double()
    total = received.nan_to_num(0.0).sum(-1, keepdim=True, dtype=torch.float64)
    return (received > total / safe + epsilon * ((keys - 1) / safe)) & (keys >= 2)
