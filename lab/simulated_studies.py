"""Simulated studies for every claim: truths without grounds for a verdict, and planted effects. See verdict_simulation.py.

Claims on accuracies are simulated by document, claims on traces by prompt (one value of the measure for each prompt).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from sinkscope.sinks.attribution import LEADS
from sinkscope.sinks.compare import BEYOND, LESS
from sinkscope.statistics import Estimate, Scale, mean_interval, ratio_interval
from sinkscope.study.names import SINK
from sinkscope.verdicts import Measure, Status
from sinkscope.verdicts.measures import Kind, Measures, PolicyRun
from sinkscope.verdicts.verdict import point

SUPPORTED, CONTRADICTED = Status.SUPPORTED, Status.CONTRADICTED
BOTH = (SUPPORTED, CONTRADICTED)

Rng = np.random.Generator
Study = Callable[[int, Rng], Measures]
Values = Callable[[int, Rng], Any]


class Null(NamedTuple):
    """A truth without grounds for some verdicts."""

    name: str
    study: Study
    wrong: tuple[Status, ...] = BOTH


class Effect(NamedTuple):
    """A planted truth: effect size → a study; the verdict that it should get; sizes to try, small ones first; their unit."""

    study: Callable[[float], Study]
    verdict: Status
    sizes: Sequence[float]
    unit: str


@dataclass(frozen=True)
class Simulation:
    """A claim's nulls and effects."""

    nulls: tuple[Null, ...]
    effects: tuple[Effect, ...]


# ---- documents -----------------------------------------------------------------------------------

MASS = ",match=mass"
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
            [np.where(right, rng.random(n) < keep, rng.random(n) < flips / max(1e-9, 1 - base)) for _ in range(draws)],
            axis=0,
        )
    return {name: dict(zip(names, map(float, scores), strict=True)) for name, scores in runs.items()}


MASKED = {
    "llada": PolicyRun({}, hits=0.48, strongest=0.92, removed=0.043, sinks_removed=0.55),
    "causal": PolicyRun({}, hits=0.29, strongest=0.36, removed=0.126, sinks_removed=0.51),
    "missed": PolicyRun({}, hits=0.1, strongest=0.2, removed=0.02, sinks_removed=0.1),
    "first": PolicyRun({}, hits=0.48, strongest=0.78, removed=0.49, sinks_removed=0.81),
}
"""What top:1 masks, as measured on our diffusion and causal organisms and ("first") in SmolLM2, where most heads have one key as
their strongest sink (`top:1` of lab/english/protocol); "missed": a mask beside the sinks, which is made up."""


def model(
    n: int, rng: Rng, base: float = 0.9, family: str = "llada", mask: str = "", reached: float = 1.0, guess: float = 0.0,
    **left: float,
) -> Measures:  # fmt: skip
    """One model: accuracies left under policies, by the names of POLICIES; the controls keep their accuracy unless told.

    mask: of MASKED, by family if not told; reached: what the mass-matched control removed, as a share of the mask's.
    """
    policies = {POLICIES[name]: value for name, value in left.items()}
    for control in controls(left):
        policies.setdefault(control, base)
    scores = answers(n, base, policies, rng)
    return Measures(
        family, family, guess=guess, runs=masked(scores, MASKED[mask or MASKS.get(family, "llada")], reached)
    )


MASKS = {"causal": "first"}
"""Of a family, unless another is told: a mask whose losses may be those of sinks."""


def controls(left: Iterable[str]) -> Iterator[str]:
    """Both controls of every mask that was run."""
    for name in ("top", "ten", "whole", "sink"):
        if name in left:
            yield from (f"random({POLICIES[name]})", f"random({POLICIES[name]}){MASS}")


def masked(scores: dict[str, dict[str, float]], mask: PolicyRun, reached: float) -> dict[str, PolicyRun]:
    """Runs of a mask, of its two halves, and of its mass-matched controls."""
    return {
        policy: replace(mask, scores=each, removed=mask.removed * (reached if policy.endswith(MASS) else 1.0))
        for policy, each in scores.items()
    }


REACHED = {"causal": 0.29 / 0.49, "diffusion": 0.33 / 0.56}
"""What mass-matched controls of top:1 removed, as a share of what it did: in SmolLM2, and in its diffusion twins."""


def reaching(simulation: Simulation) -> Simulation:
    """The same truths where mass-matched controls reach no more than was measured."""

    def less(measures: Measures) -> Measures:
        part = REACHED["causal" if measures.family == "causal" else "diffusion"]
        runs = {
            policy: replace(run, removed=run.removed * part) if policy.endswith(MASS) else run
            for policy, run in measures.runs.items()
        }
        return replace(measures, runs=runs, others=tuple(map(less, measures.others)))

    return through(simulation, lambda study: lambda n, rng: less(study(n, rng)))


