"""Evaluations side by side: the table of the paper, with the statistics that such a table needs.

Pure functions from evaluations to a table. Within one model and task all runs must have answered the same documents under the
same settings, policy apart; anything else is refused, with the difference named. Comparisons are paired by document.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sinkscope.base.errors import InputError
from sinkscope.base.extras import EXTRAS
from sinkscope.base.files import differences
from sinkscope.base.masked import Masked
from sinkscope.decoding import decoding_from_json
from sinkscope.statistics import (
    LEAST_SEEDS,
    Comparison,
    align,
    bounded,
    compare,
    effect_over_control,
    holm,
    minimal_detectable_effect,
)
from sinkscope.study.names import control, name_of, natural, pooled
from sinkscope.study.paper import published
from sinkscope.tasks.evaluation import Evaluation, score_of
from sinkscope.tasks.task import ACCURACY, scheme_name

if TYPE_CHECKING:
    import pandas as pd

Scores = NDArray[np.float64]
"""[documents], or [draws, documents]: a run's seeds, or the seeds of a control."""

MATCHES = ("count", "mass")
"""How a control is matched to its policy."""
SEEDS = "{} seeds", "one seed"


def compare_runs(evaluations: Sequence[Evaluation]) -> pd.DataFrame:
    """The table of these evaluations: a row for each task, model and policy; the draws of a control are one row.

    Columns, besides settings and what was masked (see `Record`):
        accuracy or nll: as the task is measured, with stderr, low and high; a positive difference of the latter is a loss.
        draws: runs that are averaged per document: seeds of a decoding or of a control.
        control_of, match: for a control, the policy that it stands beside, and "count" or "mass".
        detectable: the smallest difference to none that these documents detect with 80 % power if the two runs are unrelated.
        difference: paired, to the run without a policy. effect_count, effect_mass: beyond the mean of a control's seeds, from
            three seeds on. *_p: of each test, *_p_holm: after Holm over all tests of the table.
        over_control: paired, to the mean of the count-matched control's draws, however many.
        paper: what the paper reports for this model, task and policy.
    """
    import pandas as pd

    if not evaluations:
        raise InputError("there is nothing to compare: give the folder of at least one evaluation")
    groups: dict[tuple[str, str], list[Evaluation]] = defaultdict(list)
    for run in merged(evaluations):
        groups[run.settings["task"]["task"], run.settings["model"]["source"]].append(run)
    _same_documents_across_models(groups)
    return holm_over(pd.DataFrame([row for key in sorted(groups) for row in _group(groups[key])]))


