"""The skills by name, and the strata of the battery: a skill at one level.

The id of a document says its stratum, so that records are counted by skill and difficulty without the task.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from typing import NamedTuple

from sinkscope.errors import InputError, nearest
from sinkscope.tasks.battery.skill import Skill

SKILLS = (
    "retrieval", "relations", "logic", "planning", "composition", "state", "arithmetic", "brackets", "copying",
)  # fmt: skip


class Stratum(NamedTuple):
    """A skill at one level of difficulty."""

    skill: str
    level: int

    def __str__(self) -> str:
        return f"{self.skill}@{self.level}"


@cache
def skill_of(name: str) -> Skill:
    """The skill called `name`."""
    if name not in SKILLS:
        raise InputError(f"the battery has no skill {name!r}: {nearest(name, SKILLS)}")
    found: Skill = import_module(f"sinkscope.tasks.battery.{name}").SKILL
    return found


def check_level(stratum: Stratum) -> Stratum:
    """Refuses a level that its skill does not have."""
    skill = skill_of(stratum.skill)
    if not skill.least <= stratum.level <= skill.most:
        raise InputError(
            f"{skill.name} has difficulties from {skill.least} to {skill.most} ({skill.dial}), got {stratum.level}"
        )
    return stratum


@cache
def strata(skills: tuple[str, ...] = SKILLS) -> tuple[Stratum, ...]:
    """All skills at their first level, then at their second, …"""
    levels = [[Stratum(name, level) for level in skill_of(name).levels] for name in skills]
    return tuple(stratum for row in zip(*levels, strict=True) for stratum in row)


def stratum_of(document: str) -> Stratum | None:
    """The stratum that a document's id names; None for documents of other tasks.

    >>> stratum_of("retrieval@8/test-3")
    Stratum(skill='retrieval', level=8)
    """
    found = re.fullmatch(r"(\w+)@(\d+)/\w+-\d+", document)
    return Stratum(found[1], int(found[2])) if found and found[1] in SKILLS else None
