"""Generated grade-school stories of two to four operations, with worked answers that end in `#### N`.

They stand in for GSM8K where a small model must be able to learn the task: small whole numbers, every
intermediate value in the worked answer, questions and answers within 64 tokens each for a small tokenizer
with single digits.

    Mia has 4 boxes with 6 pens each. She buys 5 more. She gives 9 to Ben. How many pens does she have now?

    She has 4*6=24 pens.
    Then 24+5=29.
    Then 29-9=20.
    #### 20
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from sinkscope.tasks.extraction import extract, is_right
from sinkscope.tasks.generated import Draft, GeneratedTask, only_scheme
from sinkscope.tasks.task import Document, Verdict

VERSION = "word_problems/1"  # changing any text or number below changes scores: count up


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SHE = _split(
    "Mia Anna Zoe Lena Ruth Nora Ivy Clara Eva Jane Rosa Lucy Emma Sara Amy Kate Olga Tina Maya Lily"
)
HE = _split("Ben Tom Max Leo Sam Paul Adam Jack Noah Luke Finn Omar Hugo Ivan Eric Carl Dan Mark Peter Alan")
THINGS = _split(
    "pens books apples marbles stamps coins shells cards eggs stickers pencils oranges beads buttons balls "
    "candles cups flowers keys kites lemons nuts pears plums postcards ribbons rocks seeds toys tickets"
)
CONTAINERS = _split("boxes bags baskets packs jars drawers trays")
FOOD = _split("cookies muffins rolls buns cakes pies")
GOODS = [
    ("pen", "pens"),
    ("book", "books"),
    ("cup", "cups"),
    ("ball", "balls"),
    ("cap", "caps"),
    ("pie", "pies"),
]


@dataclass(frozen=True)
class Person:
    """Someone in a story."""

    name: str
    they: str  # "she"
    them: str  # "her"

    @property
    def They(self) -> str:  # noqa: N802 (the word at the start of a sentence)
        return self.they.capitalize()


def _people(rng: Random, number: int) -> list[Person]:
    everyone = [Person(name, "she", "her") for name in SHE] + [Person(name, "he", "him") for name in HE]
    return rng.sample(everyone, number)


@dataclass(frozen=True)
class Story:
    """Sentences, worked lines, the result, and the numbers that make it a problem of its own."""

    kind: str
    numbers: tuple[int, ...]
    sentences: list[str]
    lines: list[str]
    result: int


def chain(rng: Random) -> Story:
    """A quantity and what happens to it, one event after the other."""
    (who, other), thing = _people(rng, 2), rng.choice(THINGS)
    sentences: list[str] = []
    lines: list[str] = []
    numbers: list[int] = []
    kinds: list[str] = []
    operations = 0
    if rng.random() < 0.6:
        a, b = rng.randint(2, 9), rng.randint(2, 12)
        container = rng.choice(CONTAINERS)
        starts = [
            f"{who.name} has {a} {container} with {b} {thing} each.",
            f"{who.name} has {a} {container} of {b} {thing}.",
            f"There are {b} {thing} in each of the {a} {container} that {who.name} has.",
        ]
        sentences.append(rng.choice(starts))
        lines.append(f"{who.They} has {a}*{b}={a * b} {thing}.")
        value, operations = a * b, 1
        numbers += [a, b]
        kinds.append("groups")
    else:
        value = rng.randint(5, 60)
        sentences.append(
            rng.choice([f"{who.name} has {value} {thing}.", f"{who.name} starts with {value} {thing}."])
        )
        numbers.append(value)
        kinds.append("some")
    events = rng.randint(1, 2) if operations else 2
    for _ in range(events):
        kind = rng.choice(["gain", "lose", "lose"] if value > 15 else ["gain"])
        if kind == "gain":
            n = rng.randint(2, 40)
            text = [
                f"{who.They} buys {n} more.",
                f"{who.They} finds {n} more.",
                f"{other.name} gives {who.them} {n} more.",
                f"Then {who.they} gets {n} more.",
            ]
            lines.append(f"Then {value}+{n}={value + n}.")
            value += n
        else:
            n = rng.randint(2, value - 4)
            text = [
                f"{who.They} gives {n} to {other.name}.",
                f"{who.They} loses {n}.",
                f"{who.They} sells {n} of them.",
                f"Then {n} of them break.",
            ]
            lines.append(f"Then {value}-{n}={value - n}.")
            value -= n
        sentences.append(rng.choice(text))
        numbers.append(n)
        kinds.append(kind)
        operations += 1
    ends: list[Callable[[], tuple[str, list[str], str, list[int], int]]] = []

    def keep() -> tuple[str, list[str], str, list[int], int]:
        left = [f"How many {thing} are left?"] if kinds[-1] == "lose" else []
        return "keep", [], rng.choice([f"How many {thing} does {who.they} have now?", *left]), [], value

    def share() -> tuple[str, list[str], str, list[int], int]:
        n = rng.choice(divisors)
        ask = f"{who.They} shares them equally among {n} friends. How many does each friend get?"
        return "share", [f"Each gets {value}/{n}={value // n}."], ask, [n], value // n

    def sell() -> tuple[str, list[str], str, list[int], int]:
        n = rng.randint(2, 5)
        ask = f"{who.They} sells them for ${n} each. How many dollars does {who.they} get?"
        return "sell", [f"{who.They} gets {value}*{n}={value * n} dollars."], ask, [n], value * n

    def together() -> tuple[str, list[str], str, list[int], int]:
        n = rng.randint(3, 30)
        ask = f"{other.name} has {n} {thing}. How many {thing} do they have together?"
        return "together", [f"Together {value}+{n}={value + n}."], ask, [n], value + n

    divisors = [n for n in range(2, 10) if value % n == 0 and value > n]
    if operations >= 2:
        ends.append(keep)
    if operations < 4:
        ends += [share] * bool(divisors) + [sell] * (value <= 40) + [together]
    kind, more, ask, extra, result = rng.choice(ends)()
    return Story("-".join([*kinds, kind]), (*numbers, *extra), [*sentences, ask], [*lines, *more], result)


def shopping(rng: Random) -> Story:
    """Two kinds of goods, sometimes paid with a banknote."""
    (who,), (one, two) = _people(rng, 1), rng.sample(GOODS, 2)
    p, q, a, b = (rng.randint(2, 9) for _ in range(4))
    total = p * a + q * b
    prices = [
        f"A {one[0]} costs ${p} and a {two[0]} costs ${q}.",
        f"Each {one[0]} is ${p} and each {two[0]} is ${q}.",
    ]
    sentences = [rng.choice(prices), f"{who.name} buys {a} {one[1]} and {b} {two[1]}."]
    lines = [
        f"The {one[1]} cost {a}*{p}={a * p}.",
        f"The {two[1]} cost {b}*{q}={b * q}.",
        f"Together {a * p}+{b * q}={total}.",
    ]
    note = next(note for note in (50, 100, 200, 300) if note > total)
    if rng.random() < 0.5:
        sentences.append(f"{who.They} pays with ${note}. How many dollars does {who.they} get back?")
        lines.append(f"{who.They} gets back {note}-{total}={note - total}.")
        return Story("change", (p, q, a, b, note), sentences, lines, note - total)
    sentences.append(f"How many dollars does {who.they} spend?")
    return Story("shopping", (p, q, a, b), sentences, lines, total)


def comparison(rng: Random) -> Story:
    """Three people, each compared with the one before."""
    a, k = rng.randint(3, 16), rng.randint(2, 4)
    d = rng.randint(2, min(30, a * k - 1))
    (one, two, three), thing = _people(rng, 3), rng.choice(THINGS)
    times = {2: "twice", 3: "three times", 4: "four times"}[k]
    more = rng.random() < 0.5
    last = a * k + d if more else a * k - d
    sentences = [
        f"{one.name} has {a} {thing}.",
        f"{two.name} has {times} as many as {one.name}.",
        f"{three.name} has {d} {'more' if more else 'fewer'} than {two.name}.",
    ]
    lines = [
        f"{two.name} has {a}*{k}={a * k}.",
        f"{three.name} has {a * k}{'+' if more else '-'}{d}={last}.",
    ]
    kind = f"comparison-{'more' if more else 'fewer'}"
    if rng.random() < 0.5:
        sentences.append(f"How many {thing} does {three.name} have?")
        return Story(kind, (a, k, d), sentences, lines, last)
    sentences.append(
        rng.choice([f"How many {thing} do they have in all?", f"How many {thing} have they together?"])
    )
    lines += [f"Two have {a}+{a * k}={a + a * k}.", f"All have {a + a * k}+{last}={a + a * k + last}."]
    return Story(f"{kind}-all", (a, k, d), sentences, lines, a + a * k + last)


def wages(rng: Random) -> Story:
    """Money by the hour, over days, with something spent."""
    (who,) = _people(rng, 1)
    p, h, d = rng.randint(3, 12), rng.randint(2, 6), rng.randint(2, 6)
    day, total = p * h, p * h * d
    n = rng.randint(3, total - 1)
    pay = [
        f"{who.name} earns ${p} an hour and works {h} hours a day.",
        f"{who.name} works {h} hours a day for ${p} an hour.",
    ]
    sentences = [rng.choice(pay)]
    lines = [f"A day pays {p}*{h}={day}.", f"In {d} days {who.they} earns {day}*{d}={total}."]
    if rng.random() < 0.5:
        sentences.append(f"How many dollars does {who.they} earn in {d} days?")
        return Story("wages", (p, h, d), sentences, lines, total)
    sentences.append(f"After {d} days {who.they} spends ${n}. How many dollars are left?")
    lines.append(f"Left are {total}-{n}={total - n}.")
    return Story("wages-spent", (p, h, d, n), sentences, lines, total - n)


def baking(rng: Random) -> Story:
    """Made in trays, some gone, the rest packed."""
    (who,) = _people(rng, 1)
    food = rng.choice(FOOD)
    a, b = rng.randint(2, 9), rng.randint(3, 12)
    m = rng.randint(2, min(9, a * b - 1))
    rest = m * rng.randint(1, (a * b - 1) // m)
    n = a * b - rest
    made = rng.choice(
        [f"{who.name} bakes {a} trays of {b} {food}.", f"{who.name} makes {a} trays with {b} {food} each."]
    )
    gone = rng.choice([f"{n} are eaten.", f"{n} of them burn.", f"{who.They} eats {n}."])
    sentences = [made, gone, f"{who.They} packs the rest in bags of {m}. How many bags are there?"]
    lines = [
        f"{who.They} has {a}*{b}={a * b} {food}.",
        f"Then {a * b}-{n}={rest}.",
        f"Bags are {rest}/{m}={rest // m}.",
    ]
    return Story("baking", (a, b, n, m), sentences, lines, rest // m)


def reading(rng: Random) -> Story:
    """So much a day for some days, then another pace, sometimes out of a whole."""
    (who,) = _people(rng, 1)
    pastimes = ["reads pages book", "solves puzzles set", "paints tiles wall", "walks miles trail"]
    verb, noun, whole = rng.choice(pastimes).split()
    a, d, b, e = rng.randint(2, 12), rng.randint(2, 7), rng.randint(2, 12), rng.randint(2, 7)
    total = a * d + b * e
    sentences = [
        f"{who.name} {verb} {a} {noun} a day for {d} days.",
        rng.choice(
            [f"Then {who.they} {verb} {b} {noun} a day for {e} days.", f"For {e} more days it is {b} a day."]
        ),
    ]
    lines = [f"First {a}*{d}={a * d}.", f"Then {b}*{e}={b * e}.", f"Together {a * d}+{b * e}={total}."]
    if rng.random() < 0.5:
        sentences.append(f"How many {noun} is that in all?")
        return Story("reading", (a, d, b, e), sentences, lines, total)
    size = total + rng.randint(2, 60)
    sentences.append(f"The {whole} has {size} {noun}. How many are left?")
    lines.append(f"Left are {size}-{total}={size - total}.")
    return Story("reading-left", (a, d, b, e, size), sentences, lines, size - total)


def seats(rng: Random) -> Story:
    """Rows of seats, some taken, some more coming."""
    place = rng.choice(["hall", "cinema", "bus", "theater", "tent"])
    a, b = rng.randint(3, 9), rng.randint(3, 12)
    n = rng.randint(2, a * b - 4)
    m = rng.randint(2, a * b - n - 1)
    sentences = [
        rng.choice(
            [f"A {place} has {a} rows of {b} seats.", f"There are {a} rows with {b} seats each in a {place}."]
        ),
        rng.choice([f"{n} seats are taken.", f"{n} people sit down."]),
        f"Then {m} more people come. How many seats are free?",
    ]
    lines = [
        f"There are {a}*{b}={a * b} seats.",
        f"Then {a * b}-{n}={a * b - n}.",
        f"Then {a * b - n}-{m}={a * b - n - m}.",
    ]
    return Story("seats", (a, b, n, m), sentences, lines, a * b - n - m)


def ages(rng: Random) -> Story:
    """Ages now and in some years."""
    one, two = _people(rng, 2)
    a, k, y = rng.randint(3, 15), rng.randint(2, 5), rng.randint(2, 20)
    times = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}[k]
    sentences = [f"{one.name} is {a} years old.", f"{two.name} is {times} as old as {one.name}."]
    lines = [f"{two.name} is {a}*{k}={a * k}."]
    if rng.random() < 0.5:
        sentences.append(f"How old will {two.name} be in {y} years?")
        return Story("age", (a, k, y), sentences, [*lines, f"Then {a * k}+{y}={a * k + y}."], a * k + y)
    sentences.append(f"How old will they be together in {y} years?")
    both = a + a * k
    lines += [
        f"Together {a}+{a * k}={both}.",
        f"Both gain {y}*2={y * 2}.",
        f"Then {both}+{y * 2}={both + y * 2}.",
    ]
    return Story("ages", (a, k, y), sentences, lines, both + y * 2)


KINDS: tuple[Callable[[Random], Story], ...] = (
    chain, chain, chain, shopping, comparison, wages, baking, reading, seats, ages,
)  # fmt: skip


def draft(rng: Random) -> Draft:
    """One problem; the skeleton is its kind and its numbers."""
    story = rng.choice(KINDS)(rng)
    skeleton = f"{story.kind}:{','.join(map(str, story.numbers))}"
    answer = "\n".join([*story.lines, f"#### {story.result}"])
    return Draft(skeleton, " ".join(story.sentences), answer, {"skeleton": skeleton})


@dataclass(frozen=True)
class WordProblems(GeneratedTask):
    """The task."""

    name: str = "word_problems"
    version = VERSION
    draft = staticmethod(draft)

    def grade(self, document: Document, output: str) -> Verdict:
        """Right when the number after the first `####` is the gold one."""
        number = extract(self.scheme.extraction, output)
        return Verdict(is_right(self.scheme.extraction, number, document.answer), number)


def task(
    scheme: str | None = None, family: str | None = None, data: str | Path | None = None
) -> WordProblems:
    """The task with the decoding of a family."""
    return WordProblems(only_scheme("word_problems", "gsm8k-strict", scheme, family, data))
