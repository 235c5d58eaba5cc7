"""How often each claim's rule errs, and how large an effect must be for it: `python -m lab.verdict_simulation`.

Studies are simulated in which nothing is there, in which the truth lies exactly on a rule's limit, and in which everything is
at the floor; the share of wrong verdicts ("supported" or "contradicted" where the truth gives no ground for it) must stay at
or below 5 % for every claim and n. Then an effect is planted, and the smallest one that gets its verdict in 80 % of the
studies is looked for. The output is in lab/verdict-simulation.md, a short form of it at the top.

Claims on accuracies are simulated by document (n documents), the same claims on likelihoods by text (n texts; rows named "…,
texts"), claims on traces by prompt (n prompts, one value of the measure for each prompt). The real rules decide, on real
`Measures`, with intervals from `sinkscope.statistics`, as in a study. Masks have the hits that were measured
(`simulated_studies.MASKED`).

Rows named "…, chain" begin with planted attention, vectors or answers, which go through the whole analysis: statistics of traces
by every threshold, records, their comparison, tables, `collect`. In rows named "…, measured reach" mass-matched controls remove
what was measured (`simulated_studies.REACHED`), in the others as much as the mask unless the truth says so.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from scipy import special

from lab.simulated_studies import BOTH, DOCUMENTS, SIMULATIONS, Effect, Null, Simulation, Study, reaching
from lab.simulated_texts import TEXTS
from lab.simulated_traces import ANSWERS, BY_NAME, CHAINS, READ
from sinkscope.verdicts import Status
from sinkscope.verdicts.questions import CLAIMS, Claim

SIZES = (16, 64, 200, 500)
RUNS = 1000
POWER = 0.8
MOST_WRONG = 0.05
LOOKS = (150, 300, 600, 1000, 2500, 5000, 10_000)
"""After so many studies `examine` looks whether it is certain by now."""
CERTAIN = 0.997
"""Confidence of each bound at each look; over all seven looks at least 0.98."""


class Case(NamedTuple):
    """A claim on one kind of evidence."""

    name: str
    claim: Claim
    simulation: Simulation


CASES = tuple(
    Case(claim.name + tail, claim, simulations[claim.name])
    for claim in CLAIMS
    for tail, simulations in (("", SIMULATIONS), (", texts", TEXTS))
    if claim.name in simulations
)
MASS_MATCHED = ("dose", "mostly", "collapse", "rival", "rival-model", "sinks")
"""Claims that ask for a control which removes as much attention."""
REACH_CASES = tuple(
    Case(f"{name}{tail}, measured reach", BY_NAME[name], reaching(simulations[name]))
    for name in MASS_MATCHED
    for tail, simulations in (("", DOCUMENTS), (", texts", TEXTS))
)
CHAIN_CASES = tuple(
    Case(f"{name}{tail}, chain", BY_NAME[name], simulation)
    for tail, chains in (("", CHAINS), (", answers", ANSWERS), (", texts", READ))
    for name, simulation in chains.items()
)
CHAIN_RUNS = 60
"""Unless told otherwise. Whole chains are slow: none wrong of so many is a rate under 5 % (one-sided, 95 %)."""
CHAIN_SIZES = (16, 64, 200)


def decided(claim: Claim, study: Study, n: int, seed: str) -> Iterator[Status]:
    """The verdicts on simulated studies, without end."""
    rng = np.random.default_rng(zlib.crc32(f"{claim.name} {seed} {n}".encode()))
    while True:
        yield claim.verdict(study(n, rng)).status


def verdicts(claim: Claim, study: Study, n: int, runs: int, seed: str) -> list[Status]:
    """The verdicts on `runs` simulated studies."""
    return list(islice(decided(claim, study, n, seed), runs))


class Examined(NamedTuple):
    """Wrong verdicts among so many studies, and whether 5 % hold: True or False for certain, None: still open."""

    wrong: int
    studies: int
    holds: bool | None


def examine(claim: Claim, null: Null, n: int, most: int) -> Examined:
    """Whether at most 5 % of the verdicts are wrong: studies are simulated until an exact (Clopper–Pearson) bound of the rate is
    on one side of 5 %, or there are `most`."""
    found = decided(claim, null.study, n, null.name)
    wrong = studies = 0
    for look in (*(look for look in LOOKS if look < most), most):
        wrong += sum(verdict in null.wrong for verdict in islice(found, look - studies))
        studies = look
        if wrong < studies and special.betaincinv(wrong + 1, studies - wrong, CERTAIN) <= MOST_WRONG:
            return Examined(wrong, studies, True)
        if wrong and special.betaincinv(wrong, studies - wrong + 1, 1 - CERTAIN) > MOST_WRONG:
            return Examined(wrong, studies, False)
    return Examined(wrong, studies, None)


def wrong_share(claim: Claim, null: Null, n: int, runs: int) -> float:
    """The share of wrong verdicts under a null."""
    found = verdicts(claim, null.study, n, runs, null.name)
    return sum(verdict in null.wrong for verdict in found) / runs


def smallest_seen(claim: Claim, effect: Effect, n: int, runs: int) -> float | None:
    """The first size that gets its verdict in 80 % of the studies; None: none does."""
    for size in effect.sizes:
        found = verdicts(claim, effect.study(size), n, runs, f"{effect.verdict} {size}")
        if found.count(effect.verdict) >= POWER * runs:
            return size
    return None


def studies(case: Case, runs: int) -> int:
    """How many studies of a case are simulated; runs: how many were asked for, 0: the usual number."""
    return runs or (CHAIN_RUNS if case in CHAIN_CASES else RUNS)


def sizes_of(case: Case) -> Sequence[int]:
    """At which n a case is simulated."""
    return CHAIN_SIZES if case in CHAIN_CASES else SIZES


def false_rows(cases: Sequence[Case], runs: int, sizes: Sequence[int]) -> Iterator[tuple[str, ...]]:
    for case in cases:
        for null in case.simulation.nulls:
            asked = [n for n in sizes if n in sizes_of(case)]
            rates = [wrong_share(case.claim, null, n, studies(case, runs)) for n in asked]
            wrong = "either" if null.wrong == BOTH else null.wrong[0]
            shown = [f"{100 * rate:.1f}" for rate in rates] + [""] * (len(sizes) - len(asked))
            yield (case.name, null.name, wrong, *shown)


def power_rows(cases: Sequence[Case], runs: int, sizes: Sequence[int]) -> Iterator[tuple[str, ...]]:
    for case in cases:
        for effect in case.simulation.effects:
            many = max(CHAIN_RUNS, studies(case, runs) // 4)
            seen = [smallest_seen(case.claim, effect, n, many) if n in sizes_of(case) else "" for n in sizes]
            shown = ("–" if x is None else x if x == "" else f"{x:g}" for x in seen)
            yield (case.name, effect.verdict, effect.unit, *shown)


def table(head: Sequence[str], rows: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Print a Markdown table row by row, and return its rows."""
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    printed = []
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)
        printed.append(row)
    return printed


