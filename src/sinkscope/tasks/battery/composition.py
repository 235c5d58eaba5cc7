"""Compositional generalisation: operations on a list of words that are all known, in pairs that training never shows.

Words: pen cup key tea. Move the first to the end, then reverse them, then leave out the last.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

from sinkscope.tasks.battery.skill import THINGS, Skill
from sinkscope.tasks.generated import Draft, split_of

OPERATIONS: dict[str, Callable[[list[str]], list[str]]] = {
    "reverse them": lambda items: items[::-1],
    "leave out the first": lambda items: items[1:],
    "leave out the last": lambda items: items[:-1],
    "move the first to the end": lambda items: items[1:] + items[:1],
    "move the last to the start": lambda items: items[-1:] + items[:-1],
    "write the first twice": lambda items: items[:1] + items,
    "write the last twice": lambda items: items + items[-1:],
}
LENGTH = 4


def pair_name(one: str, other: str) -> str:
    """What decides the split of two operations that follow each other."""
    return f"composition:{one}, then {other}"


def draft(rng: Random, operations: int) -> Draft:
    """One question; without steps of work, which would turn a combination into one operation after the other.

    A document belongs to the test as soon as one of its pairs does: training sees every operation, and none of these pairs.
    """
    while True:
        items = started = rng.sample(THINGS, LENGTH)
        chosen = [rng.choice(list(OPERATIONS)) for _ in range(operations)]
        for name in chosen:
            items = OPERATIONS[name](items)
        if items:
            break
    pairs = [pair_name(*pair) for pair in pairwise(chosen)]
    skeleton = next((pair for pair in pairs if split_of(pair) == "test"), pairs[0])
    told = ", then ".join(chosen).capitalize()
    return Draft(skeleton, f"Words: {' '.join(started)}. {told}.", f"#### {' '.join(items)}")


SKILL = Skill("composition", "operations", (2, 3, 4), 2, 12, "the words that are left, in order", draft)
