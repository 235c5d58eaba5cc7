"""Text that is hard to foresee, for experiments: invented registers and glossaries, and the docstrings of Python's own library.

    python -m sinkscope.organisms.surprising FILE
    sinkscope train causal --packed 4 --targets all --corpus FILE --corpus-share 0.4 --out runs/causal

The generated prose of the organisms has few words and few patterns, so a small model foresees most of it. Here names, numbers and
words are invented anew in every text and come back later in it, and the docstrings are natural English of many writers. The
shipped organisms are not trained on this.
"""

from __future__ import annotations

import argparse
import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from random import Random

from sinkscope.organisms.words import FOODS, THINGS, TOOLS

ONSETS = (*"bdfgklmnprstvz", "br", "dr", "gr", "kr", "pl", "st", "tr", "sh", "th")
RHYMES = (*"aeiou", "ai", "or", "en", "il")
LEAST = 80
"""Characters of a docstring's paragraph; shorter ones are mostly names."""


def record(seed: int) -> str:
    """A register or a glossary of invented words, some of which are asked for again.

    >>> record(1) == record(1), record(1) == record(2)
    (True, False)
    """
    random = Random(seed)  # noqa: S311 (text, not secrets)
    return random.choice((_register, _glossary, _sentences))(random)


def docstrings(folder: Path | None = None) -> Iterator[str]:
    """Paragraphs of the docstrings under a folder of Python files; None: the standard library of the running Python."""
    root = Path(sysconfig.get_paths()["stdlib"]) if folder is None else folder
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root).parts
        if "site-packages" in inside or "dist-packages" in inside or "test" in inside:
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue  # samples of broken code belong to the library too
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
                for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
                    if len(paragraph.strip()) >= LEAST:
                        yield paragraph.strip()


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


def paragraphs(records: int = 60_000, often: int = 3) -> list[str]:
    """Records, each once, and the docstrings, each `often` times: there are fewer of them."""
    return often * list(docstrings()) + [record(seed) for seed in range(records)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a corpus of text that is hard to foresee.")
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    texts = paragraphs()
    given.file.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    print(f"{len(texts)} paragraphs in {given.file}")
