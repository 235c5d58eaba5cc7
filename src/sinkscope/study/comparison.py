"""Evaluations side by side: the table of the paper, with the statistics that such a table needs.

Pure functions from evaluations to a table. Within one model and task all runs must have answered the same documents under the
same settings, policy apart; anything else is refused, with the difference named. Comparisons are paired by document.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sinkscope.errors import InputError
from sinkscope.statistics import (
    LEAST_SEEDS,
    Comparison,
    Effect,
    Interval,
    Scores,
    align,
    compare,
    effect_over_control,
    holm,
    minimal_detectable_effect,
    standard_error,
    wilson,
)
from sinkscope.study.comparable import comparable, same_documents_across_models, same_seeds
from sinkscope.study.paper import Published, published
from sinkscope.tasks.evaluate import Evaluation, Record
from sinkscope.tasks.task import scheme_name

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Row:
    """One policy of one model on one task.

    Attributes:
        policy: "none", or its text form; controls of one policy are one row over their seeds.
        control_of: for a control, the policy whose control it is; match: "count" or "mass".
        draws: runs that are averaged per document: seeds of a decoding or of a control.
        against_none: the paired comparison with the unmasked run (this − none).
        over_control: the paired effect over the mean of the control's seeds, by kind of control.
        corrected: Holm's p of each test of this row, over all tests of the table.
        paper: what the paper reports for this model, task and policy.
    """

    model: str
    task: str
    scheme: str
    policy: str
    n: int
    draws: int
    accuracy: float
    stderr: float
    interval: Interval
    hidden_share: float | None
    sinks_hit: float | None
    key_share: float | None
    decoding: str
    control_of: str | None = None
    match: str | None = None
    against_none: Comparison | None = None
    over_control: dict[str, Effect] = field(default_factory=dict)
    corrected: dict[str, float] = field(default_factory=dict)
    paper: Published | None = None


@dataclass(frozen=True, repr=False)
class Table:
    """Rows in the order of task, model and policy, and what must be said about them."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def frame(self) -> pd.DataFrame:
        """A DataFrame with one plain column for each number."""
        import pandas as pd

        return pd.DataFrame([_flat(row) for row in self.rows])

    def __repr__(self) -> str:
        from sinkscope.study.tabulate import text

        return text(self)


def compare_runs(evaluations: Sequence[Evaluation]) -> Table:
    """The table of these evaluations."""
    if not evaluations:
        raise InputError("there is nothing to compare: give the folder of at least one evaluation")
    groups: dict[tuple[str, str], list[Evaluation]] = defaultdict(list)
    for one in merged(evaluations):
        groups[one.settings["task"]["task"], one.settings["model"]["source"]].append(one)
    same_documents_across_models(groups)
    rows: list[Row] = []
    notes: list[str] = []
    for key in sorted(groups):
        found, said = _group(groups[key])
        rows += found
        notes += said
    return Table(tuple(_corrected(rows)), tuple(dict.fromkeys(notes)))