def merged(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Evaluations of the same settings as one (shards, seeds in folders of their own); the same answer twice is refused."""
    by_settings: dict[str, list[Evaluation]] = defaultdict(list)
    for evaluation in evaluations:
        by_settings[json.dumps(evaluation.settings, sort_keys=True)].append(evaluation)
    runs = []
    for parts in by_settings.values():
        records = sorted(
            (record for part in parts for record in part.records), key=lambda each: (each.index, each.seed)
        )
        (document, seed), times = Counter((record.document, record.seed) for record in records).most_common(1)[0]
        if times > 1:
            raise InputError(
                f"two of the runs hold document {document} with seed {seed} under the same settings "
                f"(policy {name_of(parts[0].settings)}): give each run once"
            )
        runs.append(Evaluation(tuple(records), parts[0].settings))
    return runs


def holm_over(table: pd.DataFrame) -> pd.DataFrame:
    """The table as one family of tests: every p corrected by Holm together, in columns `*_p_holm` beside `*_p`."""
    columns = [name for name in map(str, table) if name.endswith("_p")]
    p = table[columns].to_numpy(dtype=np.float64, na_value=np.nan)
    corrected = holm(p.ravel()).reshape(p.shape).T
    return table.assign(**{f"{name}_holm": column for name, column in zip(columns, corrected, strict=True)})


def untested(table: pd.DataFrame) -> list[str]:
    """Sentences on what could not be tested in a table, one for each kind of gap."""
    policies = table[table["policy"] != "none"]
    compared = table.groupby(["task", "model"])["policy"].transform(lambda names: (names == "none").any())
    alone = table[~compared.astype(bool)]
    few = policies[compared[policies.index].astype(bool) & policies["difference"].isna()]
    controls = table[table["control_of"].notna() & (table["draws"] < LEAST_SEEDS)]

    def where(rows: pd.DataFrame) -> str:
        return ", ".join(dict.fromkeys(rows["model"] + ", " + rows["task"]))

    def listed(names: pd.Series[str], what: str) -> str:
        each = names.unique()
        return ", ".join(each) if len(each) <= 2 else f"{len(each)} {what}"

    said = [
        f"{where(rows)}: the decoding draws and has {SEEDS[draws == 1].format(draws)}; without at least {LEAST_SEEDS} no "
        "difference is tested"
        for draws, rows in few.groupby("draws")
    ]
    if len(alone):
        said.append(f"{where(alone)}: there is no run without a policy, so nothing is compared with one")
    return said + [
        f"random controls of {listed(rows['control_of'], 'policies')} ({listed(rows['model'], 'models')}) have "
        f"{SEEDS[draws == 1].format(draws)}; effects beyond them are tested from {LEAST_SEEDS} on"
        for draws, rows in controls.groupby("draws")
    ]


# ---- rows ----------------------------------------------------------------------------------------


def _group(runs: list[Evaluation]) -> list[dict[str, Any]]:
    """All runs of one model on one task."""
    first = next((run for run in runs if name_of(run.settings) == "none"), runs[0])
    sampled = decoding_from_json(json.dumps(dict(first.settings["decoding"]))).draws
    for other in runs:
        _comparable(first, other, sampled)
    by_name: dict[str, list[Evaluation]] = defaultdict(list)
    for run in runs:
        by_name[pooled(name_of(run.settings))].append(run)
    documents = list(first.scores())
    draws = {
        name: np.array([row for run in same for row in _by_seed(run, documents)]) for name, same in by_name.items()
    }
    # With few seeds of a decoding that samples, a difference may be the sampling's.
    shares, tested = first.measure == ACCURACY, not sampled or len(first.seeds) >= LEAST_SEEDS
    ranked = np.argsort(documents)  # the order in which documents are paired decides what a random test draws

    def paired(name: str, base: str) -> Comparison:
        """Between the means over draws of two runs."""
        return compare(*(draws[one].mean(0)[ranked] for one in (name, base)), shares=shares)

    rows = {name: _plain(by_name[name], name) for name in sorted(by_name, key=in_order)}
    for name, row in rows.items():
        controls = controls_of(name, by_name)
        compared = tested and name != "none" and "none" in draws
        row |= _test("difference", paired(name, "none") if compared else None)
        for match in MATCHES:
            drawn = draws[controls[match]][:, ranked] if match in controls else draws[name][:0]
            enough, stem = tested and len(drawn) >= LEAST_SEEDS, f"effect_{match}"
            mean = draws[name].mean(0)[ranked]
            row |= _test(stem, effect_over_control(mean, drawn, shares=shares) if enough else None)
            row[f"{stem}_seeds"] = len(drawn) if enough else None
            row[f"{stem}_spread"] = float(drawn.mean(axis=1).std(ddof=1)) if enough else None
        paper = published(row["model"], row["task"], name)
        row |= {"paper": paper and paper.value, "paper_plus_minus": paper and paper.plus_minus}
        row["detectable"] = detectable(draws["none"].mean(0)) if shares and "none" in draws else None
        beside = rows.get(controls.get("count", ""), {})
        row |= {"control": beside.get("policy"), "control_draws": beside.get("draws")}
        row |= {f"control_{part}": beside.get(part) for part in (first.measure, Masked.REMOVED)}
        row |= bounded("over_control", *(paired(name, beside["policy"]).difference if beside else ()))
    return list(rows.values())


def in_order(name: str) -> tuple[Any, ...]:
    """A key that sorts "none" first, and each control behind its policy."""
    kind = control(name)
    return name != "none", natural(kind.like if kind else name), kind is not None, kind.match if kind else ""


def controls_of(policy: str, names: Iterable[str]) -> dict[str, str]:
    """ "count" or "mass" → the name of a policy's control, of those that were run."""
    kinds = ((name, control(name)) for name in names)
    return {kind.match: name for name, kind in kinds if kind is not None and kind.like == policy}


def _plain(runs: list[Evaluation], name: str) -> dict[str, Any]:
    """One run, or the draws of a control, by itself."""
    kind, settings = control(name), runs[0].settings
    whole = Evaluation(tuple(record for run in runs for record in run.records), settings)
    low, high = whole.interval
    return {
        "model": settings["model"]["source"], "task": settings["task"]["task"], "scheme": scheme_name(settings["task"]),
        "policy": name, "n": whole.n, "draws": sum(len(run.seeds) for run in runs), whole.measure: whole.value,
        "stderr": whole.stderr, "decoding": ", ".join(f"{option}={value}" for option, value in settings["decoding"].items()),
        **{part: whole.mean(part) for part in Masked}, "control_of": kind and kind.like, "match": kind and kind.match,
        "detectable": None, "low": low, "high": high,
    }  # fmt: skip


def _test(stem: str, test: Comparison | None) -> dict[str, Any]:
    """A paired test as columns; its corrected p is filled in for the whole table."""
    return {**bounded(stem, *((*test.difference, test.p) if test else (None,) * 4)), f"{stem}_p_holm": None}


def detectable(scores: Scores) -> float:
    """The smallest difference of two unrelated runs that so many documents detect with 80 % power.

    The accuracy is drawn a little towards ½ (one right and one wrong answer more): a share of 0 or 1 in a few documents does
    not mean that nothing varies.
    """
    n = len(scores)
    return minimal_detectable_effect(n, (sum(scores.tolist()) + 1) / (n + 2)) if n > 1 else 1.0


def _by_seed(run: Evaluation, documents: Sequence[str]) -> list[list[float]]:
    """The scores of these documents, for each seed."""
    scores = {(record.seed, record.document): score_of(record) for record in run.records}
    return [[scores[seed, document] for document in documents] for seed in run.seeds]


# ---- which runs may stand in one table -----------------------------------------------------------


def _comparable(first: Evaluation, other: Evaluation, sampled: bool) -> None:
    """The same settings, policy apart, and the same documents; of a sampled decoding also the same seeds."""
    names = (name_of(first.settings), name_of(other.settings))
    apart = dict.fromkeys(("policy", *EXTRAS))
    different = list(differences({**first.settings, **apart}, {**other.settings, **apart}))
    if different:
        more = " and more" if len(different) > 5 else ""
        raise InputError(
            f"the runs under {names[0]} and {names[1]} of {first.settings['model']['source']} do not belong in one table: "
            f"{'; '.join(different[:5])}{more}. Compare runs that differ only in {', '.join(apart)}"
        )
    align(first.scores(), other.scores(), names)
    if sampled and other.seeds != first.seeds and control(name_of(other.settings)) is None:
        raise InputError(
            f"the runs under {names[0]} and {names[1]} have the seeds {list(first.seeds)} and {list(other.seeds)}: a sampled "
            "decoding is compared over the same seeds"
        )
    if len(other.records) != other.n * len(other.seeds):
        raise InputError(f"the run under {names[1]} is not finished: some documents lack a seed")
    prints = {record.document: record.fingerprint for record in first.records}
    for record in other.records:
        if prints[record.document] != record.fingerprint:
            raise InputError(
                f"the runs under {names[0]} and {names[1]} answered different questions under the id {record.document}: they "
                "were made from different data files"
            )


def _same_documents_across_models(groups: Mapping[tuple[str, str], list[Evaluation]]) -> None:
    """A task has the same documents for all models of a table."""
    first: dict[str, tuple[str, set[str]]] = {}
    for (task, model), runs in groups.items():
        ids = set(runs[0].scores())
        name, other = first.setdefault(task, (model, ids))
        if ids != other:
            raise InputError(
                f"{name} and {model} answered different documents of {task} ({len(other)} and {len(ids)}): evaluate them "
                "with the same limit, or compare them apart"
            )
