"""The check of evidence: what a study computed itself beside what earlier ones say, model by model and task by task.

Evidence on a model's task is used when at least 90 % of what this study computed of it is graded alike. Where a model's task did
not run here, it is used only when the same earlier run agrees here on that task of other models, and this model on something
else; both are said. All other evidence is left out, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sinkscope.study.cells import Cell
from sinkscope.study.evidence import Evidence, Traces, answer_digest, canonical, key_of
from sinkscope.study.store import Store, load_statistics
from sinkscope.text import listed

if TYPE_CHECKING:
    import pandas as pd

LEAST_AGREEMENT = 0.9
"""Evidence of which a smaller share is graded alike on this machine is not used."""

DETECTIONS_APART = 0.05
"""Two recordings of one document agree when their numbers of sinks differ by at most this share."""

CHECKED = "evidence of "
"""How a sentence on what was checked begins."""

ANSWERS, TRACES, PAIRS = "answers", "traces", "pairs of traces"
DISAGREES = "this machine does not reproduce it"
NOT_RUN = "nothing of it ran here"

Seeds = Mapping[tuple[str, str], int]
"""(kind, task) → the seed that drew the documents which this study computed; left out: they were not drawn."""


@dataclass(frozen=True)
class Check:
    """One row of the table `evidence`: one model, earlier run, kind of evidence and task.

    Attributes:
        made: when, where and how the earlier run was made.
        items: answers, or traces, that it has; checked: how many of them were computed here as well; same: are the same word for
            word (of traces: as many sinks); alike: are graded alike.
        seed: that drew the documents which were computed here; None: they were not drawn.
        used: whether claims rest on it; why: the reason where it is not, or on what it was checked where it did not run here.
    """

    model: str
    made: str
    kind: str
    task: str
    items: int = 0
    checked: int = 0
    same: int = 0
    alike: int = 0
    seed: int | None = None
    used: bool = False
    why: str = ""

    @property
    def agrees(self) -> bool:
        """What was computed here is graded alike."""
        return self.checked > 0 and self.alike >= LEAST_AGREEMENT * self.checked

    @property
    def unit(self) -> tuple[str, str, str, str]:
        """What is used or left out as a whole."""
        return self.model, self.made, self.kind, self.task


@dataclass(frozen=True)
class Known:
    """The evidence on the models of a study that is used.

    Attributes:
        by_model: model → what of its evidence is used.
        checks: the table `evidence`.
    """

    by_model: Mapping[str, Evidence] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()

    def traces(self, cell: Cell) -> Traces | None:
        """The statistics of other traces of a cell's kind."""
        evidence = self.by_model.get(cell.model.name)
        return None if evidence is None else evidence.traces.get(key_of(cell))

    def sentences(self) -> list[str]:
        """What was checked, on what else claims rest, and what is not used, for people: a line for each earlier run."""
        runs: dict[tuple[str, str], list[Check]] = {}
        for row in self.checks:
            runs.setdefault((row.made, row.kind), []).append(row)
        return [_sentence(made, kind, rows) for (made, kind), rows in runs.items()]


def _sentence(made: str, kind: str, rows: Sequence[Check]) -> str:
    run = [row for row in rows if row.checked]
    seeds = {row.seed for row in run}
    drawn = f", drawn at random (seed {', '.join(map(str, seeds))})," if run and None not in seeds else ""
    many, every = _sum(rows, "checked") or "none", _sum(rows, "items")
    said = [f"{CHECKED}{made}: {many} of its {every:,} {kind}{drawn} were computed here as well"]
    if run:
        same = "are the same word for word; graded alike" if kind == ANSWERS else "have as many sinks"
        said.append(f"{_sum(run, 'same')} {same}: {_by_task(run, '{model} {alike} of {checked}')}")
    for why in dict.fromkeys(row.why for row in rows if row.why):
        whose = [row for row in rows if row.why == why]
        said.append(
            f"{'also used' if whose[0].used else 'not used'}: {_by_task(whose, '{model}')}, because {why}"
        )
    return f"{said[0]}{', ' if run else '; '}{'; '.join(said[1:])}".rstrip("; ")


def _by_task(rows: Sequence[Check], form: str) -> str:
    """Models by task. form: of one model, with the names of columns in braces."""
    tasks: dict[str, list[str]] = {}
    for row in rows:
        tasks.setdefault(row.task, []).append(form.format(**vars(row)))
    return "; ".join(f"{listed(models)} in {task}" for task, models in tasks.items())


def _sum(rows: Sequence[Check], name: str) -> int:
    return sum(int(getattr(row, name)) for row in rows)


def check(
    store: Store, cells: Sequence[Cell], known: Mapping[str, Evidence], seeds: Seeds | None = None
) -> Known:
    """What of the evidence was computed in this study as well, how much of that is the same, and what is used.

    Evidence on tasks and decodings that the study does not have is left aside.
    """
    rows: dict[tuple[str, str, str, str], Check] = {}
    for model, evidence in known.items():
        for made, kind, task, numbers in _counted(store, cells, model, evidence):
            row = rows.setdefault((model, made, kind, task), Check(model, made, kind, task))
            summed = {name: getattr(row, name) + number for name, number in numbers.items()}
            rows[row.unit] = replace(row, seed=(seeds or {}).get((kind, task)), **summed)
    decided = tuple(_decided(row, list(rows.values())) for row in rows.values())
    used = {row.unit for row in decided if row.used}
    kept = {
        model: replace(
            evidence,
            answers=tuple(one for one in evidence.answers if (model, one.made, ANSWERS, one.task) in used),
            traces={
                cell_key: one
                for cell_key, one in evidence.traces.items()
                if any((model, one.made, TRACES, cell.identity["task"]["task"]) in used
                       for cell in cells if key_of(cell) == cell_key)
            },
            pairs=tuple(row for row in evidence.pairs if (model, row["made"], PAIRS, row["task"]) in used),
        )
        for model, evidence in known.items()
    }  # fmt: skip
    return Known(kept, decided)


