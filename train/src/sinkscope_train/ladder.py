"""Runs of a training sweep side by side: each run's sinks and damage, then means over seeds with intervals over seeds.

A run is a model whose folder has a training.json (`trained_runs`). All of this is pure functions of tables. The unit of every
interval is a run: seeds are what another training would change. With fewer than three seeds nothing is concluded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from sinkscope import MaskTop, parse_policy
from sinkscope.base.masked import MASK
from sinkscope.statistics import Estimate, bounded, holm, mean_interval
from sinkscope.verdicts import UNKNOWN, Measure, Reason, Status, wording
from sinkscope.verdicts.verdict import point, weighed
from sinkscope_train.trained_runs import TrainedRun, interventions

LEAST_SEEDS = 3
LEAST_SIZES = 3
"""Sizes, with LEAST_SEEDS runs each, that a trend is drawn through."""
FLOOR = 0.1
"""Accuracy without a mask below which a loss says nothing: little is there to be lost."""
GRADED = "accuracy"
LOST = {GRADED: 1, "nll": -1}
"""Column of a study's tables → 1 where less of it is a loss, −1 where more of it is."""
UNITS = {GRADED: "accuracy", "nll": "nats per token"}
PROFILE = {
    "sinks per head": "sinks",
    "heads without a sink": "heads_without",
    "on the first 4 positions": "on_first",
    "absorbed": "absorbed",
    "main sink of a head: share": "main_sink",
    "drains": "drains",
    "moving or vanishing heads": "moving",
    "strongest sink moves": "moves",
}
"""Measure of `ss.summary` → column of the profile."""
GROUP = ["objective", "size", "intervention"]
"""What makes runs replicates of one another: recipe, layers × width (interventions may add weights), and intervention."""
DAMAGES = ("damage", "beyond_count", "beyond_mass")
HITS = tuple(map(str, MASK))
"""What a mask took: of all attention, of the sinks, of heads' strongest sinks, of the attention on sinks."""
SHARES = (0.05, 0.1)
"""Shares of all attention at which the costs of masks are compared."""


# ---- each run ------------------------------------------------------------------------------------


