"""The table of approximate steps: each reuse rule beside the exact loop, and beside rules that keep other keys at the same cost.

One row per model, task, decoding and rule; the draws of a random rule are one row. Differences are paired by document.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sinkscope.errors import InputError
from sinkscope.reuse import Reuse, parse_reuse
from sinkscope.statistics import (
    Estimate,
    align,
    bounded,
    compare,
    mean_difference,
    mean_interval,
    ratio_interval,
    wilson,
)
from sinkscope.study.comparison import holm_over
from sinkscope.tasks.evaluation import Evaluation
from sinkscope.tasks.records import Generation

if TYPE_CHECKING:
    import pandas as pd

    from sinkscope.study.cells import Cell

CONTROLS = ("random", "recent")
"""How the rules beside which a sparse rule stands choose their keys."""

UNKNOWN = (None,) * 4
"""A difference with its interval and p, where there is none."""

Scores = Mapping[str, float]
"""By document."""


@dataclass
class _Rule:
    """What is known of one rule under one model, task and decoding; `cells`: those of its draws."""

    rule: Reuse | None
    cells: list[Cell] = field(default_factory=list)
    graded: list[Evaluation] = field(default_factory=list)
    agreed: list[Sequence[Generation]] = field(default_factory=list)

    def scores(self) -> Scores:
        """Right or wrong, the mean over draws."""
        return _mean([one.scores() for one in self.graded])

    def of(self, name: str) -> Scores:
        """A number of the comparisons with exact runs, the mean over draws that have it; documents without it are left out."""
        values: dict[str, list[float]] = defaultdict(list)
        for row in (row for rows in self.agreed for row in rows):
            if row.more.get(name) is not None:
                values[row.document].append(float(row.more[name]))
        return {document: float(np.mean(own)) for document, own in values.items()}

    def time_ratio(self) -> Estimate:
        """Seconds under the rule / seconds of the exact runs; documents that ran together were timed once, and count once."""
        rows = [row for rows in self.agreed for row in rows]
        seconds, exact = ([float(row.more[name]) for row in rows] for name in ("seconds", "seconds_exact"))
        return ratio_interval(seconds, exact, [row.more.get("timed_with", row.document) for row in rows])


def reuse_table(
    cells: Sequence[Cell], evaluations: Mapping[str, Evaluation], agreed: Mapping[str, Sequence[Generation]]
) -> pd.DataFrame:
    """The table; empty where no cell has a rule.

    Args:
        evaluations: id of a cell → its graded answers, exact cells included. agreed: id → comparisons with exact runs.
    """
    import pandas as pd

    groups: dict[tuple[str, str, str], dict[str, _Rule]] = defaultdict(dict)
    for cell in cells:
        if cell.policy != "none" or (cell.id not in evaluations and cell.id not in agreed):
            continue
        rule = parse_reuse(cell.reuse)
        name = "none" if rule is None else str(rule.with_seed(0))
        group = groups[cell.model.name, cell.identity["task"]["task"], cell.decoding_name]
        known = group.setdefault(name, _Rule(None if rule is None else rule.with_seed(0)))
        known.cells.append(cell)
        if cell.id in evaluations:
            known.graded.append(evaluations[cell.id])
        if cell.id in agreed:
            known.agreed.append(agreed[cell.id])
    rows = []
    for group in groups.values():
        if set(group) == {"none"}:
            continue
        for name, known in group.items():
            own = known.cells[0].columns() | {"cell": " ".join(cell.id for cell in known.cells)}
            rows.append({**own, "reuse": name, **_row(known, group)})
    return holm_over(pd.DataFrame(rows))


def _row(known: _Rule, group: Mapping[str, _Rule]) -> dict[str, Any]:
    """The numbers of one rule."""
    row: dict[str, Any] = {
        "series": "exact" if known.rule is None else known.rule.series,
        "draws": max(len(known.graded), len(known.agreed)),
        **_accuracy(known, group.get("none")),
        "work_saved": _work_saved(known),
        **_agreement(known),
    }
    for by in CONTROLS:
        rule = None if known.rule is None else known.rule.choosing(by)
        beside = group.get(str(rule)) if rule is not None and rule != known.rule else None
        row |= _beside(f"over_{by}", known, beside)
    return row


def _accuracy(known: _Rule, exact: _Rule | None) -> dict[str, Any]:
    found = dict.fromkeys(("n", "accuracy", "low", "high", "same_text")) | bounded("difference", *UNKNOWN)
    if not known.graded:
        return found
    scores = known.scores()
    low, high = wilson(min(float(len(scores)), sum(scores.values())), len(scores))
    found |= {"n": len(scores), "accuracy": sum(scores.values()) / len(scores), "low": low, "high": high}
    if exact is None or not exact.graded or exact is known:
        return found
    texts = {record.document: record.output for record in exact.graded[0].records}
    same = [record.output == texts.get(record.document) for one in known.graded for record in one.records]
    return found | {"same_text": float(np.mean(same))} | _difference("difference", scores, exact.scores())


def _work_saved(known: _Rule) -> float | None:
    if known.rule is None:
        return 0.0
    rows = [(row.more.get("macs"), row.more.get("macs_exact")) for rows in known.agreed for row in rows]
    rows += [(record.macs, record.macs_exact) for one in known.graded for record in one.records]
    pairs = [(float(done), float(exact)) for done, exact in rows if done is not None and exact is not None]
    return 1 - sum(done for done, _ in pairs) / sum(exact for _, exact in pairs) if pairs else 0.0


def _agreement(known: _Rule) -> dict[str, Any]:
    """Tokens equal, first step that differs, divergence and time, with intervals over documents (time: over batches of them)."""
    found: dict[str, Any] = dict.fromkeys(("agreement_n", "same_tokens", "first_step"))
    estimates: dict[str, Any] = dict.fromkeys(("tokens_equal", "kl", "time_saved"), ())
    if known.agreed:
        equal, divergence, parted = (
            list(known.of(name).values()) for name in ("tokens_equal", "kl", "first_step")
        )
        # Of the documents that part at all.
        first_step = float(np.median(parted)) if parted else None
        same = float(np.mean([value == 1 for value in equal]))
        found = {"agreement_n": len(equal), "same_tokens": same, "first_step": first_step}
        ratio = known.time_ratio()
        estimates = {
            "tokens_equal": mean_interval(equal, scale="share"),
            "kl": mean_interval(divergence) if divergence else (),
            "time_saved": (1 - ratio.value, 1 - ratio.high, 1 - ratio.low),
        }
    for stem, numbers in estimates.items():
        found |= bounded(stem, *numbers)
    return found


def _beside(stem: str, known: _Rule, control: _Rule | None) -> dict[str, Any]:
    """Paired differences to a rule that keeps as many other keys: accuracy, tokens equal, divergence (positive: more of it)."""
    found = bounded(stem, *UNKNOWN)
    if control is not None and known.graded and control.graded:
        found |= _difference(stem, known.scores(), control.scores())
    for name in ("tokens_equal", "kl"):
        own, other = known.of(name), {} if control is None else control.of(name)
        both = sorted(own.keys() & other.keys())
        apart = (
            mean_difference([own[key] for key in both], [other[key] for key in both]) if len(both) > 1 else ()
        )
        found |= bounded(f"{name}_{stem}", *apart)
    return found


def _difference(stem: str, first: Scores, second: Scores) -> dict[str, Any]:
    found = compare(*align(first, second, ("a rule", "what it is compared with")))
    return bounded(stem, found.difference, *found.interval, found.p)


def _mean(draws: Sequence[Scores]) -> Scores:
    """The mean over draws of each document; draws of other documents are refused."""
    if any(other.keys() != draws[0].keys() for other in draws[1:]):
        raise InputError(
            "the draws of a random rule answered different documents; run the same command again"
        )
    return {name: sum(one[name] for one in draws) / len(draws) for name in draws[0]} if draws else {}
