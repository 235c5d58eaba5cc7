"""The battery: nine generated skills with a dial for difficulty, for small models and for instruct models alike.

A skill is an entry of `skills.SKILLS`, and `task` asks them. Here are their documents: pure functions of stratum (a skill at one
level), split, seed and number. The id of a document says its stratum, so that records are counted by skill and difficulty
without the task.

Training and test are disjoint by the hash of a document's content (`sinkscope.tasks.generated`), and so are all training seeds
from the test: no seed can draw a test document for training.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import NamedTuple

from sinkscope.base.checks import one_of
from sinkscope.base.errors import InputError
from sinkscope.tasks import generated
from sinkscope.tasks.battery import skills
from sinkscope.tasks.battery.skills import Skill
from sinkscope.tasks.generated import Draft
from sinkscope.tasks.task import Document

VERSION = "battery/1"  # changing any text, here or in a skill, changes scores: count up
SKILLS = tuple(skills.SKILLS)


class Stratum(NamedTuple):
    """A skill at one level of difficulty."""

    skill: str
    level: int

    def __str__(self) -> str:
        return f"{self.skill}@{self.level}"


def skill_of(name: str) -> Skill:
    """The skill called `name`."""
    return skills.SKILLS[one_of("skill of the battery", name, SKILLS)]


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
    found = re.fullmatch(r"(\w+)@(\d{1,9})/\w+-\d{1,9}", document)
    return Stratum(found[1], int(found[2])) if found and found[1] in SKILLS else None


def test_documents(chosen: Sequence[Stratum], limit: int | None) -> list[Document]:
    """The first `limit` test documents, one of each stratum in turn."""
    each = None if limit is None else -(-limit // len(chosen))
    columns = [
        [_named(stratum, item) for item in generated.first(*_source(stratum), "test", each)] for stratum in chosen
    ]
    return [item for row in zip(*columns, strict=True) for item in row][:limit]


def test_document(name: str, stratum: Stratum) -> Document:
    """The test document with this id."""
    return _named(stratum, generated.document(*_source(stratum), "test", int(name.rpartition("-")[2])))


test_document.__test__ = False  # type: ignore[attr-defined]
test_documents.__test__ = False  # type: ignore[attr-defined]  # pytest takes its name for a test's


def train_documents(skill: str, n: int, seed: int = 0, level: int | None = None) -> list[Document]:
    """Training documents of a skill, at its levels in turn or at one; another seed gives others.

    >>> train_documents("arithmetic", 1, level=2)[0].answer.count("=")
    2
    """
    chosen = strata((skill,)) if level is None else (Stratum(skill, level),)
    return [train_document(number, chosen, seed) for number in range(n)]


def train_document(index: int, chosen: Sequence[Stratum] | None = None, seed: int = 0) -> Document:
    """Training document number `index` of some strata, which follow each other in turn; None: of the whole battery."""
    chosen = strata() if chosen is None else chosen
    stratum = chosen[index % len(chosen)]
    make, name = _source(stratum)
    return _named(stratum, generated.document(make, f"{name}/{seed}", "train", index // len(chosen)))


def _named(stratum: Stratum, made: Document) -> Document:
    return replace(made, id=f"{stratum}/{made.id}")


def _source(stratum: Stratum) -> tuple[Callable[[Random], Draft], str]:
    """What makes the questions of a stratum, and the first half of their seeds."""
    make = skill_of(check_level(stratum).skill).make
    return lambda rng: make(rng, stratum.level), f"{VERSION}/{stratum}"
