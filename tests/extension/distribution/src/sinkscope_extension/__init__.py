"""One policy, one decoding, one family and one task of a stranger's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

import sinkscope as ss
from sinkscope.models.llada import FAMILY as LLADA
from sinkscope.tasks.task import Document, Mark, Prompt, Scheme, Turn, scheme_settings


@dataclass(frozen=True)
class MaskRank(ss.ScoredRule):
    """Masks the one key at a rank by received attention; rank 0 is the strongest."""

    rank: int
    scope: Literal["head", "layer", "model"] = "head"

    word: ClassVar[str] = "rank"

    def choose(self, scores: Tensor, candidates: Tensor) -> Tensor:
        """The key at this rank, where there are so many candidates."""
        low = torch.finfo(scores.dtype).min
        order = scores.masked_fill(~candidates, low).sort(dim=-1, descending=True, stable=True).indices
        chosen = torch.zeros_like(candidates)
        return chosen.scatter(-1, order[..., self.rank : self.rank + 1], True) & candidates


@dataclass(frozen=True)
class EchoDecoding(ss.LladaDecoding):
    """LLaDA's loop for the family below, short by default."""

    length: int = 8
    block: int = 4

    kind: ClassVar[str] = "echo"
    families: ClassVar[tuple[str, ...]] = ("echo",)


ECHO = replace(LLADA, name="echo", about="LLaDA's network under another name", model_types=("echo",))
"""Checkpoints in LLaDA's layout that call themselves echo."""


@dataclass(frozen=True)
class Letters:
    """Say a letter: right when the answer holds it."""

    scheme: Scheme = field(default_factory=lambda: Scheme("plain", "echo", "the tests"))
    name: str = "letters"
    runs_code: bool = False

    def documents(self, limit: int | None = None) -> list[Document]:
        """One for each letter."""
        return [Document(f"letters/{letter}", f"Say {letter}.", letter) for letter in "abcdefgh"][:limit]

    def prompt(self, document: Document) -> Prompt:
        """The question, as one user turn."""
        return Prompt((Turn("user", document.question),))

    def grade(self, document: Document, output: str) -> Mark:
        """Whether the letter is in the output."""
        return Mark(document.answer in output, output[:8])

    def grade_many(self, pairs: Sequence[tuple[Document, str]]) -> list[Mark]:
        """`grade` for each pair."""
        return [self.grade(document, output) for document, output in pairs]

    def settings(self) -> dict[str, Any]:
        """All that identifies the task."""
        return {"task": self.name, "version": "letters/1", "scheme": scheme_settings(self.scheme)}


LETTERS = Letters()
