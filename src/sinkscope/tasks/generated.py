"""Documents without end: the base of the generated tasks.

A document is a pure function of task, split and index, the same on every machine and Python. The splits are disjoint by
construction: each draft carries a skeleton (its structure and numbers, without names and wording), and a hash of the skeleton
alone decides which split it belongs to. So no test question occurs in training, not even retold with other names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import ClassVar, Literal, NamedTuple

from sinkscope.base.checks import one_of
from sinkscope.base.errors import InputError
from sinkscope.tasks.task import Document, Scheme, Task

Split = Literal["train", "test"]

TEST_SHARE = 8  # one skeleton in this many is kept for testing
TEST_ID = re.compile(r"(.*)test-(\d{1,9})")
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


class Source(NamedTuple):
    """Documents of one kind.

    Attributes:
        make: a draft from random numbers. seed: the first half of every document's seed: task and version.
        prefix: of every document's id.
    """

    make: Callable[[Random], Draft]
    seed: str
    prefix: str = ""

    def document(self, split: Split, index: int) -> Document:
        """Document number `index` of a split: drafts are drawn until one belongs to it."""
        for attempt in count():
            draft = self.make(Random(f"{self.seed}/{split}/{index}/{attempt}"))  # noqa: S311 (text, not secrets)
            if split_of(draft.skeleton) == split:
                break
        extra = {**draft.extra, "skeleton": draft.skeleton}
        return Document(f"{self.prefix}{split}-{index}", draft.question, draft.answer, extra)

    def first(self, limit: int | None) -> list[Document]:
        """The first `limit` test documents with different questions."""
        if limit is None or limit < 1:
            name = self.seed.partition("/")[0]
            raise InputError(f"{name} has no end and limit is {limit}: give a limit of at least 1")
        chosen: dict[str, Document] = {}  # by question
        repeated = 0
        for index in count():
            item = self.document("test", index)
            repeated = repeated + 1 if item.question in chosen else 0
            chosen.setdefault(item.question, item)
            if len(chosen) == limit:
                break
            if repeated == MOST_REPEATED:
                raise InputError(f"{self.seed} has {len(chosen)} different test questions, and {limit} were asked for")
        return list(chosen.values())


def in_turn(sources: Sequence[Source], split: Split, index: int) -> Document:
    """Document number `index` of several sources, of which each has its turn."""
    one_of("split", split, ("train", "test"))
    return sources[index % len(sources)].document(split, index // len(sources))


@dataclass(frozen=True)
class GeneratedTask(Task):
    """A task whose documents are drafts: `document("train", number)` for training, `documents(n)` for testing.

    Attributes:
        version: of its texts and tests; the seed of every document.
    """

    scheme: Scheme
    version: ClassVar[str]

    @staticmethod
    def draft(rng: Random) -> Draft:
        raise NotImplementedError

    def sources(self, split: Split) -> Sequence[Source]:
        """What its documents come from in turn."""
        return (Source(self.draft, self.version),)

    def document(self, split: Split, index: int) -> Document:
        return in_turn(self.sources(split), split, index)

    def documents(self, limit: int | None = None) -> list[Document]:
        sources = self.sources("test")
        each = None if limit is None else -(-limit // len(sources))
        columns = [source.first(each) for source in sources]
        return [item for row in zip(*columns, strict=True) for item in row][:limit]

    def find(self, ids: Iterable[str]) -> list[Document]:
        """The test documents with these ids, each made by itself; what is no id of one is left out."""
        sources = {source.prefix: source for source in self.sources("test")}
        matches = (match for match in map(TEST_ID.fullmatch, ids) if match and match[1] in sources)
        return [sources[match[1]].document("test", int(match[2])) for match in matches]
