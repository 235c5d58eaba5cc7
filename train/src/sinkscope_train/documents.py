"""Training documents by number: the generated tasks, prose, records, docstrings and captions.

A document is a question with its answer, or a text on its own. Held-out documents come from splits that the generators keep
apart. Records and docstrings are hard to foresee: a small model foresees most of the generated prose, and a causal one that
reads nothing else grows no sink at its first token. In records, names, numbers and words are invented anew in every text and
come back later in it; docstrings are natural English of many writers. Prose (stories, lists, dialogues, letters, notes; words and
sentences with gaps are in data/prose.txt) is text in which punctuation and newlines carry structure, as they do in real text; it
teaches nothing about the world.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from sinkscope import InputError
from sinkscope.base.checks import one_of
from sinkscope.tasks import registry
from sinkscope_train import pictures
from sinkscope_train.recipe import DATA

GIVEN = ("records", "docstrings")
"""Of these, diffusion models see all but the end, which they learn; causal models learn them whole."""
HELD_OUT_PROSE = 1 << 40
"""Prose from this number on is for probes; training stays below."""


class Text(NamedTuple):
    """A question and its answer; `question` is empty for a text on its own."""

    question: str
    answer: str


def document(source: str, index: int) -> Text:
    """Training document number `index` of a source.

    >>> document("captions", 0).question
    ''
    """
    return MAKERS[one_of("source", source, MAKERS)](index)


def held_out_prose(count: int) -> list[str]:
    """Prose that training never reads."""
    return [prose(HELD_OUT_PROSE + index) for index in range(count)]


# ---- prose ---------------------------------------------------------------------------------------


LISTS = {
    name: tuple(items.split("|"))
    for line in (DATA / "prose.txt").read_text(encoding="utf-8").splitlines()
    for name, _, items in (line.partition(": "),)
}
"""Name → words or phrases, in the order in which they were drawn from: another order is another text."""


class _Slots(dict[str, str]):
    """What stands in the gaps of a sentence: what is given, else a new draw from the list of that name."""

    def __init__(self, random: Random, **slots: str) -> None:
        super().__init__(slots)
        self.random = random

    def __missing__(self, name: str) -> str:
        if name == "number":
            return str(self.random.randint(2, 90))
        drawn = self.random.choice(LISTS[name.lower()])
        return drawn.capitalize() if name[0].isupper() else drawn


def prose(seed: int) -> str:
    """One document of about 40 to 110 words; the same seed gives the same text on every machine.

    >>> prose(1) == prose(1), prose(1) == prose(2)
    (True, False)
    """
    random = Random(seed)  # noqa: S311 (text, not secrets)
    return random.choice(PROSE)(random)


def story(random: Random) -> str:
    """A few paragraphs about one or two people."""
    hero, friend = random.sample(LISTS["names"], 2)
    paragraphs, sentences = [], ["{times}, {weather}.".format_map(_Slots(random))]
    for _ in range(random.randint(4, 9)):
        sentences.append(_told(random, hero, friend))
        if random.random() < 0.25:
            paragraphs.append(" ".join(sentences))
            sentences = []
    sentences.append(random.choice(LISTS["endings"]))
    paragraphs.append(" ".join(sentences))
    return "\n\n".join(paragraphs)


def shopping(random: Random) -> str:
    """A heading and a list, with dashes or numbers."""
    goods = LISTS[random.choice(("foods", "tools", "chores"))]
    lines = [random.choice(LISTS["titles"]).format(random.choice(LISTS["names"])) + ":"]
    numbered = random.random() < 0.5
    for number, item in enumerate(random.sample(goods, random.randint(4, 9)), 1):
        amount = f" ({random.randint(1, 20)})" if random.random() < 0.4 else ""
        lines.append(f"{number}. {item}{amount}" if numbered else f"- {item}{amount}")
    if random.random() < 0.5:
        lines += ["", "{names} will {chores}; the rest can wait.".format_map(_Slots(random))]
    return "\n".join(lines)


def dialogue(random: Random) -> str:
    """Two people talk, as in a novel or as in a play."""
    first, second = random.sample(LISTS["names"], 2)
    lines = []
    if random.random() < 0.5:
        for turn in range(random.randint(5, 9)):
            lines.append(f"{(first, second)[turn % 2]}: {_remark(random, turn)}")
        return "\n".join(lines)
    gaps = _Slots(random, first=first, second=second)
    lines.append("{first} and {second} met at {places}; {weather}.".format_map(gaps))
    for turn in range(random.randint(4, 7)):
        remark, speaker = _remark(random, turn), (first, second)[turn % 2]
        if remark.endswith("."):
            remark = remark.rstrip(".") + ","
        lines.append(f'"{remark}" {random.choice(LISTS["said"])} {speaker}.')
    return "\n".join(lines)


def letter(random: Random) -> str:
    """A short letter."""
    names = LISTS["names"]
    writer, reader = random.sample(names, 2)
    body = " ".join(_told(random, random.choice(names), writer) for _ in range(random.randint(2, 4)))
    gift, question = random.choice(LISTS["things"]), random.choice(LISTS["questions"])
    thanks = random.choice((f"Thank you for {gift}.", question, "I hope you are well."))
    return f"Dear {reader},\n\n{thanks} {body}\n\n{random.choice(LISTS['closings'])},\n{writer}"


def notes(random: Random) -> str:
    """Short factual sentences under a heading."""
    chosen = random.sample(LISTS["subjects"], random.randint(3, 5))
    lines = [f"# {random.choice(LISTS['headings'])}", ""]
    for subject in chosen:
        first, second = random.sample(LISTS["facts"], 2)
        lines.append(f"{subject} {first}, and it {second}.")
        if random.random() < 0.4:
            lines.append(f"(See page {random.randint(2, 300)}.)")
    return "\n".join(lines)


PROSE: Sequence[Callable[[Random], str]] = (story, story, story, shopping, dialogue, dialogue, letter, notes)


def _told(random: Random, hero: str, friend: str) -> str:
    pattern = random.choice(LISTS["sentences"])
    thing, place = random.choice(LISTS["things"]), random.choice(LISTS["places"])
    return pattern.format_map(_Slots(random, hero=hero, friend=friend, thing=thing, place=place))


def _remark(random: Random, turn: int) -> str:
    if turn % 2 == 0 and random.random() < 0.7:
        return random.choice(LISTS["questions"])
    if random.random() < 0.5:
        return random.choice(LISTS["replies"])
    return "I {did} {things} near {places}.".format_map(_Slots(random))


# ---- text that is hard to foresee ----------------------------------------------------------------

ONSETS = (*"bdfgklmnprstvz", "br", "dr", "gr", "kr", "pl", "st", "tr", "sh", "th")
RHYMES = (*"aeiou", "ai", "or", "en", "il")
SHORTEST_DOCSTRING = 80
"""Characters of a docstring's paragraph; shorter ones are mostly names."""
LEFT_OUT = frozenset(("test", "tests", "site-packages", "dist-packages"))
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@cache
def docstrings(folder: Path | None = None) -> tuple[str, ...]:
    """Paragraphs of the docstrings under a folder of Python files, without its tests.

    Args:
        folder: None: the standard library of the running Python, which differs between versions; a few seconds, once per
            process.
    """
    root = Path(sysconfig.get_paths()["stdlib"]) if folder is None else folder
    paragraphs = []
    for path in sorted(root.rglob("*.py")):
        if LEFT_OUT.intersection(path.relative_to(root).parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue  # samples of broken code belong to the library too
        for text in _docstrings(tree):
            parts = (part.strip() for part in text.split("\n\n"))
            paragraphs += [part for part in parts if len(part) >= SHORTEST_DOCSTRING]
    if not paragraphs:
        raise InputError(f"no docstrings under {root}: training text needs the sources of Python's library there")
    return tuple(paragraphs)


def _docstrings(node: ast.Module | Definition) -> Iterator[str]:
    yield ast.get_docstring(node) or ""
    for inner in node.body:
        if isinstance(inner, Definition):
            yield from _docstrings(inner)


def record(seed: int) -> str:
    """A register, a glossary or sentences of invented words, some of which come back later in the text.

    >>> record(1) == record(1), record(1) == record(2)
    (True, False)
    """
    random = Random(seed)  # noqa: S311 (text, not secrets)
    return random.choice((_register, _glossary, _sentences))(random)


def _word(random: Random, syllables: int | None = None) -> str:
    count = random.choice((1, 2, 2, 3)) if syllables is None else syllables
    return "".join(random.choice(ONSETS) + random.choice(RHYMES) for _ in range(count))


def _name(random: Random) -> str:
    return f"{_word(random, 2).capitalize()} {_word(random).capitalize()}"


def _register(random: Random) -> str:
    rows = [(_name(random), random.randint(100, 9999), _word(random, 2)) for _ in range(random.randint(3, 5))]
    lines = [f"{name}, {number}, {word};" for name, number, word in rows]
    for name, number, word in random.sample(rows, 3):
        ways = (f"{number} is {name}.", f"{name} has {word}.", f"{word}: {number}.", f"{name}: {number}.")
        lines.append(random.choice(ways))
    return "\n".join(lines)


def _glossary(random: Random) -> str:
    meanings = (*LISTS["things"], *LISTS["foods"], *LISTS["tools"])
    pairs = [(_word(random, 2), random.choice(meanings)) for _ in range(5)]
    lines = [f"{word.capitalize()}: {meaning}." for word, meaning in pairs]
    for word, meaning in random.choices(pairs, k=4):
        lines.append(random.choice((f"What is {word}? {meaning.capitalize()}.", f'"{meaning}" is {word}.')))
    return "\n".join(lines)


def _sentences(random: Random) -> str:
    """Sentences of invented words, of which a few come back again and again."""
    pool = [_word(random) for _ in range(6)]
    sentences = []
    for _ in range(random.randint(5, 8)):
        words = [random.choice(pool) if random.random() < 0.4 else _word(random) for _ in range(random.randint(4, 8))]
        sentences.append(" ".join(words).capitalize() + random.choice((".", ".", ".", "!", "?", ";")))
    return " ".join(sentences)


def _generated(name: str, number: int) -> Text:
    drawn = _task(name).document("train", number)
    return Text(drawn.question, drawn.answer)


@cache
def _task(name: str) -> Any:
    return registry.get(name)


MAKERS: dict[str, Callable[[int], Text]] = {
    **{name: partial(_generated, name) for name in ("word_problems", "small_code", "battery")},
    "prose": lambda index: Text("", prose(index)),
    "records": lambda index: Text("", record(index)),
    "docstrings": lambda index: Text("", docstrings()[index % len(docstrings())]),
    "captions": lambda index: Text("", pictures.caption(pictures.scene(index))),
}
"""Source → what makes its training document of a number."""
