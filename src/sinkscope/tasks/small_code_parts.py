"""The parts of small functions: conditions, operations and families, each in words, in code, and as a function.

Expected values come from the functions, composed here in Python: no generated source is executed to make a
document.
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


@dataclass(frozen=True)
class ProgramPart:
    """A condition on a number, or an operation on it. `{}` in words and code is the number."""

    key: str  # its place in the skeleton
    words: str
    plural: str  # of many numbers: "the even numbers"; of an operation: "each plus 3"
    code: str
    call: Callable[[int], Any]
    near: int = 0  # a number where it changes its mind: test inputs lie around it


class Way(NamedTuple):
    """One of several ways in which a family can go."""

    key: str
    words: str
    code: str
    call: Callable[..., Any]


@dataclass(frozen=True)
class ProgramFunction:
    """One family's draw: docstring, body (first line unindented) and meaning."""

    key: str
    arguments: tuple[str, ...]
    docstring: str
    body: str
    call: Callable[..., Any]
    inputs: Sequence[tuple[Any, ...]]


def condition(rng: Random) -> ProgramPart:
    """Something that is true of some numbers."""
    c = rng.randint(2, 20)
    d = rng.randint(3, 9)
    return rng.choice(
        [
            ProgramPart("even", "{} is even", "the even numbers", "{} % 2 == 0", lambda x: x % 2 == 0),
            ProgramPart("odd", "{} is odd", "the odd numbers", "{} % 2 == 1", lambda x: x % 2 == 1),
            ProgramPart(f"above{c}", f"{{}} is above {c}", f"the numbers above {c}", f"{{}} > {c}", lambda x: x > c, c),
            ProgramPart(f"below{c}", f"{{}} is below {c}", f"the numbers below {c}", f"{{}} < {c}", lambda x: x < c, c),
            ProgramPart(f"at-least{c}", f"{{}} is at least {c}", f"the numbers from {c} up", f"{{}} >= {c}", lambda x: x >= c, c),
            ProgramPart(f"not{c}", f"{{}} is not {c}", f"the numbers other than {c}", f"{{}} != {c}", lambda x: x != c, c),
            ProgramPart(f"multiple{d}", f"{{}} is divisible by {d}", f"the numbers divisible by {d}", f"{{}} % {d} == 0",
                 lambda x: x % d == 0, d),
        ]
    )  # fmt: skip


def operation(rng: Random) -> ProgramPart:
    """Something to do with a number."""
    c = rng.randint(2, 20)
    d = rng.randint(2, 9)
    return rng.choice(
        [
            ProgramPart(f"plus{c}", f"{{}} plus {c}", f"each plus {c}", f"{{}} + {c}", lambda x: x + c),
            ProgramPart(f"minus{c}", f"{{}} minus {c}", f"each minus {c}", f"{{}} - {c}", lambda x: x - c),
            ProgramPart(f"times{d}", f"{{}} times {d}", f"each times {d}", f"{{}} * {d}", lambda x: x * d),
            ProgramPart("square", "{} squared", "each squared", "{} ** 2", lambda x: x**2),
            ProgramPart(
                f"modulo{d}", f"the remainder of {{}} divided by {d}", f"each modulo {d}", f"{{}} % {d}", lambda x: x % d
            ),
        ]
    )  # fmt: skip


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

    def chosen(items: list[int]) -> list[Any]:
        return [change.call(x) for x in items if keep.call(x)]

    kind, words, body, call = rng.choice(
        [
            Way("sum", f"the sum of {keep.plural} in {arg}, {change.plural}",
                f"sum({each} for x in {arg} if {test})", lambda v: sum(chosen(v))),
            Way("list", f"a list of {keep.plural} in {arg}, {change.plural}", f"[{each} for x in {arg} if {test}]", chosen),
            Way("sorted", f"{keep.plural} in {arg}, {change.plural}, sorted",
                f"sorted({each} for x in {arg} if {test})", lambda v: sorted(chosen(v))),
            Way("max", f"the largest of {keep.plural} in {arg}, {change.plural}, or 0",
                f"max(({each} for x in {arg} if {test}), default=0)", lambda v: max(chosen(v), default=0)),
        ]
    )  # fmt: skip
    key = f"pipeline:{kind}:{keep.key}:{change.key}"
    return ProgramFunction(key, (arg,), f"Return {words}.", f"return {body}", call, _lists(rng, keep.near))


