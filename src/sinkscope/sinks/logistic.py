"""Logistic regression on coded features.

By hand, because every row is a handful of codes (state and category, five binned distances): the matrices of Newton's method
are then histograms of pairs of codes, an order of magnitude cheaper than dense or sparse matrices.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np

from sinkscope.sinks.dataset import Array

RIDGE = 1.0
STEPS = 25


class Codes(NamedTuple):
    """codes int [N, B], codes[:, b] in 0 … sizes[b] − 1; first float [sizes[0], F₀]: the features of each first code.

    A row has the F₀ features of its first code (the intercept among them, in front), and one indicator for each value of the
    other codes: F = F₀ + Σ sizes[1:] features in all.
    """

    codes: Array
    sizes: tuple[int, ...]
    first: Array

    @property
    def width(self) -> int:
        return int(self.first.shape[1] + sum(self.sizes[1:]))

    def rows(self, use: Array) -> Codes:
        return self._replace(codes=self.codes[use])

    def predict(self, beta: Array) -> Array:
        """Logits float [N] of coefficients [F]."""
        total = (self.first @ beta[: self.first.shape[1]])[self.codes[:, 0]]
        at = self.first.shape[1]
        for b, n in enumerate(self.sizes[1:], start=1):
            total = total + beta[at : at + n][self.codes[:, b]]
            at += n
        return np.asarray(total)

    def sums(self, values: Array) -> Array:
        """Xᵀ values, float [F]."""
        parts = [np.bincount(self.codes[:, b], weights=values, minlength=n) for b, n in enumerate(self.sizes)]
        return np.concatenate([self.first.T @ parts[0], *parts[1:]])

    def gram(self, weight: Array, pairs: dict[tuple[int, int], Array]) -> Array:
        """Xᵀ diag(weight) X, float [F, F]; pairs: see `paired`."""
        out = np.zeros((self.width, self.width))
        at = np.cumsum([0, self.first.shape[1], *self.sizes[1:]])
        for b, n in enumerate(self.sizes):
            count = np.bincount(self.codes[:, b], weights=weight, minlength=n)
            block = (self.first.T * count) @ self.first if b == 0 else np.diag(count)
            out[at[b] : at[b + 1], at[b] : at[b + 1]] = block
        for (a, b), index in pairs.items():
            n, m = self.sizes[a], self.sizes[b]
            table = np.bincount(index, weights=weight, minlength=n * m).reshape(n, m)
            table = self.first.T @ table if a == 0 else table
            out[at[a] : at[a + 1], at[b] : at[b + 1]] = table
            out[at[b] : at[b + 1], at[a] : at[a + 1]] = table.T
        return out

    def paired(self) -> dict[tuple[int, int], Array]:
        """Joint codes of every two columns, for `gram`."""
        return {
            (a, b): self.codes[:, a] * self.sizes[b] + self.codes[:, b]
            for a, b in combinations(range(len(self.sizes)), 2)
        }


def fit(data: Codes, share: Array, *, ridge: float = RIDGE, steps: int = STEPS) -> Array:
    """Coefficients [F] that maximise Σ y log p + (1−y) log(1−p) − ridge/2 |β|², the intercept not penalised.

    share y float [N] in [0, 1]: of the heads, how many call this key a sink. Newton steps, halved while they do not improve.
    """
    penalty = np.full(data.width, ridge)
    penalty[0] = 1e-6
    # The start: every key as likely a sink as the mean.
    mean = float(np.clip(share.mean(), 1e-6, 1 - 1e-6))
    beta = np.zeros(len(penalty))
    beta[0] = np.log(mean / (1 - mean))
    logits = data.predict(beta)
    value = _objective(logits, share, beta, penalty)
    pairs = data.paired()
    for _ in range(steps):
        p = 1.0 / (1.0 + np.exp(-np.clip(logits, -40.0, 40.0)))
        gradient = data.sums(share - p) - penalty * beta
        curvature = data.gram(p * (1 - p), pairs) + np.diag(penalty)
        step = _solve(curvature, gradient)
        size = 1.0
        while size > 1e-4:
            trial = beta + size * step
            logits = data.predict(trial)
            better = _objective(logits, share, trial, penalty)
            if better > value:
                break
            size /= 2
        else:
            break
        gain, beta, value = better - value, trial, better
        if gain < 1e-7 * len(share):
            break
    return beta


def log_likelihood(data: Codes, share: Array, beta: Array) -> Array:
    """y log p + (1−y) log(1−p) of each row, nats, float [N]."""
    logits = data.predict(beta)
    return np.asarray(share * logits - np.logaddexp(0.0, logits))


def _solve(matrix: Array, right: Array) -> Array:
    """matrix⁻¹ right for a symmetric positive matrix, in two halves.

    Above about 100 columns numpy hands the work to threads, which on a busy machine wait for each other a hundred times
    longer than they work.
    """
    half = len(matrix) // 2
    if half < 20:
        return np.linalg.solve(matrix, right)
    a, b, d = matrix[:half, :half], matrix[:half, half:], matrix[half:, half:]
    inner = np.linalg.solve(a, np.column_stack([b, right[:half]]))
    last = np.linalg.solve(d - b.T @ inner[:, :-1], right[half:] - b.T @ inner[:, -1])
    return np.concatenate([inner[:, -1] - inner[:, :-1] @ last, last])


def _objective(logits: Array, share: Array, beta: Array, penalty: Array) -> float:
    return float((share * logits - np.logaddexp(0.0, logits)).sum() - 0.5 * (penalty * beta**2).sum())
