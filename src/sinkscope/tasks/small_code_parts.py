"""The parts of small functions: conditions, operations and families, each in words and in code.

Expected values are those of the code, which is composed here of fixed pieces, numbers and letters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

LETTERS = "abcdefghiklmnoprstuw"
LISTS = ("items", "numbers", "values", "data")
TEXTS = ("text", "line", "s")
NUMBERS = ("n", "x", "value", "number")


class ProgramPart(NamedTuple):
    """A condition on a number, or an operation on it. `{}` in words and code is the number."""

    key: str  # its place in the skeleton
    words: str
    plural: str  # of many numbers: "the even numbers"; of an operation: "each plus 3"
    code: str
    near: int = 0  # a number where it changes its mind: test inputs lie around it


class Way(NamedTuple):
    """One of several ways in which a family can go."""

    key: str
    words: str
    code: str


@dataclass(frozen=True)
class ProgramFunction:
    """One family's draw: docstring, and body (first line unindented)."""

    key: str
    arguments: tuple[str, ...]
    docstring: str
    body: str
    inputs: Sequence[tuple[Any, ...]]

    def results(self) -> list[Any]:
        """What it gives for its inputs."""
        space: dict[str, Any] = {}
        exec(f"def function({', '.join(self.arguments)}):\n    {self.body}\n", space)  # noqa: S102 (our own text)
        return [space["function"](*given) for given in self.inputs]


def condition(rng: Random) -> ProgramPart:
    """Something that is true of some numbers."""
    c = rng.randint(2, 20)
    d = rng.randint(3, 9)
    return rng.choice(
        [
            ProgramPart("even", "{} is even", "the even numbers", "{} % 2 == 0"),
            ProgramPart("odd", "{} is odd", "the odd numbers", "{} % 2 == 1"),
            ProgramPart(f"above{c}", f"{{}} is above {c}", f"the numbers above {c}", f"{{}} > {c}", c),
            ProgramPart(f"below{c}", f"{{}} is below {c}", f"the numbers below {c}", f"{{}} < {c}", c),
            ProgramPart(f"at-least{c}", f"{{}} is at least {c}", f"the numbers from {c} up", f"{{}} >= {c}", c),
            ProgramPart(f"not{c}", f"{{}} is not {c}", f"the numbers other than {c}", f"{{}} != {c}", c),
            ProgramPart(f"multiple{d}", f"{{}} is divisible by {d}", f"the numbers divisible by {d}", f"{{}} % {d} == 0", d),
        ]
    )  # fmt: skip


def operation(rng: Random) -> ProgramPart:
    """Something to do with a number."""
    c = rng.randint(2, 20)
    d = rng.randint(2, 9)
    return rng.choice(
        [
            ProgramPart(f"plus{c}", f"{{}} plus {c}", f"each plus {c}", f"{{}} + {c}"),
            ProgramPart(f"minus{c}", f"{{}} minus {c}", f"each minus {c}", f"{{}} - {c}"),
            ProgramPart(f"times{d}", f"{{}} times {d}", f"each times {d}", f"{{}} * {d}"),
            ProgramPart("square", "{} squared", "each squared", "{} ** 2"),
            ProgramPart(
                f"modulo{d}", f"the remainder of {{}} divided by {d}", f"each modulo {d}", f"{{}} % {d}"
            ),
        ]
    )


def _different(rng: Random, draw: Callable[[Random], ProgramPart]) -> tuple[ProgramPart, ProgramPart]:
    """Two parts that do not say the same, or "even" and "odd", which together say nothing."""
    one = two = draw(rng)
    while one.key == two.key or {one.key, two.key} == {"even", "odd"}:
        two = draw(rng)
    return one, two


def _some_numbers(rng: Random, near: int) -> list[int]:
    """Values that tell conditions apart: around where they change, and spread out."""
    around = [near - 1, near, near + 1, near * 2]
    mixed = around + [rng.randint(-9, 30) for _ in range(5)]
    rng.shuffle(mixed)
    return mixed