def counting(rng: Random) -> ProgramFunction:
    """A count, with two conditions."""
    one, two = _different(rng, condition)
    arg = rng.choice(LISTS)
    word = rng.choice(["and", "or"])
    body = f"return sum(1 for x in {arg} if {one.code.format('x')} {word} {two.code.format('x')})"
    words = f"Count the x in {arg} where {one.words.format('x')} {word} {two.words.format('x')}."

    def call(items: list[int]) -> int:
        both = [(one.call(x), two.call(x)) for x in items]
        return sum(1 for a, b in both if (a and b if word == "and" else a or b))

    return ProgramFunction(
        f"counting:{one.key}:{word}:{two.key}", (arg,), words, body, call, _lists(rng, one.near, two.near)
    )


def branch(rng: Random) -> ProgramFunction:
    """One thing or the other."""
    when, (one, two), arg = condition(rng), _different(rng, operation), rng.choice(NUMBERS)
    words = f"Return {one.words.format(arg)} if {when.words.format(arg)}, otherwise {two.words.format(arg)}."
    test, this, that = (part.code.format(arg) for part in (when, one, two))
    body = f"if {test}:\n        return {this}\n    return {that}"
    inputs = [(number,) for number in _some_numbers(rng, when.near)]
    key = f"branch:{when.key}:{one.key}:{two.key}"
    return ProgramFunction(
        key, (arg,), words, body, lambda x: one.call(x) if when.call(x) else two.call(x), inputs
    )


def loop(rng: Random) -> ProgramFunction:
    """A running total."""
    when, arg, start, step = condition(rng), rng.choice(LISTS), rng.randint(0, 20), rng.randint(1, 9)
    says = when.words.format("x")
    words = f"Start at {start}. For each x in {arg}, add x if {says}, otherwise subtract {step}."
    body = (
        f"total = {start}\n    for x in {arg}:\n        if {when.code.format('x')}:\n            total += x\n"
        f"        else:\n            total -= {step}\n    return total"
    )

    def call(items: list[int]) -> int:
        return start + sum(x if when.call(x) else -step for x in items)

    return ProgramFunction(
        f"loop:{when.key}:{start}:{step}", (arg,), words, body, call, _lists(rng, when.near)
    )


def repeated(rng: Random) -> ProgramFunction:
    """Until it is small."""
    c, d, arg = rng.randint(1, 20), rng.randint(2, 9), rng.choice(NUMBERS)
    words = f"Count how often {arg} can be divided by {d}, rounding down, while it is above {c}."
    body = f"count = 0\n    while {arg} > {c}:\n        {arg} //= {d}\n        count += 1\n    return count"

    def call(number: int) -> int:
        count = 0
        while number > c:
            number //= d
            count += 1
        return count

    numbers = [c, c + 1, c * d, c * d + d, c * d * d + rng.randint(0, 99), rng.randint(1, 5000)]
    return ProgramFunction(f"repeated:{c}:{d}", (arg,), words, body, call, [(number,) for number in numbers])