def through(simulation: Simulation, change: Callable[[Study], Study]) -> Simulation:
    """Every truth with its studies changed."""

    def changed(planted: Callable[[float], Study]) -> Callable[[float], Study]:
        return lambda x: change(planted(x))

    nulls = tuple(null._replace(study=change(null.study)) for null in simulation.nulls)
    return Simulation(nulls, tuple(effect._replace(study=changed(effect.study)) for effect in simulation.effects))


POLICIES = {
    "top": "top:1", "five": "top:5", "ten": "top:10", "whole": "top:1@model", "control": "random(top:1)",
    "control_ten": "random(top:10)", "mass_ten": "random(top:10),match=mass", "mass_whole": "random(top:1@model),match=mass",
    "control_whole": "random(top:1@model)", "mass": "random(top:1),match=mass",
    "sink": SINK, "control_sink": f"random({SINK})", "mass_sink": f"random({SINK}){MASS}", "silence": "top:1,effect=silence",
    "sinks": "top:1,epsilon=3",
    "rest": "top:1,epsilon=3,among=others", "control_five": "random(top:5)",
}  # fmt: skip


def alone(**options: Any) -> Study:
    return lambda n, rng: model(n, rng, **options)


def beside(own: dict[str, Any], *others: dict[str, Any]) -> Study:
    """A model and its rivals on the same task."""

    def study(n: int, rng: Rng) -> Measures:
        first = model(n, rng, **own)
        return replace(first, others=tuple(model(n, rng, **other) for other in others))

    return study