def _lists(rng: Random, *near: int) -> list[tuple[list[int]]]:
    lists = [_some_numbers(rng, number)[: rng.randint(4, 9)] for number in near * 4]
    edges = [[number] for number in near]  # alone, so that nothing larger hides what becomes of it
    return [(items,) for items in [[], *edges, *lists[:4], *(_some_numbers(rng, number) for number in near)]]


def _words(rng: Random, letter: str) -> str:
    word = ["".join(rng.choice(LETTERS + letter * 3) for _ in range(rng.randint(1, 5))) for _ in range(4)]
    word[rng.randrange(4)] = letter + rng.choice(LETTERS)
    word[rng.randrange(4)] = rng.choice(LETTERS) + letter
    return " ".join(word)


def pipeline(rng: Random) -> ProgramFunction:
    """Select, change, reduce."""
    keep, change, arg = condition(rng), operation(rng), rng.choice(LISTS)
    each, test = change.code.format("x"), keep.code.format("x")
    kind, words, body = rng.choice(
        [
            Way("sum", f"the sum of {keep.plural} in {arg}, {change.plural}", f"sum({each} for x in {arg} if {test})"),
            Way("list", f"a list of {keep.plural} in {arg}, {change.plural}", f"[{each} for x in {arg} if {test}]"),
            Way("sorted", f"{keep.plural} in {arg}, {change.plural}, sorted", f"sorted({each} for x in {arg} if {test})"),
            Way("max", f"the largest of {keep.plural} in {arg}, {change.plural}, or 0",
                f"max(({each} for x in {arg} if {test}), default=0)"),
        ]
    )  # fmt: skip
    key = f"pipeline:{kind}:{keep.key}:{change.key}"
    return ProgramFunction(key, (arg,), f"Return {words}.", f"return {body}", _lists(rng, keep.near))


def counting(rng: Random) -> ProgramFunction:
    """A count, with two conditions."""
    one, two = _different(rng, condition)
    arg = rng.choice(LISTS)
    word = rng.choice(["and", "or"])
    body = f"return sum(1 for x in {arg} if {one.code.format('x')} {word} {two.code.format('x')})"
    words = f"Count the x in {arg} where {one.words.format('x')} {word} {two.words.format('x')}."
    key = f"counting:{one.key}:{word}:{two.key}"
    return ProgramFunction(key, (arg,), words, body, _lists(rng, one.near, two.near))


def branch(rng: Random) -> ProgramFunction:
    """One thing or the other."""
    when, (one, two), arg = condition(rng), _different(rng, operation), rng.choice(NUMBERS)
    words = f"Return {one.words.format(arg)} if {when.words.format(arg)}, otherwise {two.words.format(arg)}."
    test, this, that = (part.code.format(arg) for part in (when, one, two))
    body = f"if {test}:\n        return {this}\n    return {that}"
    inputs = [(number,) for number in _some_numbers(rng, when.near)]
    return ProgramFunction(f"branch:{when.key}:{one.key}:{two.key}", (arg,), words, body, inputs)


def loop(rng: Random) -> ProgramFunction:
    """A running total."""
    when, arg, start, step = condition(rng), rng.choice(LISTS), rng.randint(0, 20), rng.randint(1, 9)
    says = when.words.format("x")
    words = f"Start at {start}. For each x in {arg}, add x if {says}, otherwise subtract {step}."
    body = (
        f"total = {start}\n    for x in {arg}:\n        if {when.code.format('x')}:\n            total += x\n"
        f"        else:\n            total -= {step}\n    return total"
    )
    return ProgramFunction(f"loop:{when.key}:{start}:{step}", (arg,), words, body, _lists(rng, when.near))


def repeated(rng: Random) -> ProgramFunction:
    """Until it is small."""
    c, d, arg = rng.randint(1, 20), rng.randint(2, 9), rng.choice(NUMBERS)
    words = f"Count how often {arg} can be divided by {d}, rounding down, while it is above {c}."
    body = f"count = 0\n    while {arg} > {c}:\n        {arg} //= {d}\n        count += 1\n    return count"
    numbers = [c, c + 1, c * d, c * d + d, c * d * d + rng.randint(0, 99), rng.randint(1, 5000)]
    return ProgramFunction(f"repeated:{c}:{d}", (arg,), words, body, [(number,) for number in numbers])


