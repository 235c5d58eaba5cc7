"""The battery: nine generated skills with a dial for difficulty, for small models and for instruct models alike.

battery                   all skills at all their levels, one document of each in turn
battery:retrieval         one skill at all its levels
battery:retrieval@16      one level
battery:retrieval:chat    with an instruction, for models that were not trained on these documents; also battery:chat

A skill is an entry of `skills.SKILLS`; a skill at one level is a stratum. The id of a document says its stratum, so that records
are counted by skill and difficulty without the task.

Training and test are disjoint by the hash of a document's content (`sinkscope.tasks.generated`), and so are all training seeds
from the test: no seed can draw a test document for training.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from sinkscope.base.checks import one_of
from sinkscope.base.errors import InputError
from sinkscope.tasks.battery import skills
from sinkscope.tasks.battery.skills import Skill, after_mark
from sinkscope.tasks.generated import GeneratedTask, Source, Split, in_turn
from sinkscope.tasks.schemes import only_scheme
from sinkscope.tasks.task import Document, Mark, Prompt, Turn

VERSION = "battery/1"  # changing any text, here or in a skill, changes scores: count up
SKILLS = tuple(skills.SKILLS)
SCHEMES = ("plain", "chat")
INSTRUCTION = "{question}\nEnd your answer with a line that has #### and then {form}."
CHAT_LENGTH = 128
"""Tokens for an instruct model, which may write more than the 64 of a model trained on these answers."""


class Stratum(NamedTuple):
    """A skill at one level of difficulty."""

    skill: str
    level: int

    def __str__(self) -> str:
        return f"{self.skill}@{self.level}"

    @property
    def guessed(self) -> float:
        """The chance that an answer drawn from those that the question offers is right."""
        return skill_of(self.skill).guessed(self.level)

    def source(self, seed: str = "") -> Source:
        """Its documents; seed: for training, of which every seed gives others."""
        skill = skill_of(self.skill)
        if not skill.least <= self.level <= skill.most:
            raise InputError(
                f"{skill.name} has difficulties from {skill.least} to {skill.most} ({skill.dial}), got {self.level}"
            )
        return Source(lambda rng: skill.make(rng, self.level), f"{VERSION}/{self}{seed}", f"{self}/")


def skill_of(name: str) -> Skill:
    return skills.SKILLS[one_of("skill of the battery", name, SKILLS)]


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
    match = re.fullmatch(r"(\w+)@(\d{1,9})/\w+-\d{1,9}", document)
    return Stratum(match[1], int(match[2])) if match and match[1] in SKILLS else None


def train_documents(skill: str, n: int, seed: int = 0, level: int | None = None) -> list[Document]:
    """Training documents of a skill, at its levels in turn or at one; another seed gives others.

    >>> train_documents("arithmetic", 1, level=2)[0].answer.count("=")
    2
    """
    chosen = strata((skill,)) if level is None else (Stratum(skill, level),)
    sources = [stratum.source(f"/{seed}") for stratum in chosen]
    return [in_turn(sources, "train", number) for number in range(n)]


@dataclass(frozen=True)
class Battery(GeneratedTask):
    """Some strata of the battery. Its difficulty is not in the wording: both schemes ask the same documents."""

    name: str = "battery"
    chosen: tuple[Stratum, ...] = ()
    version = VERSION

    def sources(self, split: Split) -> Sequence[Source]:
        return [stratum.source("/0" if split == "train" else "") for stratum in self.chosen]

    def prompt(self, document: Document) -> Prompt:
        form = _skill(document).form
        return Prompt((Turn("user", self.scheme.question.format(question=document.question, form=form)),))

    def grade(self, document: Document, output: str) -> Mark:
        """Right by the rule of the document's skill; the form is part of the task, under `chat` the last line will do."""
        answer = after_mark(output, lenient=self.scheme.extraction == "mark-or-last-line")
        return Mark(bool(answer) and _skill(document).right(document, answer), answer)


def _skill(document: Document) -> Skill:
    stratum = stratum_of(document.id)
    if stratum is None:
        raise InputError(f"{document.id} is not a document of the battery")
    return skill_of(stratum.skill)


def task(scheme: str | None = None, family: str | None = None, data: str | Path | None = None) -> Battery:
    """The battery, or what `scheme` names of it: [SKILL[@LEVEL]][:][plain | chat]."""
    subset, _, wording = (scheme or "").partition(":")
    if subset in SCHEMES and not wording:
        subset, wording = "", subset
    wording = one_of("scheme of the battery", wording or "plain", SCHEMES)
    name = f"battery:{subset}" if subset else "battery"
    put = only_scheme(name, None, family, data, extraction="mark")
    if wording == "chat":
        lengths = {option: CHAT_LENGTH for option in ("length", "steps") if option in put.decoding}
        put = replace(
            put, name="chat", question=INSTRUCTION, extraction="mark-or-last-line", decoding={**put.decoding, **lengths}
        )
    return Battery(put, name, _chosen(subset))


def _chosen(subset: str) -> tuple[Stratum, ...]:
    """The strata that a part of the battery's name stands for."""
    skill, at, level = subset.partition("@")
    if subset:
        one_of("skill or scheme of the battery", skill, [*SKILLS, *SCHEMES])
    if not at:
        return strata((skill,)) if skill else strata()
    if not level.isdecimal():
        raise InputError(f"the difficulty of {skill} should be a whole number, such as {skill}@4, got {level!r}")
    stratum = Stratum(skill, int(level))
    stratum.source()  # refuses a level that the skill does not have
    return (stratum,)
