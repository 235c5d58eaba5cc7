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
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from sinkscope.tasks.extraction import extract, is_right
from sinkscope.tasks.generated import Draft, GeneratedTask, only_scheme
from sinkscope.tasks.sources import shipped_words
from sinkscope.tasks.task import Document, Mark

VERSION = "word_problems/1"  # changing any text or number, here or in the data, changes scores: count up
TIMES = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}


@dataclass(frozen=True)
class Person:
    """Someone in a story."""

    name: str
    they: str  # "she"
    them: str  # "her"

    @property
    def They(self) -> str:  # noqa: N802 (the word at the start of a sentence)
        return self.they.capitalize()


@cache
def _data() -> dict[str, Any]:
    """data/word_problems.toml, its word lists as lists."""
    words = shipped_words("word_problems")
    people = [Person(name, "she", "her") for name in words["she"]]
    people += [Person(name, "he", "him") for name in words["he"]]
    return words | {"people": people}


def _some(rng: Random, kind: str, number: int) -> list[Any]:
    """Different people or things."""
    return rng.sample(_data()[kind], number)


class Story:
    """Sentences and worked lines, told part by part.

    Attributes:
        values: what stands in the gaps of the texts: names, words, numbers.
    """

    def __init__(self, rng: Random, **values: Any) -> None:
        self.rng, self.values = rng, values
        self.sentences: list[str] = []
        self.lines: list[str] = []

    def tell(self, part: str, **values: Any) -> None:
        """Add a part, with more values; of several wordings of a sentence one is drawn."""
        self.values |= values
        texts = _data()["parts"][part]
        for wordings in texts.get("sentences", ()):
            text = self.rng.choice(wordings) if len(wordings) > 1 else wordings[0]
            self.sentences.append(text.format_map(self.values))
        for line in texts.get("lines", ()):
            self.lines.append(re.sub(r"<(\w+)(.)(\w+)>", self._sum, line).format_map(self.values))

    def _sum(self, found: re.Match[str]) -> str:
        """A sum of two values, or of a value and a number, with its result."""
        one, two = (int(name) if name.isdigit() else self.values[name] for name in found.group(1, 3))
        results = {"+": one + two, "-": one - two, "*": one * two, "/": one // two}
        return f"{one}{found[2]}{two}={results[found[2]]}"

    def draft(self, kind: str, numbers: tuple[int, ...], result: int) -> Draft:
        """The problem; its skeleton is its kind and its numbers."""
        skeleton = f"{kind}:{','.join(map(str, numbers))}"
        answer = "\n".join([*self.lines, f"#### {result}"])
        return Draft(skeleton, " ".join(self.sentences), answer)


def chain(rng: Random) -> Draft:
    """A quantity and what happens to it, one event after the other."""
    # Every draw is part of the task: in another order the same seed gives other problems.
    (who, other), thing = _some(rng, "people", 2), rng.choice(_data()["things"])
    story = Story(rng, who=who, other=other, thing=thing)
    if rng.random() < 0.6:
        a, b = rng.randint(2, 9), rng.randint(2, 12)
        story.tell("groups", a=a, b=b, container=rng.choice(_data()["containers"]))
        value, operations, numbers, kinds = a * b, 1, [a, b], ["groups"]
    else:
        value = rng.randint(5, 60)
        story.tell("some", value=value)
        operations, numbers, kinds = 0, [value], ["some"]
    for _ in range(rng.randint(1, 2) if operations else 2):
        kind = rng.choice(["gain", "lose", "lose"] if value > 15 else ["gain"])
        n = rng.randint(2, 40) if kind == "gain" else rng.randint(2, value - 4)
        story.tell(kind, value=value, n=n)
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
        story.tell(rng.choice(["keep", "keep-left"] if kinds[-1] == "lose" else ["keep"]))
        return story.draft("-".join([*kinds, end]), tuple(numbers), value)
    span = {"sell": (2, 5), "together": (3, 30)}
    n = rng.choice(divisors) if end == "share" else rng.randint(*span[end])
    story.tell(end, value=value, n=n)
    result = {"share": value // n, "sell": value * n, "together": value + n}[end]
    return story.draft("-".join([*kinds, end]), (*numbers, n), result)


def shopping(rng: Random) -> Draft:
    """Two kinds of goods, sometimes paid with a banknote."""
    (who,), (one, two) = _some(rng, "people", 1), _some(rng, "goods", 2)
    p, q, a, b = (rng.randint(2, 9) for _ in range(4))
    total = p * a + q * b
    story = Story(rng, who=who, one=one, two=two, p=p, q=q, a=a, b=b)
    story.tell("prices", first=a * p, second=b * q)
    note = next(note for note in (50, 100, 200, 300) if note > total)
    if rng.random() < 0.5:
        story.tell("change", note=note, total=total)
        return story.draft("change", (p, q, a, b, note), note - total)
    story.tell("shopping")
    return story.draft("shopping", (p, q, a, b), total)


def comparison(rng: Random) -> Draft:
    """Three people, each compared with the one before."""
    a, k = rng.randint(3, 16), rng.randint(2, 4)
    second = a * k
    d = rng.randint(2, min(30, second - 1))
    (one, two, three), thing = _some(rng, "people", 3), rng.choice(_data()["things"])
    compared = "more" if rng.random() < 0.5 else "fewer"
    last = second + d if compared == "more" else second - d
    story = Story(rng, one=one, two=two, three=three, thing=thing, times=TIMES[k], compared=compared)
    story.tell("comparison", a=a, k=k, d=d)
    kind = f"comparison-{compared}"
    story.tell(kind, second=second)
    if rng.random() < 0.5:
        story.tell("comparison-last")
        return story.draft(kind, (a, k, d), last)
    story.tell("comparison-all", both=a + second, last=last)
    return story.draft(f"{kind}-all", (a, k, d), a + second + last)


def wages(rng: Random) -> Draft:
    """Money by the hour, over days, with something spent."""
    (who,) = _some(rng, "people", 1)
    p, h, d = rng.randint(3, 12), rng.randint(2, 6), rng.randint(2, 6)
    day, total = p * h, p * h * d
    n = rng.randint(3, total - 1)
    story = Story(rng, who=who, p=p, h=h, d=d, n=n, day=day, total=total)
    story.tell("pay")
    if rng.random() < 0.5:
        story.tell("wages")
        return story.draft("wages", (p, h, d), total)
    story.tell("wages-spent")
    return story.draft("wages-spent", (p, h, d, n), total - n)


def baking(rng: Random) -> Draft:
    """Made in trays, some gone, the rest packed."""
    (who,), food = _some(rng, "people", 1), rng.choice(_data()["food"])
    a, b = rng.randint(2, 9), rng.randint(3, 12)
    made = a * b
    m = rng.randint(2, min(9, made - 1))
    rest = m * rng.randint(1, (made - 1) // m)
    n = made - rest
    story = Story(rng, who=who, food=food, a=a, b=b, m=m, n=n)
    story.tell("baking", made=made, rest=rest)
    return story.draft("baking", (a, b, n, m), rest // m)


def reading(rng: Random) -> Draft:
    """So much a day for some days, then another pace, sometimes out of a whole."""
    (who,) = _some(rng, "people", 1)
    verb, noun, whole = rng.choice(_data()["pastimes"]).split("/")
    a, d, b, e = rng.randint(2, 12), rng.randint(2, 7), rng.randint(2, 12), rng.randint(2, 7)
    total = a * d + b * e
    story = Story(rng, who=who, verb=verb, noun=noun, whole=whole, a=a, b=b, d=d, e=e)
    story.tell("pastime", first=a * d, second=b * e)
    if rng.random() < 0.5:
        story.tell("reading")
        return story.draft("reading", (a, d, b, e), total)
    size = total + rng.randint(2, 60)
    story.tell("reading-left", size=size, total=total)
    return story.draft("reading-left", (a, d, b, e, size), size - total)


def seats(rng: Random) -> Draft:
    """Rows of seats, some taken, some more coming."""
    place = rng.choice(_data()["places"])
    a, b = rng.randint(3, 9), rng.randint(3, 12)
    n = rng.randint(2, a * b - 4)
    left = a * b - n
    m = rng.randint(2, left - 1)
    story = Story(rng, place=place, a=a, b=b, n=n, m=m)
    story.tell("seats", seats=a * b, left=left)
    return story.draft("seats", (a, b, n, m), left - m)


def ages(rng: Random) -> Draft:
    """Ages now and in some years."""
    one, two = _some(rng, "people", 2)
    a, k, y = rng.randint(3, 15), rng.randint(2, 5), rng.randint(2, 20)
    second, both = a * k, a + a * k
    story = Story(rng, one=one, two=two, times=TIMES[k], a=a, k=k, y=y)
    story.tell("old")
    if rng.random() < 0.5:
        story.tell("age", second=second)
        return story.draft("age", (a, k, y), second + y)
    story.tell("ages", second=second, both=both, gain=y * 2)
    return story.draft("ages", (a, k, y), both + y * 2)


KINDS: tuple[Callable[[Random], Draft], ...] = (
    chain, chain, chain, shopping, comparison, wages, baking, reading, seats, ages,
)  # fmt: skip


def draft(rng: Random) -> Draft:
    """One problem."""
    return rng.choice(KINDS)(rng)


@dataclass(frozen=True)
class WordProblems(GeneratedTask):
    """The task."""

    name: str = "word_problems"
    version = VERSION
    draft = staticmethod(draft)

    def grade(self, document: Document, output: str) -> Mark:
        """Right when the number after the first `####` is the gold one."""
        number = extract(self.scheme.extraction, output)
        return Mark(is_right(self.scheme.extraction, number, document.answer), number)


def task(scheme: str | None = None, family: str | None = None, data: str | Path | None = None) -> WordProblems:
    """The task with the decoding of a family."""
    return WordProblems(only_scheme("word_problems", "gsm8k-strict", scheme, family, data))