LOSSES = (0.06, 0.07, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


def robust(name: str, control: str) -> Simulation:
    return Simulation(
        (
            Null("nothing is lost", alone(**{name: 0.9, control: 0.9}), (CONTRADICTED,)),
            Null("exactly 5 points are lost", alone(**{name: 0.85, control: 0.9})),
            Null("exactly 5 points of a base of 0.25", alone(base=0.25, **{name: 0.2, control: 0.25})),
            Null("all is lost, under random keys too", alone(**{name: 0.0, control: 0.0})),
            Null("it guesses between two", alone(base=0.5, guess=0.5, **{name: 0.5, control: 0.5})),
            Null("nothing is lost, but the mask missed", alone(mask="missed", **{name: 0.9, control: 0.9})),
        ),
        (
            Effect(lambda x: alone(**{name: 0.9 - x, control: 0.9}), CONTRADICTED, LOSSES, "lost"),
            Effect(
                lambda x: alone(**{name: 0.9 - x, control: 0.9}), SUPPORTED, (0.03, 0.02, 0.01, 0.0), "lost at most"
            ),
        ),
    )


def guessers(name: str) -> Study:
    """A diffusion model that loses all it knew about choices between two, and a causal one that keeps half."""
    known, lost = {"guess": 0.5, "base": 0.57, name: 0.5}, {"guess": 0.5, "base": 0.95, name: 0.75}
    return beside(known, {"family": "causal", **lost})


def rivals(name: str) -> Simulation:
    mass = "mass" if name == "top" else f"mass_{name}"

    def both(own: float, causal: float, base: float = 0.9, other: float = 0.95, **more: Any) -> Study:
        lost = {key: other * value if key == mass else value for key, value in more.items()}
        return beside(
            {"base": base, name: base * own}, {"family": "causal", "base": other, name: other * causal, **lost}
        )

    return Simulation(
        (
            Null("nothing is lost in either", both(1.0, 1.0)),
            Null("both lose 40 % of what they had", both(0.6, 0.6)),
            Null("the same, from bases of 0.3 and 0.95", both(0.6, 0.6, base=0.3)),
            Null("bases of 0.3 and 0.95, both to nothing", both(0.0, 0.0, base=0.3)),
            Null("one loses 5 % more", both(0.75, 0.70)),
            Null("all of .07 above guessing is lost, and .20 of .45", guessers(name), (SUPPORTED,)),
            Null("the causal model loses all, its strongest sinks missed", both(1.0, 0.0, mask="causal")),
            Null("it loses all, under keys with as much attention too", both(1.0, 0.0, **{mass: 0.0})),
            Null(
                "it loses in proportion to attention, its control removes .95",
                both(1.0, 0.2, reached=0.95, **{mass: 0.24}),
            ),
            Null(
                "it loses in proportion to attention, its control removes .60",
                both(1.0, 0.2, reached=0.6, **{mass: 0.52}),
            ),
            Null(
                "it loses in proportion to attention, its control removes 1.2",
                both(1.0, 0.4, reached=1.2, **{mass: 0.28}),
            ),
        ),
        (
            Effect(lambda x: both(1.0, 1 - x), SUPPORTED, LOSSES, "of the base lost more"),
            Effect(lambda x: both(1 - x, 1.0), CONTRADICTED, LOSSES, "of the base lost less"),
        ),
    )


def diffusion(own: float, other: float, bases: tuple[float, float, float] = (0.6, 0.8, 0.85), **more: Any) -> Study:
    """Three diffusion models; more: options of the first."""
    first, *rest = (
        {"family": family, "base": base, "ten": base * left}
        for family, base, left in zip(("mmada", "llada", "dream"), bases, (own, other, other), strict=True)
    )
    return beside(first | more, *rest)


def causal(**options: Any) -> Study:
    """A causal model."""
    return alone(**{"family": "causal", **options})


def due(lost: float, **options: float) -> Study:
    """A loss under top:1, as large under silence and where the key is a sink; where it is none, nothing is lost, unless told."""
    left = 0.9 - lost
    return alone(**{"top": left, "silence": left, "sinks": left, "rest": 0.9, "mass": 0.9, **options})


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
            Null("top:10 loses all, the strongest sinks missed", alone(top=0.9, ten=0.0, mask="missed")),
            Null("it loses all, under keys with as much attention too", alone(top=0.9, ten=0.0, mass_ten=0.0)),
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
            Null("one loses all, its strongest sinks missed", diffusion(0.0, 1.0, mask="missed")),
            Null("it loses all, under keys with as much attention too", diffusion(0.0, 1.0, mass_ten=0.0)),
        ),
        (
            Effect(lambda x: diffusion(1 - x, 1.0), SUPPORTED, LOSSES, "of the base lost more"),
            Effect(lambda x: diffusion(1.0, 1 - x), CONTRADICTED, LOSSES, "of the base lost less"),
        ),
    ),
    "collapse": Simulation(
        (
            Null("nothing is lost", causal(top=0.9), (SUPPORTED,)),
            Null("exactly half is left", causal(top=0.45)),
            Null("half of a base of 0.25 is left", causal(base=0.25, top=0.125)),
            Null("all is lost, under random keys too", causal(top=0.0, control=0.0, mass=0.0)),
            Null("all is lost, but the strongest sinks were missed", causal(top=0.0, mask="causal")),
            Null("a loss in proportion to attention, .95 of it", causal(top=0.2, mass=0.235, reached=0.95), (SUPPORTED,)),
            Null("a loss in proportion to attention, .60 of it", causal(top=0.2, mass=0.48, reached=0.6), (SUPPORTED,)),
            Null("a loss in proportion to attention, 1.2 of it", causal(top=0.3, mass=0.18, reached=1.2), (SUPPORTED,)),
        ),
        (
            Effect(lambda x: causal(top=0.9 * x), SUPPORTED, (0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.1, 0.0), "of the base left"),
            Effect(lambda x: causal(top=0.9 * x), CONTRADICTED, (0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9), "of the base left"),
        ),
    ),
    "rival": rivals("top"),
    "rival-sink": rivals("sink"),
    "rival-model": rivals("whole"),
    "sinks": Simulation(
        (
            Null("nothing is lost", due(0.0)),
            Null("controls lose the same 40 points", due(0.4, control=0.5, mass=0.5, rest=0.5), (SUPPORTED,)),
            Null("the mass control loses 5 points less", due(0.4, mass=0.55), (CONTRADICTED,)),
            Null("all is lost under everything", due(0.9, control=0.0, mass=0.0, rest=0.0)),
            Null("silence loses exactly 5 points", due(0.4, silence=0.85)),
            Null("both halves lose the same", due(0.4, sinks=0.7, rest=0.7), (SUPPORTED,)),
            *(
                Null(f"a loss as of {part:g} of the attention", due(0.7, mass=0.9 - 0.7 * part, reached=part), (SUPPORTED,))
                for part in (0.91, 0.89, 0.8, 0.6, 0.5)
            ),
        ),
        (
            Effect(due, SUPPORTED, LOSSES, "lost beyond controls"),
            Effect(lambda x: due(x, mass=0.9 - x), CONTRADICTED, LOSSES, "lost, under a control too"),
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

    def study(n: int, rng: Rng) -> Measures:
        found = {name: mean_interval(draw(n, rng), None, scale) for name, (draw, scale) in measures.items()}
        found |= {name: point(value) for name, value in (fixed or {}).items()}
        return Measures(family, family, Kind.TRACES, prompts=n, estimates=found)

    return study


def share_claim(measure: Measure, limit: float, above: bool, reverse: bool = False, of: str = "") -> Simulation:
    """A share against a limit, at the limit with three spreads; reverse: the table holds 1 − the share."""

    def at(mean: float, spread: float) -> Study:
        return traced({measure.named(of): (shares(1 - mean if reverse else mean, spread), "share")})

    up, down = (SUPPORTED, CONTRADICTED) if above else (CONTRADICTED, SUPPORTED)
    higher = [limit + (1 - limit) * x for x in (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8)]
    lower = [limit * (1 - x) for x in (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 0.98)]
    return Simulation(
        (
            Null(f"exactly {limit:g}, prompts alike", at(limit, 0.2)),
            Null(f"exactly {limit:g}, prompts differ", at(limit, 0.7)),
            Null(f"exactly {limit:g}, all or nothing", at(limit, 1.0)),
        ),
        (Effect(lambda x: at(x, 0.4), up, higher, "share"), Effect(lambda x: at(x, 0.4), down, lower, "share")),
    )


def signed_claim(measure: Measure, above: bool) -> Simulation:
    """A number against 0; effects in standard deviations between prompts."""

    def at(mean: float, draw: Callable[[float], Values] = normal) -> Study:
        return traced({measure.named(): (draw(mean), "plain")})

    up, down = (SUPPORTED, CONTRADICTED) if above else (CONTRADICTED, SUPPORTED)
    sizes = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5)
    return Simulation(
        (Null("no change", at(0.0)), Null("no change, long tail", at(0.0, skewed))),
        (Effect(at, up, sizes, "standard deviations"), Effect(lambda x: at(-x), down, sizes, "standard deviations")),
    )


def enriched_claim(category: str) -> Simulation:
    """Detections of a category against those that chance expects, prompt by prompt."""

    def at(lift: float, expected: float, tail: float = 0.5) -> Study:
        def study(n: int, rng: Rng) -> Measures:
            chance = rng.gamma(2.0, expected / 2, n) + 1e-6
            own = rng.gamma(1 / tail**2, tail**2, n) if tail else np.ones(n)
            seen = rng.poisson(lift * chance * own)
            found = {Measure.ENRICHMENT.named(category): ratio_interval(seen, chance, None, "positive")}
            return Measures("llada", "llada", Kind.TRACES, prompts=n, estimates=found)

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

    def at(moved: float, static: float, size: float = 6.0, chance: float = 0.25) -> Study:
        def study(n: int, rng: Rng) -> Measures:
            parts = np.maximum([moved, static, max(0.0, 1 - moved - static)], 1e-6)
            drawn = rng.dirichlet(parts * size, n)
            names = (Measure.MOVING.named(), Measure.KIND.named("static"))
            found = {name: mean_interval(drawn[:, i], None, "share") for i, name in enumerate(names)}
            found[Measure.MOVING_BEYOND.named()] = mean_interval(drawn[:, 0] - chance)
            return Measures("llada", "llada", Kind.TRACES, prompts=n, estimates=found)

        return study

    up, down = (SUPPORTED, CONTRADICTED) if moving else (CONTRADICTED, SUPPORTED)
    sizes = (0.52, 0.55, 0.6, 0.65, 0.7, 0.8, 0.9)
    return Simulation(
        (
            Null("noise: all heads flicker", at(0.0, 0.0)),
            Null("half move, half are static", at(0.5, 0.5)),
            Null("half move, half are static, whole prompts", at(0.5, 0.5, 0.5)),
            Null("half move, the rest flickers", at(0.5, 0.0)),
            Null("most move, as noise does", at(0.7, 0.0, chance=0.7)),
        ),
        (
            Effect(lambda x: at(x, 1 - x), up, sizes, "share moving"),
            Effect(lambda x: at(1 - x, x), down, sizes, "share static"),
        ),
    )


def drift_claim(sign: int, event: Measure | None = None) -> Simulation:
    """Drift by prompt, standard deviation 0.3 of the length."""

    def at(mean: float, spread: float = 0.3, p: float | None = 0.005) -> Study:
        def study(n: int, rng: Rng) -> Measures:
            fixed = {Measure.TIES.named(): 0.0}
            if event:
                fixed[event.named()] = float(rng.random()) if p is None else p
            name = Measure.DRIFT.named("position")
            drawn = traced({name: (normal(sign * mean, spread), "plain")}, fixed=fixed)
            return drawn(n, rng)

        return study

    return Simulation(
        (
            Null("no drift", at(0.0), (SUPPORTED,)),
            Null("exactly 0.1", at(0.1)),
            Null("exactly 0.1, prompts alike", at(0.1, 0.05)),
            *([Null("it drifts, but not with the blocks", at(0.3, p=None), (CONTRADICTED,))] if event else []),
        ),
        (
            Effect(at, SUPPORTED, (0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5), "of the length"),
            Effect(at, CONTRADICTED, (0.09, 0.08, 0.05, 0.0, -0.1, -0.2), "of the length"),
        ),
    )


def leads_claim(wanted: str, opposite: str) -> Simulation:
    """Gains of category and position by prompt, standard deviation as large as their mean."""

    def at(share: float, whole: float = 1.0) -> Study:
        def study(n: int, rng: Rng) -> Measures:
            common = rng.gamma(1.0, 1.0, n)
            own, other = (whole * part * (0.5 * common + 0.5 * rng.gamma(1.0, 1.0, n)) for part in (share, 1 - share))
            found = {
                LEADS[wanted].named(): mean_interval(own - 2 * other),
                LEADS[opposite].named(): mean_interval(other - 2 * own),
            }
            return Measures("llada", "llada", Kind.TRACES, prompts=n, estimates=found)

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
                lambda x: at(1 - x), CONTRADICTED, (0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0), "share of the unique gain"
            ),
        ),
    )


