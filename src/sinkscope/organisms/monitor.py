"""Task accuracy while training runs: the official loops in a few lines, for rows that are padded on the right.

Only the training monitor uses this. Published accuracies come from the saved checkpoint, loaded and run by
`sinkscope.sampling` (see `measure.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sinkscope.organisms import pictures
from sinkscope.organisms.batches import CAPTION_ANSWER, Batch, Pieces
from sinkscope.organisms.corpus import QUESTION
from sinkscope.organisms.network import hidden_states, rotation
from sinkscope.organisms.pictures import CELLS, CODES
from sinkscope.organisms.recipe import ANSWER, LENGTH, Objective, Recipe
from sinkscope.organisms.vocabulary import Vocabulary
from sinkscope.tasks import generated, small_code, word_problems
from sinkscope.tasks.task import Document

BLOCK = 32
TOKENS_PER_STEP = 2


@dataclass(frozen=True)
class Questions:
    """Held-out questions of one task as rows whose answers are still to be written."""

    task: str
    batch: Batch
    documents: tuple[Document, ...] = ()
    scenes: tuple[pictures.Scene, ...] = ()


@dataclass(frozen=True)
class Writer:
    """A network with what is needed to let it write."""

    network: Any
    objective: Objective
    vocabulary: Vocabulary

    def logits(self, ids: Tensor, real: Tensor, where: Tensor) -> Tensor:
        """Float32 [N, V] of the N places where `where` [B, S] is True, row by row: what stands there, whatever the objective.

        Only of those, because all of them would be the largest tensor of the run by far.
        """
        device = ids.device
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            rotary = rotation(self.network, ids.shape[1], device)
            hidden = hidden_states(self.network, ids, rotary, self.objective == "next", real)
            if self.objective != "masked":
                hidden = torch.cat((hidden[:, :1], hidden[:, :-1]), 1)  # a place is said by the one before it
            found: Tensor = self.network.lm_head(hidden[where]).float()
        return found

    @torch.no_grad()
    def write(self, batch: Batch, length: int, codes: bool = False) -> Tensor:
        """Fills the answer, Long [B, length].

        Diffusion: blocks of 32 from left to right (Dream and pictures: one block), two tokens per step, the most certain
        first. Causal: one token per step.
        """
        place = torch.arange(batch.ids.shape[1], device=batch.ids.device)
        answer = (place >= batch.start[:, None]) & (place < batch.start[:, None] + length)
        if self.objective == "next":
            ids = self._next_tokens(batch, length)
        else:
            block = BLOCK if self.objective == "masked" and not codes else length
            ids = torch.where(answer, int(self.vocabulary.mask or 0), batch.ids)
            for first in range(0, length, block):
                end = batch.start[:, None] + first + block
                for _ in range(block // TOKENS_PER_STEP):
                    ids = self._denoised(ids, batch.real, answer & (place < end), codes)
        return ids[answer].view(len(ids), length)

    def _denoised(self, ids: Tensor, real: Tensor, allowed: Tensor, codes: bool) -> Tensor:
        open_places = allowed & (ids == self.vocabulary.mask)
        logits = self.logits(ids, real, open_places)
        if codes:
            first = len(self.vocabulary)
            logits[..., :first] = float("-inf")
            logits[..., first + CODES :] = float("-inf")
        confidence = torch.full(ids.shape, float("-inf"), device=ids.device)
        candidate = ids.clone()
        confidence[open_places], candidate[open_places] = logits.softmax(-1).max(-1)
        chosen = confidence.topk(TOKENS_PER_STEP, -1).indices
        return ids.scatter(1, chosen, candidate.gather(1, chosen))

    def _next_tokens(self, batch: Batch, length: int) -> Tensor:
        ids = batch.ids.clone()
        for offset in range(length):
            longest = int(batch.start.max()) + offset + 1
            where = torch.arange(longest, device=ids.device) == batch.start[:, None] + offset
            # `logits` is aligned with the token it predicts, so the place being written may hold anything.
            found = self.logits(ids[:, :longest], batch.real[:, :longest], where)
            ids[:, :longest][where] = found.argmax(-1)
        return ids


def questions(recipe: Recipe, vocabulary: Vocabulary, count: int, device: torch.device) -> list[Questions]:
    """`count` held-out questions of every task that the recipe is trained on."""
    pieces = Pieces(vocabulary, device, bool(recipe.pictures))
    found = []
    for name, module in (("word_problems", word_problems), ("small_code", small_code)):
        documents = generated.first(module.draft, module.VERSION, "test", count)
        found.append(
            Questions(name, _asked(pieces, [document.question for document in documents]), tuple(documents))
        )
    if recipe.pictures:
        scenes = [pictures.scene(index, held_out=True) for index in range(count)]
        captions = _padded(vocabulary.encode([pictures.caption(scene) for scene in scenes]), LENGTH, device)
        codes = torch.tensor([pictures.render(scene) for scene in scenes], device=device)
        found.append(Questions("drawing", pieces.drawn(*captions, codes), scenes=tuple(scenes)))
        found.append(Questions("caption", pieces.described(*captions, codes), scenes=tuple(scenes)))
    return found


def _asked(pieces: Pieces, texts: list[str]) -> Batch:
    ids, lengths = _padded(pieces.vocabulary.encode(texts), QUESTION, pieces.device)
    return pieces.answered(
        ids, lengths, torch.zeros_like(ids), torch.zeros_like(lengths), torch.ones_like(lengths)
    )


def _padded(rows: list[list[int]], width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    filled = torch.zeros(len(rows), width, dtype=torch.long)
    for place, row in enumerate(rows):
        filled[place, : len(row)] = torch.tensor(row)
    return filled.to(device), torch.tensor([len(row) for row in rows], device=device)


def accuracy(writer: Writer, asked: Questions) -> float:
    """The share of right answers. Programs are compared with the worked answer and not run: a lower bound."""
    if asked.task == "drawing":
        written = writer.write(asked.batch, CELLS, codes=True) - len(writer.vocabulary)
        right = [
            pictures.drawing_right(pictures.caption(scene), codes)
            for scene, codes in zip(asked.scenes, written.tolist(), strict=True)
        ]
        return sum(right) / len(right)
    length = CAPTION_ANSWER if asked.task == "caption" else ANSWER
    texts = [_text(writer.vocabulary, row) for row in writer.write(asked.batch, length).tolist()]
    if asked.task == "caption":
        right = [
            pictures.caption_right(pictures.render(scene), text)
            for scene, text in zip(asked.scenes, texts, strict=True)
        ]
    elif asked.task == "word_problems":
        task = word_problems.task()
        right = [
            task.grade(document, text).passed for document, text in zip(asked.documents, texts, strict=True)
        ]
    else:
        right = [
            document.answer == text.strip() for document, text in zip(asked.documents, texts, strict=True)
        ]
    return sum(right) / len(right)


def _text(vocabulary: Vocabulary, ids: list[int]) -> str:
    ends = [place for place, one in enumerate(ids) if one in (vocabulary.eot, vocabulary.eos)]
    return vocabulary.decode(ids[: ends[0]] if ends else ids)
