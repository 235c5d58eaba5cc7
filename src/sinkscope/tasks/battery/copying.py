"""Copying at distance d: three words, with d others in between.

First: pen cup key. Then: tea sun dog map. What came first?
"""

from __future__ import annotations

from random import Random

from sinkscope.tasks.battery.skill import THINGS, Skill
from sinkscope.tasks.generated import Draft

COPIED = 3


def draft(rng: Random, distance: int) -> Draft:
    """One question; no word occurs twice in it."""
    chosen = rng.sample(THINGS, COPIED + distance)
    copied, between = " ".join(chosen[:COPIED]), " ".join(chosen[COPIED:])
    question = f"First: {copied}. Then: {between}. What came first?"
    return Draft(f"copying:{copied}|{between}", question, f"#### {copied}")


SKILL = Skill("copying", "words in between", (4, 12, 32), 1, len(THINGS) - COPIED, "the three words", draft)
