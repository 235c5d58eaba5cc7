"""Evaluations side by side: the table of the paper, with the statistics that such a table needs.

Pure functions from evaluations to a table. Within one model and task all runs must have answered the same documents under the
same settings, policy apart; anything else is refused, with the difference named. Comparisons are paired by document.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sinkscope.decoding import decoding_from_json
from sinkscope.errors import InputError
from sinkscope.files import differences
from sinkscope.statistics import (
    LEAST_SEEDS,
    Comparison,
    Effect,
    Interval,
    align,
    bounded,
    compare,
    effect_over_control,
    holm,
    mean_interval,
    minimal_detectable_effect,
    standard_error,
    wilson,
)
from sinkscope.study.names import control, name_of, natural
from sinkscope.study.paper import Published, published
from sinkscope.tasks.evaluation import Evaluation, Record, score_of
from sinkscope.tasks.task import ACCURACY, scheme_name

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Row:
    """One policy of one model on one task.

    Attributes:
        policy: "none", or its text form; controls of one policy are one row over their seeds.
        control_of: for a control, the policy whose control it is; match: "count" or "mass".
        value: the accuracy, or nats per token, as `measure` says; a positive difference of the latter is a loss.
        draws: runs that are averaged per document: seeds of a decoding or of a control.
        detectable: the smallest difference to none that these documents detect with 80 % power if the two runs are unrelated.
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
    value: float
    stderr: float
    interval: Interval
    hidden_share: float | None
    sinks_hit: float | None
    key_share: float | None
    decoding: str
    strongest_hit: float | None = None
    sink_removed: float | None = None
    control_of: str | None = None
    match: str | None = None
    detectable: float | None = None
    against_none: Comparison | None = None
    over_control: dict[str, Effect] = field(default_factory=dict)
    corrected: dict[str, float] = field(default_factory=dict)
    paper: Published | None = None
    measure: str = ACCURACY


@dataclass(frozen=True, repr=False)
class Table:
    """Rows in the order of task, model and policy, and sentences that belong beside them."""

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
    for run in merged(evaluations):
        groups[run.settings["task"]["task"], run.settings["model"]["source"]].append(run)
    _same_documents_across_models(groups)
    gaps = _Gaps()
    rows = [row for key in sorted(groups) for row in _group(groups[key], gaps)]
    return Table(tuple(_corrected(rows)), gaps.notes())


