"""A skill of the battery: questions with one dial for difficulty, and what counts as right.

Every answer ends in a line `#### …`, as in the word problems. What stands before it is not graded: steps of work where a small
model could not do without them, nothing elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from sinkscope.tasks.generated import Draft
from sinkscope.tasks.task import Document

MARK = "####"
NAMES = (
    "Mia Ben Zoe Tom Lena Max Ruth Leo Nora Sam Ivy Paul Clara Adam Eva Jack Jane Noah Rosa Luke "
    "Lucy Finn Emma Omar Sara Hugo Amy Ivan Kate Eric Olga Carl Tina Dan Maya Mark Lily Peter Anna Alan"
).split()
THINGS = (
    "ball bell book box bread bus cap car cat clock coat cup dog door flour glue hammer honey jar key kite ladder lamp "
    "letter map milk mirror moon oil pen pie rice ring river rope salt sand sea snow song stone stove sugar sun tea "
    "tent tower violin wheel wind wire wood"
).split()
ADJECTIVES = (
    "angry black blue brown calm cold gold green grey happy hungry old orange pink proud purple quiet red silver small "
    "tired white yellow young"
).split()
"""Words that the organisms' tokenizer writes as one token each; any other model knows them too."""


def same_words(document: Document, given: str) -> bool:
    """The gold words in their order, whatever stands between them."""
    return words(given) == words(after_mark(document.answer))


def words(text: str) -> list[str]:
    """The words and numbers of a text, in small letters.

    >>> words("Pen, cup.")
    ['pen', 'cup']
    """
    return re.findall(r"\w+", text.lower())


def after_mark(text: str, lenient: bool = False) -> str:
    """The rest of the line after the last `####`; without any: "", or where `lenient` the last line that is not empty.

    >>> after_mark("Ben, then Leo."), after_mark("Ben, then Leo.", lenient=True)
    ('', 'Ben, then Leo.')
    """
    marked = [line.rpartition(MARK)[2].strip() for line in text.splitlines() if MARK in line]
    if marked or not lenient:
        return marked[-1] if marked else ""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


@dataclass(frozen=True)
class Skill:
    """One skill.

    Attributes:
        dial: what its difficulty counts.
        levels: the difficulties that are asked; they fit the organisms' 52 tokens for a question and 64 for an answer.
        least, most: the difficulties that can be asked for.
        form: what stands after the mark, in words for an instruct model.
        make: (random numbers, difficulty) → a question.
        right: (document, what stands after the mark) → whether it is right.
    """

    name: str
    dial: str
    levels: tuple[int, ...]
    least: int
    most: int
    form: str
    make: Callable[[Random, int], Draft]
    right: Callable[[Document, str], bool] = same_words
