"""Text that is hard to foresee: invented registers, glossaries and sentences, and the docstrings of Python's own library.

The generated prose of the organisms has few words and few patterns, so a small model foresees most of it, and a causal one that
reads nothing else grows no sink at its first token (docs/organisms.md has the experiments). Here names, numbers and words are
invented anew in every text and come back later in it, and the docstrings are natural English of many writers.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random

from sinkscope.errors import InputError
from sinkscope.organisms.words import FOODS, THINGS, TOOLS

ONSETS = (*"bdfgklmnprstvz", "br", "dr", "gr", "kr", "pl", "st", "tr", "sh", "th")
RHYMES = (*"aeiou", "ai", "or", "en", "il")
LEAST = 80
"""Characters of a docstring's paragraph; shorter ones are mostly names."""
LEFT_OUT = frozenset(("test", "tests", "site-packages", "dist-packages"))
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def record(seed: int) -> str:
    """A register or a glossary of invented words, some of which are asked for again.

    >>> record(1) == record(1), record(1) == record(2)
    (True, False)
    """
    random = Random(seed)  # noqa: S311 (text, not secrets)
    return random.choice((_register, _glossary, _sentences))(random)


@cache
def docstrings(folder: Path | None = None) -> tuple[str, ...]:
    """Paragraphs of the docstrings under a folder of Python files, without its tests.

    Args:
        folder: None: the standard library of the running Python; another Python has others. A few seconds, once per process.
    """
    root = Path(sysconfig.get_paths()["stdlib"]) if folder is None else folder
    found = []
    for path in sorted(root.rglob("*.py")):
        if LEFT_OUT.intersection(path.relative_to(root).parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue  # samples of broken code belong to the library too
        for text in _documented(tree):
            found += [part.strip() for part in text.split("\n\n") if len(part.strip()) >= LEAST]
    if not found:
        raise InputError(
            f"no docstrings under {root}: training text needs the sources of Python's library there"
        )
    return tuple(found)


def _documented(node: ast.Module | Definition) -> Iterator[str]:
    yield ast.get_docstring(node) or ""
    for inner in node.body:
        if isinstance(inner, Definition):
            yield from _documented(inner)


def _word(random: Random, syllables: int | None = None) -> str:
    count = random.choice((1, 2, 2, 3)) if syllables is None else syllables
    return "".join(random.choice(ONSETS) + random.choice(RHYMES) for _ in range(count))


def _name(random: Random) -> str:
    return f"{_word(random, 2).capitalize()} {_word(random).capitalize()}"


def _register(random: Random) -> str:
    rows = [(_name(random), random.randint(100, 9999), _word(random, 2)) for _ in range(random.randint(3, 5))]
    lines = [f"{name}, {number}, {word};" for name, number, word in rows]
    for name, number, word in random.sample(rows, 3):
        lines.append(
            random.choice(
                (f"{number} is {name}.", f"{name} has {word}.", f"{word}: {number}.", f"{name}: {number}.")
            )
        )
    return "\n".join(lines)


def _glossary(random: Random) -> str:
    pairs = [(_word(random, 2), random.choice((*THINGS, *FOODS, *TOOLS))) for _ in range(5)]
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