def rarer_claim() -> Simulation:
    def at(own: float, other: float = 1.0) -> Study:
        def study(n: int, rng: Rng) -> Measures:
            def one(family: str, mean: float) -> Measures:
                values = rng.gamma(4.0, mean / 4, n)
                found = {Measure.SINKS.named(): mean_interval(values, None, "positive")}
                return Measures(family, family, Kind.TRACES, prompts=n, estimates=found)

            return replace(one("mmada", own), others=(one("llada", other),))

        return study

    return Simulation(
        (Null("as many", at(1.0)), Null("nearly none in either", at(0.01, 0.01))),
        (
            Effect(at, SUPPORTED, (0.95, 0.9, 0.8, 0.7, 0.5, 0.3), "times as many"),
            Effect(at, CONTRADICTED, (1.05, 1.1, 1.2, 1.5, 2.0, 3.0), "times as many"),
        ),
    )


def pairs_claim() -> Simulation:
    def at(size: float) -> Study:
        def study(n: int, rng: Rng) -> Measures:
            found: dict[str, Estimate] = {}
            for measure, sign in ((Measure.CONFIDENCE_OF, -1), (Measure.DELAY_OF, 1)):
                drawn = mean_interval(rng.normal(sign * size, 1.0, n))
                found |= {measure.named(of): drawn for of in (LESS, *BEYOND)}
            return Measures("llada", "llada", Kind.PAIRS, prompts=n, estimates=found)

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
    "present": share_claim(Measure.WITHOUT, 0.01, True, reverse=True),
    "filtered": share_claim(Measure.FILTERED, 0.96, True),
    "rare": share_claim(Measure.WITHOUT, 0.5, True),
    "rarer": rarer_claim(),
    "fewer": signed_claim(Measure.SINKS_DEPTH, False),
    "few": share_claim(Measure.ONE_OR_TWO, 0.5, True),
    "early": signed_claim(Measure.ABSORBED_DEPTH, False),
    "late": signed_claim(Measure.MAIN_DEPTH, True),
    "moving": kinds_claim(True),
    "static": kinds_claim(False),
    "start": share_claim(Measure.ON_FIRST, 0.5, True),
    "lasting": share_claim(Measure.ONE_STEP, 0.5, False),
    "right": drift_claim(+1, Measure.BLOCK_P),
    "left": drift_claim(-1),
    "rightmost": share_claim(Measure.FIRST_ON_MASK, 0.25, True),
    "split": signed_claim(Measure.SPLIT_BEYOND, True),
    "newline": enriched_claim("newline"),
    "punctuation": enriched_claim("punctuation"),
    "whitespace": enriched_claim("whitespace"),
    "end": enriched_claim("end"),
    "masks": share_claim(Measure.FREQUENCY, 0.17, True, of="mask"),
    "masks-beyond": enriched_claim("mask"),
    "semantic": leads_claim("semantic", "positional"),
    "positional": leads_claim("positional", "semantic"),
    "confidence": pairs_claim(),
}
SIMULATIONS: dict[str, Simulation] = DOCUMENTS | PROMPTS
