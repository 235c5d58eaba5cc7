"""Logical inference with k rules: all that follows, where some rules do not apply.

Mia is old. If old then calm. If cold then red. If old and calm then proud. What is Mia?
"""

from __future__ import annotations

from random import Random

from sinkscope.tasks.battery.skill import ADJECTIVES, NAMES, Skill, after_mark, words
from sinkscope.tasks.generated import Draft
from sinkscope.tasks.task import Document

TWO_PREMISES = 3
"""One rule in so many has two premises."""


def draft(rng: Random, rules: int) -> Draft:
    """One question; its answer is everything that is true, in the order in which it follows."""
    who = rng.choice(NAMES)
    true, *others = rng.sample(ADJECTIVES, rules + 2)
    never = others.pop()  # nothing concludes it, so that a rule with this premise never applies
    known, written, canonical = [true], [], []
    applied = rules if rules == 1 else rng.randint((rules + 1) // 2, rules - 1)
    for number, conclusion in enumerate(others):
        premises = [rng.choice(known) if number < applied else never]
        if rng.randrange(TWO_PREMISES) == 0 and len(known) > 1:
            premises.append(rng.choice([word for word in known if word not in premises]))
        rng.shuffle(premises)
        canonical.append((conclusion, sorted(premises)))
        written.append(f"If {' and '.join(premises)} then {conclusion}.")
        if number < applied:
            known.append(conclusion)
    skeleton = f"logic:{true}{sorted(canonical)}"
    rng.shuffle(written)
    return Draft(skeleton, f"{who} is {true}. {' '.join(written)} What is {who}?", f"#### {' '.join(known)}")


def right(document: Document, given: str) -> bool:
    """All that is true and nothing else, in any order."""
    return set(words(given)) == set(words(after_mark(document.answer)))


SKILL = Skill(
    "logic", "rules", (1, 3, 5), 1, 20, "every word that is true, the first one included, and nothing else", draft, right
)  # fmt: skip
