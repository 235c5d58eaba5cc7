"""Simulated studies for every claim: truths without grounds for a verdict, and planted effects. See verdict_simulation.py.

Claims on accuracies are simulated by document, claims on traces by prompt (one value of the measure for each prompt).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sinkscope.report.study.evidence import PAIRS, TRACES, ModelEvidence
from sinkscope.report.study.rules import CONTRADICTED, SUPPORTED
from sinkscope.sinks.attribution import LEADS
from sinkscope.statistics import Estimate, Scale, mean_interval, ratio_interval

BOTH = (SUPPORTED, CONTRADICTED)

Rng = np.random.Generator
Study = Callable[[int, Rng], ModelEvidence]
Values = Callable[[int, Rng], Any]


class Null(NamedTuple):
    """A truth without grounds for some verdicts."""

    name: str
    study: Study
    wrong: tuple[str, ...] = BOTH


class Effect(NamedTuple):
    """A planted truth: effect size → a study; the verdict that it should get; sizes to try, small ones first; their unit."""

    study: Callable[[float], Study]
    verdict: str
    sizes: Sequence[float]
    unit: str


@dataclass(frozen=True)
class Simulation:
    """A claim's nulls and effects."""

    nulls: tuple[Null, ...]
    effects: tuple[Effect, ...]


# ---- documents -----------------------------------------------------------------------------------

FLIPS = 0.03
"""Share of the answers that change in either direction although nothing is lost."""


def answers(n: int, base: float, policies: dict[str, float], rng: Rng) -> dict[str, dict[str, float]]:
    """Scores without a policy at accuracy `base`, and under policies that leave a given accuracy: lost documents are drawn from
    the right ones, and a few flip either way."""
    right = rng.random(n) < base
    names = [f"d{i:04d}" for i in range(n)]
    runs = {"none": right}
    for policy, left in policies.items():
        flips = min(FLIPS, left, 1 - base)
        keep = (left - flips) / base
        draws = 3 if policy.startswith("random") else 1
        runs[policy] = np.mean(
            [
                np.where(right, rng.random(n) < keep, rng.random(n) < flips / max(1e-9, 1 - base))
                for _ in range(draws)
            ],
            axis=0,
        )
    return {name: dict(zip(names, map(float, scores), strict=True)) for name, scores in runs.items()}


def model(
    n: int, rng: Rng, base: float = 0.9, family: str = "llada", hits: float = 0.8, **left: float
) -> ModelEvidence:
    """One model: accuracies left under policies, by the names of POLICIES; the control keeps its accuracy unless told."""
    policies = {POLICIES[name]: value for name, value in left.items()}
    for name in ("top", "ten", "whole"):
        if name in left:
            policies.setdefault(f"random({POLICIES[name]})", base)
    return ModelEvidence(
        model=family,
        family=family,
        scores=answers(n, base, policies, rng),
        hits=dict.fromkeys(policies, hits),
        removed=dict.fromkeys(policies, 0.05),
    )


POLICIES = {
    "top": "top:1", "five": "top:5", "ten": "top:10", "whole": "top:1@model", "control": "random(top:1)",
    "control_ten": "random(top:10)", "control_whole": "random(top:1@model)", "mass": "random(top:1),match=mass",
    "silence": "top:1,effect=silence", "control_five": "random(top:5)",
}  # fmt: skip


def alone(**options: Any) -> Study:
    return lambda n, rng: model(n, rng, **options)


def beside(own: dict[str, Any], *others: dict[str, Any]) -> Study:
    """A model and its rivals on the same task."""

    def study(n: int, rng: Rng) -> ModelEvidence:
        first = model(n, rng, **own)
        return ModelEvidence(**{**vars(first), "others": tuple(model(n, rng, **other) for other in others)})

    return study


