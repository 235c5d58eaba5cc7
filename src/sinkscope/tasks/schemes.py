"""Choosing a scheme, and turning a document into a prompt by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sinkscope.errors import InputError, nearest
from sinkscope.tasks.sources import Example
from sinkscope.tasks.task import Prompt, Scheme, Turn


def choose(
    task: str, schemes: Sequence[Scheme], defaults: Mapping[str, str], scheme: str | None, family: str | None
) -> Scheme:
    """The scheme called `scheme`, else the family's default; with neither, an error that lists them.

    A scheme made for another family is allowed (comparing wordings is a fair question); its decoding then
    does not apply.
    """
    known = {item.name: item for item in schemes}
    if family is not None and family not in defaults:
        raise InputError(f"unknown model family {family!r}: {nearest(family, defaults)}")
    if scheme is None:
        if family is None:
            raise InputError(f"{task} needs a model family or a scheme; schemes are {', '.join(known)}")
        scheme = defaults[family]
    if scheme not in known:
        raise InputError(f"{task} has no scheme {scheme!r}: {nearest(scheme, known)}")
    return known[scheme]


def of_the_paper(
    schemes: Sequence[Scheme],
    unstated: str,
    base: str,
    family: str,
    accuracy: float,
    here: str,
    **changes: Any,
) -> Scheme:
    """A scheme of arXiv 2510.15731, which states lengths, steps and block; the rest is that of the scheme `base`."""
    [scheme] = [scheme for scheme in schemes if scheme.name == base]
    return replace(
        scheme,
        name=f"paper-{'llama' if family == 'causal' else family}",
        family=family,
        source="arXiv 2510.15731, section 4.3; the paper states lengths, steps and block, not "
        f"{unstated}: here {here}",
        published={"arXiv 2510.15731, unmasked": accuracy},
        **changes,
    )


def compose(scheme: Scheme, question: str, examples: Sequence[Example] = ()) -> Prompt:
    """The prompt for a question that is already worded, after the examples, each with its answer."""
    worded = [(scheme.question.format(question=item.question), item.answer) for item in examples]
    if scheme.layout == "turns":
        turns = [
            Turn(role, text)
            for pair in worded
            for role, text in zip(("user", "assistant"), pair, strict=True)
        ]
        turns.append(Turn("user", question))
        turns[0] = Turn(turns[0].role, scheme.preamble + turns[0].content)
        return Prompt(tuple(turns), scheme.prefix)
    shown = "".join(f"{asked}{scheme.delimiter}{answer}\n\n" for asked, answer in worded)
    text = scheme.preamble + shown + question
    return Prompt((Turn("user", text),), scheme.prefix, chat=scheme.layout != "plain")
