"""Generated programming exercises: a signature and a docstring, to be completed with a short body, graded by hidden tests.

They stand in for HumanEval where a small model must be able to learn the task: one or a few lines, within 64
tokens for question and answer each with a small tokenizer.

    def solve(items):
        '''Return a list of the even numbers in items, each plus 3.'''

    return [x + 3 for x in items if x % 2 == 0]

The answer is the body, its first line without the indentation (chat templates trim what they are given). The tests run in the
sandbox, and include the values around which each condition changes. What is drawn for each family of functions is here;
data/small_code.toml puts it in words and in code. Expected values are those of the code, which is composed of fixed pieces,
numbers and letters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from sinkscope.tasks.bounded import BoundedResult
from sinkscope.tasks.generated import Draft, GeneratedTask
from sinkscope.tasks.programs import CodeTask
from sinkscope.tasks.schemes import only_scheme
from sinkscope.tasks.sources import shipped_words
from sinkscope.tasks.task import Document, cut

VERSION = "small_code/1"  # changing any text, code or test changes scores: count up
LETTERS = "abcdefghiklmnoprstuw"
ENDS = ("\ndef", "\nclass", "\n#", "\nprint", "\nassert")


@dataclass(frozen=True)
class ProgramPart:
    """A condition on a number, an operation on it, or a choice of words.

    Attributes:
        key: its place in the skeleton. plural: of many numbers ("the even numbers", "each plus 3").
        near: a number where it changes its mind: test inputs lie around it.
    """

    key: str
    words: str
    code: str
    plural: str = ""
    near: int = 0

    def of(self, number: str) -> ProgramPart:
        """The part about a number of this name."""
        return replace(self, words=self.words.format(x=number), code=self.code.format(x=number))


class ProgramFunction(NamedTuple):
    """One family's draw: skeleton, docstring, and body (first line unindented)."""

    key: str
    docstring: str
    body: str
    arguments: tuple[str, ...]
    inputs: Sequence[tuple[Any, ...]]

    def results(self) -> list[Any]:
        space: dict[str, Any] = {}
        exec(f"def function({', '.join(self.arguments)}):\n    {self.body}\n", space)  # noqa: S102 (our own text)
        return [space["function"](*given) for given in self.inputs]


@cache
def data() -> dict[str, Any]:
    return shipped_words("small_code")


def condition(rng: Random) -> ProgramPart:
    """Something that is true of some numbers."""
    c, d = rng.randint(2, 20), rng.randint(3, 9)
    texts = rng.choice(data()["conditions"])
    near = c if "{c}" in texts["key"] else d if "{d}" in texts["key"] else 0
    return ProgramPart(**_worded(texts, c=c, d=d, x="{x}"), near=near)


def operation(rng: Random) -> ProgramPart:
    """Something to do with a number."""
    c, d = rng.randint(2, 20), rng.randint(2, 9)
    return ProgramPart(**_worded(rng.choice(data()["operations"]), c=c, d=d, x="{x}"))


def _worded(texts: dict[str, str], **values: Any) -> dict[str, Any]:
    return {name: text.format_map(values) for name, text in texts.items()}


def _different(rng: Random, draw: Callable[[Random], ProgramPart]) -> tuple[ProgramPart, ProgramPart]:
    """Two parts that do not say the same, or "even" and "odd", which together say nothing."""
    one = two = draw(rng)
    while one.key == two.key or {one.key, two.key} == {"even", "odd"}:
        two = draw(rng)
    return one, two


def _way(rng: Random, family: str, **values: Any) -> tuple[str, str, str]:
    """Skeleton, docstring and body by one of the ways in which a family can go."""
    ways = data()["ways"][family]
    texts = _worded(rng.choice(ways) if len(ways) > 1 else ways[0], **values)
    return texts["key"], texts["words"], texts["code"]


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


def _texts(rng: Random, letter: str, number: int) -> list[tuple[str]]:
    """Words in which a letter occurs often, at the start and at the end too."""
    texts = [""]
    for _ in range(number):
        words = ["".join(rng.choice(LETTERS + letter * 3) for _ in range(rng.randint(1, 5))) for _ in range(4)]
        words[rng.randrange(4)] = letter + rng.choice(LETTERS)
        words[rng.randrange(4)] = rng.choice(LETTERS) + letter
        texts.append(" ".join(words))
    return [(text,) for text in texts]


# ---- the families: every draw is part of the task, and the way is drawn before the inputs ------------------


def pipeline(rng: Random) -> ProgramFunction:
    """Select, change, reduce."""
    keep, change, arg = condition(rng).of("x"), operation(rng).of("x"), rng.choice(data()["lists"])
    return ProgramFunction(*_way(rng, "pipeline", keep=keep, change=change, arg=arg), (arg,), _lists(rng, keep.near))