LOSSES = (0.06, 0.07, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


def robust(name: str, control: str) -> Simulation:
    return Simulation(
        (
            Null("nothing is lost", alone(**{name: 0.9, control: 0.9}), (CONTRADICTED,)),
            Null("exactly 5 points are lost", alone(**{name: 0.85, control: 0.9})),
            Null("exactly 5 points of a base of 0.25", alone(base=0.25, **{name: 0.2, control: 0.25})),
            Null("all is lost, under random keys too", alone(**{name: 0.0, control: 0.0})),
            Null("nothing is lost, but the mask missed", alone(hits=0.1, **{name: 0.9, control: 0.9})),
        ),
        (
            Effect(lambda x: alone(**{name: 0.9 - x, control: 0.9}), CONTRADICTED, LOSSES, "lost"),
            Effect(
                lambda x: alone(**{name: 0.9 - x, control: 0.9}),
                SUPPORTED,
                (0.03, 0.02, 0.01, 0.0),
                "lost at most",
            ),
        ),
    )


def rivals(name: str) -> Simulation:
    def both(own: float, causal: float, base: float = 0.9, other: float = 0.95, **more: float) -> Study:
        return beside(
            {"base": base, name: base * own, **more},
            {"family": "causal", "base": other, name: other * causal},
        )

    return Simulation(
        (
            Null("nothing is lost in either", both(1.0, 1.0)),
            Null("both lose 40 % of what they had", both(0.6, 0.6)),
            Null("the same, from bases of 0.3 and 0.95", both(0.6, 0.6, base=0.3)),
            Null("bases of 0.3 and 0.95, both to nothing", both(0.0, 0.0, base=0.3)),
            Null("one loses 5 % more", both(0.75, 0.70)),
        ),
        (
            Effect(lambda x: both(1.0, 1 - x), SUPPORTED, LOSSES, "of the base lost more"),
            Effect(lambda x: both(1 - x, 1.0), CONTRADICTED, LOSSES, "of the base lost less"),
        ),
    )


def diffusion(own: float, other: float, bases: tuple[float, float, float] = (0.6, 0.8, 0.85)) -> Study:
    first, *rest = (
        {"family": family, "base": base, "ten": base * left}
        for family, base, left in zip(("mmada", "llada", "dream"), bases, (own, other, other), strict=True)
    )
    return beside(first, *rest)


DOCUMENTS = {
    "robust-1": robust("top", "control"),
    "robust-5": robust("five", "control_five"),
    "dose": Simulation(
        (
            Null("neither costs anything", alone(top=0.9, ten=0.9), (SUPPORTED,)),
            Null("top:10 costs exactly 5 points more", alone(top=0.85, ten=0.8)),
            Null("nothing is left under top:1", alone(top=0.0, ten=0.0)),
            Null("0.1 is left under top:1, nothing under top:10", alone(top=0.1, ten=0.0), (CONTRADICTED,)),
            Null("0.2 is left under top:1, 0.15 under top:10", alone(top=0.2, ten=0.15)),
        ),
        (
            Effect(lambda x: alone(top=0.88, ten=0.88 - x), SUPPORTED, LOSSES, "more"),
            Effect(lambda x: alone(top=0.88, ten=0.88 - x), CONTRADICTED, (0.03, 0.02, 0.01, 0.0), "more at most"),
        ),
    ),
    "mostly": Simulation(
        (
            Null("nothing is lost", diffusion(1.0, 1.0)),
            Null("all lose 40 % of what they had", diffusion(0.6, 0.6)),
            Null("all lose everything, from other bases", diffusion(0.0, 0.0, (0.3, 0.8, 0.9))),
        ),
        (
            Effect(lambda x: diffusion(1 - x, 1.0), SUPPORTED, LOSSES, "of the base lost more"),
            Effect(lambda x: diffusion(1.0, 1 - x), CONTRADICTED, LOSSES, "of the base lost less"),
        ),
    ),
    "collapse": Simulation(
        (
            Null("nothing is lost", alone(family="causal", top=0.9), (SUPPORTED,)),
            Null("exactly half is left", alone(family="causal", top=0.45)),
            Null("half of a base of 0.25 is left", alone(family="causal", base=0.25, top=0.125)),
            Null("all is lost, under random keys too", alone(family="causal", top=0.0, control=0.0)),
        ),
        (
            Effect(lambda x: alone(family="causal", top=0.9 * x), SUPPORTED, (0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.1, 0.0),
                   "of the base left"),
            Effect(lambda x: alone(family="causal", top=0.9 * x), CONTRADICTED, (0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9),
                   "of the base left"),
        ),
    ),
    "rival": rivals("top"),
    "rival-model": rivals("whole"),
    "sinks": Simulation(
        (
            Null("nothing is lost", alone(top=0.9, mass=0.9, silence=0.9)),
            Null("controls lose the same 40 points", alone(top=0.5, control=0.5, mass=0.5, silence=0.5), (SUPPORTED,)),
            Null("the mass control loses 5 points less", alone(top=0.5, control=0.9, mass=0.55, silence=0.5), (CONTRADICTED,)),
            Null("all is lost under everything", alone(top=0.0, control=0.0, mass=0.0, silence=0.0)),
            Null("silence loses exactly 5 points", alone(top=0.5, control=0.9, mass=0.9, silence=0.85)),
        ),
        (
            Effect(lambda x: alone(top=0.9 - x, control=0.9, mass=0.9, silence=0.9 - x), SUPPORTED, LOSSES,
                   "lost beyond controls"),
            Effect(lambda x: alone(top=0.9 - x, control=0.9, mass=0.9 - x, silence=0.9 - x), CONTRADICTED, LOSSES,
                   "lost, under a control too"),
        ),
    ),
}  # fmt: skip


# ---- prompts -------------------------------------------------------------------------------------


def shares(mean: float, spread: float) -> Values:
    """Shares with this mean: a beta distribution whose standard deviation is `spread` times the distance to the nearer of 0 and
    1; from 1 on: all or nothing."""

    def draw(n: int, rng: Rng) -> Any:
        edge = min(mean, 1 - mean)
        if spread >= 1 or edge <= 0:
            return (rng.random(n) < mean).astype(float)
        size = mean * (1 - mean) / (spread * edge) ** 2 - 1
        return rng.beta(mean * size, (1 - mean) * size, n)

    return draw


def skewed(mean: float, spread: float = 1.0) -> Values:
    """Numbers of either sign with a long right tail."""
    return lambda n, rng: mean + spread * (rng.gamma(2.0, 1.0, n) - 2.0) / 2**0.5


def normal(mean: float, spread: float = 1.0) -> Values:
    return lambda n, rng: rng.normal(mean, spread, n)


def traced(
    measures: dict[str, tuple[Values, Scale]], family: str = "llada", fixed: dict[str, float] | None = None
) -> Study:
    """A model whose measures have these values by prompt, on their scale. fixed: numbers without an interval."""

    def study(n: int, rng: Rng) -> ModelEvidence:
        found = {name: mean_interval(draw(n, rng), None, scale) for name, (draw, scale) in measures.items()}
        found |= {name: Estimate(value, np.nan, np.nan) for name, value in (fixed or {}).items()}
        return ModelEvidence(model=family, family=family, kind=TRACES, prompts=n, measures=found)

    return study


def share_claim(measure: str, limit: float, above: bool, reverse: bool = False) -> Simulation:
    """A share against a limit, at the limit with three spreads; reverse: the table holds 1 − the share."""

    def at(mean: float, spread: float) -> Study:
        return traced({measure: (shares(1 - mean if reverse else mean, spread), "share")})

    up, down = (SUPPORTED, CONTRADICTED) if above else (CONTRADICTED, SUPPORTED)
    higher = [limit + (1 - limit) * x for x in (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8)]
    lower = [limit * (1 - x) for x in (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 0.98)]
    return Simulation(
        (
            Null(f"exactly {limit:g}, prompts alike", at(limit, 0.2)),
            Null(f"exactly {limit:g}, prompts differ", at(limit, 0.7)),
            Null(f"exactly {limit:g}, all or nothing", at(limit, 1.0)),
        ),
        (
            Effect(lambda x: at(x, 0.4), up, higher, "share"),
            Effect(lambda x: at(x, 0.4), down, lower, "share"),
        ),
    )


def signed_claim(measure: str, above: bool) -> Simulation:
    """A number against 0; effects in standard deviations between prompts."""

    def at(mean: float, draw: Callable[[float], Values] = normal) -> Study:
        return traced({measure: (draw(mean), "plain")})

    up, down = (SUPPORTED, CONTRADICTED) if above else (CONTRADICTED, SUPPORTED)
    sizes = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5)
    return Simulation(
        (Null("no change", at(0.0)), Null("no change, long tail", at(0.0, skewed))),
        (
            Effect(at, up, sizes, "standard deviations"),
            Effect(lambda x: at(-x), down, sizes, "standard deviations"),
        ),
    )


