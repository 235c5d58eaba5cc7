"""Arithmetic of k operations, one after the other, with whole numbers from 0 to 99.

Start with 7, then plus 5, then times 2, then minus 9. What is the result?
"""

from __future__ import annotations

from random import Random

from sinkscope.tasks.battery.skill import Skill
from sinkscope.tasks.generated import Draft

MOST = 99
SIGNS = {"plus": "+", "minus": "-", "times": "*"}


def draft(rng: Random, operations: int) -> Draft:
    """One question; its answer computes line by line."""
    value = start = rng.randint(2, 20)
    told, lines = [f"Start with {start}"], []
    for _ in range(operations):
        names = [
            *(["plus"] if value < MOST else []),
            *(["minus"] if value > 0 else []),
            *(["times"] if 0 < 2 * value <= MOST else []),
        ]
        name = rng.choice(names)
        most = {"plus": MOST - value, "minus": value, "times": MOST // value if value else 0}[name]
        number = rng.randint(2 if name == "times" else 1, min(9, most))
        result = {"plus": value + number, "minus": value - number, "times": value * number}[name]
        told.append(f"then {name} {number}")
        lines.append(f"{value}{SIGNS[name]}{number}={result}")
        value = result
    skeleton = "arithmetic:" + ";".join(lines)
    return Draft(skeleton, f"{', '.join(told)}. What is the result?", "\n".join([*lines, f"#### {value}"]))


SKILL = Skill("arithmetic", "operations", (2, 4, 6), 1, 64, "the number", draft)