def _counted(
    store: Store, cells: Sequence[Cell], model: str, evidence: Evidence
) -> Iterator[tuple[str, str, str, dict[str, int]]]:
    """(made, kind, task, numbers to add to its row) of everything that the evidence on a model has for this study."""
    mine = {key_of(cell): cell for cell in cells if cell.model.name == model}
    for cell in _of_study(evidence, cells, model):
        found = {"items": len(cell.passed), "checked": 0, "same": 0, "alike": 0}
        here = store.answers(mine[cell.key].id).values() if cell.key in mine else ()
        for row, grade in here:
            if grade is not None and row.document in cell.passed:
                found["checked"] += 1
                found["same"] += answer_digest(row.output) == cell.answers[row.document]
                found["alike"] += grade.passed == cell.passed[row.document]
        yield cell.made, ANSWERS, cell.task, found
    for name, traces in evidence.traces.items():
        if name not in mine:
            continue
        detections = traces.statistics["detections"].values.reshape(len(traces.documents), -1).sum(1)
        sinks = dict(zip(traces.documents, detections.tolist(), strict=True))
        agreed = []
        for row, _ in store.answers(mine[name].id).values():
            if row.document in sinks:
                part = load_statistics(store.statistics_file(mine[name].id, row.index, row.seed))
                apart = abs(float(part["detections"].sum()) - sinks[row.document])
                agreed.append(apart <= DETECTIONS_APART * max(1.0, sinks[row.document]))
        numbers = {"items": len(sinks), "checked": len(agreed), "same": sum(agreed), "alike": sum(agreed)}
        yield traces.made, TRACES, str(mine[name].identity["task"]["task"]), numbers
    for made, task in dict.fromkeys((row["made"], row["task"]) for row in evidence.pairs):
        pairs = {row["document"] for row in evidence.pairs if (row["made"], row["task"]) == (made, task)}
        yield made, PAIRS, task, {"items": len(pairs)}


def _decided(row: Check, rows: Sequence[Check]) -> Check:
    """Whether evidence is used, and why where that is not plain from its own numbers."""
    if row.checked:
        return replace(row, used=row.agrees, why="" if row.agrees else DISAGREES)
    if row.kind == PAIRS:
        traces = [one for one in rows if one.unit == (row.model, row.made, TRACES, row.task)]
        used = any(one.agrees for one in traces)
        why = "no pair ran here, but traces of the same run and model agree" if used else NOT_RUN
        return replace(row, used=used, why=why)
    others = [one for one in rows if one.unit[1:] == row.unit[1:] and one.checked]
    own = [one for one in rows if one.model == row.model and one.checked]
    used = bool(others and own) and all(one.agrees for one in (*others, *own))
    if not used:
        return replace(row, why=NOT_RUN)
    same_run = listed(dict.fromkeys(one.model for one in others))
    elsewhere = listed(dict.fromkeys(f"{one.kind} of {one.task}" for one in own))
    return replace(
        row, used=True, why=f"it did not run here, but the same run agrees on {same_run}, and the model in its {elsewhere}"
    )  # fmt: skip


def _of_study(evidence: Evidence, cells: Sequence[Cell], model: str) -> list[Any]:
    """The answers on tasks and decodings that the study has."""
    tasks = {cell.identity["task"]["task"] for cell in cells if cell.kind == "evaluate"}
    names = _decodings(cells, model)
    return [one for one in evidence.answers if one.task in tasks and one.decoding in names]


def _decodings(cells: Sequence[Cell], model: str) -> dict[str, str]:
    """The decodings of a model in the study, as one text each → their names."""
    return {
        canonical(cell.identity["decoding"]): cell.decoding_name for cell in cells if cell.model.name == model
    }


def tables(known: Known, cells: Sequence[Cell]) -> dict[str, pd.DataFrame]:
    """The tables `evidence` (what was checked), `earlier_records` and `earlier_pairs`, of the study's tasks and decodings."""
    import pandas as pd

    records: list[dict[str, Any]] = []
    pairs: list[dict[str, Any]] = []
    for model, evidence in known.by_model.items():
        names = _decodings(cells, model)
        for answers in _of_study(evidence, cells, model):
            about = {"model": model, "task": answers.task, "decoding_name": names[answers.decoding],
                     "policy": answers.policy, "sinks_hit": answers.hits, "made": answers.made,
                     "sinks_hit_made": answers.hits_made or answers.made}  # fmt: skip
            records += [
                {**about, "document": name, "passed": right} for name, right in answers.passed.items()
            ]
        pairs += [
            {"model": model, "decoding_name": names[decoding], **row}
            for row in evidence.pairs
            if (decoding := canonical(json.loads(row["decoding"]))) in names
        ]
    frames = {
        "evidence": [vars(row) for row in known.checks],
        "earlier_records": records,
        "earlier_pairs": pairs,
    }
    return {name: pd.DataFrame(rows) for name, rows in frames.items() if rows}
