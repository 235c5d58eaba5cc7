"""Simulated studies of texts that were read: the same claims, decided on nats per token. See verdict_simulation.py.

How much a policy changes the nats of a text differs from text to text, with a long tail. Each truth is simulated with three kinds
of changes: normal ones; log-normal ones (σ = 1, skewness 6, longer than any that was measured); and those of real models
(text-differences.json), drawn text by text, so that policies go together as they do in truth, and moved to the mean that the
truth asks for. Sizes are shares of a token's probability, exp(−nats).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.simulated_studies import (
    CONTRADICTED,
    MASKED,
    MASKS,
    POLICIES,
    SUPPORTED,
    Effect,
    Null,
    Rng,
    Simulation,
    Study,
    controls,
    masked,
)  # fmt: skip
from sinkscope.verdicts import Status
from sinkscope.verdicts.measures import Kind, Measures

MEASURED = Path(__file__).with_name("text-differences.json")
"""Model and kind of text → policy → nats per token of each text, less those without a policy."""
NOISE = 0.02
"""Standard deviation, in nats, of the changes of texts that lose nothing."""

Array = NDArray[np.float64]
Changes = Callable[[int, dict[str, float], Rng], dict[str, Array]]
"""Number of texts, policy → mean change in nats, → policy → changes of the texts [n]."""


def normal(n: int, means: dict[str, float], rng: Rng) -> dict[str, Array]:
    """Normal changes with half of their mean as standard deviation."""
    return {name: rng.normal(mean, abs(mean) / 2 + NOISE, n) for name, mean in means.items()}


def log_normal(n: int, means: dict[str, float], rng: Rng) -> dict[str, Array]:
    """Log-normal changes, σ = 1."""
    return {name: mean * rng.lognormal(-0.5, 1.0, n) + rng.normal(0.0, NOISE, n) for name, mean in means.items()}


def measured(n: int, means: dict[str, float], rng: Rng) -> dict[str, Array]:
    """Changes of real texts, of another model in every study."""
    models = by_model()
    own = models[rng.integers(len(models))]
    texts = rng.integers(0, len(own["top:1"]), n)
    return {
        name: own[name if name in own else "random(top:1)" if name.startswith("random") else "top:1"][texts] + mean
        for name, mean in means.items()
    }


def quiet(n: int, means: dict[str, float], rng: Rng) -> dict[str, Array]:
    """Changes of real texts under policies that cost little: as those under random keys."""
    models = by_model()
    own = models[rng.integers(len(models))]["random(top:1)"]
    return {name: rng.choice(own, n) + mean for name, mean in means.items()}


@cache
def by_model() -> list[dict[str, Array]]:
    """Of each model: policy → changes of its texts less their mean [texts]."""
    return [
        {policy: np.array(values) - np.mean(values) for policy, values in found.items() if policy != "none"}
        for found in json.loads(MEASURED.read_text(encoding="utf-8")).values()
    ]


KINDS: dict[str, Changes] = {"normal": normal, "log-normal": log_normal, "measured": measured}


def read(
    n: int, rng: Rng, changes: Changes, family: str = "llada", mask: str = "", reached: float = 1.0, **left: float
) -> Measures:
    """One model that read n texts: shares of a token's probability that policies leave, by the names of POLICIES; controls of
    masks that were run leave all of it unless told."""
    shares = {POLICIES[name]: share for name, share in left.items()}
    for control in (*controls(left), *(["random(top:5)"] if "five" in left else [])):
        shares.setdefault(control, 1.0)
    nats = changes(n, {policy: -math.log(share) for policy, share in shares.items()}, rng)
    base = rng.normal(3.5, 0.5, n)
    names = [f"t{i:04d}" for i in range(n)]
    scores = {"none": base} | {policy: base + change for policy, change in nats.items()}
    by_text = {policy: dict(zip(names, map(float, values), strict=True)) for policy, values in scores.items()}
    runs = masked(by_text, MASKED[mask or MASKS.get(family, "llada")], reached)
    return Measures(family, family, Kind.TEXTS, runs=runs)


Truth = dict[str, Any]


def study(changes: Changes, own: Truth, *others: Truth) -> Study:
    """A model and its rivals, each with texts of its own spread."""

    def made(n: int, rng: Rng) -> Measures:
        first = read(n, rng, changes, **own)
        return replace(first, others=tuple(read(n, rng, changes, **other) for other in others))

    return made


def simulation(nulls: dict[str, tuple[Any, ...]], effects: tuple[Effect, ...]) -> Simulation:
    """Every null with every kind of changes. nulls: name → (the wrong verdict, or None for either; the model; its rivals)."""
    return Simulation(
        tuple(
            Null(f"{name}, {kind}", study(changes, *models), *([] if wrong is None else [(wrong,)]))
            for name, (wrong, *models) in nulls.items()
            for kind, changes in KINDS.items()
        ),
        effects,
    )


def effect(
    models: Callable[[float], tuple[Truth, ...]],
    verdict: Status,
    sizes: tuple[float, ...],
    unit: str,
    changes: Changes = measured,
) -> Effect:
    """A planted effect, with the changes of real texts."""
    return Effect(lambda x: study(changes, *models(x)), verdict, sizes, unit)


LOST = (0.06, 0.07, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
LITTLE = (0.04, 0.03, 0.02, 0.01, 0.0)
LEFT = (0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05)
KEPT = (0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9, 1.0)


def robust(name: str, control: str) -> Simulation:
    return simulation(
        {
            "nothing is lost": (CONTRADICTED, {name: 1.0}),
            "exactly 5 % are lost": (None, {name: 0.95}),
            "1 % is left, under random keys too": (None, {name: 0.01, control: 0.01}),
        },
        (
            effect(lambda x: ({name: 1 - x},), CONTRADICTED, LOST, "lost"),
            effect(lambda x: ({name: 1 - x},), SUPPORTED, LITTLE, "lost at most", quiet),
        ),
    )


def rivals(name: str) -> Simulation:
    mass = "mass" if name == "top" else f"mass_{name}"

    def both(own: float, causal: float, **more: Any) -> tuple[Truth, Truth]:
        return {name: own}, {"family": "causal", name: causal, **more}

    return simulation(
        {
            "nothing is lost in either": (None, *both(1.0, 1.0)),
            "both keep 60 %": (None, *both(0.6, 0.6)),
            "one keeps exactly 5 points more": (None, *both(0.7, 0.65)),
            "1 % is left in both": (None, *both(0.01, 0.01)),
            "the causal model loses all, its strongest sinks missed": (None, *both(1.0, 0.01, mask="causal")),
            "it loses all, under keys with as much attention too": (None, *both(1.0, 0.01, **{mass: 0.01})),
            "it loses in proportion to attention, its control removes 1.2": (
                None,
                *both(1.0, 0.3, reached=1.2, **{mass: 0.3**1.2}),
            ),
            "it loses in proportion to attention, its control removes .95": (
                None,
                *both(1.0, 0.3, reached=0.95, **{mass: 0.3**0.95}),
            ),
        },
        (
            effect(lambda x: both(0.95, 0.95 - x), SUPPORTED, LOST, "lost more"),
            effect(lambda x: both(0.95 - x, 0.95), CONTRADICTED, LOST, "lost less"),
        ),
    )


def diffusion(own: float, other: float) -> tuple[Truth, ...]:
    lefts = zip(("mmada", "llada", "dream"), (own, other, other), strict=True)
    return tuple({"family": family, "ten": left} for family, left in lefts)


def causal(left: float, **options: Any) -> Truth:
    return {"family": "causal", "top": left, **options}


def due(left: float, **options: Any) -> Truth:
    return {"top": left, "silence": left, "sinks": left, "rest": 1.0, "mass": 1.0, **options}


TEXTS = {
    "robust-1": robust("top", "control"),
    "robust-5": robust("five", "control_five"),
    "dose": simulation(
        {
            "neither costs anything": (SUPPORTED, {"top": 1.0, "ten": 1.0}),
            "top:10 costs exactly 5 % more": (None, {"top": 0.85, "ten": 0.85 * 0.95}),
            "1 % is left under top:1": (None, {"top": 0.01, "ten": 0.01}),
        },
        (
            effect(lambda x: ({"top": 0.95, "ten": 0.95 * (1 - x)},), SUPPORTED, LOST, "more"),
            effect(lambda x: ({"top": 0.95, "ten": 0.95 * (1 - x)},), CONTRADICTED, LITTLE, "more at most", quiet),
        ),
    ),
    "mostly": simulation(
        {
            "nothing is lost": (None, *diffusion(1.0, 1.0)),
            "all keep 60 %": (None, *diffusion(0.6, 0.6)),
            "one keeps exactly 5 points less": (None, *diffusion(0.65, 0.7)),
            "1 % is left in all": (None, *diffusion(0.01, 0.01)),
        },
        (
            effect(lambda x: diffusion(0.95 - x, 0.95), SUPPORTED, LOST, "lost more"),
            effect(lambda x: diffusion(0.95, 0.95 - x), CONTRADICTED, LOST, "lost less"),
        ),
    ),
    "collapse": simulation(
        {
            "nothing is lost": (SUPPORTED, causal(1.0)),
            "exactly half is left": (None, causal(0.5)),
            "1 % is left, under random keys too": (None, causal(0.01, control=0.01, mass=0.01)),
            "a loss in proportion to attention, .95 of it": (SUPPORTED, causal(0.3, mass=0.3**0.95, reached=0.95)),
            "a loss in proportion to attention, 1.2 of it": (SUPPORTED, causal(0.3, mass=0.3**1.2, reached=1.2)),
        },
        (
            effect(lambda x: (causal(x),), SUPPORTED, LEFT, "left"),
            effect(lambda x: (causal(x),), CONTRADICTED, KEPT, "left"),
        ),
    ),
    "rival": rivals("top"),
    "rival-sink": rivals("sink"),
    "rival-model": rivals("whole"),
    "sinks": simulation(
        {
            "nothing is lost": (None, due(1.0)),
            "controls lose the same": (SUPPORTED, due(0.6, control=0.6, mass=0.6, rest=0.6)),
            "the mass control loses 5 % less": (CONTRADICTED, due(0.6 * 0.95, mass=0.6)),
            "1 % is left under everything": (None, due(0.01, control=0.01, mass=0.01, rest=0.01)),
            "silence loses exactly 5 %": (None, due(0.6, silence=0.95)),
            "a loss in proportion to attention, .91 of it": (SUPPORTED, due(0.4, mass=0.4**0.91, reached=0.91)),
            "a loss in proportion to attention, .60 of it": (SUPPORTED, due(0.4, mass=0.4**0.6, reached=0.6)),
        },
        (
            effect(lambda x: (due(1 - x),), SUPPORTED, LOST, "lost beyond controls"),
            effect(lambda x: (due(1 - x, mass=1 - x),), CONTRADICTED, LOST, "lost, under a control too"),
        ),
    ),
}