def merged(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Evaluations of the same settings as one (shards, seeds in folders of their own); the same answer twice is refused."""
    by_settings: dict[str, list[Evaluation]] = defaultdict(list)
    for evaluation in evaluations:
        by_settings[json.dumps(evaluation.settings, sort_keys=True)].append(evaluation)
    runs = []
    for parts in by_settings.values():
        records = [record for part in parts for record in part.records]
        seen: set[tuple[str, int]] = set()
        for record in records:
            if (record.document, record.seed) in seen:
                raise InputError(
                    f"two of the runs hold document {record.document} with seed {record.seed} under the same settings "
                    f"(policy {name_of(record.settings) or 'none'}): give each run once"
                )
            seen.add((record.document, record.seed))
        records.sort(key=lambda record: (record.index, record.seed))
        runs.append(Evaluation(tuple(records), parts[0].settings))
    return runs


class _Gaps:
    """What could not be tested, by kind; each kind becomes one sentence."""

    def __init__(self) -> None:
        self.drawing: dict[int, list[str]] = defaultdict(list)
        self.without: list[str] = []
        self.controls: dict[tuple[str, int], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))

    def notes(self) -> tuple[str, ...]:
        """One sentence for each kind of gap."""
        notes = [
            f"{', '.join(where)}: the decoding draws and has {_seeds(seeds)}; without at least {LEAST_SEEDS} no difference "
            "is tested"
            for seeds, where in self.drawing.items()
        ]
        if self.without:
            notes.append(
                f"{', '.join(self.without)}: there is no run without a policy, so nothing is compared with one"
            )
        for (match, seeds), policies in self.controls.items():
            where = list(dict.fromkeys(model for models in policies.values() for model in models))
            notes.append(
                f"the {match}-matched controls of {', '.join(policies)} have {_seeds(seeds)} ({', '.join(where)}); an effect "
                f"over a control needs at least {LEAST_SEEDS}"
            )
        return tuple(notes)


def _group(runs: list[Evaluation], gaps: _Gaps) -> list[Row]:
    """All runs of one model on one task."""
    first = next((run for run in runs if name_of(run.settings) is None), runs[0])
    for other in runs:
        _comparable(first, other)
    sampled = decoding_from_json(json.dumps(dict(first.settings["decoding"]))).draws
    where = f"{first.settings['model']['source']}, {first.settings['task']['task']}"
    tested = not sampled or len(first.seeds) >= LEAST_SEEDS
    if not tested:
        gaps.drawing[len(first.seeds)].append(where)
    plain = {name_of(run.settings): run for run in runs if control(name_of(run.settings)) is None}
    if sampled:
        _same_seeds(first, plain.values())
    controls: dict[str, dict[str, list[Evaluation]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        kind = control(name_of(run.settings))
        if kind is not None:
            controls[kind.like][kind.match].append(run)
    none = plain.get(None)
    if none is None:
        gaps.without.append(where)
    rows = []
    names = {*(name for name in plain if name is not None), *controls}
    for policy in [*([None] if none is not None else []), *sorted(names, key=natural)]:
        matched = {} if policy is None else controls.get(policy, {})
        if policy in plain:
            rows.append(_row(plain[policy], none, matched, tested, gaps))
        for match, group in sorted(matched.items()):
            rows.append(_control_row(group, match, none, tested))
    return rows


def _row(
    run: Evaluation,
    none: Evaluation | None,
    controls: Mapping[str, list[Evaluation]],
    tested: bool,
    gaps: _Gaps,
) -> Row:
    policy, source = name_of(run.settings), run.settings["model"]["source"]
    against = None
    if none is not None and policy is not None and tested:
        against = compare(
            *align(run.scores(), none.scores(), (policy, "none")), shares=run.measure == ACCURACY
        )
    effects: dict[str, Effect] = {}
    for match, group in controls.items():
        draws = [scores for control_run in group for scores in by_seed(control_run)]
        if len(draws) < LEAST_SEEDS:
            gaps.controls[match, len(draws)][str(policy)].append(source)
        elif tested:
            pairs = [align(run.scores(), scores, (str(policy), f"random({policy})")) for scores in draws]
            effects[match] = effect_over_control(
                pairs[0][0], np.stack([pair[1] for pair in pairs]), shares=run.measure == ACCURACY
            )
    paper = published(source, run.settings["task"]["task"], policy)
    row = _plain_row([run], policy or "none", none)
    return replace(row, against_none=against, over_control=effects, paper=paper)


def _control_row(group: list[Evaluation], match: str, none: Evaluation | None, tested: bool) -> Row:
    kind = control(name_of(group[0].settings))
    if kind is None:
        raise RuntimeError("not a control")
    row = replace(_plain_row(group, kind.name, none), control_of=kind.like, match=match)
    if none is None or not tested:
        return row
    mean = _mean([scores for run in group for scores in by_seed(run)])
    pair = align(mean, none.scores(), (kind.name, "none"))
    return replace(row, against_none=compare(*pair, shares=none.measure == ACCURACY))


def _plain_row(runs: list[Evaluation], policy: str, none: Evaluation | None) -> Row:
    draws = [scores for run in runs for scores in by_seed(run)]
    scores = _mean(draws)
    settings = runs[0].settings
    records = [record for run in runs for record in run.records]
    values = np.array(list(scores.values()))
    shares = runs[0].measure == ACCURACY
    return Row(
        model=settings["model"]["source"],
        task=settings["task"]["task"],
        scheme=scheme_name(settings["task"]),
        policy=policy,
        n=len(scores),
        draws=len(draws),
        value=float(values.mean()),
        stderr=standard_error(values),
        interval=wilson(min(float(len(scores)), float(values.sum())), len(scores))
        if shares
        else Interval(*mean_interval(values)[1:]),
        hidden_share=_average(records, "hidden_share"),
        sinks_hit=_average(records, "sinks_hit"),
        strongest_hit=_average(records, "strongest_hit"),
        sink_removed=_average(records, "sink_removed"),
        key_share=_average(records, "key_share"),
        decoding=", ".join(f"{name}={value}" for name, value in settings["decoding"].items()),
        detectable=detectable(none.n, none.accuracy) if shares and none is not None else None,
        measure=runs[0].measure,
    )


def detectable(n: int, accuracy: float) -> float:
    """The smallest difference of two unrelated runs that n documents detect with 80 % power.

    The accuracy is drawn a little towards ½ (one right and one wrong answer more): a share of 0 or 1 in a few documents does
    not mean that nothing varies.
    """
    return minimal_detectable_effect(n, (n * accuracy + 1) / (n + 2)) if n > 1 else 1.0


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
    corrected: list[dict[str, float]] = [{} for _ in rows]
    for (number, name, _), value in zip(tests, holm([p for _, _, p in tests]), strict=True):
        corrected[number][name] = float(value)
    return [replace(row, corrected=values) for row, values in zip(rows, corrected, strict=True)]


def holm_over(table: pd.DataFrame) -> pd.DataFrame:
    """The frame of several comparisons as one family: every p of the table corrected by Holm together.

    Columns `*_p` are the tests, `*_p_holm` their corrected values.
    """
    columns = [name for name in map(str, table) if name.endswith("_p")]
    p = table[columns].to_numpy(dtype=np.float64, na_value=np.nan)
    corrected = holm(p.ravel()).reshape(p.shape).T
    return table.assign(**{f"{name}_holm": column for name, column in zip(columns, corrected, strict=True)})


# ---- which runs may stand in one table -----------------------------------------------------------


def _comparable(first: Evaluation, other: Evaluation) -> None:
    """The same settings, policy apart, and the same documents."""
    names = [name_of(run.settings) or "none" for run in (first, other)]
    apart = {"policy": None, "reuse": None}
    different = list(differences({**first.settings, **apart}, {**other.settings, **apart}))
    if different:
        which = ", ".join(sentence.partition(" is ")[0] for sentence in different[:5])
        raise InputError(
            f"the runs under {names[0]} and {names[1]} of {first.settings['model']['source']} do not belong in one table: "
            f"{different[0]}. the runs differ in {which}{' and more' if len(different) > 5 else ''}: compare runs that differ "
            f"only in {', '.join(apart)}"
        )
    align(first.scores(), other.scores(), (names[0], names[1]))
    prints = {record.document: record.fingerprint for record in first.records}
    for record in other.records:
        if prints[record.document] != record.fingerprint:
            raise InputError(
                f"the runs under {names[0]} and {names[1]} answered different questions under the id {record.document}: they "
                "were made from different data files"
            )


def _same_seeds(first: Evaluation, runs: Iterable[Evaluation]) -> None:
    """Every document under every seed, and the same seeds everywhere."""
    for run in runs:
        if run.seeds != first.seeds:
            raise InputError(
                f"the runs under {name_of(first.settings) or 'none'} and {name_of(run.settings) or 'none'} have the seeds "
                f"{list(first.seeds)} and {list(run.seeds)}: a sampled decoding is compared over the same seeds"
            )
        counts: dict[str, int] = defaultdict(int)
        for record in run.records:
            counts[record.document] += 1
        if len(set(counts.values())) > 1:
            raise InputError(
                f"the run under {name_of(run.settings) or 'none'} is not finished: some documents lack a seed"
            )


def _same_documents_across_models(groups: Mapping[tuple[str, str], list[Evaluation]]) -> None:
    """A task has the same documents for all models of a table."""
    first: dict[str, tuple[str, set[str]]] = {}
    for (task, model), runs in groups.items():
        ids = set(runs[0].scores())
        name, known = first.setdefault(task, (model, ids))
        if ids != known:
            raise InputError(
                f"{name} and {model} answered different documents of {task} ({len(known)} and {len(ids)}): evaluate them "
                "with the same limit, or compare them apart"
            )


# ---- small things --------------------------------------------------------------------------------


def by_seed(run: Evaluation) -> list[dict[str, float]]:
    """Scores by document, for each seed."""
    scores: dict[int, dict[str, float]] = defaultdict(dict)
    for record in run.records:
        scores[record.seed][record.document] = score_of(record)
    return [scores[seed] for seed in sorted(scores)]


def _mean(draws: list[dict[str, float]]) -> dict[str, float]:
    for other in draws[1:]:
        align(draws[0], other, ("one seed", "another"))
    return {document: sum(scores[document] for scores in draws) / len(draws) for document in draws[0]}


def _average(records: Sequence[Record], name: str) -> float | None:
    values = [value for record in records if (value := getattr(record, name)) is not None]
    return float(np.mean(values)) if values else None


def _flat(row: Row) -> dict[str, Any]:
    nested = ("interval", "against_none", "over_control", "corrected", "paper", "measure")
    named = {"value": row.measure}
    flat = {
        named.get(item.name, item.name): getattr(row, item.name)
        for item in fields(row)
        if item.name not in nested
    }
    flat |= {"low": row.interval.low, "high": row.interval.high}

    def part(stem: str, value: str, test: Comparison | Effect | None, p: float | None) -> dict[str, Any]:
        """One paired test as columns."""
        numbers = (None,) * 4 if test is None else (getattr(test, value), *test.interval, test.p)
        return {**bounded(stem, *numbers), f"{stem}_p_holm": p}

    flat |= part("difference", "difference", row.against_none, row.corrected.get("none"))
    for match in ("count", "mass"):
        effect = row.over_control.get(match)
        flat |= part(f"effect_{match}", "effect", effect, row.corrected.get(match))
        flat |= {
            f"effect_{match}_seeds": None if effect is None else effect.seeds,
            f"effect_{match}_spread": None if effect is None else effect.control_spread,
        }
    return flat | {
        "paper": None if row.paper is None else row.paper.value,
        "paper_plus_minus": None if row.paper is None else row.paper.plus_minus,
    }


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"