def by_run(
    runs: Sequence[TrainedRun],
    results: pd.DataFrame | None,
    skills: pd.DataFrame | None = None,
    likelihood: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """A row for each run, task and masking policy: what is measured without and with it, and what it costs beyond its controls.

    Args:
        results: the study's result table. skills: that of the battery's skills, each of which becomes a task of its own.
        likelihood: the table of texts that were read, in nats per token.

    Returns:
        measure: of unmasked and masked, "accuracy" or "nll" (nats per token). damage: what is lost, unmasked − masked of
        accuracies and masked − unmasked of nats; beyond_count, beyond_mass: the damage beyond that of as many random keys, and
        of random keys with as much attention (None: not run).
    """
    labels, rows, by_name = interventions(runs), [], {run.model: run for run in runs}
    tables = ((GRADED, results), (GRADED, None if skills is None else skill_results(skills)), ("nll", likelihood))
    there = [part.assign(measure=name, value=part[name]) for name, part in tables if part is not None and len(part)]
    measured = pd.concat(there, ignore_index=True)
    measured = measured[measured["model"].isin(list(by_name))]
    for (model, task, decoding, measure), group in measured.groupby(
        ["model", "task", "decoding_name", "measure"], sort=False
    ):
        plain = group.loc[group["policy"] == "none", "value"]
        for row in group[(group["policy"] != "none") & group["control_of"].isna()].to_dict("records"):
            if plain.empty:
                continue
            sign, policy, masked = LOST[str(measure)], str(row["policy"]), float(row["value"])
            # However few draws a control has: the unit is a run.
            draws = group[group["control_of"] == policy].groupby("match")["value"].mean()
            beyond = {f"beyond_{match}": sign * (value - masked) for match, value in draws.items()}
            rows.append(
                {
                    **_about(by_name[str(model)], labels), "task": task, "decoding_name": decoding, "policy": policy,
                    "scope": getattr(parse_policy(policy), "scope", ""), "n": int(row["n"]), "measure": measure,
                    "unit": UNITS[str(measure)], "unmasked": float(plain.iloc[0]), "masked": masked,
                    "damage": sign * (float(plain.iloc[0]) - masked), "beyond_count": None, "beyond_mass": None, **beyond,
                    **{name: row.get(name) for name in HITS},
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def at_shares(runs: pd.DataFrame, shares: Sequence[float] = SHARES) -> pd.DataFrame:
    """What it costs each run to take the same share of all attention away: between its masks of the top k keys, for several k.

    Args:
        runs: see `by_run`. Masks of the top k that differ in k alone are read as a line from (0, 0), from mask to mask.

    Returns:
        Rows like `by_run`, whose policy is such as "top:k, 5 % of attention"; none where no mask of the run took so much.
    """
    rows = []
    counted = runs.assign(kind=[_without_count(policy) for policy in runs["policy"]])
    keys = ["model", "task", "decoding_name", "measure", "kind"]
    for _, group in counted[counted["kind"] != ""].groupby(keys, sort=False):
        doses = group.sort_values("hidden_share")
        taken = [0.0, *doses["hidden_share"].astype(float)]
        for share in shares:
            if len(doses) < 2 or not share <= taken[-1]:
                continue
            values = {name: [0.0, *doses[name].astype(float)] for name in (*DAMAGES, *HITS)}
            between = {name: float(np.interp(share, taken, each)) for name, each in values.items()}
            row: dict[str, Any] = {str(name): value for name, value in doses.iloc[0].items()}
            between["masked"] = row["unmasked"] - LOST[row["measure"]] * between["damage"]
            policy = f"{row.pop('kind')}, {share:.0%} of attention"
            rows.append({**row, **between, "policy": policy})
    return pd.DataFrame(rows)


def _without_count(text: str) -> str:
    """A mask of the top k keys, with k for their number and without what says how a prompt is read; "": another policy."""
    policy = parse_policy(text)
    if not isinstance(policy, MaskTop) or policy.epsilon is not None:
        return ""
    return str(replace(policy, k=0, prefill=None)).replace("top:0", "top:k", 1)


def skill_results(skills: pd.DataFrame) -> pd.DataFrame:
    """The battery's table of skills, over all difficulties, as rows of a result table: `battery:logic` is a task."""
    rows = []
    for row in skills[skills["difficulty"].isna()].to_dict("records"):
        scheme = "" if row["scheme"] == "plain" else f":{row['scheme']}"
        policy = parse_policy(str(row["policy"]))
        control = None if policy is None else policy.control
        like = None if policy is None or control is None else str(policy.original)
        match = None if control is None else control.match
        rows.append({**row, "task": f"battery:{row['skill']}{scheme}", "control_of": like, "match": match})
    return pd.DataFrame(rows)


def profiles(runs: Sequence[TrainedRun], sinks: pd.DataFrame | None) -> pd.DataFrame:
    """A row for each run: loss, when its sinks appeared, and its sinks in the unmasked traces of the study."""
    labels = interventions(runs)
    about = [
        {**_about(run, labels), "loss": run.loss, "probe_sink_heads": run.sink_heads, "emerged": run.emerged}
        for run in runs
    ]
    frame = pd.DataFrame(about)
    if sinks is None:
        return frame
    plain = sinks[(sinks["policy"] == "none") & sinks["measure"].isin(list(PROFILE))]
    values = plain.drop_duplicates(["model", "measure"]).pivot(index="model", columns="measure", values="value")
    return frame.merge(values.rename(columns=PROFILE).astype(float), how="left", on="model")


def _about(run: TrainedRun, labels: Mapping[str, str]) -> dict[str, Any]:
    size = run.settings.get("size") or {}
    return {
        "model": run.model, "objective": run.recipe, "size": f"{size.get('layers')} × {size.get('width')}",
        "parameters": run.parameters, "intervention": labels[run.model], "seed": run.seed, "tokens": run.tokens,
    }  # fmt: skip


def measures_of(runs: pd.DataFrame, profile: pd.DataFrame) -> pd.DataFrame:
    """Everything that is known of single runs, long: about the run, measure, value, the least that values can differ by."""
    parts = [
        profile.assign(measure=name, value=profile[name], least=0.0)
        for name in ("loss", *PROFILE.values())
        if name in profile
    ]
    for (task, decoding, policy, measure), group in runs.groupby(
        ["task", "decoding_name", "policy", "measure"], sort=False
    ):
        least = 1 / group["n"] if measure == GRADED else 0.0
        # A run that answers nothing loses nothing, and is not robust.
        able = group["unmasked"] >= FLOOR if measure == GRADED else group["unmasked"].notna()
        several = runs[runs["task"] == task]["decoding_name"].nunique() > 1
        name = f"{task} ({decoding})" if several else str(task)
        named = {f"{damage}: {name}, {policy}": group[damage].where(able) for damage in DAMAGES}
        named[f"{UNITS[str(measure)]}: {name}"] = group["unmasked"]
        parts += [group.assign(measure=words, value=values, least=least) for words, values in named.items()]
    columns = ["model", *GROUP, "parameters", "seed", "tokens", "measure", "value", "least"]
    long = pd.concat([part[columns] for part in parts], ignore_index=True)
    long["value"] = long["value"].astype(float)
    # What is measured without a mask stands in the rows of every policy.
    return long[long["value"].notna()].drop_duplicates(["model", "measure"])


# ---- over seeds ----------------------------------------------------------------------------------


def over_seeds(runs: pd.DataFrame) -> pd.DataFrame:
    """Size × objective × scope → damage: means over seeds of `by_run`, with Student's 95 % interval over seeds.

    `verdict`, in a word `conclusion`, is about the damage beyond as many random keys, and says why nothing is concluded.
    """
    rows = []
    keys = [*GROUP, "task", "decoding_name", "policy", "scope", "measure", "unit"]
    for key, group in runs.groupby(keys, sort=False):
        row: dict[str, Any] = dict(zip(keys, key, strict=True))
        row |= {"parameters": int(group["parameters"].iloc[0])}
        row |= {"seeds": int(group["seed"].nunique()), "n": int(group["n"].min())}
        row |= {name: float(group[name].astype(float).mean()) for name in ("unmasked", "masked", *HITS)}
        graded = row["measure"] == GRADED
        estimates = {name: _mean(_by_seed(group, name), 1 / row["n"] if graded else 0.0) for name in DAMAGES}
        for name, estimate in estimates.items():
            row |= bounded(name, *estimate)
        # Every model gives a text some probability.
        able = None if not graded or row["unmasked"] >= FLOOR else Reason.NOTHING_TO_LOSE
        beyond = estimates["beyond_count"]
        control = None if beyond.known else Reason.NO_CONTROL
        row |= _concluded(Measure.OVER_COUNT, beyond, row["seeds"], able, control, of=row["policy"])
        rows.append(row)
    return pd.DataFrame(rows)


def profile_over_seeds(profile: pd.DataFrame) -> pd.DataFrame:
    """Size × objective → each measure of `profiles`: mean over seeds with its interval, long format."""
    rows = []
    for key, group in profile.groupby(GROUP, sort=False):
        about = dict(zip(GROUP, key, strict=True)) | {"parameters": int(group["parameters"].iloc[0])}
        about["seeds"] = int(group["seed"].nunique())
        for measure in [name for name in ("loss", "probe_sink_heads", "emerged", *PROFILE.values()) if name in group]:
            estimate = _mean(_by_seed(group, measure))
            if math.isfinite(estimate.value):
                rows.append({**about, "measure": measure, **bounded("value", *estimate)})
    return pd.DataFrame(rows)


def against_plain(measures: pd.DataFrame) -> pd.DataFrame:
    """Each intervention minus no intervention at the same objective, size, tokens and seed: what it does to sinks and robustness.

    Args:
        measures: see `measures_of`.

    Returns:
        A row for each intervention and measure: the mean paired difference over seeds with its interval; `verdict`.
    """
    same = ["objective", "size", "seed", "tokens", "measure"]
    each = measures.drop_duplicates([*same, "intervention"], keep="last")
    plain = each["intervention"] == ""
    pairs = each[~plain].merge(each[plain], on=same, suffixes=("", "_plain"))
    rows = []
    for key, group in pairs.groupby([*GROUP, "measure"], sort=False):
        differences = group["value"] - group["value_plain"]
        estimate = _mean(differences, float(group["least"].max()))
        row = dict(zip([*GROUP, "measure"], key, strict=True))
        row["parameters"] = int(group["parameters_plain"].min())  # a change may add weights
        row |= {"seeds": len(group), **bounded("difference", *estimate)}
        rows.append(row | _concluded(Measure.CHANGE, estimate, len(group), of=str(row["measure"])))
    return pd.DataFrame(rows)


def by_size(measures: pd.DataFrame) -> pd.DataFrame:
    """How measures of plain runs change with size: the slope over the logarithm of the number of parameters, run by run.

    Args:
        measures: see `measures_of`.

    Returns:
        A row for each objective, number of training tokens and measure that at least three sizes with three runs each have: the
        change for ten times the parameters, with its interval over runs; `verdict`; p of no change, and after Holm's
        correction over the table.
    """
    from scipy import special

    rows = []
    for row, group in _sized(measures, ["objective", "tokens", "measure"]):
        (estimate,) = _regression(group["value"], np.log10(group["parameters"].astype(float)))
        row |= bounded("slope", *estimate) | _concluded(Measure.SLOPE, estimate, LEAST_SEEDS, of=row["measure"])
        degrees, half = len(group) - 2, estimate.high - estimate.value
        if half > 0:
            error = half / float(special.stdtrit(degrees, 0.975))
            row["p"] = 2 * float(special.stdtr(degrees, -abs(estimate.value) / error))
        rows.append(row)
    table = pd.DataFrame(rows)
    if "p" in table:
        table["p_holm"] = holm(table["p"].fillna(1.0).to_numpy())
    return table


def by_size_and_hits(runs: pd.DataFrame) -> pd.DataFrame:
    """What is left of a change of damage with size when what the mask took is held fixed: both in one regression, run by run.

    Args:
        runs: see `by_run`. Plain runs of at least three sizes with three seeds each count.

    Returns:
        A row for each objective, task, policy, damage and measure of HITS: the change for ten times the parameters alone
        (`alone`) and beside the hits (`slope`), and the change for all hits (`hits`), with Student's 95 % intervals over runs.
    """
    rows = []
    for about, group in _sized(runs, ["objective", "tokens", "task", "decoding_name", "policy", "measure"]):
        size = np.log10(group["parameters"].astype(float))
        for damage, hits in itertools.product(DAMAGES, HITS):
            values, taken = group[damage].astype(float), group[hits].astype(float)
            if values.isna().any() or taken.isna().any() or taken.nunique() < 2:
                continue
            (alone,), (slope, hit) = _regression(values, size), _regression(values, size, taken)
            row = {**about, "damage": damage, "given": hits, **bounded("alone", *alone)}
            row |= bounded("slope", *slope) | bounded("hits", *hit)
            row["correlation"] = float(np.corrcoef(size, taken)[0, 1])
            rows.append(row | _concluded(Measure.SLOPE, slope, LEAST_SEEDS, of=damage))
    return pd.DataFrame(rows)


def _sized(table: pd.DataFrame, keys: list[str]) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Plain runs by what they share: those of at least LEAST_SIZES sizes with LEAST_SEEDS seeds each, and what they share."""
    for key, group in table[table["intervention"] == ""].groupby(keys, sort=False):
        counts = group.groupby("size")["seed"].nunique()
        if len(counts) >= LEAST_SIZES and counts.min() >= LEAST_SEEDS:
            shared = dict(zip(keys, key, strict=True))
            yield shared | {"sizes": len(counts), "runs": len(group)}, group


def _regression(values: pd.Series[Any], *causes: npt.ArrayLike) -> list[Estimate]:
    """The slope of each cause in one line of least squares, with Student's interval; unknown where they cannot be told apart."""
    from scipy import special

    design = np.column_stack([np.ones(len(values)), *causes])
    degrees = len(values) - design.shape[1]
    if degrees < 1 or np.linalg.matrix_rank(design) < design.shape[1]:
        return [UNKNOWN] * len(causes)
    slopes, *_ = np.linalg.lstsq(design, values.to_numpy(), rcond=None)
    spread = np.square(values - design @ slopes).sum() / degrees
    errors = np.sqrt(np.diag(np.linalg.inv(design.T @ design)) * spread)
    half = errors * float(special.stdtrit(degrees, 0.975))
    return [Estimate(*map(float, (s, s - h, s + h))) for s, h in zip(slopes[1:], half[1:], strict=True)]


def _by_seed(group: pd.DataFrame, name: str) -> pd.Series[Any]:
    """One value for each seed: runs of one seed are no replicates of one another, so they count as their mean."""
    return group.groupby("seed")[name].agg(lambda values: values.astype(float).mean())


def _mean(values: Iterable[Any], least: float = 0.0) -> Estimate:
    """The mean of what is known, and Student's interval from three values on, which reaches `least` to both sides at least.

    Seeds that agree to the last document would otherwise have an interval without width.
    """
    numbers = [float(value) for value in values if value is not None and value == value]
    if len(numbers) < LEAST_SEEDS:
        return point(sum(numbers) / len(numbers)) if numbers else UNKNOWN
    value, low, high = (float(part) for part in mean_interval(numbers))
    return Estimate(value, min(low, value - least), max(high, value + least))


def _concluded(
    measure: Measure, estimate: Estimate, seeds: int, *reasons: Reason | None, of: str = ""
) -> dict[str, str]:
    """Where an estimate lies beside 0: the verdict as a column, and in a word. reasons: why nothing is concluded, or None."""
    verdict = replace(weighed(measure, estimate, 0.0, of=of), rule="trend", n=seeds, unit="seed")
    if verdict.decided:
        verdict = verdict.settled(verdict.status, "higher" if verdict.status == Status.SUPPORTED else "lower")
    verdict = verdict.unless(Reason.TOO_FEW_SEEDS if seeds < LEAST_SEEDS else None, *reasons)
    return {"conclusion": wording.concluded(verdict), "verdict": verdict.to_json()}


def tables(
    runs: Sequence[TrainedRun],
    results: pd.DataFrame | None,
    sinks: pd.DataFrame | None,
    skills: pd.DataFrame | None = None,
    likelihood: pd.DataFrame | None = None,
) -> dict[str, pd.DataFrame]:
    """All tables of a ladder: runs, ladder, profile, profiles, interventions, trends, hits; those that are empty are left out."""
    profile = profiles(runs, sinks)
    frames = {"ladder_profiles": profile, "ladder_sinks": profile_over_seeds(profile)}
    measured = results is not None or likelihood is not None
    each = by_run(runs, results, skills, likelihood) if measured else None
    if each is not None and len(each):
        each = pd.concat([each, at_shares(each)], ignore_index=True)
        measures = measures_of(each, profile)
        frames |= {"ladder_runs": each, "ladder": over_seeds(each)}
        frames |= {"ladder_interventions": against_plain(measures), "ladder_trends": by_size(measures)}
        frames["ladder_hits"] = by_size_and_hits(each)
    return {name: frame for name, frame in frames.items() if len(frame)}
