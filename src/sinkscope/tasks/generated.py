"""Documents without end: the base of the generated tasks.

A document is a pure function of task, split and index, the same on every machine and Python. The splits are disjoint by
construction: each draft carries a skeleton (its structure and numbers, without names and wording), and a hash of the skeleton
alone decides which split it belongs to. So no test question occurs in training, not even retold with other names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, ClassVar, Literal

from sinkscope.base.checks import one_of
from sinkscope.base.errors import InputError
from sinkscope.tasks.schemes import check_family
from sinkscope.tasks.task import Document, Prompt, Scheme, Task, Turn

Split = Literal["train", "test"]

TEST_SHARE = 8  # one skeleton in this many is kept for testing
TEST_ID = re.compile(r"test-(\d{1,9})")
MOST_REPEATED = 10_000  # so many questions in a row that were there before: there are no others


@dataclass(frozen=True)
class Draft:
    """A question before it is known which split it belongs to."""

    skeleton: str  # what makes it a different problem: structure and numbers
    question: str
    answer: str
    extra: Mapping[str, str] = field(default_factory=dict)


def split_of(skeleton: str) -> Split:
    """The split that owns a skeleton."""
    return "test" if hashlib.sha256(skeleton.encode()).digest()[0] % TEST_SHARE == 0 else "train"


def document(make: Callable[[Random], Draft], name: str, split: Split, index: int) -> Document:
    """Document number `index` of a split: drafts are drawn until one belongs to it.

    `name` is the seed's first half: task and version.
    """
    one_of("split", split, ("train", "test"))
    for attempt in count():
        draft = make(Random(f"{name}/{split}/{index}/{attempt}"))  # noqa: S311 (text, not secrets)
        if split_of(draft.skeleton) == split:
            extra = {**draft.extra, "skeleton": draft.skeleton}
            return Document(f"{split}-{index}", draft.question, draft.answer, extra)
    raise AssertionError("count() does not end")


def stream(make: Callable[[Random], Draft], name: str, split: Split, start: int = 0) -> Iterator[Document]:
    """Documents of a split from number `start` on, without end. Training reads this."""
    for index in count(start):
        yield document(make, name, split, index)


def first(make: Callable[[Random], Draft], name: str, split: Split, limit: int | None) -> list[Document]:
    """The first `limit` documents of a split with different questions. Testing reads this."""
    if limit is None or limit < 1:
        raise InputError(f"{name.partition('/')[0]} has no end and limit is {limit}: give a limit of at least 1")
    chosen: dict[str, Document] = {}  # by question
    repeated = 0
    for item in stream(make, name, split):
        repeated = repeated + 1 if item.question in chosen else 0
        chosen.setdefault(item.question, item)
        if len(chosen) == limit:
            break
        if repeated == MOST_REPEATED:
            raise InputError(f"{name} has {len(chosen)} different {split} questions, and {limit} were asked for")
    return list(chosen.values())


@dataclass(frozen=True)
class GeneratedTask(Task):
    """A task whose documents are drafts: `stream("train")` for training, `documents(n)` for testing.

    Attributes:
        version: of its texts and tests; the seed of every document.
    """

    scheme: Scheme
    version: ClassVar[str]

    @staticmethod
    def draft(rng: Random) -> Draft:
        """One question."""
        raise NotImplementedError

    def stream(self, split: Split = "train", start: int = 0) -> Iterator[Document]:
        """Documents of a split from number `start` on, without end."""
        return stream(self.draft, self.version, split, start)

    def documents(self, limit: int | None = None) -> list[Document]:
        """The first `limit` test documents."""
        return first(self.draft, self.version, "test", limit)

    def find(self, ids: Iterable[str]) -> list[Document]:
        """The test documents with these ids, each made by itself; what is no id of one is left out."""
        numbers = [int(found[1]) for found in map(TEST_ID.fullmatch, ids) if found]
        return [document(self.draft, self.version, "test", number) for number in numbers]

    def prompt(self, document: Document) -> Prompt:
        """The question, as one user turn."""
        return Prompt((Turn("user", document.question),))


def only_scheme(
    name: str, extraction: str, scheme: str | None, family: str | None, data: object, **more: Any
) -> Scheme:
    """The one scheme of a generated task, with the decoding of a family, if one is given; it reads no file."""
    if scheme not in (None, "plain"):
        raise InputError(f"{name} has one scheme, 'plain', and {scheme!r} was asked for: leave it out")
    if data is not None:
        raise InputError(f"{name} is generated and reads no file, and {str(data)!r} was given: leave it out")
    decoding: dict[str, Any] = {}
    if family is not None:
        from sinkscope.decoding.base import kinds  # not above: documents need no torch

        check_family(family)
        decoding |= kinds(family)[0].brief
    source = "generated by sinkscope"
    return Scheme("plain", family or "", source, extraction=extraction, decoding=decoding, **more)
