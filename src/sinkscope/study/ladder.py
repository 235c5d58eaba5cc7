"""Runs of a training sweep side by side: each run's sinks and damage, then means over seeds with intervals over seeds.

A run is a model whose folder has a training.json (`trained_runs`). All of this is pure functions of tables. The unit of every
interval is a run: seeds are what another training would change. With fewer than three seeds nothing is concluded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sinkscope.policies import parse_policy
from sinkscope.statistics import Estimate, holm, mean_interval, slope_interval
from sinkscope.study.names import control
from sinkscope.study.trained_runs import TrainedRun, interventions
from sinkscope.tasks.task import ACCURACY, NATS

if TYPE_CHECKING:
    import pandas as pd

LEAST_SEEDS = 3
LEAST_SIZES = 3
"""Sizes, with LEAST_SEEDS runs each, that a trend is drawn through."""
FLOOR = 0.1
"""Accuracy without a mask below which a loss says nothing: little is there to be lost."""
LOST = {ACCURACY: 1, NATS: -1}
"""Measure → 1 where less of it is a loss, −1 where more of it is."""
UNITS = {ACCURACY: "accuracy", NATS: "nats per token"}
PROFILE = {
    "sinks per head": "sinks",
    "heads without": "heads_without",
    "on the first 4 positions": "on_first",
    "absorbed": "absorbed",
    "main sink of a head: share": "main_sink",
    "drains": "drains",
    "moving or vanishing heads": "moving",
    "strongest sink moves": "moves",
}
"""Measure of `ss.summary` → column of the profile."""


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
    import pandas as pd

    rows = []
    labels = interventions(runs)
    parts = [(ACCURACY, results), (ACCURACY, None if skills is None else skill_results(skills))]
    parts.append((NATS, likelihood))
    measured = pd.concat(
        [
            part.assign(measure=name, value=part[name])
            for name, part in parts
            if part is not None and len(part)
        ],
        ignore_index=True,
    )
    for run in runs:
        own = measured[measured["model"] == run.model]
        for (task, decoding, measure), group in own.groupby(["task", "decoding_name", "measure"], sort=False):
            none = group[group["policy"] == "none"]
            sign = LOST[str(measure)]
            for row in group.to_dict("records"):
                if row["policy"] == "none" or isinstance(row["control_of"], str) or none.empty:
                    continue
                rows.append(
                    {
                        **_about(run, labels), "task": task, "decoding_name": decoding, "policy": row["policy"],
                        "scope": getattr(parse_policy(str(row["policy"])), "scope", ""), "n": int(row["n"]),
                        "measure": measure, "unmasked": float(none["value"].iloc[0]), "masked": float(row["value"]),
                        "damage": sign * (float(none["value"].iloc[0]) - float(row["value"])),
                        **{f"beyond_{match}": _beyond(group, row, match, sign) for match in ("count", "mass")},
                        **{name: row.get(name) for name in ("hidden_share", "sinks_hit", "strongest_hit", "sink_removed")},
                    }
                )  # fmt: skip
    return pd.DataFrame(rows)


def skill_results(skills: pd.DataFrame) -> pd.DataFrame:
    """The battery's table of skills, over all difficulties, as rows of a result table: `battery:logic` is a task."""
    import pandas as pd

    rows: list[dict[Any, Any]] = []
    for row in skills[skills["difficulty"].isna()].to_dict("records"):
        scheme = "" if row["scheme"] == "plain" else f":{row['scheme']}"
        kind = control(str(row["policy"]))
        task, like = f"battery:{row['skill']}{scheme}", kind.like if kind else None
        rows.append({**row, "task": task, "control_of": like, "match": kind.match if kind else None})
    return pd.DataFrame(rows)


def profiles(runs: Sequence[TrainedRun], sinks: pd.DataFrame | None) -> pd.DataFrame:
    """A row for each run: loss, when its sinks appeared, and its sinks in the unmasked traces of the study."""
    import pandas as pd

    rows, labels = [], interventions(runs)
    for run in runs:
        row = {
            **_about(run, labels),
            "loss": run.loss,
            "probe_sink_heads": run.sink_heads,
            "emerged": run.emerged,
        }
        if sinks is not None:
            own = sinks[(sinks["model"] == run.model) & (sinks["policy"] == "none")]
            found = own.drop_duplicates("measure").set_index("measure")["value"]
            row |= {column: _number(found.get(measure)) for measure, column in PROFILE.items()}
        rows.append(row)
    return pd.DataFrame(rows)


def _about(run: TrainedRun, labels: Mapping[str, str]) -> dict[str, Any]:
    size = run.settings.get("size") or {}
    return {
        "model": run.model,
        "objective": run.recipe,
        "size": f"{size.get('layers')} × {size.get('width')}",
        "parameters": run.parameters,
        "intervention": labels[run.model],
        "seed": run.seed,
        "tokens": run.tokens,
    }


