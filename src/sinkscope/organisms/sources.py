"""Where training text comes from: the generated tasks, prose, records, docstrings, captions, and a corpus of the user's.

A source gives documents by number. A document is a question with its answer, or a text on its own; held-out documents come
from splits that the generators themselves keep apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from sinkscope.errors import InputError, nearest
from sinkscope.organisms import pictures
from sinkscope.organisms.prose import prose
from sinkscope.organisms.surprising import docstrings, record
from sinkscope.tasks import generated, small_code, word_problems

NAMES = ("word_problems", "small_code", "prose", "records", "docstrings", "captions")
"""The sources that the package generates, or finds wherever there is a Python."""

GIVEN = ("records", "docstrings")
"""Texts that nobody can foresee. Diffusion models are given them but for their end, which they learn; causal ones learn all."""

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
    if source == "word_problems":
        made = generated.document(word_problems.draft, word_problems.VERSION, "train", index)
        return Text(made.question, made.answer)
    if source == "small_code":
        made = generated.document(small_code.draft, small_code.VERSION, "train", index)
        return Text(made.question, made.answer)
    if source == "prose":
        return Text("", prose(index))
    if source == "records":
        return Text("", record(index))
    if source == "docstrings":
        return Text("", docstrings()[index % len(docstrings())])
    if source == "captions":
        return Text("", pictures.caption(pictures.scene(index)))
    raise InputError(f"unknown source {source!r}: {nearest(source, NAMES)}")


def held_out_prose(count: int) -> list[str]:
    """Prose that training never sees."""
    return [prose(HELD_OUT_PROSE + index) for index in range(count)]


def read_corpus(source: str) -> list[str]:
    """Paragraphs of the user's own text.

    Args:
        source: a text file (paragraphs end at an empty line), or a hub data set `owner/name` with a column `text`, for which
            the package `datasets` is needed.
    """
    path = Path(source).expanduser()
    if path.is_file():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"the corpus {source} is not UTF-8 text ({error}); convert it first") from error
        found = [part.strip() for part in text.split("\n\n") if part.strip()]
    elif path.exists() or source.count("/") != 1:
        raise InputError(
            f"there is no corpus file {source!r}; give a UTF-8 text file, or a hub data set owner/name"
        )
    else:
        found = list(_hub_texts(source))
    if not found:
        raise InputError(f"the corpus {source} has no text in it")
    Random(0).shuffle(found)  # noqa: S311 (order of paragraphs)
    return found


def _hub_texts(name: str) -> Iterator[str]:
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
        yield from (part.strip() for part in row["text"].split("\n\n") if part.strip())
