"""A task for models that know nothing: equally long questions, and a grade that half of all outputs get."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from sinkscope.tasks.task import Document, Mark, Prompt, Scheme, Task, Turn

PLAIN = Scheme("plain", "llada", "a test")


@dataclass(frozen=True)
class Parity(Task):
    """Right when the checksum of question and output is even."""

    scheme: Scheme = PLAIN
    name: str = "parity"
    word: str = "sum"

    def documents(self, limit: int | None = None) -> list[Document]:
        """Thirty sums, of two lengths."""
        found = [Document(f"test-{i}", f"{self.word} {10 + i} {'+' * (1 + i % 2)} {97 - i}", "even") for i in range(30)]
        return found[:limit]

    def prompt(self, document: Document) -> Prompt:
        """The sum."""
        return Prompt((Turn("user", document.question),))

    def grade(self, document: Document, output: str) -> Mark:
        """By checksum."""
        number = zlib.crc32((document.id + output).encode())
        return Mark(number % 2 == 0, str(number))
