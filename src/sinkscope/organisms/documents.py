"""Training documents by number: the generated tasks, prose, records, docstrings and captions; and a user's own text.

A document is a question with its answer, or a text on its own. Held-out documents come from splits that the generators keep
apart. Records and docstrings are hard to foresee: a small model foresees most of the generated prose, and a causal one that
reads nothing else grows no sink at its first token. In records, names, numbers and words are invented anew in every text and
come back later in it; docstrings are natural English of many writers.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

from sinkscope.errors import InputError, nearest
from sinkscope.organisms import pictures
from sinkscope.organisms.prose import LISTS, prose
from sinkscope.tasks import battery, generated, small_code, word_problems

SOURCES = ("word_problems", "small_code", "battery", "prose", "records", "docstrings", "captions")
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
    if source in ("word_problems", "small_code"):
        task = word_problems if source == "word_problems" else small_code
        made = generated.document(task.draft, task.VERSION, "train", index)
        return Text(made.question, made.answer)
    if source == "battery":
        made = battery.train_document(index)
        return Text(made.question, made.answer)
    if source == "prose":
        return Text("", prose(index))
    if source == "records":
        return Text("", record(index))
    if source == "docstrings":
        return Text("", docstrings()[index % len(docstrings())])
    if source == "captions":
        return Text("", pictures.caption(pictures.scene(index)))
    raise InputError(f"unknown source {source!r}: {nearest(source, SOURCES)}")


def held_out_prose(count: int) -> list[str]:
    """Prose that training never reads."""
    return [prose(HELD_OUT_PROSE + index) for index in range(count)]


def spelled(source: str, text: Text, spelling: str) -> Text:
    """A document as a recipe's `spelling` has it.

    "unbroken": a space in place of every line break, in texts and in worked answers (questions have none); "words": texts lose
    all punctuation too; "whole": as it is. Programs stay as they are: without breaks they are none.

    >>> spelled("prose", Text("", "1. One,\\n2. two."), "words").answer
    '1 One 2 two'
    """
    if spelling == "whole" or source == "small_code":
        return text
    answer = " ".join(text.answer.split())
    if spelling == "words" and not text.question:
        kept = "".join(letter if letter.isalnum() or letter.isspace() else " " for letter in answer)
        answer = " ".join(kept.split())
    return Text(text.question, answer)


# ---- a user's own text ---------------------------------------------------------------------------


def read_corpus(source: str) -> list[str]:
    """Paragraphs of the user's own text, shuffled.

    Args:
        source: a UTF-8 text file (an empty line ends a paragraph), or a hub data set `owner/name` with a column `text`, for
            which the package `datasets` is needed.
    """
    path = Path(source).expanduser()
    if path.is_file():
        paragraphs = _paragraphs(read_text(path))
    elif path.exists() or source.count("/") != 1:
        raise InputError(
            f"there is no corpus file {source!r}; give a UTF-8 text file, or a hub data set owner/name"
        )
    else:
        paragraphs = [part for text in hub_texts(source) for part in _paragraphs(text)]
    if not paragraphs:
        raise InputError(f"the corpus {source} has no text in it")
    Random(0).shuffle(paragraphs)  # noqa: S311 (order of paragraphs)
    return paragraphs


def read_text(path: Path) -> str:
    """The text of a UTF-8 file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error}); convert it first") from error


def _paragraphs(text: str) -> list[str]:
    return [part.strip() for part in text.split("\n\n") if part.strip()]


def hub_texts(name: str) -> Iterator[str]:
    """The column `text` of a hub data set, row by row."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise InputError(f"{name} is a hub data set: install sinkscope[eval], or give a text file") from error
    rows = load_dataset(name, split="train")
    if "text" not in rows.column_names:
        raise InputError(
            f"the data set {name} has the columns {', '.join(rows.column_names)}; one called text is needed"
        )
    for row in rows:
        yield row["text"]


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
            paragraphs += [part for part in _paragraphs(text) if len(part) >= SHORTEST_DOCSTRING]
    if not paragraphs:
        raise InputError(
            f"no docstrings under {root}: training text needs the sources of Python's library there"
        )
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
    known = [_word(random) for _ in range(6)]
    sentences = []
    for _ in range(random.randint(5, 8)):
        words = [
            random.choice(known) if random.random() < 0.4 else _word(random)
            for _ in range(random.randint(4, 8))
        ]
        sentences.append(" ".join(words).capitalize() + random.choice((".", ".", ".", "!", "?", ";")))
    return " ".join(sentences)