def enriched_claim(category: str) -> Simulation:
    """Detections of a category against those that chance expects, prompt by prompt."""

    def at(lift: float, expected: float, tail: float = 0.5) -> Study:
        def study(n: int, rng: Rng) -> ModelEvidence:
            chance = rng.gamma(2.0, expected / 2, n) + 1e-6
            own = rng.gamma(1 / tail**2, tail**2, n) if tail else np.ones(n)
            seen = rng.poisson(lift * chance * own)
            measures = {f"{category}: enrichment": ratio_interval(seen, chance, None, "positive")}
            return ModelEvidence(model="llada", family="llada", kind=TRACES, prompts=n, measures=measures)

        return study

    return Simulation(
        (
            Null("as often as chance", at(1.0, 50.0)),
            Null("as often as chance, prompts differ", at(1.0, 50.0, 1.0)),
            Null("as often as chance, one in two prompts", at(1.0, 0.5)),
        ),
        (
            Effect(lambda x: at(x, 50.0), SUPPORTED, (1.1, 1.2, 1.3, 1.5, 2.0, 3.0), "times chance"),
            Effect(lambda x: at(x, 50.0), CONTRADICTED, (0.9, 0.8, 0.7, 0.5, 0.3, 0.1), "times chance"),
        ),
    )