def beside_rules(
    cases: Sequence[Case], false: list[tuple[str, ...]], power: list[tuple[str, ...]]
) -> Iterator[tuple[str, ...]]:
    """One row per case: the most wrong verdicts over all truths, and the smallest effects that are seen, by n."""
    for name in (case.name for case in cases):
        rates = [[float(x) for x in row[3:] if x] for row in false if row[0] == name]
        worst = " / ".join(f"{max(column):.1f}" for column in zip(*rates, strict=True))
        seen = {row[1]: (" / ".join(filter(None, row[3:])), row[2]) for row in power if row[0] == name}
        yield (name, worst, *(" ".join(seen.get(verdict, ("–", ""))).strip() for verdict in BOTH))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = f"{RUNS}, of whole chains {CHAIN_RUNS}"
    parser.add_argument("--runs", type=int, default=0, help=f"simulated studies per row and n (default: {usual})")
    parser.add_argument("--claims", nargs="*", default=[], help="only these claims")
    parser.add_argument("--kind", default="", help='only the cases whose names end so: "chain", "measured reach"')
    options = parser.parse_args(arguments)
    cases = [
        case
        for case in (*CASES, *REACH_CASES, *CHAIN_CASES)
        if (not options.claims or case.claim.name in options.claims) and case.name.endswith(options.kind)
    ]
    names = [f"n = {n}" for n in SIZES]
    print(f"Wrong verdicts in % of {options.runs or usual} simulated studies (n documents, texts or prompts):\n")
    false = table(("claim", "truth", "wrong verdict", *names), false_rows(cases, options.runs, SIZES))
    print(f"\nSmallest effect of those tried that gets its verdict in {POWER:.0%} of the studies:\n")
    power = table(("claim", "verdict", "effect", *names), power_rows(cases, options.runs, SIZES))
    sizes = " / ".join(map(str, SIZES))
    print(f"\nBeside each rule, n = {sizes}:\n")
    table(
        ("claim", "wrong verdicts at most, %", "supported from", "contradicted from"), beside_rules(cases, false, power)
    )


if __name__ == "__main__":
    main()
