"""Rows of tokens: what a document or picture becomes in the roles of a layout, and batches of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sinkscope_train.pictures import CELLS
from sinkscope_train.recipe import ANSWER, LENGTH
from sinkscope_train.vocabulary import Vocabulary

CAPTION_ANSWER = 32
"""Tokens of the answer when a picture is described."""
DESCRIBE = "Describe the picture."
Array = NDArray[Any]


class Row(NamedTuple):
    """Tokens of one document, which begin with BOS (or a sink token, and then BOS); what follows is padding.

    Attributes:
        start, content, stop: targets are the positions start..stop−1 for diffusion models and start..content−1 for causal
            ones, which need only the first end token.
        length: real tokens, end tokens that fill an answer up included.
        chat: whether it is a turn, and not a text on its own.
    """

    ids: list[int]
    start: int
    content: int
    stop: int
    length: int
    chat: bool = True


class RowMaker:
    """Makes rows in the roles of one layout, of token ids without special tokens and of the codes of pictures."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary, self.width = vocabulary, LENGTH + vocabulary.lead - 1
        self.before, self.after = vocabulary.encode([vocabulary.before, vocabulary.after])

    def text(self, question: Sequence[int], answer: Sequence[int], chat: bool) -> Row:
        """A chat turn; or a text, whose question is what models are given of it."""
        before = self.before if chat else self.before[: self.vocabulary.lead]
        prompt = [*before, *question, *(self.after if chat else ())]
        start, end = len(prompt), self.vocabulary.eot if chat else self.vocabulary.eos
        content = min(start + len(answer) + 1, self.width)
        stop = start + ANSWER if chat else content
        return Row([*prompt, *answer, end], start, content, stop, stop, chat)

    def drawing(self, caption: Sequence[int]) -> list[int]:
        """The request to draw: BOS t2i caption EOS soi."""
        words = self.vocabulary
        return [words.bos, words.token("<|t2i|>"), *caption, words.eos, words.token("<|soi|>")]

    def drawn(self, caption: Sequence[int], codes: Sequence[int]) -> Row:
        """Caption first, then the picture and eoi."""
        prompt = self.drawing(caption)
        stop = len(prompt) + CELLS
        ids = [*prompt, *self._image(codes), self.vocabulary.token("<|eoi|>")]
        return Row(ids, len(prompt), stop, stop, stop + 1)

    def describing(self, codes: Sequence[int]) -> list[int]:
        """The request to describe a picture: BOS mmu soi 64 codes eoi, and a user turn."""
        words = self.vocabulary
        opening = [words.bos, words.token("<|mmu|>"), words.token("<|soi|>")]
        asked = words.encode([words.before + DESCRIBE])[0][1:]
        return [*opening, *self._image(codes), words.token("<|eoi|>"), *asked, *self.after]

    def described(self, caption: Sequence[int], codes: Sequence[int]) -> Row:
        """Picture first, then its caption."""
        prompt = self.describing(codes)
        start, stop = len(prompt), len(prompt) + CAPTION_ANSWER
        return Row([*prompt, *caption, self.vocabulary.eot], start, start + len(caption) + 1, stop, stop)

    def _image(self, codes: Sequence[int]) -> list[int]:
        return [len(self.vocabulary) + code for code in codes]

    def table(self, rows: Sequence[Row]) -> Array:
        """uint16 [N, S + 5]: tokens, filled up with end tokens, and what `Row` says of them besides."""
        table = np.full((len(rows), self.width + 5), self.vocabulary.eos, dtype=np.uint16)
        for number, row in enumerate(rows):
            shown = row.ids[: self.width]
            table[number, : len(shown)], table[number, self.width :] = shown, row[1:]
        return table


@dataclass(frozen=True)
class Batch:
    """Rows of tokens on the device.

    Attributes:
        ids: Long [B, S]. start, content, stop, length, chat: Long [B], see `Row`.
        chosen: Bool [B, S]: the targets of rows that hold several documents; None: one document, whose targets follow from
            the above.
    """

    ids: Tensor
    start: Tensor
    content: Tensor
    stop: Tensor
    length: Tensor
    chat: Tensor
    chosen: Tensor | None = None

    @staticmethod
    def of(table: Tensor) -> Batch:
        """All rows of a table that `RowMaker.table` made."""
        return Batch(table[:, :-5].long(), *table[:, -5:].long().unbind(1))

    @cached_property
    def real(self) -> Tensor:
        """Bool [B, S]: False in padding, which nothing may attend to."""
        return torch.arange(self.ids.shape[1], device=self.ids.device) < self.length[:, None]

    def targets(self, causal: bool) -> Tensor:
        """Bool [B, S]: the tokens that the model is trained to give."""
        if self.chosen is not None:
            return self.chosen
        column = torch.arange(self.ids.shape[1], device=self.ids.device)
        end = self.content if causal else self.stop
        return (column >= self.start[:, None]) & (column < end[:, None])

    def whole(self, lead: int, turns: bool) -> Batch:
        """The same rows; everything after their first `lead` tokens is a target, of turns too or of texts alone."""
        start = torch.full_like(self.start, lead)
        return replace(self, start=start if turns else torch.where(self.chat == 0, start, self.start))

    def packed(self, count: int, filler: int, causal: bool = True, lead: int = 1) -> Batch:
        """Rows of `count` documents each: what opens a text once, at the start, then document after document.

        Each ends with its first end token, and for diffusion models with all that an answer is filled up with; the padding, of
        `filler` tokens, comes last. Documents of a row see those before them, as in the usual pretraining of causal models, and
        in diffusion models those behind them too.
        """
        rows, S = len(self.ids) // count, self.ids.shape[1]
        column = torch.arange(S, device=self.ids.device)
        taken = column < (self.content if causal else self.stop)[:, None]
        taken[:, :lead] &= (torch.arange(len(self.ids), device=self.ids.device) % count == 0)[:, None]
        tables = (taken, self.ids, self.targets(causal))
        taken, ids, targets = (table.reshape(rows, count * S) for table in tables)
        # All but the first document lose what opens a text, so a row of LENGTH for each holds them all.
        width = count * min(S, LENGTH)
        order = torch.argsort((~taken).to(torch.uint8), dim=1, stable=True)[:, :width]
        length = taken.sum(1)
        filled = torch.arange(width, device=self.ids.device) < length[:, None]
        packed = torch.where(filled, ids.gather(1, order), filler)
        ones = torch.ones_like(length)
        return Batch(packed, ones, length, length, length, ones, targets.gather(1, order) & filled)

    def rows(self, rows: slice) -> Batch:
        """Some of the rows."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        some: dict[str, Any] = {name: tensor[rows] for name, tensor in values if tensor is not None}
        return replace(self, **some)
