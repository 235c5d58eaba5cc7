"""Checks that runs may stand in one table: the same documents under the same settings and seeds, policy apart."""

from __future__ import annotations

from collections.abc import Iterable

from sinkscope.errors import InputError
from sinkscope.files import differences
from sinkscope.statistics import align, same_settings
from sinkscope.tasks.evaluate import Evaluation


def comparable(first: Evaluation, other: Evaluation) -> None:
    """The same settings, policy apart, and the same documents."""
    names = [run.settings["policy"] or "none" for run in (first, other)]
    try:
        same_settings(first.settings, other.settings, may_differ=("policy",))
    except InputError as error:
        named = differences({**first.settings, "policy": None}, {**other.settings, "policy": None})
        raise InputError(
            f"the runs under {names[0]} and {names[1]} of {first.settings['model']['source']} do not belong in one table: "
            f"{next(named, '')}. {error}"
        ) from error
    align(first.scores(), other.scores(), (names[0], names[1]))
    prints = {record.document: record.fingerprint for record in first.records}
    for record in other.records:
        if prints[record.document] != record.fingerprint:
            raise InputError(
                f"the runs under {names[0]} and {names[1]} answered different questions under the id {record.document}: they "
                "were made from different data files"
            )


def same_seeds(first: Evaluation, runs: Iterable[Evaluation]) -> None:
    """Every document under every seed, and the same seeds everywhere."""
    for run in runs:
        if run.seeds != first.seeds:
            raise InputError(
                f"the runs under {first.settings['policy'] or 'none'} and {run.settings['policy'] or 'none'} have the seeds "
                f"{list(first.seeds)} and {list(run.seeds)}: a sampled decoding is compared over the same seeds"
            )
        counts = {record.document: 0 for record in run.records}
        for record in run.records:
            counts[record.document] += 1
        if len(set(counts.values())) > 1:
            raise InputError(
                f"the run under {run.settings['policy'] or 'none'} is not finished: some documents lack a seed"
            )


def same_documents_across_models(groups: dict[tuple[str, str], list[Evaluation]]) -> None:
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
