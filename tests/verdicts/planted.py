"""Measures with planted numbers, for tests of the rules."""

from __future__ import annotations

from sinkscope.statistics import Estimate
from sinkscope.verdicts.measures import Kind, Measure, Measures, PolicyRun

N = 100
NAMES = {
    "none": "none", "top": "top:1", "count": "random(top:1)", "mass": "random(top:1),match=mass",
    "silence": "top:1,effect=silence",
    "sinks": "top:1,epsilon=3", "rest": "top:1,epsilon=3,among=others", "five": "top:5",
    "ten": "top:10", "count_ten": "random(top:10)",
    "mass_ten": "random(top:10),match=mass",
}  # fmt: skip


def scores(right: int, n: int = N) -> dict[str, float]:
    """The first `right` of n documents are right: easy ones stay easy."""
    return {f"d{i}": float(i < right) for i in range(n)}


def masked(
    hits: float = 0.9, n: int = N, family: str = "llada", subject: str = "m", removed: float = 0.05,
    strongest: float = 0.9, **right: int,
) -> Measures:  # fmt: skip
    """Accuracies by policy (names of NAMES), in documents."""
    runs = {
        NAMES[key]: PolicyRun(scores(value, n), hits=hits, strongest=strongest, removed=removed)
        for key, value in right.items()
    }
    return Measures(subject, family, runs=runs)


def read(hits: float = 0.9, family: str = "llada", subject: str = "m", texts: int = 20, **nats: float) -> Measures:
    """Nats per token by policy, of texts that differ much from each other and little between policies."""
    noise = [0.02 * ((7 * i) % 5 - 2) for i in range(texts)]
    runs = {
        NAMES[key]: PolicyRun(
            {f"t{i}": value + 0.3 * (i % 4) + small * (key != "none") for i, small in enumerate(noise)},
            hits=hits, strongest=hits, removed=0.05,
        )
        for key, value in nats.items()
    }  # fmt: skip
    return Measures(subject, family, Kind.TEXTS, runs=runs)


def traced(*known: tuple[Measure, str, Estimate], family: str = "llada", kind: Kind = Kind.TRACES) -> Measures:
    """Estimates of measures of traces."""
    estimates = {measure.named(of): estimate for measure, of, estimate in known}
    return Measures(family, family, kind, prompts=16, estimates=estimates)


def interval(low: float, high: float) -> Estimate:
    return Estimate((low + high) / 2, low, high)