def _beyond(group: pd.DataFrame, row: Mapping[Any, Any], match: str, sign: int) -> float | None:
    """The damage of a policy minus that of its control, however few draws it has: the unit is a run."""
    beside = group[(group["control_of"] == row["policy"]) & (group["match"] == match)]
    return None if beside.empty else sign * (float(beside["value"].mean()) - float(row["value"]))


def _number(value: Any) -> float | None:
    return None if value is None or value != value else float(value)


# ---- over seeds ----------------------------------------------------------------------------------

GROUP = ("objective", "size", "intervention")
"""What makes runs replicates of one another: recipe, layers × width (interventions may add weights), and intervention."""
DAMAGES = ("damage", "beyond_count", "beyond_mass")


def over_seeds(runs: pd.DataFrame) -> pd.DataFrame:
    """Size × objective × scope → damage: means over seeds of `by_run`, with Student's 95 % interval over seeds.

    `conclusion` is about the damage beyond as many random keys, and says why nothing is concluded where that is so.
    """
    import pandas as pd

    rows = []
    keys = [*GROUP, "task", "decoding_name", "policy", "scope", "measure"]
    for key, group in runs.groupby(keys, sort=False):
        row: dict[str, Any] = dict(zip(keys, key, strict=True)) | {
            "parameters": int(group["parameters"].iloc[0])
        }
        row["seeds"] = int(group["seed"].nunique())
        row |= {"n": int(group["n"].min()), "unmasked": float(group["unmasked"].mean())}
        row["masked"] = float(group["masked"].mean())
        graded = row["measure"] == ACCURACY
        estimates = {name: _mean(_by_seed(group, name), 1 / row["n"] if graded else 0.0) for name in DAMAGES}
        for name, estimate in estimates.items():
            row |= _columns(name, estimate)
        there = row["unmasked"] if graded else 1.0  # every model gives a text some probability
        row["conclusion"] = _conclusion(row["seeds"], there, estimates["beyond_count"])
        rows.append(row)
    return pd.DataFrame(rows)


def profile_over_seeds(profile: pd.DataFrame) -> pd.DataFrame:
    """Size × objective → each measure of `profiles`: mean over seeds with its interval, long format."""
    import pandas as pd

    rows = []
    measures = [
        name for name in ("loss", "probe_sink_heads", "emerged", *PROFILE.values()) if name in profile
    ]
    for key, group in profile.groupby(list(GROUP), sort=False):
        for measure in measures:
            estimate = _mean(_by_seed(group, measure))
            if math.isfinite(estimate.value):
                about = dict(zip(GROUP, key, strict=True)) | {"parameters": int(group["parameters"].iloc[0])}
                about["seeds"] = int(group["seed"].nunique())
                rows.append({**about, "measure": measure, **_columns("value", estimate)})
    return pd.DataFrame(rows)


def measures_of(runs: pd.DataFrame, profile: pd.DataFrame) -> list[tuple[str, pd.DataFrame, str]]:
    """Everything that is known of single runs: its name, a table with a row for each run, and the column that has it."""
    measured: list[tuple[str, pd.DataFrame, str]] = [
        (name, profile, name) for name in ("loss", *PROFILE.values()) if name in profile
    ]
    for (task, decoding, policy, measure), group in runs.groupby(
        ["task", "decoding_name", "policy", "measure"], sort=False
    ):
        # A run that answers nothing loses nothing, and is not robust.
        able = group[group["unmasked"] >= FLOOR] if measure == ACCURACY else group
        several = runs[runs["task"] == task]["decoding_name"].nunique() > 1
        name = f"{task} ({decoding})" if several else str(task)
        measured += [(f"{damage}: {name}, {policy}", able, damage) for damage in DAMAGES]
        measured.append((f"{UNITS[str(measure)]}: {name}", group.drop_duplicates("model"), "unmasked"))
    return measured


def against_plain(runs: pd.DataFrame, profile: pd.DataFrame) -> pd.DataFrame:
    """Each intervention minus no intervention at the same objective, size, tokens and seed: what it does to sinks and robustness.

    Returns:
        A row for each intervention and measure: the mean paired difference over seeds with its interval; `conclusion`.
    """
    import pandas as pd

    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for measure, table, column in measures_of(runs, profile):
        for (objective, size), group in table.groupby(["objective", "size"], sort=False):
            values = {
                (row["intervention"], row["seed"], row["tokens"]): _number(row[column])
                for row in group.to_dict("records")
            }
            for label in dict.fromkeys(name for name, _, _ in values if name):
                pairs = [
                    value - plain
                    for (name, seed, tokens), value in values.items()
                    if name == label
                    and value is not None
                    and (plain := values.get(("", seed, tokens))) is not None
                ]
                if not pairs:
                    continue
                graded = "measure" in group and (group["measure"] == ACCURACY).all()
                least = 1 / int(group["n"].min()) if graded else 0.0
                estimate = _mean(pairs, least)
                about = {"objective": objective, "size": size, "intervention": label}
                about["parameters"] = int(
                    group["parameters"].min()
                )  # of the plain run: a change may add weights
                rows[objective, size, label, measure] = {
                    **about, "measure": measure, "seeds": len(pairs), **_columns("difference", estimate),
                    "conclusion": _direction(len(pairs), estimate),
                }  # fmt: skip
    return pd.DataFrame(list(rows.values()))


