"""The battery as a task.

battery                   all skills at all their levels, one document of each in turn
battery:retrieval         one skill at all its levels
battery:retrieval@16      one level
battery:retrieval:chat    with an instruction, for models that were not trained on these documents; also battery:chat
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from sinkscope.base.checks import one_of
from sinkscope.base.errors import InputError
from sinkscope.tasks import battery
from sinkscope.tasks.battery import SKILLS, Stratum, check_level, skill_of, strata, stratum_of
from sinkscope.tasks.battery.skills import after_mark
from sinkscope.tasks.generated import GeneratedTask, Split, only_scheme
from sinkscope.tasks.task import Document, Mark, Prompt, Scheme, Turn

SCHEMES = ("plain", "chat")
INSTRUCTION = "{question}\nEnd your answer with a line that has #### and then {form}."
CHAT_LENGTH = 128
"""Tokens for an instruct model, which may write more than the 64 of a model trained on these answers."""


@dataclass(frozen=True)
class Battery(GeneratedTask):
    """Some strata of the battery. Its difficulty is not in the wording: both schemes ask the same documents."""

    name: str = "battery"
    chosen: tuple[Stratum, ...] = ()
    version = battery.VERSION

    def stream(self, split: Split = "train", start: int = 0) -> Iterator[Document]:
        """Documents of a split from number `start` on, without end."""
        if split == "test":
            raise InputError("the battery's test documents are read by number: use documents(n)")
        return (battery.train_document(index, self.chosen) for index in count(start))

    def documents(self, limit: int | None = None) -> list[Document]:
        """The first `limit` test documents, one of each stratum in turn."""
        return battery.test_documents(self.chosen, limit)

    def find(self, ids: Iterable[str]) -> list[Document]:
        """The test documents with these ids, each made by itself; what is no id of one is left out."""
        strata = {one: stratum_of(one) for one in ids}
        return [battery.test_document(one, stratum) for one, stratum in strata.items() if stratum in self.chosen]

    def prompt(self, document: Document) -> Prompt:
        """The question as one user turn, under `chat` with an instruction about the answer's form."""
        form = _skill(document).form
        asked = self.scheme.question.format(question=document.question, form=form)
        return Prompt((Turn("user", asked),))

    def grade(self, document: Document, output: str) -> Mark:
        """Right by the rule of the document's skill; the form is part of the task, under `chat` the last line will do."""
        given = after_mark(output, lenient=self.scheme.extraction == "mark-or-last-line")
        return Mark(bool(given) and _skill(document).right(document, given), given)


def _skill(document: Document) -> Any:
    stratum = stratum_of(document.id)
    if stratum is None:
        raise InputError(f"{document.id} is not a document of the battery")
    return skill_of(stratum.skill)


def task(scheme: str | None = None, family: str | None = None, data: str | Path | None = None) -> Battery:
    """The battery, or what `scheme` names of it: [SKILL[@LEVEL]][:][plain | chat]."""
    part, _, wording = (scheme or "").partition(":")
    if part in SCHEMES and not wording:
        part, wording = "", part
    wording = one_of("scheme of the battery", wording or "plain", SCHEMES)
    name = f"battery:{part}" if part else "battery"
    made = only_scheme(name, "mark", None, family, data)
    return Battery(made if wording == "plain" else _chat(made), name, _chosen(part))


def _chosen(part: str) -> tuple[Stratum, ...]:
    """The strata that a part of the battery's name stands for."""
    skill, at, level = part.partition("@")
    if part:
        one_of("skill or scheme of the battery", skill, [*SKILLS, *SCHEMES])
    if not at:
        return strata((skill,)) if skill else strata()
    if not level.isdecimal():
        raise InputError(f"the difficulty of {skill} should be a whole number, such as {skill}@4, got {level!r}")
    return (check_level(Stratum(skill, int(level))),)


def _chat(plain: Scheme) -> Scheme:
    decoding = dict(plain.decoding)
    if decoding:
        decoding["length"] = CHAT_LENGTH
        decoding |= {"steps": CHAT_LENGTH} if "steps" in decoding else {}
    return replace(plain, name="chat", question=INSTRUCTION, extraction="mark-or-last-line", decoding=decoding)
