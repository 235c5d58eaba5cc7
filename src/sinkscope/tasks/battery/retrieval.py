"""Retrieval: who has what, among n facts.

Mia has the pen. Ben has the cup. What does Ben have?
"""

from __future__ import annotations

from random import Random

from sinkscope.tasks.battery.skill import NAMES, THINGS, Skill
from sinkscope.tasks.generated import Draft


def draft(rng: Random, facts: int) -> Draft:
    """One question; the same facts in another order are the same problem."""
    pairs = list(zip(rng.sample(NAMES, facts), rng.sample(THINGS, facts), strict=True))
    who, what = rng.choice(pairs)
    told = " ".join(f"{name} has the {thing}." for name, thing in pairs)
    return Draft(f"retrieval:{sorted(pairs)}{who}", f"{told} What does {who} have?", f"#### {what}")


SKILL = Skill("retrieval", "facts", (2, 4, 8), 1, 40, "the one word", draft)
