"""Probes: what a linear map can read off a vector, on prompts that it has not seen.

Ridge regression on standardised features; a label of classes is regressed as one column for each class. Five folds of whole
prompts; the ridge is chosen inside each fold's training prompts. One number for every label:

    skill = 1 − Σ (label − prediction)² / Σ (label − mean of the training labels)²      on held-out prompts

1: read off exactly; 0: no better than knowing nothing; below 0: worse. Controls: the same probe at random non-sinks of the same
kind, and with labels in a random order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sinkscope.statistics import Estimate, ratio_interval

Array = np.ndarray[Any, Any]
FOLDS = 5
RIDGES = (1.0, 10.0, 100.0, 1e3, 1e4, 1e6)
FLOOR = 1e-3
"""Least spread that a channel is divided by, relative to the features' root mean square."""
LEAST = 20
"""Prompts that a probe needs."""


@dataclass(frozen=True)
class Losses:
    """Squared errors on held-out prompts, summed over each prompt's samples: Float [P], of the probe and of knowing nothing."""

    probe: Array
    nothing: Array

    @property
    def skill(self) -> Estimate:
        """1 − Σ probe / Σ nothing, with its 95 % interval over prompts."""
        share = ratio_interval(self.probe, self.nothing)
        return Estimate(1 - share.value, 1 - share.high, 1 - share.low)


def probe(features: Array, labels: Array, prompts: Array, seed: int = 0) -> Losses | None:
    """Held-out losses of a ridge probe.

    Args:
        features: Float [N, F]. labels: Float [N], or text [N] for classes. prompts: [N]: the prompt of each sample.

    Returns:
        None when there are fewer than 20 prompts, or one label only.
    """
    usable = np.isfinite(features).all(1)
    usable &= np.array([label == label and label is not None for label in labels], dtype=bool)
    features, labels, prompts = features[usable].astype(np.float64), labels[usable], prompts[usable]
    names, index = np.unique(prompts, return_inverse=True)
    if len(names) < LEAST or len(np.unique(labels)) < 2:
        return None
    target = _columns(labels)
    fold = np.random.default_rng(seed).permutation(len(names)) % FOLDS
    probe_loss, nothing = np.zeros(len(names)), np.zeros(len(names))
    for held in range(FOLDS):
        test = fold[index] == held
        inner = fold[index] == (held + 1) % FOLDS
        tried = _predictions(features[~test & ~inner], target[~test & ~inner], features[inner])
        best = int(np.argmin([((target[inner] - guess) ** 2).sum() for guess in tried]))
        guess = _predictions(features[~test], target[~test], features[test])[best]
        np.add.at(probe_loss, index[test], ((target[test] - guess) ** 2).sum(1))
        np.add.at(nothing, index[test], ((target[test] - target[~test].mean(0)) ** 2).sum(1))
    return Losses(probe_loss, nothing)


def shuffled(labels: Array, seed: int = 0) -> Array:
    """The labels in a random order."""
    return labels[np.random.default_rng(seed).permutation(len(labels))]


def _columns(labels: Array) -> Array:
    if labels.dtype.kind in "fiub":
        return np.asarray(labels, dtype=np.float64)[:, None]
    classes: Array = (labels[:, None] == np.unique(labels)[None]).astype(np.float64)
    return classes


def _predictions(x: Array, y: Array, new: Array) -> list[Array]:
    """Predictions for `new` [M, F] at each ridge, from x [N, F] and y [N, C]."""
    mean, spread = x.mean(0), x.std(0)
    # A channel that hardly varies is rounding error; made as large as the others it would be read.
    spread = np.maximum(spread, FLOOR * np.sqrt((x * x).mean()) + 1e-300)
    middle = y.mean(0)
    u, s, v = np.linalg.svd((x - mean) / spread, full_matrices=False)
    inside, outside = u.T @ (y - middle), ((new - mean) / spread) @ v.T
    return [outside @ ((s / (s * s + ridge))[:, None] * inside) + middle for ridge in RIDGES]
