"""State tracking over k updates: things change hands.

Mia has the pen, Ben the cup, Leo the key. Mia and Ben swap. Ben and Leo swap. What does Leo have?
"""

from __future__ import annotations

from random import Random

from sinkscope.tasks.battery.skill import NAMES, THINGS, Skill
from sinkscope.tasks.generated import Draft

PEOPLE = 3


def draft(rng: Random, updates: int) -> Draft:
    """One question; its answer has a line with everyone's thing after each update."""
    people, things = rng.sample(NAMES, PEOPLE), rng.sample(THINGS, PEOPLE)
    (first, *rest), held = zip(people, things, strict=True), list(things)
    told = [
        f"{first[0]} has the {first[1]}, {', '.join(f'{name} the {thing}' for name, thing in rest)}.",
    ]
    swaps, lines = [], []
    for _ in range(updates):
        one, other = rng.sample(range(PEOPLE), 2)
        held[one], held[other] = held[other], held[one]
        swaps.append((one, other))
        told.append(f"{people[one]} and {people[other]} swap.")
        lines.append(" ".join(held))
    asked = rng.randrange(PEOPLE)
    told.append(f"What does {people[asked]} have?")
    skeleton = f"state:{people}{things}{swaps}{asked}"
    return Draft(skeleton, " ".join(told), "\n".join([*lines, f"#### {held[asked]}"]))


SKILL = Skill("state", "updates", (1, 2, 4), 1, 32, "the one word", draft)
