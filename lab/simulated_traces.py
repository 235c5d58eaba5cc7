"""Whole chains, from planted attention, vectors or answers up to the verdict that is printed. See verdict_simulation.py.

Nothing here makes a measure by hand: traces go through `sink_statistics`, vectors through the probes, pairs of traces' tables
through `collect`, as in a study. Truths are those for which rules of ours once gave verdicts without grounds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from lab.simulated_answers import recorded
from lab.simulated_studies import (
    BOTH,
    CONTRADICTED,
    DOCUMENTS,
    SUPPORTED,
    Effect,
    Null,
    Rng,
    Simulation,
    Study,
    through,
)
from lab.simulated_texts import TEXTS
from sinkscope.inspection.survey import LABEL, LABELS, VECTOR, VECTORS, Name, probe_names, probe_rows
from sinkscope.sinks.compare import LESS
from sinkscope.sinks.sink_statistics import OTHER_SETTINGS, SETTINGS, sink_statistics
from sinkscope.sinks.summary_table import settings_table, table_of
from sinkscope.study.measured import Studied, collect
from sinkscope.verdicts import Measure
from sinkscope.verdicts.diagnosis import QUESTIONS
from sinkscope.verdicts.holdings import measures_of
from sinkscope.verdicts.measures import Kind, Measures, PolicyRun
from sinkscope.verdicts.questions import CLAIMS, Claim, nearby
from sinkscope.verdicts.verdict import Question

STEPS, BLOCK, HEADS = 32, 16, 2
MASK, STRONG = 1, 30.0

Array = np.ndarray[Any, Any]
Paths = Callable[[int, int, Rng], Array]
"""Prompts, keys, → the planted key of each prompt, step and head, int [n, STEPS, HEADS]; −1: none."""


def trace(n: int, rng: Rng, paths: Paths | None = None, lasting: float = 0.0, spread: float = 0.3) -> xr.Dataset:
    """Prompts of 8 tokens, 32 answer tokens decided from left to right in two blocks, one step each.

    lasting: autocorrelation of the noise from step to step; spread: its standard deviation (of logarithms).
    """
    prompt, keys = 8, 8 + STEPS
    noise = rng.normal(0.0, 1.0, (n, STEPS, HEADS, keys))
    for t in range(1, STEPS):
        noise[:, t] = lasting * noise[:, t - 1] + np.sqrt(1 - lasting**2) * noise[:, t]
    scores = np.exp(spread * noise)
    if paths is not None:
        path = paths(n, keys, rng)
        sample, step, head = np.nonzero(path >= 0)
        scores[sample, step, head, path[sample, step, head]] *= STRONG
    scores *= keys / scores.sum(axis=-1, keepdims=True)
    final = rng.integers(12, 60, (n, 1, keys)).repeat(STEPS, axis=1)
    left = np.arange(keys)[None] - prompt >= np.arange(STEPS)[:, None]  # [step, key]
    decided = np.arange(keys)[None] - prompt == np.arange(STEPS)[:, None]
    whole = (n, STEPS, keys)
    return xr.Dataset(
        {
            "received": (("sample", "step", "layer", "head", "key"), scores[:, :, None].astype(np.float32)),
            "tokens": (("sample", "step", "key"), np.where(left, MASK, final)),
            "masked": (("sample", "step", "key"), np.broadcast_to(left, whole)),
            "decided": (("sample", "step", "key"), np.broadcast_to(decided, whole)),
            "ties": (("sample", "step"), np.zeros(whole[:2], dtype=np.int64)),
            "region": (("sample", "key"), np.tile(np.where(np.arange(keys) < prompt, "prompt", "answer"), (n, 1))),
            "position": (("sample", "key"), np.tile(np.arange(keys), (n, 1))),
        },
        coords={"sample": np.arange(n), "step": np.arange(STEPS), "layer": [0], "head": np.arange(HEADS), "key": np.arange(keys)},
        attrs={
            "family": "llada", "model": "planted", "policy": "",
            "decoding": json.dumps({"kind": "llada", "block": BLOCK, "length": STEPS, "steps": STEPS}),
            "special_ids": json.dumps({"mask": MASK, "eos": [2], "bos": 3, "pad": 0}), "token_texts": "{}",
        },
    )  # fmt: skip


POOLS, POOL = 4, 400
"""So many pools of prompts are traced for each truth; a study draws its prompts from one of them, without replacement. Studies
of one pool are alike the more, the larger they are."""


def traced(**options: Any) -> Study:
    """Traces through the whole analysis but for composition and attribution."""

    @cache
    def pool(number: int) -> xr.Dataset:
        data = trace(POOL, np.random.default_rng(number), **options)
        parts = ("depth", "strength", "dynamics", SETTINGS)
        return sink_statistics(data, parts=parts, settings=nearby(OTHER_SETTINGS))

    def study(n: int, rng: Rng) -> Measures:
        statistics = pool(int(rng.integers(POOLS))).isel(sample=np.sort(rng.choice(POOL, n, replace=False)))
        about = {"model": "m", "cell": "c", "policy": "none", "traces": "planted", "task": "word_problems"}
        made = {"sinks": table_of(statistics), "thresholds": settings_table(statistics)}
        (measures,) = collect({name: table.assign(**about) for name, table in made.items()}, {"m": Studied("llada")})
        return measures

    return study


def jumping(drift: float, rate: Callable[[Array], Array]) -> Paths:
    """A sink near a line that drifts by a share of the length; it jumps about it with a rate [STEPS], of all heads at once."""

    def paths(n: int, keys: int, rng: Rng) -> Array:
        line = keys * (0.5 + drift * (np.arange(STEPS) / STEPS - 0.5))
        jumps = rng.random((n, STEPS)) < rate(np.arange(STEPS))
        wide = rng.normal(0.0, keys * 0.15, (n, STEPS, HEADS))
        held = np.maximum.accumulate(np.where(jumps, np.arange(STEPS), 0), axis=1)
        place = line[held][..., None] + np.take_along_axis(wide, held[..., None], axis=1)
        return np.clip(place.round(), 0, keys - 1).astype(int)

    return paths


def flat(steps: Array) -> Array:
    """Jumps in a third of the steps."""
    return np.full(len(steps), 0.33)


def peaked(steps: Array) -> Array:
    """Jumps that are frequent in the middle of the generation, where the first block ends."""
    return np.asarray(0.1 + 0.6 * np.exp(-(((steps - STEPS / 2) / 6) ** 2)))


def at_blocks(strength: float) -> Callable[[Array], Array]:
    """Jumps behind the end of a block, so much more often than elsewhere."""
    return lambda steps: np.where(steps == BLOCK, 0.1 + 0.9 * strength, 0.1)


def static(n: int, keys: int, rng: Rng) -> Array:
    """A sink that stays where it is."""
    return np.zeros((n, STEPS, HEADS), dtype=int)


def by_blocks(n: int, keys: int, rng: Rng) -> Array:
    """A sink on the first key of each block, one step late in some heads."""
    steps = np.arange(STEPS)[None, :, None] - rng.integers(0, 2, (n, 1, HEADS))
    return np.asarray(8 + np.maximum(steps, 0) // BLOCK * BLOCK)


# ---- inspections, pairs, answers ---------------------------------------------------------------------


def probed(told: float, elsewhere: float) -> Study:
    """A fact that sinks and other places hold; sinks, and one other place, are always the same token.

    told, elsewhere: how strongly.
    """

    def study(n: int, rng: Rng) -> Measures:
        fact = rng.integers(0, 2, n) * 2.0 - 1.0
        way, words = rng.normal(size=8), rng.normal(size=(40, 8))
        parts = []
        for i in range(n):
            tokens = np.array(
                [words[0], words[rng.integers(1, 40)], words[1]]
            )  # at the sink, a random place, a fixed place
            holds = np.array([told, elsewhere, elsewhere])[:, None] * fact[i] * way
            vectors = tokens + holds + rng.normal(0.0, 1.0, (1, 3, 3, 8))
            part = {Name(VECTOR, name): vectors for name in VECTORS}
            labels = {Name(LABEL, name): np.array([np.nan]) for name in LABELS}
            parts.append(part | labels | {Name(LABEL, "answer length"): np.array([fact[i]])})
        table = pd.DataFrame(
            probe_rows(parts), columns=["section", "measure", "place", "layer", "value", "low", "high", "n"]
        )
        return measures_of(table, {})

    return study


def fragile(beyond: float, controls: tuple[float, ...] = (0.8, 1.25), power: float = 1.0) -> Study:
    """Pairs of traces: some tokens are fragile, and lose with the damage that a mask does to their text.

    beyond: what those that attend to sinks lose more under top:1. controls: their damage, of the policy's. power: their loss
    grows as damage ** power.
    """

    def study(n: int, rng: Rng) -> Measures:
        text, rows = rng.gamma(4.0, 0.025, n), []
        masks = {"top:1": (1.0, beyond)} | {f"random(top:{k})": (part, 0.0) for k, part in enumerate(controls, 1)}
        for policy, (size, more) in masks.items():
            damage = size * text * rng.gamma(20.0, 0.05, n)
            harm = 0.1 * (damage / 0.1) ** power  # 0.1: the mean damage of the policy
            changes = {
                Measure.CONFIDENCE_CHANGE.named(): -damage,
                Measure.CONFIDENCE_OF.named(LESS): -1.1 * harm - more + rng.normal(0.0, 0.03, n),
                Measure.DELAY_OF.named(LESS): 5 * harm + 10 * more + rng.normal(0.0, 0.3, n),
            }
            rows += [
                {
                    "model": "m",
                    "decoding_name": "short",
                    "policy": policy,
                    "document": i,
                    "measure": name,
                    "value": value,
                }
                for name, values in changes.items()
                for i, value in enumerate(values)
            ]
        (measures,) = collect({"pairs": pd.DataFrame(rows)}, {"m": Studied("llada")})
        return measures

    return study


def windows(without: float, first: float) -> Study:
    """Accuracies under a window, without and with the first keys in sight."""

    def study(n: int, rng: Rng) -> Measures:
        shares = {"none": 0.95, "window:48": without, "window:48,first=4": first}
        easy = rng.random(n)
        runs = {
            name: PolicyRun(
                {f"d{i}": float(one < share) for i, one in enumerate((easy + rng.normal(0, 0.05, n)) % 1.0)}
            )
            for name, share in shares.items()
        }
        return Measures("m", "llada", runs=runs)

    return recorded(study)


(ANCHOR,) = (question for question in QUESTIONS if question.name == Question.NEEDS_FIRST)
PROBE = Claim("probe", "probed", {"of": probe_names()["answer length"]}, Kind.INSIDE)
BY_NAME = {claim.name: claim for claim in (*CLAIMS, ANCHOR, PROBE)}
STRONGER = (0.05, 0.1, 0.2, 0.4)

CHAINS: dict[str, Simulation] = {
    "moving": Simulation(
        (
            Null("noise that lasts", traced(lasting=0.9, spread=0.8), (SUPPORTED,)),
            Null("a sink that stays", traced(paths=static), (SUPPORTED,)),
        ),
        (Effect(lambda x: traced(paths=by_blocks, spread=0.3 / x), SUPPORTED, (1.0,), "a sink that moves with blocks"),),
    ),
    "right": Simulation(
        (
            Null("noise", traced(), (SUPPORTED,)),
            Null("it drifts, and moves most where a block ends", traced(paths=jumping(0.6, peaked)), BOTH),
            Null("it drifts at all times", traced(paths=jumping(0.6, flat)), BOTH),
        ),
        (Effect(lambda x: traced(paths=jumping(0.6, at_blocks(x))), SUPPORTED, (0.25, 0.5, 1.0), "of the moves at block ends"),),
    ),
    "left": Simulation(
        (Null("noise", traced(), (SUPPORTED,)), Null("it jumps anywhere", traced(paths=jumping(0.0, flat)), (SUPPORTED,))),
        (Effect(lambda x: traced(paths=jumping(-x, flat)), SUPPORTED, (0.2, 0.3, 0.4, 0.6), "of the length"),),
    ),
    "probe": Simulation(
        (
            Null("no fact is there", probed(0.0, 0.0), (SUPPORTED,)),
            Null("the same fact everywhere, in the same way", probed(1.0, 1.0), (SUPPORTED,)),
        ),
        (Effect(lambda x: probed(x, 0.0), SUPPORTED, (0.5, 1.0, 2.0), "of the spread, at sinks alone"),),
    ),
    Question.NEEDS_FIRST: Simulation(
        (
            Null("both windows leave .03", windows(0.03, 0.03)),
            Null("both windows leave nothing", windows(0.0, 0.0)),
            Null("exactly 5 points are gained", windows(0.5, 0.55)),
        ),
        (
            Effect(lambda x: windows(0.3, 0.3 + x), SUPPORTED, (0.1, 0.2, 0.3, 0.5), "gained"),
            Effect(lambda x: windows(0.5, 0.5 + x), CONTRADICTED, (0.02, 0.0), "gained at most"),
        ),
    ),
    "confidence": Simulation(
        (
            *(
                Null(f"fragile tokens lose as damage^{power:g}; controls {less} and {more}", fragile(0.0, (less, more), power))
                for power in (0.7, 1.0, 1.5)
                for less, more in ((0.55, 1.8), (0.8, 1.25), (0.95, 0.98))  # the last: on either side by accident alone
            ),
            Null("no control does more damage", fragile(0.0, (0.01, 0.8))),
        ),
        (
            Effect(fragile, SUPPORTED, STRONGER, "of confidence, beyond their damage"),
            Effect(lambda x: fragile(-x), CONTRADICTED, STRONGER, "of confidence, less than their damage"),
        ),
    ),
}  # fmt: skip


def measured_nulls(simulation: Simulation, kind: str = "") -> Simulation:
    """The truths without grounds, of one kind of changes, from their records on. (Their effects are seen as without records.)"""
    nulls = tuple(null for null in simulation.nulls if null.name.endswith(kind))
    return through(Simulation(nulls, ()), recorded)


DISTINCT = ("robust-1", "dose", "mostly", "collapse", "rival", "sinks")
"""Claims whose rules differ; robust-5 and rival-model have those of others."""
ANSWERS = {name: measured_nulls(DOCUMENTS[name]) for name in DISTINCT}
READ = {name: measured_nulls(TEXTS[name], ", measured") for name in DISTINCT}