def kinds_claim(moving: bool) -> Simulation:
    """Shares of moving (or vanishing) and static heads by prompt; the rest flickers."""

    def at(moved: float, static: float, size: float = 6.0) -> Study:
        def study(n: int, rng: Rng) -> ModelEvidence:
            parts = np.maximum([moved, static, max(0.0, 1 - moved - static)], 1e-6)
            drawn = rng.dirichlet(parts * size, n)
            names = ("moving or vanishing heads", "static heads")
            return ModelEvidence(
                model="llada", family="llada", kind=TRACES, prompts=n,
                measures={name: mean_interval(drawn[:, i], None, "share") for i, name in enumerate(names)},
            )  # fmt: skip

        return study

    up, down = (SUPPORTED, CONTRADICTED) if moving else (CONTRADICTED, SUPPORTED)
    sizes = (0.52, 0.55, 0.6, 0.65, 0.7, 0.8, 0.9)
    return Simulation(
        (
            Null("noise: all heads flicker", at(0.0, 0.0)),
            Null("half move, half are static", at(0.5, 0.5)),
            Null("half move, half are static, whole prompts", at(0.5, 0.5, 0.5)),
            Null("half move, the rest flickers", at(0.5, 0.0)),
        ),
        (
            Effect(lambda x: at(x, 1 - x), up, sizes, "share moving"),
            Effect(lambda x: at(1 - x, x), down, sizes, "share static"),
        ),
    )


def drift_claim(sign: int, event: str = "") -> Simulation:
    """Drift by prompt, standard deviation 0.3 of the length."""

    def at(mean: float, spread: float = 0.3, p: float | None = 0.005) -> Study:
        def study(n: int, rng: Rng) -> ModelEvidence:
            fixed = {"tied selections": 0.0}
            if event:
                fixed[f"{event}: p"] = float(rng.random()) if p is None else p
            drawn = traced({"drift against position": (normal(sign * mean, spread), "plain")}, fixed=fixed)
            return drawn(n, rng)

        return study

    return Simulation(
        (
            Null("no drift", at(0.0), (SUPPORTED,)),
            Null("exactly 0.1", at(0.1)),
            Null("exactly 0.1, prompts alike", at(0.1, 0.05)),
            *(
                [Null("it drifts, but not with the blocks", at(0.3, p=None), (CONTRADICTED,))]
                if event
                else []
            ),
        ),
        (
            Effect(at, SUPPORTED, (0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5), "of the length"),
            Effect(at, CONTRADICTED, (0.09, 0.08, 0.05, 0.0, -0.1, -0.2), "of the length"),
        ),
    )


