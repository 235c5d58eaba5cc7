"""Reading and choosing schemes, and turning a document into a prompt by one."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from sinkscope.base import checks
from sinkscope.base.errors import InputError
from sinkscope.tasks.sources import Example
from sinkscope.tasks.task import Prompt, Scheme, Turn

OTHER = "other"
"""Stands in a task's defaults for every family that has none of its own."""


def check_family(family: str) -> None:
    """A family must be registered."""
    from sinkscope.models.load import FAMILIES

    checks.one_of("model family", family, FAMILIES)


def read_schemes(task: str) -> tuple[tuple[Scheme, ...], dict[str, str]]:
    """The schemes in data/TASK.toml, and for each family the name of its default."""
    path = Path(__file__).parent / "data" / f"{task}.toml"
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    schemes = [Scheme(**{**fields, "until": tuple(fields.get("until", ()))}) for fields in data["schemes"]]
    return tuple(schemes), data["defaults"]


def choose(
    task: str, schemes: Sequence[Scheme], defaults: Mapping[str, str], scheme: str | None, family: str | None
) -> Scheme:
    """The scheme called `scheme`, else the family's default; with neither, an error that lists them.

    A scheme made for another family is allowed (comparing wordings is a fair question); its decoding then does not apply.
    """
    known = {item.name: item for item in schemes}
    if family is not None and family not in defaults:
        check_family(family)
    if scheme is None:
        if family is None:
            raise InputError(f"{task} needs a model family or a scheme; schemes are {', '.join(known)}")
        scheme = defaults.get(family, defaults.get(OTHER, ""))
    return known[checks.one_of(f"{task}: scheme", scheme, known)]


def compose(scheme: Scheme, question: str, examples: Sequence[Example] = ()) -> Prompt:
    """The prompt for a question that is already worded, after the examples, each with its answer."""
    worded = [(scheme.question.format(question=item.question), item.answer) for item in examples]
    if scheme.layout == "turns":
        turns = [turn for asked, answer in worded for turn in (Turn("user", asked), Turn("assistant", answer))]
        turns.append(Turn("user", question))
        turns[0] = Turn(turns[0].role, scheme.preamble + turns[0].content)
        return Prompt(tuple(turns), scheme.prefix)
    shown = "".join(f"{asked}{scheme.delimiter}{answer}\n\n" for asked, answer in worded)
    text = scheme.preamble + shown + question
    return Prompt((Turn("user", text),), scheme.prefix, chat=scheme.layout != "plain")
