"""Generated grade-school stories of two to four operations, with worked answers that end in `#### N`.

They stand in for GSM8K where a small model must be able to learn the task: small whole numbers, every intermediate value in the
worked answer, questions and answers within 64 tokens each for a small tokenizer with single digits.

    Mia has 4 boxes with 6 pens each. She buys 5 more. She gives 9 to Ben. How many pens does she have now?

    She has 4*6=24 pens.
    Then 24+5=29.
    Then 29-9=20.
    #### 20
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from sinkscope.tasks.extraction import extract, is_right
from sinkscope.tasks.generated import Draft, GeneratedTask
from sinkscope.tasks.schemes import only_scheme
from sinkscope.tasks.sources import shipped_words
from sinkscope.tasks.task import Document, Mark

VERSION = "word_problems/1"  # changing any text or number, here or in the data, changes scores: count up
TIMES = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}


class Person(NamedTuple):
    """Someone in a story."""

    name: str
    they: str
    them: str
    They: str  # at the start of a sentence


@cache
def _data() -> dict[str, Any]:
    """data/word_problems.toml, its word lists as lists."""
    words = shipped_words("word_problems")
    people = [Person(name, "she", "her", "She") for name in words["she"]]
    people += [Person(name, "he", "him", "He") for name in words["he"]]
    return words | {"people": people}


class Story:
    """What is drawn for a problem, and its sentences and worked lines, told part by part.

    Every draw is part of the task: in another order the same seed gives other problems.

    Attributes:
        values: what stands in the gaps of the texts: names, words, numbers.
    """

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.values: dict[str, Any] = {}
        self.sentences: list[str] = []
        self.lines: list[str] = []

    def some(self, kind: str, *names: str) -> None:
        self.values |= zip(names, self.rng.sample(_data()[kind], len(names)), strict=True)

    def word(self, kind: str, name: str) -> None:
        self.values[name] = self.rng.choice(_data()[kind])

    def numbers(self, **ranges: tuple[int, int]) -> list[int]:
        """Draw numbers, each from its range."""
        drawn = {name: self.rng.randint(*ends) for name, ends in ranges.items()}
        self.values |= drawn
        return list(drawn.values())

    def tell(self, part: str, **values: Any) -> None:
        """Add a part, with more values; of several wordings of a sentence one is drawn."""
        self.values |= values
        texts = _data()["parts"][part]
        for wordings in texts.get("sentences", ()):
            text = self.rng.choice(wordings) if len(wordings) > 1 else wordings[0]
            self.sentences.append(text.format_map(self.values))
        for line in texts.get("lines", ()):
            self.lines.append(re.sub(r"<(\w+)(.)(\w+)>", self._sum, line).format_map(self.values))

    def _sum(self, match: re.Match[str]) -> str:
        left, right = (int(name) if name.isdigit() else self.values[name] for name in match.group(1, 3))
        results = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}
        return f"{left}{match[2]}{right}={results[match[2]]}"

    def end(self, part: str, numbers: Iterable[int], result: int, /, kind: str = "", **values: Any) -> Draft:
        """The problem with a last part. Its skeleton is its kind, which is called like that part unless told, and its numbers."""
        self.tell(part, **values)
        answer = "\n".join([*self.lines, f"#### {result}"])
        return Draft(f"{kind or part}:{','.join(map(str, numbers))}", " ".join(self.sentences), answer)


def chain(story: Story) -> Draft:
    """A quantity and what happens to it, one event after the other."""
    rng = story.rng
    story.some("people", "who", "other")
    story.word("things", "thing")
    if rng.random() < 0.6:
        a, b = story.numbers(a=(2, 9), b=(2, 12))
        story.word("containers", "container")
        value, operations, numbers, kinds = a * b, 1, [a, b], ["groups"]
    else:
        (value,) = story.numbers(value=(5, 60))
        operations, numbers, kinds = 0, [value], ["some"]
    story.tell(kinds[0])
    for _ in range(rng.randint(1, 2) if operations else 2):
        kind = rng.choice(["gain", "lose", "lose"] if value > 15 else ["gain"])
        (n,) = story.numbers(n=(2, 40 if kind == "gain" else value - 4))
        story.tell(kind, value=value)
        value += n if kind == "gain" else -n
        numbers.append(n)
        kinds.append(kind)
        operations += 1
    divisors = [n for n in range(2, 10) if value % n == 0 and value > n]
    ends = ["keep"] if operations >= 2 else []
    if operations < 4:
        ends += ["share"] * bool(divisors) + ["sell"] * (value <= 40) + ["together"]
    end = rng.choice(ends)
    if end == "keep":
        last = rng.choice(["keep", "keep-left"] if kinds[-1] == "lose" else ["keep"])
        return story.end(last, numbers, value, "-".join([*kinds, end]))
    span = {"sell": (2, 5), "together": (3, 30)}
    n = rng.choice(divisors) if end == "share" else rng.randint(*span[end])
    result = {"share": value // n, "sell": value * n, "together": value + n}[end]
    return story.end(end, [*numbers, n], result, "-".join([*kinds, end]), value=value, n=n)


def shopping(story: Story) -> Draft:
    """Two kinds of goods, sometimes paid with a banknote."""
    story.some("people", "who")
    story.some("goods", "one", "two")
    p, q, a, b = story.numbers(p=(2, 9), q=(2, 9), a=(2, 9), b=(2, 9))
    total = p * a + q * b
    story.tell("prices", first=a * p, second=b * q, total=total)
    if story.rng.random() < 0.5:
        note = next(note for note in (50, 100, 200, 300) if note > total)
        return story.end("change", (p, q, a, b, note), note - total, note=note)
    return story.end("shopping", (p, q, a, b), total)


def comparison(story: Story) -> Draft:
    """Three people, each compared with the one before."""
    a, k = story.numbers(a=(3, 16), k=(2, 4))
    second = a * k
    (d,) = story.numbers(d=(2, min(30, second - 1)))
    story.some("people", "one", "two", "three")
    story.word("things", "thing")
    compared = "more" if story.rng.random() < 0.5 else "fewer"
    last = second + d if compared == "more" else second - d
    kind = f"comparison-{compared}"
    story.tell("comparison", times=TIMES[k], compared=compared, second=second)
    story.tell(kind)
    if story.rng.random() < 0.5:
        return story.end("comparison-last", (a, k, d), last, kind)
    return story.end("comparison-all", (a, k, d), a + second + last, f"{kind}-all", both=a + second, last=last)


def wages(story: Story) -> Draft:
    """Money by the hour, over days, with something spent."""
    story.some("people", "who")
    p, h, d = story.numbers(p=(3, 12), h=(2, 6), d=(2, 6))
    total = p * h * d
    (n,) = story.numbers(n=(3, total - 1))
    story.tell("pay", day=p * h, total=total)
    if story.rng.random() < 0.5:
        return story.end("wages", (p, h, d), total)
    return story.end("wages-spent", (p, h, d, n), total - n)


def baking(story: Story) -> Draft:
    """Made in trays, some gone, the rest packed."""
    story.some("people", "who")
    story.word("food", "food")
    a, b = story.numbers(a=(2, 9), b=(3, 12))
    baked = a * b
    (m,) = story.numbers(m=(2, min(9, baked - 1)))
    packs = story.rng.randint(1, (baked - 1) // m)
    gone = baked - m * packs
    return story.end("baking", (a, b, gone, m), packs, n=gone, made=baked, rest=m * packs)


def reading(story: Story) -> Draft:
    """So much a day for some days, then another pace, sometimes out of a whole."""
    story.some("people", "who")
    verb, noun, whole = story.rng.choice(_data()["pastimes"]).split("/")
    a, d, b, e = story.numbers(a=(2, 12), d=(2, 7), b=(2, 12), e=(2, 7))
    total = a * d + b * e
    story.tell("pastime", verb=verb, noun=noun, whole=whole, first=a * d, second=b * e, total=total)
    if story.rng.random() < 0.5:
        return story.end("reading", (a, d, b, e), total)
    size = total + story.rng.randint(2, 60)
    return story.end("reading-left", (a, d, b, e, size), size - total, size=size)


def seats(story: Story) -> Draft:
    """Rows of seats, some taken, some more coming."""
    story.word("places", "place")
    a, b = story.numbers(a=(3, 9), b=(3, 12))
    (n,) = story.numbers(n=(2, a * b - 4))
    left = a * b - n
    (m,) = story.numbers(m=(2, left - 1))
    return story.end("seats", (a, b, n, m), left - m, seats=a * b, left=left)


def ages(story: Story) -> Draft:
    """Ages now and in some years."""
    story.some("people", "one", "two")
    a, k, y = story.numbers(a=(3, 15), k=(2, 5), y=(2, 20))
    second, both = a * k, a + a * k
    story.tell("old", times=TIMES[k], second=second, both=both, gain=y * 2)
    if story.rng.random() < 0.5:
        return story.end("age", (a, k, y), second + y)
    return story.end("ages", (a, k, y), both + y * 2)


KINDS = (chain, chain, chain, shopping, comparison, wages, baking, reading, seats, ages)


@dataclass(frozen=True)
class WordProblems(GeneratedTask):
    """The task."""

    name: str = "word_problems"
    version = VERSION

    @staticmethod
    def draft(rng: Random) -> Draft:
        return rng.choice(KINDS)(Story(rng))

    def grade(self, document: Document, output: str) -> Mark:
        """Right when the number after the first `####` is the gold one."""
        number = extract(self.scheme.extraction, output)
        return Mark(is_right(self.scheme.extraction, number, document.answer), number)


def task(scheme: str | None = None, family: str | None = None, data: str | Path | None = None) -> WordProblems:
    return WordProblems(only_scheme("word_problems", scheme, family, data, extraction="gsm8k-strict"))