def leads_claim(wanted: str, opposite: str) -> Simulation:
    """Gains of category and position by prompt, standard deviation as large as their mean."""

    def at(share: float, whole: float = 1.0) -> Study:
        def study(n: int, rng: Rng) -> ModelEvidence:
            common = rng.gamma(1.0, 1.0, n)
            own, other = (
                whole * part * (0.5 * common + 0.5 * rng.gamma(1.0, 1.0, n)) for part in (share, 1 - share)
            )
            return ModelEvidence(
                model="llada", family="llada", kind=TRACES, prompts=n,
                measures={
                    f"gain: {LEADS[wanted]}": mean_interval(own - 2 * other),
                    f"gain: {LEADS[opposite]}": mean_interval(other - 2 * own),
                },
            )  # fmt: skip

        return study

    return Simulation(
        (
            Null("half and half", at(0.5)),
            Null("exactly two thirds", at(2 / 3), (CONTRADICTED,)),
            Null("nothing is explained", at(0.5, 0.0)),
        ),
        (
            Effect(at, SUPPORTED, (0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0), "share of the unique gain"),
            Effect(
                lambda x: at(1 - x),
                CONTRADICTED,
                (0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0),
                "share of the unique gain",
            ),
        ),
    )


def rarer_claim() -> Simulation:
    def at(own: float, other: float = 1.0) -> Study:
        def study(n: int, rng: Rng) -> ModelEvidence:
            def one(family: str, mean: float) -> ModelEvidence:
                values = rng.gamma(4.0, mean / 4, n)
                return ModelEvidence(
                    model=family,
                    family=family,
                    kind=TRACES,
                    prompts=n,
                    measures={"sinks per head": mean_interval(values, None, "positive")},
                )

            return ModelEvidence(**{**vars(one("mmada", own)), "others": (one("llada", other),)})

        return study

    return Simulation(
        (Null("as many", at(1.0)), Null("nearly none in either", at(0.01, 0.01))),
        (
            Effect(at, SUPPORTED, (0.95, 0.9, 0.8, 0.7, 0.5, 0.3), "times as many"),
            Effect(at, CONTRADICTED, (1.05, 1.1, 1.2, 1.5, 2.0, 3.0), "times as many"),
        ),
    )


def pairs_claim() -> Simulation:
    tail = "of dependent less other tokens"

    def at(size: float) -> Study:
        def study(n: int, rng: Rng) -> ModelEvidence:
            measures = {
                f"confidence change {tail}": mean_interval(rng.normal(-size, 1.0, n)),
                f"delay {tail}": mean_interval(rng.normal(size, 1.0, n)),
            }
            return ModelEvidence(model="llada", family="llada", kind=PAIRS, prompts=n, measures=measures)

        return study

    sizes = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5)
    return Simulation(
        (Null("nothing changes", at(0.0)),),
        (
            Effect(at, SUPPORTED, sizes, "standard deviations"),
            Effect(lambda x: at(-x), CONTRADICTED, sizes, "standard deviations"),
        ),
    )


PROMPTS = {
    "present": share_claim("heads without", 0.01, True, reverse=True),
    "filtered": share_claim("tokens filtered at ε = 3", 0.96, True),
    "rare": share_claim("heads without", 0.5, True),
    "rarer": rarer_claim(),
    "fewer": signed_claim("sinks per head: change with depth", False),
    "few": share_claim("one or two positions in the deepest layers", 0.5, True),
    "early": signed_claim("absorbed: change with depth", False),
    "late": signed_claim("main sink: change with depth", True),
    "moving": kinds_claim(True),
    "static": kinds_claim(False),
    "start": share_claim("on the first 4 positions", 0.5, True),
    "lasting": share_claim("residences of one step", 0.5, False),
    "right": drift_claim(+1, "moves as a block ends"),
    "left": drift_claim(-1),
    "rightmost": share_claim("first on the right-most mask", 0.25, True),
    "split": signed_claim("split beyond random classes", True),
    "newline": enriched_claim("newline"),
    "punctuation": enriched_claim("punctuation"),
    "whitespace": enriched_claim("whitespace"),
    "end": enriched_claim("end"),
    "masks": enriched_claim("mask"),
    "semantic": leads_claim("semantic", "positional"),
    "positional": leads_claim("positional", "semantic"),
    "confidence": pairs_claim(),
}
SIMULATIONS: dict[str, Simulation] = DOCUMENTS | PROMPTS
