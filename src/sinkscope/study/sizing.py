"""How many documents a study takes, why these, and what they can detect: said before it runs, and kept in its manifest.

The speed measurement that the number follows from is kept in speed.json, so that a study that goes on says the same.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from sinkscope.study.plan import Speed
from sinkscope.study.spec import Study
from sinkscope.study.store import Store, write_text

FILE = "speed.json"


def save(store: Store, speeds: Mapping[str, Speed]) -> None:
    """Writes speed.json."""
    data = {name: dataclasses.asdict(one) for name, one in speeds.items()}
    write_text(store.root / FILE, json.dumps(data, indent=1) + "\n")


def load(store: Store) -> dict[str, Speed]:
    """What `save` wrote; empty where nothing was measured, or it cannot be read."""
    try:
        data = json.loads((store.root / FILE).read_text(encoding="utf-8"))
        return {name: Speed(**one) for name, one in data.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def said(study: Study, speeds: Mapping[str, Speed]) -> list[str]:
    """Sentences for people: the number of documents, the rule that chose them, the smallest effect. `study` is resolved."""
    counts = sorted({grid.samples for grid in study.evaluate if isinstance(grid.samples, int)})
    found = []
    if speeds and counts:
        measured = ", ".join(
            f"{name} {1000 * one.plain:.0f}/{1000 * one.masked:.0f} ms" for name, one in speeds.items()
        )
        found.append(
            f"{counts[0]} documents per cell: what a speed measurement allows, between {study.budget.least} and "
            f"{study.budget.most}, in {study.budget.seconds:g} s of computing on all workers. A forward pass of one answer "
            f"without/with a policy took {measured}."
        )
    elif counts:
        found.append(f"{' or '.join(map(str, counts))} documents per cell, as the study says.")
    batches = sorted({grid.batches for grid in study.evaluate if grid.batches})
    if batches:
        found.append(
            f"Which documents: whole batches of {' or '.join(map(str, batches))} with equally long prompts (by the tokenizer of "
            f"{study.models[0].name}), in the order in which such batches fill up; they are answered together, which is faster. "
            "So a small study is about the common prompt lengths. All models and policies get the same documents."
        )
    return [*found, *map(smallest_effect, counts)]


def smallest_effect(documents: int) -> str:
    """What so many documents can detect.

    >>> smallest_effect(16)[:68]
    'The smallest difference of two accuracies that 16 documents detect w'
    """
    from sinkscope.statistics import minimal_detectable_effect

    if documents < 2:
        return "One document detects no difference."
    worst, best = (minimal_detectable_effect(documents, accuracy) for accuracy in (0.5, 0.95))
    return (
        f"The smallest difference of two accuracies that {documents} documents detect with 80 % power: {worst:.2f} at an "
        f"accuracy of 0.5, {best:.2f} at 0.95, if the two runs are unrelated; less if they agree."
    )