def by_size(runs: pd.DataFrame, profile: pd.DataFrame) -> pd.DataFrame:
    """How measures of plain runs change with size: the slope over the logarithm of the number of parameters, run by run.

    Returns:
        A row for each objective, number of training tokens and measure that at least three sizes with three runs each have: the
        change for ten times the parameters, with its interval over runs; `conclusion`; p of no change, and after Holm's
        correction over the table.
    """
    import pandas as pd
    from scipy import special

    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for measure, table, column in measures_of(runs, profile):
        plain = table[(table["intervention"] == "") & table[column].notna()]
        for (objective, tokens), group in plain.groupby(["objective", "tokens"], sort=False):
            counts = group.groupby("size")["seed"].nunique()
            if len(counts) < LEAST_SIZES or counts.min() < LEAST_SEEDS:
                continue
            sizes, values = (group[name].astype(float).to_numpy() for name in ("parameters", column))
            estimate = slope_interval([math.log10(size) for size in sizes], values)
            rows[objective, tokens, measure] = {
                "objective": objective, "tokens": tokens, "measure": measure, "sizes": len(counts), "runs": len(group),
                **_columns("slope", estimate), "conclusion": _direction(int(counts.min()), estimate),
            }  # fmt: skip
            degrees = len(group) - 2
            half = estimate.high - estimate.value
            if half > 0:
                error = half / float(special.stdtrit(degrees, 0.975))
                rows[objective, tokens, measure]["p"] = 2 * float(
                    special.stdtr(degrees, -abs(estimate.value) / error)
                )
    found = pd.DataFrame(list(rows.values()))
    if "p" in found:
        found["p_holm"] = holm(found["p"].fillna(1.0).to_numpy())
    return found


def _by_seed(group: pd.DataFrame, name: str) -> pd.Series[Any]:
    """One value for each seed: runs of one seed are no replicates of one another, so they count as their mean."""
    return group.groupby("seed")[name].agg(lambda values: values.astype(float).mean())


def _mean(values: Iterable[Any], least: float = 0.0) -> Estimate:
    """The mean of what is known, and Student's interval from three values on, which reaches `least` to both sides at least.

    Seeds that agree to the last document would otherwise have an interval without width.
    """
    known = [float(value) for value in values if value is not None and value == value]
    if not known:
        return Estimate(math.nan, math.nan, math.nan)
    if len(known) < LEAST_SEEDS:
        return Estimate(sum(known) / len(known), math.nan, math.nan)
    value, low, high = (float(part) for part in mean_interval(known))
    return Estimate(value, min(low, value - least), max(high, value + least))


def _columns(stem: str, estimate: Estimate) -> dict[str, float]:
    return {stem: estimate.value, f"{stem}_low": estimate.low, f"{stem}_high": estimate.high}


def _conclusion(seeds: int, unmasked: float, beyond: Estimate) -> str:
    if seeds < LEAST_SEEDS:
        return f"nothing: {seeds} seed{'s' if seeds > 1 else ''}, {LEAST_SEEDS} are needed"
    if unmasked < FLOOR:
        return f"nothing: {unmasked:.0%} right without a mask, too few to be lost"
    if not beyond.known:
        return "nothing: no control"
    if beyond.above(0):
        return "costs more than random keys"
    return "costs less than random keys" if beyond.below(0) else "a difference from random keys is not shown"


def _direction(seeds: int, estimate: Estimate) -> str:
    if seeds < LEAST_SEEDS:
        return f"nothing: {seeds} seed{'s' if seeds > 1 else ''}, {LEAST_SEEDS} are needed"
    if estimate.above(0):
        return "higher"
    return "lower" if estimate.below(0) else "not shown"


def tables(
    runs: Sequence[TrainedRun],
    results: pd.DataFrame | None,
    sinks: pd.DataFrame | None,
    skills: pd.DataFrame | None = None,
    likelihood: pd.DataFrame | None = None,
) -> dict[str, pd.DataFrame]:
    """All tables of a ladder: runs, ladder, profile, profiles, interventions, trends; those that are empty are left out."""
    profile = profiles(runs, sinks)
    frames = {"ladder_profiles": profile, "ladder_sinks": profile_over_seeds(profile)}
    measured = results is not None or likelihood is not None
    each = by_run(runs, results, skills, likelihood) if measured else None
    if each is not None and len(each):
        frames |= {"ladder_runs": each, "ladder": over_seeds(each)}
        frames["ladder_interventions"] = against_plain(each, profile)
        frames["ladder_trends"] = by_size(each, profile)
    return {name: frame for name, frame in frames.items() if len(frame)}