def merged(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Evaluations of the same settings as one (shards, seeds in folders of their own); the same answer twice is refused."""
    by_settings: dict[str, list[Evaluation]] = defaultdict(list)
    for one in evaluations:
        by_settings[json.dumps(one.settings, sort_keys=True)].append(one)
    found = []
    for parts in by_settings.values():
        records = [record for part in parts for record in part.records]
        seen: set[tuple[str, int]] = set()
        for record in records:
            if (record.document, record.seed) in seen:
                raise InputError(
                    f"two of the runs hold document {record.document} with seed {record.seed} under the same settings "
                    f"(policy {record.settings['policy'] or 'none'}): give each run once"
                )
            seen.add((record.document, record.seed))
        records.sort(key=lambda record: (record.index, record.seed))
        found.append(Evaluation(tuple(records), parts[0].settings))
    return found


def _group(runs: list[Evaluation]) -> tuple[list[Row], list[str]]:
    """All runs of one model on one task."""
    first = next((run for run in runs if run.settings["policy"] is None), runs[0])
    for other in runs:
        comparable(first, other)
    sampled = _sampled(first)
    source, name = first.settings["model"]["source"], first.settings["task"]["task"]
    notes: list[str] = []
    tested = not sampled or len(first.seeds) >= LEAST_SEEDS
    if not tested:
        notes.append(
            f"{source}, {name}: the decoding draws and has {len(first.seeds)} seed(s); without at least {LEAST_SEEDS} no "
            "difference is tested"
        )
    plain = {run.settings["policy"]: run for run in runs if control(run.settings["policy"]) is None}
    if sampled:
        same_seeds(first, plain.values())
    controls: dict[tuple[str, str], list[Evaluation]] = defaultdict(list)
    for run in runs:
        kind = control(run.settings["policy"])
        if kind is not None:
            controls[kind].append(run)
    none = plain.get(None)
    if none is None:
        notes.append(f"{source}, {name}: there is no run without a policy, so nothing is compared with one")
    else:
        # One right and one wrong answer more: at an accuracy of 0 or 1 the sample says nothing about its spread.
        accuracy = (none.accuracy * none.n + 1) / (none.n + 2)
        smallest = minimal_detectable_effect(none.n, accuracy) if none.n > 1 else 1.0
        notes.append(
            f"{source}, {name}: {none.n} documents detect a difference of {smallest:.3f} or more with 80 % power if the two "
            "runs are unrelated, less if they agree"
        )
    rows = []
    names = {*(name for name in plain if name is not None), *(like for like, _ in controls)}
    for policy in [*([None] if none is not None else []), *sorted(names, key=natural)]:
        own = {match: group for (like, match), group in controls.items() if like == policy}
        if policy in plain:
            rows.append(_row(plain[policy], none, own, tested, notes))
        for match, group in sorted(own.items()):
            rows.append(_control_row(group, policy, match, none, tested))
    return rows, notes


def _row(
    run: Evaluation,
    none: Evaluation | None,
    controls: dict[str, list[Evaluation]],
    tested: bool,
    notes: list[str],
) -> Row:
    policy = run.settings["policy"]
    against = None
    if none is not None and policy is not None and tested:
        against = compare(*align(run.scores(), none.scores(), (policy, "none")))
    effects: dict[str, Effect] = {}
    for match, group in controls.items():
        draws = [scores for one in group for scores in by_seed(one)]
        if len(draws) < LEAST_SEEDS:
            notes.append(
                f"{run.settings['model']['source']}: the {match}-matched control of {policy} has {len(draws)} seed(s); an "
                f"effect over it needs at least {LEAST_SEEDS}"
            )
        elif tested:
            pairs = [align(run.scores(), scores, (policy, f"random({policy})")) for scores in draws]
            effects[match] = effect_over_control(pairs[0][0], np.stack([pair[1] for pair in pairs]))
    paper = published(run.settings["model"]["source"], run.settings["task"]["task"], policy)
    return replace(
        _plain_row([run], policy or "none"), against_none=against, over_control=effects, paper=paper
    )


def _control_row(
    group: list[Evaluation], like: str | None, match: str, none: Evaluation | None, tested: bool
) -> Row:
    name = control_name(group[0].settings["policy"])
    row = replace(_plain_row(group, name), control_of=like, match=match)
    if none is None or not tested:
        return row
    mean = _mean([scores for run in group for scores in by_seed(run)])
    return replace(row, against_none=compare(*align(mean, none.scores(), (name, "none"))))


def _plain_row(runs: list[Evaluation], policy: str) -> Row:
    draws = [scores for run in runs for scores in by_seed(run)]
    scores = _mean(draws)
    settings = runs[0].settings
    records = [record for run in runs for record in run.records]
    values = np.array(list(scores.values()))
    return Row(
        model=settings["model"]["source"],
        task=settings["task"]["task"],
        scheme=scheme_name(settings["task"]),
        policy=policy,
        n=len(scores),
        draws=len(draws),
        accuracy=float(values.mean()),
        stderr=standard_error(values),
        interval=wilson(min(float(len(scores)), float(values.sum())), len(scores)),
        hidden_share=_average(records, "hidden_share"),
        sinks_hit=_average(records, "sinks_hit"),
        key_share=_average(records, "key_share"),
        decoding=", ".join(f"{name}={value}" for name, value in settings["decoding"].items()),
    )


def _corrected(rows: list[Row]) -> list[Row]:
    """Holm's correction over all tests of the table: against none, and over controls."""
    tests = [
        (number, name, p)
        for number, row in enumerate(rows)
        for name, p in [
            *([("none", row.against_none.p)] if row.against_none is not None else []),
            *((match, effect.p) for match, effect in row.over_control.items()),
        ]
    ]
    if not tests:
        return rows
    adjusted: Scores = holm([p for _, _, p in tests])
    found: list[dict[str, float]] = [{} for _ in rows]
    for (number, name, _), value in zip(tests, adjusted, strict=True):
        found[number][name] = float(value)
    return [replace(row, corrected=own) for row, own in zip(rows, found, strict=True)]


def holm_over(table: pd.DataFrame) -> pd.DataFrame:
    """The frame of several comparisons as one family: every p of the table corrected by Holm together.

    Columns `*_p` are the tests, `*_p_holm` their corrected values.
    """
    columns = [f"{name}_p" for name in ("difference", "effect_count", "effect_mass") if f"{name}_p" in table]
    p = table[columns].to_numpy(dtype=np.float64, na_value=np.nan)
    return table.assign(
        **{
            f"{name}_holm": column
            for name, column in zip(columns, holm(p.ravel()).reshape(p.shape).T, strict=True)
        }
    )


# ---- small things -------------------------------------------------------------------------------


def _sampled(run: Evaluation) -> bool:
    from sinkscope.decoding import decoding_from_json

    return decoding_from_json(json.dumps(dict(run.settings["decoding"]))).draws


def control(policy: str | None) -> tuple[str, str] | None:
    """For the text of a random control: its policy and how it is matched; None for anything else.

    >>> control("random(top:5),match=mass,seed=2")
    ('top:5', 'mass')
    >>> control("window:32 & random(top:1),seed=1")
    ('window:32 & top:1', 'count')
    """
    parts = re.split(r" & (?![^(]*\))", policy or "")  # not inside of brackets
    found = [re.fullmatch(r"random\((.*)\)(?:,match=(\w+))?(?:,seed=\d+)?", part) for part in parts]
    random = [one for one in found if one is not None]
    if len(random) != 1:
        return None
    like = " & ".join(part if one is None else one[1] for part, one in zip(parts, found, strict=True))
    return like, random[0][2] or "count"


def control_name(policy: str) -> str:
    """What all draws of a control are called together.

    >>> control_name("window:32 & random(top:1),seed=1")
    'window:32 & random(top:1)'
    """
    return re.sub(r",seed=\d+(?= & |$)", "", policy)


def by_seed(run: Evaluation) -> list[dict[str, float]]:
    """Scores by document, for each seed."""
    found: dict[int, dict[str, float]] = defaultdict(dict)
    for record in run.records:
        found[record.seed][record.document] = float(record.passed)
    return [found[seed] for seed in sorted(found)]


def natural(text: str) -> list[tuple[int, float, str]]:
    """A key that sorts top:5 before top:10."""
    parts = re.findall(r"\d+(?:\.\d+)?|\D+", text)
    return [(0, float(part), "") if part[0].isdigit() else (1, 0.0, part) for part in parts]


def _mean(draws: list[dict[str, float]]) -> dict[str, float]:
    for other in draws[1:]:
        align(draws[0], other, ("one seed", "another"))
    return {document: sum(one[document] for one in draws) / len(draws) for document in draws[0]}


def _average(records: Sequence[Record], name: str) -> float | None:
    values = [value for record in records if (value := getattr(record, name)) is not None]
    return float(np.mean(values)) if values else None


def _flat(row: Row) -> dict[str, Any]:
    nested = ("interval", "against_none", "over_control", "corrected", "paper")
    found = {item.name: getattr(row, item.name) for item in fields(row) if item.name not in nested}
    found |= {"low": row.interval.low, "high": row.interval.high}
    against = row.against_none
    found |= {
        "difference": None if against is None else against.difference,
        "difference_low": None if against is None else against.interval.low,
        "difference_high": None if against is None else against.interval.high,
        "difference_p": None if against is None else against.p,
        "difference_p_holm": row.corrected.get("none"),
    }
    for match in ("count", "mass"):
        effect = row.over_control.get(match)
        found |= {
            f"effect_{match}": None if effect is None else effect.effect,
            f"effect_{match}_low": None if effect is None else effect.interval.low,
            f"effect_{match}_high": None if effect is None else effect.interval.high,
            f"effect_{match}_p": None if effect is None else effect.p,
            f"effect_{match}_p_holm": row.corrected.get(match),
            f"effect_{match}_seeds": None if effect is None else effect.seeds,
            f"effect_{match}_spread": None if effect is None else effect.control_spread,
        }
    found |= {
        "paper": None if row.paper is None else row.paper.value,
        "paper_plus_minus": None if row.paper is None else row.paper.plus_minus,
    }
    return found
