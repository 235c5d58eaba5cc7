"""Batches on the device: which documents a step reads, and the rows of tokens that they become.

A batch is a pure function of recipe, corpus and step, so a resumed run reads what the interrupted one would have read.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sinkscope.organisms.corpus import FIELDS, Array, Corpus
from sinkscope.organisms.pictures import CELLS
from sinkscope.organisms.recipe import ANSWER, LENGTH, Recipe
from sinkscope.organisms.vocabulary import Vocabulary

CAPTION_ANSWER = 32
"""Tokens of the answer when a picture is described."""
DESCRIBE = "Describe the picture."


@dataclass(frozen=True)
class Batch:
    """Rows of tokens, all starting with BOS (or a sink token, and then BOS), padded on the right.

    Attributes:
        ids: Long [B, S].
        start, content, stop: Long [B]. Targets are the positions start..stop−1 for diffusion models and start..content−1 for
            causal ones, which need only the first end token.
        length: Long [B]: real tokens; what follows is padding that nothing may attend to.
        chosen: Bool [B, S]: the targets of rows that hold several documents; None: one document, whose targets follow from
            the above.
    """

    ids: Tensor
    start: Tensor
    content: Tensor
    stop: Tensor
    length: Tensor
    chosen: Tensor | None = None

    @cached_property
    def real(self) -> Tensor:
        """Bool [B, S]."""
        return torch.arange(self.ids.shape[1], device=self.ids.device) < self.length[:, None]

    def targets(self, causal: bool) -> Tensor:
        """Bool [B, S]: the tokens that the model is trained to give."""
        if self.chosen is not None:
            return self.chosen
        place = torch.arange(self.ids.shape[1], device=self.ids.device)
        end = self.content if causal else self.stop
        return (place >= self.start[:, None]) & (place < end[:, None])

    def whole(self, lead: int = 1) -> Batch:
        """The same rows with everything after their first `lead` tokens as a target."""
        return replace(self, start=torch.full_like(self.start, lead))

    def packed(self, count: int, filler: int, causal: bool = True, lead: int = 1) -> Batch:
        """Rows of `count` documents each: what opens a text once, at the start, then document after document.

        Each ends with its first end token, and for diffusion models with all that an answer is filled up with; the padding, of
        `filler` tokens, comes last. Documents of a row see those before them, as in the usual pretraining of causal models, and
        in diffusion models those behind them too.
        """
        rows, S = len(self.ids) // count, self.ids.shape[1]
        place = torch.arange(S, device=self.ids.device)
        kept = place < (self.content if causal else self.stop)[:, None]
        kept[:, :lead] &= (torch.arange(len(self.ids), device=self.ids.device) % count == 0)[:, None]
        kept, ids, targets = (
            table.reshape(rows, count * S) for table in (kept, self.ids, self.targets(causal))
        )
        # All but the first document lose what opens a text, so a row of LENGTH for each holds them all.
        width = count * min(S, LENGTH)
        order = torch.argsort((~kept).to(torch.uint8), dim=1, stable=True)[:, :width]
        length = kept.sum(1)
        filled = torch.arange(width, device=self.ids.device) < length[:, None]
        packed = torch.where(filled, ids.gather(1, order), filler)
        one = torch.ones_like(length)
        return Batch(packed, one, length, length, length, targets.gather(1, order) & filled)

    def rows(self, rows: slice) -> Batch:
        """Some of the rows."""
        parts: list[Any] = [None if tensor is None else tensor[rows] for tensor in self._tensors()]
        return Batch(*parts)

    @staticmethod
    def join(first: Batch, second: Batch) -> Batch:
        """Both, one after the other; for rows of one document."""
        pairs = zip(first._tensors()[:-1], second._tensors()[:-1], strict=True)
        return Batch(*(torch.cat(pair) for pair in pairs))

    def _tensors(self) -> tuple[Any, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True)
class RowPart:
    """Tokens that stand one after the other in a row.

    Attributes:
        table: Long [n], the same for every row, or [B, n].
        lengths: Long [B]: how many of them each row has.
    """

    table: Tensor
    lengths: Tensor


def _all(table: Tensor, like: Tensor) -> RowPart:
    """A part that every row has in full."""
    return RowPart(table, torch.full_like(like, table.shape[-1]))


class Pieces:
    """Token ids around questions, answers and pictures, in the roles of one layout."""

    def __init__(self, vocabulary: Vocabulary, device: torch.device, pictures: bool) -> None:
        self.vocabulary, self.lead = vocabulary, vocabulary.lead
        self.length = LENGTH + self.lead - 1
        self.device = device
        self.before, self.after = (
            self._tensor(vocabulary.encode([text])[0]) for text in (vocabulary.before, vocabulary.after)
        )
        if pictures:
            token = vocabulary.token
            bos, after = [vocabulary.bos], vocabulary.encode([vocabulary.after])[0]
            header = vocabulary.encode([vocabulary.before + DESCRIBE])[0][1:]
            self.draw_before = self._tensor([*bos, token("<|t2i|>")])
            self.draw_after = self._tensor([vocabulary.eos, token("<|soi|>")])
            self.draw_end = self._tensor([token("<|eoi|>")])
            self.see_before = self._tensor([*bos, token("<|mmu|>"), token("<|soi|>")])
            self.see_after = self._tensor([token("<|eoi|>"), *header, *after])

    def _tensor(self, ids: list[int]) -> Tensor:
        return torch.tensor(ids, dtype=torch.long, device=self.device)

    def answered(
        self,
        questions: Tensor,
        question_lengths: Tensor,
        answers: Tensor,
        answer_lengths: Tensor,
        chat: Tensor,
    ) -> Batch:
        """Chat turns where `chat` is 1, and texts, whose question is what they are given of themselves, where it is 0.

        All tensors Long, [B, …] and [B].
        """
        chat = chat > 0
        # Both kinds of row begin alike, so of what comes before a question a text takes the first tokens.
        before = torch.where(chat, len(self.before), self.lead)
        after = torch.where(chat, len(self.after), 0)
        end = torch.where(chat, self.vocabulary.eot, self.vocabulary.eos)
        prompt = (
            RowPart(self.before, before),
            RowPart(questions, question_lengths),
            RowPart(self.after, after),
        )
        start = before + question_lengths + after
        content = (start + answer_lengths + 1).clamp(max=self.length)
        stop = torch.where(chat, start + ANSWER, content)
        return self._rows(prompt, RowPart(answers, answer_lengths), end, content, stop, stop)

    def drawn(self, captions: Tensor, lengths: Tensor, codes: Tensor) -> Batch:
        """Caption first, then the picture: BOS t2i caption EOS soi 64 codes eoi."""
        prompt = (_all(self.draw_before, lengths), RowPart(captions, lengths), _all(self.draw_after, lengths))
        content = len(self.draw_before) + lengths + len(self.draw_after) + CELLS
        end = self.draw_end.expand(len(lengths))
        return self._rows(prompt, self._image(codes, lengths), end, content, content, content + 1)

    def described(self, captions: Tensor, lengths: Tensor, codes: Tensor) -> Batch:
        """Picture first, then its caption: BOS mmu soi 64 codes eoi, a user turn, the answer."""
        prompt = (_all(self.see_before, lengths), self._image(codes, lengths), _all(self.see_after, lengths))
        start = torch.full_like(lengths, len(self.see_before) + CELLS + len(self.see_after))
        end = torch.full_like(lengths, self.vocabulary.eot)
        stop = start + CAPTION_ANSWER
        return self._rows(prompt, RowPart(captions, lengths), end, start + lengths + 1, stop, stop)

    def _image(self, codes: Tensor, like: Tensor) -> RowPart:
        return _all(codes + len(self.vocabulary), like)

    def _rows(self, prompt: tuple[RowPart, ...], answer: RowPart, end: Tensor, *marks: Tensor) -> Batch:
        """The parts one after the other, one end token (Long [B]), then EOS. marks: content, stop and length of the batch."""
        parts = (*prompt, answer, RowPart(end[:, None], torch.ones_like(end)))
        place = torch.arange(self.length, device=self.device)[None]
        ids = torch.full((len(end), self.length), self.vocabulary.eos, dtype=torch.long, device=self.device)
        offset = torch.zeros_like(end)
        for part in parts:
            index = (place - offset[:, None]).clamp(0, part.table.shape[-1] - 1)
            tokens = part.table[index] if part.table.dim() == 1 else part.table.gather(1, index)
            here = (place >= offset[:, None]) & (place < (offset + part.lengths)[:, None])
            ids = torch.where(here, tokens, ids)
            offset = offset + part.lengths
        start = sum((part.lengths for part in prompt), torch.zeros_like(end))
        return Batch(ids, start, *marks)


class Reader:
    """Gives the batch of any step."""

    def __init__(self, recipe: Recipe, corpus: Corpus, vocabulary: Vocabulary, device: torch.device) -> None:
        self.recipe = recipe
        self.pieces = Pieces(vocabulary, device, bool(recipe.pictures))
        self.pictured = round(recipe.batch * recipe.pictures)
        self.device = device
        arrays = [getattr(corpus, name) for name in FIELDS]
        self.texts, self.images = (
            [_on(device, array) for array in part] for part in (arrays[:5], arrays[5:])
        )
        self.order = DocumentOrder(recipe.seed, device)

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """This process's rows of the batch of a step."""
        batch = self.rows(*self.chosen(step))
        return batch if world == 1 else batch.rows(slice(rank, None, world))

    def chosen(self, step: int) -> tuple[Tensor, ...]:
        """The numbers of the texts of a step, and of its pictures where the recipe has any."""
        size, pictured = self.recipe.batch, self.pictured
        texts = self.order.chosen(len(self.texts[0]), step * size, size)[pictured:]
        if not pictured:
            return (texts,)
        return texts, self.order.chosen(len(self.images[0]), step * pictured, pictured)

    def rows(self, texts: Tensor, images: Tensor | None = None) -> Batch:
        """The whole batch of these texts and pictures: nothing but operations on the device, of shapes that never change."""
        batch = self.pieces.answered(*(table[texts].long() for table in self.texts))
        if images is not None:
            rows = [table[images].long() for table in self.images]
            half = self.pictured // 2
            drawn = self.pieces.drawn(*(row[:half] for row in rows))
            described = self.pieces.described(*(row[half:] for row in rows))
            batch = Batch.join(Batch.join(drawn, described), batch)
        if self.recipe.targets == "all":
            batch = batch.whole(self.pieces.lead)
        elif self.recipe.causal:
            # A causal model learns a text whole, however much of it a diffusion model is given.
            batch = replace(
                batch, start=torch.where(self.texts[-1][texts] == 0, self.pieces.lead, batch.start)
            )
        if self.recipe.packed > 1:
            filler, lead = self.pieces.vocabulary.eos, self.pieces.lead
            batch = batch.packed(self.recipe.packed, filler, self.recipe.causal, lead)
        return batch

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of a whole batch."""
        count = self.recipe.packed
        return self.recipe.batch // count, count * LENGTH if count > 1 else self.pieces.length


class DocumentOrder:
    """An endless order of documents, new in every epoch."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.seed, self.device = seed, device
        self._epochs: dict[tuple[int, int], Tensor] = {}

    def chosen(self, total: int, first: int, count: int) -> Tensor:
        """Long [count]: the documents, of `total`, at the places first..first+count−1."""
        parts = []
        for epoch in range(first // total, (first + count - 1) // total + 1):
            begin = epoch * total
            here = slice(max(first, begin) - begin, min(first + count, begin + total) - begin)
            parts.append(self._epoch(total, epoch)[here])
        return torch.cat(parts)

    def _epoch(self, total: int, epoch: int) -> Tensor:
        if (total, epoch) not in self._epochs:
            for old in [key for key in self._epochs if key[0] == total and key[1] < epoch - 1]:
                del self._epochs[old]
            random = torch.Generator().manual_seed(1_000_003 * self.seed + epoch)
            self._epochs[total, epoch] = torch.randperm(total, generator=random).to(self.device)
        return self._epochs[total, epoch]


def _on(device: torch.device, array: Array) -> Tensor:
    # torch cannot index with uint16 on every device, and int32 holds every id.
    return torch.from_numpy(np.ascontiguousarray(array).astype(np.int32)).to(device)