def replacing(rng: Random) -> ProgramFunction:
    """Letters for letters, then one more change."""
    arg = rng.choice(TEXTS)
    old, new = rng.sample(LETTERS, 2)
    kind, words, tail, after = rng.choice(
        [
            Way("upper", ", in upper case", ".upper()", str.upper),
            Way("title", ", in title case", ".title()", str.title),
            Way("reverse", ", reversed", "[::-1]", lambda s: s[::-1]),
            Way("split", ", split into words", ".split()", str.split),
            Way("plain", "", "", str),
        ]
    )
    body = f'return {arg}.replace("{old}", "{new}"){tail}'
    inputs = [("",), *[(_words(rng, old),) for _ in range(4)]]
    key = f"replacing:{kind}:{old}:{new}"
    words = f"Return {arg} with '{old}' replaced by '{new}'{words}."
    return ProgramFunction(key, (arg,), words, body, lambda s: after(s.replace(old, new)), inputs)


def words_of(rng: Random) -> ProgramFunction:
    """Choosing words."""
    arg, letter = rng.choice(TEXTS), rng.choice(LETTERS)
    test, phrase, code, has = rng.choice(
        [
            Way("start", f"start with '{letter}'", f'w.startswith("{letter}")', lambda w: w.startswith(letter)),
            Way("end", f"end with '{letter}'", f'w.endswith("{letter}")', lambda w: w.endswith(letter)),
            Way("with", f"contain '{letter}'", f'"{letter}" in w', lambda w: letter in w),
            Way("without", f"do not contain '{letter}'", f'"{letter}" not in w', lambda w: letter not in w),
        ]
    )  # fmt: skip

    def chosen(text: str) -> list[str]:
        return [word for word in text.split() if has(word)]

    sign = rng.choice(["-", "+", "/", "_"])
    kind, words, body, call = rng.choice(
        [
            Way("list", f"a list of the words of {arg} that {phrase}", f"[w for w in {arg}.split() if {code}]", chosen),
            Way(f"join{sign}", f"the words of {arg} that {phrase}, joined by '{sign}'",
                f'"{sign}".join(w for w in {arg}.split() if {code})', lambda text: sign.join(chosen(text))),
            Way("lengths", f"the lengths of the words of {arg} that {phrase}",
                f"[len(w) for w in {arg}.split() if {code}]", lambda text: [len(word) for word in chosen(text)]),
        ]
    )  # fmt: skip
    inputs = [("",), *[(_words(rng, letter),) for _ in range(5)]]
    return ProgramFunction(
        f"words:{test}:{letter}:{kind}", (arg,), f"Return {words}.", f"return {body}", call, inputs
    )


def two_numbers(rng: Random) -> ProgramFunction:
    """Arithmetic with two arguments."""
    a, b = rng.choice([("a", "b"), ("x", "y"), ("p", "q")])
    c, d = rng.randint(2, 20), rng.randint(2, 9)
    kind, words, body, call = rng.choice(
        [
            Way("weigh", f"{a} times {c} plus {b} times {d}", f"{a} * {c} + {b} * {d}", lambda i, j: i * c + j * d),
            Way("modulo", f"the remainder of {a} plus {b} plus {c} divided by {d}", f"({a} + {b} + {c}) % {d}",
                lambda i, j: (i + j + c) % d),
            Way("larger", f"the larger of {a} plus {c} and {b} times {d}", f"max({a} + {c}, {b} * {d})",
                lambda i, j: max(i + c, j * d)),
            Way("smaller", f"the smaller of {a} minus {c} and {b} times {d}", f"min({a} - {c}, {b} * {d})",
                lambda i, j: min(i - c, j * d)),
            Way("apart", f"how far {a} times {d} is from {b} plus {c}", f"abs({a} * {d} - ({b} + {c}))",
                lambda i, j: abs(i * d - (j + c))),
        ]
    )  # fmt: skip
    inputs = [(rng.randint(-9, 30), rng.randint(-9, 30)) for _ in range(5)] + [(0, 0), (c * d, 1)]
    return ProgramFunction(f"two:{kind}:{c}:{d}", (a, b), f"Return {words}.", f"return {body}", call, inputs)


FAMILIES: tuple[Callable[[Random], ProgramFunction], ...] = (
    pipeline, pipeline, counting, branch, branch, loop, repeated, replacing, words_of, two_numbers,
)  # fmt: skip