def counting(rng: Random) -> ProgramFunction:
    """A count, with two conditions."""
    one, two = (part.of("x") for part in _different(rng, condition))
    arg, word = rng.choice(data()["lists"]), rng.choice(["and", "or"])
    way = _way(rng, "counting", one=one, two=two, arg=arg, word=word)
    return ProgramFunction(*way, (arg,), _lists(rng, one.near, two.near))


def branch(rng: Random) -> ProgramFunction:
    """One thing or the other."""
    when, (one, two), arg = condition(rng), _different(rng, operation), rng.choice(data()["numbers"])
    way = _way(rng, "branch", when=when.of(arg), one=one.of(arg), two=two.of(arg))
    return ProgramFunction(*way, (arg,), [(number,) for number in _some_numbers(rng, when.near)])


def loop(rng: Random) -> ProgramFunction:
    """A running total."""
    when, arg = condition(rng).of("x"), rng.choice(data()["lists"])
    way = _way(rng, "loop", when=when, arg=arg, start=rng.randint(0, 20), step=rng.randint(1, 9))
    return ProgramFunction(*way, (arg,), _lists(rng, when.near))


def repeated(rng: Random) -> ProgramFunction:
    """Until it is small."""
    c, d, arg = rng.randint(1, 20), rng.randint(2, 9), rng.choice(data()["numbers"])
    numbers = [c, c + 1, c * d, c * d + d, c * d * d + rng.randint(0, 99), rng.randint(1, 5000)]
    return ProgramFunction(*_way(rng, "repeated", arg=arg, c=c, d=d), (arg,), [(number,) for number in numbers])


def replacing(rng: Random) -> ProgramFunction:
    """Letters for letters, then one more change."""
    arg, (old, new) = rng.choice(data()["texts"]), rng.sample(LETTERS, 2)
    return ProgramFunction(*_way(rng, "replacing", arg=arg, old=old, new=new), (arg,), _texts(rng, old, 4))


def words_of(rng: Random) -> ProgramFunction:
    """Choosing words."""
    arg, letter = rng.choice(data()["texts"]), rng.choice(LETTERS)
    choice = ProgramPart(**_worded(rng.choice(data()["choices"]), letter=letter))
    way = _way(rng, "words", arg=arg, letter=letter, choice=choice, sign=rng.choice("-+/_"))
    return ProgramFunction(*way, (arg,), _texts(rng, letter, 5))


def two_numbers(rng: Random) -> ProgramFunction:
    """Arithmetic with two arguments."""
    a, b = rng.choice([("a", "b"), ("x", "y"), ("p", "q")])
    c, d = rng.randint(2, 20), rng.randint(2, 9)
    way = _way(rng, "two", a=a, b=b, c=c, d=d)
    inputs = [(rng.randint(-9, 30), rng.randint(-9, 30)) for _ in range(5)] + [(0, 0), (c * d, 1)]
    return ProgramFunction(*way, (a, b), inputs)


FAMILIES = (pipeline, pipeline, counting, branch, branch, loop, repeated, replacing, words_of, two_numbers)


def program(document: Document, output: str) -> str:
    """The function that an output completes: its body, whether or not the first line is indented."""
    return f"{document.question}\n    {output.lstrip()}\n"


@dataclass(frozen=True)
class SmallCode(GeneratedTask, CodeTask):
    """The task."""

    name: str = "small_code"
    version = VERSION

    @staticmethod
    def draft(rng: Random) -> Draft:
        """One exercise; the skeleton is its family with all choices and constants, without the names."""
        results: list[Any] = []
        while len(set(map(repr, results))) < 2:  # a function that always answers the same is no exercise
            function = rng.choice(FAMILIES)(rng)
            results = function.results()
        name = rng.choice(data()["names"])
        head = f'def {name}({", ".join(function.arguments)}):\n    """{function.docstring}"""'
        tests = [
            f"assert {name}({', '.join(map(repr, arguments))}) == {result!r}"
            for arguments, result in zip(function.inputs, results, strict=True)
        ]
        return Draft(function.key, head, function.body, {"tests": "\n".join(tests)})

    def programs(self, pairs: Sequence[tuple[Document, str]]) -> list[BoundedResult]:
        return [BoundedResult(program(document, cut(output, self.scheme.until))) for document, output in pairs]

    def tests(self, document: Document) -> tuple[str, str]:
        return document.extra["tests"], document.question.removeprefix("def ").partition("(")[0]


def task(scheme: str | None = None, family: str | None = None, data: str | Path | None = None) -> SmallCode:
    return SmallCode(only_scheme("small_code", scheme, family, data, extraction="body", until=ENDS))
