"""A skill of the battery: questions with one dial for difficulty, and what counts as right.

Every answer ends in a line `#### …`, as in the word problems. What stands before it is not graded: steps of work where a small
model could not do without them, nothing elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import tomllib

from sinkscope.tasks.generated import Draft
from sinkscope.tasks.task import Document

MARK = "####"
_WORDS: dict[str, str] = tomllib.loads(
    (Path(__file__).parents[1] / "data" / "battery.toml").read_text(encoding="utf-8")
)
NAMES, THINGS, ADJECTIVES = (_WORDS[kind].split() for kind in ("names", "things", "adjectives"))


def same_words(document: Document, given: str) -> bool:
    """The gold words in their order, whatever stands between them."""
    return words(given) == words(after_mark(document.answer))


def words(text: str) -> list[str]:
    """The words and numbers of a text, in small letters; a minus belongs to its number, and "and" only joins words.

    >>> words("Pen, _cup_ and -7.")
    ['pen', 'cup', '-7']
    """
    found: list[str] = re.findall(r"-\d+|[^\W_]+", text.lower().replace("−", "-"))
    return [word for word in found if word != "and"]


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