def replacing(rng: Random) -> ProgramFunction:
    """Letters for letters, then one more change."""
    arg = rng.choice(TEXTS)
    old, new = rng.sample(LETTERS, 2)
    kind, words, tail = rng.choice(
        [
            Way("upper", ", in upper case", ".upper()"),
            Way("title", ", in title case", ".title()"),
            Way("reverse", ", reversed", "[::-1]"),
            Way("split", ", split into words", ".split()"),
            Way("plain", "", ""),
        ]
    )
    body = f'return {arg}.replace("{old}", "{new}"){tail}'
    inputs = [("",), *[(_words(rng, old),) for _ in range(4)]]
    words = f"Return {arg} with '{old}' replaced by '{new}'{words}."
    return ProgramFunction(f"replacing:{kind}:{old}:{new}", (arg,), words, body, inputs)


def words_of(rng: Random) -> ProgramFunction:
    """Choosing words."""
    arg, letter = rng.choice(TEXTS), rng.choice(LETTERS)
    test, phrase, code = rng.choice(
        [
            Way("start", f"start with '{letter}'", f'w.startswith("{letter}")'),
            Way("end", f"end with '{letter}'", f'w.endswith("{letter}")'),
            Way("with", f"contain '{letter}'", f'"{letter}" in w'),
            Way("without", f"do not contain '{letter}'", f'"{letter}" not in w'),
        ]
    )
    sign = rng.choice(["-", "+", "/", "_"])
    kind, words, body = rng.choice(
        [
            Way("list", f"a list of the words of {arg} that {phrase}", f"[w for w in {arg}.split() if {code}]"),
            Way(f"join{sign}", f"the words of {arg} that {phrase}, joined by '{sign}'",
                f'"{sign}".join(w for w in {arg}.split() if {code})'),
            Way("lengths", f"the lengths of the words of {arg} that {phrase}", f"[len(w) for w in {arg}.split() if {code}]"),
        ]
    )  # fmt: skip
    inputs = [("",), *[(_words(rng, letter),) for _ in range(5)]]
    return ProgramFunction(
        f"words:{test}:{letter}:{kind}", (arg,), f"Return {words}.", f"return {body}", inputs
    )


def two_numbers(rng: Random) -> ProgramFunction:
    """Arithmetic with two arguments."""
    a, b = rng.choice([("a", "b"), ("x", "y"), ("p", "q")])
    c, d = rng.randint(2, 20), rng.randint(2, 9)
    kind, words, body = rng.choice(
        [
            Way("weigh", f"{a} times {c} plus {b} times {d}", f"{a} * {c} + {b} * {d}"),
            Way(
                "modulo", f"the remainder of {a} plus {b} plus {c} divided by {d}", f"({a} + {b} + {c}) % {d}"
            ),
            Way("larger", f"the larger of {a} plus {c} and {b} times {d}", f"max({a} + {c}, {b} * {d})"),
            Way("smaller", f"the smaller of {a} minus {c} and {b} times {d}", f"min({a} - {c}, {b} * {d})"),
            Way("apart", f"how far {a} times {d} is from {b} plus {c}", f"abs({a} * {d} - ({b} + {c}))"),
        ]
    )
    inputs = [(rng.randint(-9, 30), rng.randint(-9, 30)) for _ in range(5)] + [(0, 0), (c * d, 1)]
    return ProgramFunction(f"two:{kind}:{c}:{d}", (a, b), f"Return {words}.", f"return {body}", inputs)


FAMILIES: tuple[Callable[[Random], ProgramFunction], ...] = (
    pipeline, pipeline, counting, branch, branch, loop, repeated, replacing, words_of, two_numbers,
)  # fmt: skip
