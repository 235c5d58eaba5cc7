"""Relation chains of k hops: a ball goes from hand to hand.

Ben gives to Leo. Mia gives to Ben. Leo gives to Eva. The ball starts with Mia and moves 2 times. Who has it?
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

from sinkscope.tasks.battery.skill import NAMES, Skill
from sinkscope.tasks.generated import Draft

BEYOND = 2
"""Links before the start or after the end: neither shows by having no link."""


def draft(rng: Random, hops: int) -> Draft:
    """One question; its answer names everyone who had the ball after the first."""
    people = rng.sample(NAMES, hops + BEYOND + 1)
    start = rng.randrange(BEYOND)
    way = people[start : start + hops + 1]
    links = list(pairwise(people))
    rng.shuffle(links)
    told = " ".join(f"{one} gives to {other}." for one, other in links)
    times = "1 time" if hops == 1 else f"{hops} times"
    question = f"{told} The ball starts with {way[0]} and moves {times}. Who has it?"
    return Draft(f"relations:{people}{start}", question, f"{' '.join(way[1:])}\n#### {way[-1]}")


SKILL = Skill("relations", "hops", (1, 2, 4), 1, 32, "the one name", draft)
