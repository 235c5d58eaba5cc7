"""Logistic regression for shares, in plain numpy: what attribution needs and no more.

Not a general solver: dense features, a ridge penalty, Newton steps.
"""

from __future__ import annotations

import numpy as np

from sinkscope.sinks.dataset import Array

RIDGE = 1.0
STEPS = 25


def fit(features: Array, share: Array, *, ridge: float = RIDGE, steps: int = STEPS) -> Array:
    """Coefficients [F + 1] (the intercept first, not penalised) that maximise Σ y log p + (1−y) log(1−p) −
    ridge/2 |β|².

    features float [N, F]; share y float [N] in [0, 1]: of the heads, how many call this key a sink. Newton
    steps, halved while they do not improve.
    """
    X = np.concatenate([np.ones((len(features), 1)), features], axis=1)
    penalty = np.full(X.shape[1], ridge)
    penalty[0] = 1e-6
    mean = float(np.clip(share.mean(), 1e-6, 1 - 1e-6))
    beta = np.zeros(X.shape[1])
    beta[0] = np.log(mean / (1 - mean))
    value = _objective(X, share, beta, penalty)
    for _ in range(steps):
        p = _sigmoid(X @ beta)
        gradient = X.T @ (share - p) - penalty * beta
        weight = p * (1 - p)
        curvature = (X * weight[:, None]).T @ X + np.diag(penalty)
        step = np.linalg.solve(curvature, gradient)
        size = 1.0
        while size > 1e-4:
            trial = beta + size * step
            better = _objective(X, share, trial, penalty)
            if better > value:
                break
            size /= 2
        else:
            break
        gain, beta, value = better - value, trial, better
        if gain < 1e-7 * len(X):
            break
    return beta


def log_likelihood(features: Array, share: Array, beta: Array) -> Array:
    """y log p + (1−y) log(1−p) of each row, nats, float [N]."""
    logits = beta[0] + features @ beta[1:]
    return np.asarray(share * logits - np.logaddexp(0.0, logits))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(x, -40.0, 40.0))))


def _objective(X: Array, share: Array, beta: Array, penalty: Array) -> float:
    logits = X @ beta
    return float((share * logits - np.logaddexp(0.0, logits)).sum() - 0.5 * (penalty * beta**2).sum())
