"""Bracket structure: what closes the brackets that are still open, k deep.

Close the brackets: ( [ ( ) {
"""

from __future__ import annotations

import re
from random import Random

from sinkscope.tasks.battery.skill import Skill, after_mark
from sinkscope.tasks.generated import Draft
from sinkscope.tasks.task import Document

PAIRS = {"(": ")", "[": "]", "{": "}"}


def draft(rng: Random, depth: int) -> Draft:
    """One question: `depth` brackets are open at its end, and some were closed before."""
    closings = rng.randint(1, 4)
    moves = ["open"] * (depth + closings) + ["close"] * closings
    while True:
        rng.shuffle(moves)
        heights = [0]
        for move in moves:
            heights.append(heights[-1] + (1 if move == "open" else -1))
        if min(heights) == 0:
            break
    written: list[str] = []
    waiting: list[str] = []
    for move in moves:
        if move == "open":
            bracket = rng.choice(list(PAIRS))
            waiting.append(PAIRS[bracket])
            written.append(bracket)
        else:
            written.append(waiting.pop())
    told = " ".join(written)
    return Draft(f"brackets:{told}", f"Close the brackets: {told}", f"#### {' '.join(reversed(waiting))}")


def right(document: Document, given: str) -> bool:
    """The closing brackets in their order, whatever spaces, commas and quotation marks stand around them."""
    bare = re.sub(r"[\s,.`'\"“”]", "", given)
    return bare == "".join(after_mark(document.answer).split())


SKILL = Skill("brackets", "depth", (2, 4, 8), 1, 32, "the closing brackets that are missing", draft, right)
