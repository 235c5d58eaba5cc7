"""The documents of a study with evidence: drawn at random from those of the evidence, so that what runs here checks it.

The draw is made once, when a study starts, and kept in its study.toml. A study that was begun before, or whose evidence has fewer
documents than it wants, keeps the documents of `study.documents`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from sinkscope.study import documents, evidence
from sinkscope.study.cells import Cell, identify, outline
from sinkscope.study.facts import Facts
from sinkscope.study.spec import Grid, Study
from sinkscope.tasks.task import digest
from sinkscope.text import listed

DRAWN = ("evaluate", "trace")
"""Kinds of blocks that evidence exists of."""


def with_draws(study: Study, facts: Mapping[str, Facts]) -> Study:
    """The study with the documents of its blocks drawn from those of its evidence, where it has any.

    Blocks on one task get their documents from the same draw, so that a smaller one has some of those of a larger one.
    """
    files = [Path(name) for name in study.evidence]
    drawn: dict[str, tuple[Grid, ...]] = {}
    for kind in DRAWN:
        grids: tuple[Grid, ...] = getattr(study, kind)
        cells = [_cells(study, kind, grid, facts) for grid in grids]
        known = evidence.known_documents([cell for own in cells for cell in own], files)
        pools: dict[Any, set[str]] = {}
        for grid, own in zip(grids, cells, strict=True):
            for cell in own:
                if (key := evidence.key_of(cell)) in known:
                    pools.setdefault(_block(grid), set(known[key])).intersection_update(known[key])
        drawn[kind] = tuple(
            dataclasses.replace(grid, drawn=_draw(study, grid, own[0], pools.get(_block(grid), set())))
            if own
            else grid
            for grid, own in zip(grids, cells, strict=True)
        )
    return dataclasses.replace(study, **drawn)  # type: ignore[arg-type]


def _cells(study: Study, kind: str, grid: Grid, facts: Mapping[str, Facts]) -> list[Cell]:
    """The cells of one block; none where it takes no family of the models."""
    if not any(grid.takes(facts[model.name].family) for model in study.models_of(grid)):
        return []
    others = dict.fromkeys(("evaluate", "trace", "replay", "inspect"), ())
    alone = dataclasses.replace(study, **{**others, kind: (grid,)})  # type: ignore[arg-type]
    return identify(outline(alone, facts), facts)


def _block(grid: Grid) -> str:
    """What blocks with the same documents have in common."""
    return digest([grid.task if isinstance(grid.task, str) else dict(grid.task), grid.batches])


def _draw(study: Study, grid: Grid, cell: Cell, pool: set[str]) -> tuple[int, ...]:
    """Places of a block's documents in the task; empty where the evidence has fewer than the block wants."""
    count = len(cell.documents)
    if len(pool) < count:
        return ()
    task = cell.parsed_task()
    places = documents.places_of(task, pool)
    if len(places) < count:
        return ()
    if cell.kind == "trace":
        questions = [len(document.question) for document in documents.documents_at(task, places)]
        return one_of_each_part(list(zip(questions, places, strict=True)), count, study.draw)
    lengths: Sequence[int] = ()
    if grid.batches:
        most = max(places) + 1
        lengths = documents.prompt_lengths(study.models[0], cell.task, cell.family, most, cell.data)
    prompts = [(lengths[place] if lengths else 0, place) for place in places]
    return in_batches(prompts, count, grid.batches or 1, study.draw)


def in_batches(places: Sequence[tuple[int, int]], count: int, batch: int, seed: int) -> tuple[int, ...]:
    """`count` of these (length of prompt, place), in whole batches of equal length that are drawn at random.

    All documents of a length, in random order, are cut into batches, and the batches are drawn: so a document has the same
    chance whether its length is common or not, but for the few of each length that fill no batch, which come last.

    >>> in_batches([(9, 0), (9, 1), (9, 2), (5, 3), (5, 4), (7, 5)], 4, 2, 0)
    (0, 2, 3, 4)
    """
    lengths: dict[int, list[int]] = {}
    for length, place in sorted(places, key=lambda pair: digest([seed, pair[1]])):
        lengths.setdefault(length, []).append(place)
    batches = [own[start : start + batch] for own in lengths.values() for start in range(0, len(own), batch)]
    batches.sort(key=lambda own: (len(own) < batch, digest([seed, *own])))
    return tuple(sorted([place for own in batches for place in own][:count]))


def one_of_each_part(places: Sequence[tuple[int, int]], count: int, seed: int) -> tuple[int, ...]:
    """`count` of these (length, place): one drawn at random from each of `count` equal parts by length, so that lengths vary.

    >>> len(one_of_each_part([(length, length) for length in range(9)], 3, 0))
    3
    """
    order = [place for _, place in sorted(places)]
    bounds = [round(part * len(order) / count) for part in range(count + 1)]
    parts = (order[start:stop] for start, stop in pairwise(bounds))
    return tuple(sorted(min(part, key=lambda place: digest([seed, place])) for part in parts))


# ---- in words --------------------------------------------------------------------------------------


def seeds(study: Study) -> dict[tuple[str, str], int]:
    """(kind of evidence, task) → the seed that drew the documents which the study computes of it."""
    kinds = {"evaluate": "answers", "trace": "traces"}
    return {
        (kinds[kind], task): study.draw
        for kind in DRAWN
        for grid in getattr(study, kind)
        if grid.drawn
        for task in _tasks(grid)
    }


def sentences(study: Study) -> list[str]:
    """Which documents the study evaluates, for people."""
    rules: dict[str, list[str]] = {}
    for grid in study.evaluate:
        rules.setdefault(_rule(study, grid), []).extend(_tasks(grid))
    said = [f"Documents of {listed(dict.fromkeys(tasks))}: {rule}." for rule, tasks in rules.items()]
    return [*said, "All models and policies get the same documents."] if said else []


def _rule(study: Study, grid: Grid) -> str:
    """How the documents of a block are chosen."""
    together = f"with equally long prompts (in tokens of {study.models[0].name}), which are answered together and so faster"
    if grid.drawn:
        chosen = f"drawn at random (seed {study.draw}) from the documents of the evidence"
        return f"{chosen}, {grid.batches} at a time {together}" if grid.batches else chosen
    if grid.batches:
        common = "so a small study is about the common prompt lengths"
        return f"the first of the task that make up batches of {grid.batches} {together}; {common}"
    return "the first of the task"


def traced_sentence(study: Study) -> str:
    """Which documents the study traces, for people."""
    usual = f"even ranks by length of question among the first {documents.TRACED_FROM}"
    drawn = (
        f"drawn at random (seed {study.draw}) from the traced documents of the evidence, one from each of as many equal parts by "
        "length of question as documents are traced"
    )
    rules = dict.fromkeys(drawn if grid.drawn else usual for grid in study.trace)
    return "; ".join(rules) or usual


def _tasks(grid: Grid) -> list[str]:
    """The names of a block's tasks, without schemes."""
    return list(dict.fromkeys(task.partition(":")[0] for task in grid.tasks))
