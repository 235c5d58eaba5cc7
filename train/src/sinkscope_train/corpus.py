"""The training documents as rows of token ids, made once by all CPU cores, and which of them a step reads.

All recipes read the same documents in the same order; only the tokens around them differ. Files are plain .npy, which several
training processes map into memory together. A batch is a pure function of recipe, corpus and step, so a resumed run reads what
the interrupted one would have read.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sinkscope import InputError
from sinkscope.base import checks
from sinkscope_train import documents as sources
from sinkscope_train import pictures
from sinkscope_train.layout import write_json
from sinkscope_train.recipe import ANSWER, LENGTH, MIX, MIXES, PROMPT, Recipe
from sinkscope_train.rows import Array, Batch, RowMaker
from sinkscope_train.vocabulary import Vocabulary

ABOUT = "corpus.json"
TABLES = ("texts", "drawn", "described")
"""The tables of rows of a corpus (`RowMaker.table`): documents, and pictures in both directions."""
TEMPLATE = 12
"""Tokens that the longest chat template of the families (LLaDA's, Llama's) puts around a question."""
QUESTION = PROMPT - TEMPLATE
"""Most tokens of a task's question."""
END = 8
"""Tokens at the end of a given text: what diffusion models learn of it."""
CHUNK = 4096
"""Documents that a worker makes at a time."""
FEW_DOCUMENTS = 20_000
"""Fewer are made before other processes are ready to help."""
MOST_DOCUMENTS, MOST_PICTURES = 2_000_000, 400_000
"""Of a corpus; a run that needs more reads them again in another order."""
GOLDEN_RATIO = 0.6180339887498949
"""Its multiples modulo 1 are spread evenly over any stretch of documents."""

Corpus = dict[str, Array]
"""Name, of TABLES → table."""
Say = Callable[[str], None]
Job = tuple[bool, int, int]
"""Pictures or texts, from one number up to, and without, another."""


@dataclass(frozen=True)
class CorpusPlan:
    """What a corpus is made from.

    Attributes:
        documents, pictures: how many. mix: which of MIXES the documents are.
    """

    documents: int
    pictures: int
    vocabulary: Vocabulary
    mix: str = MIX

    def __post_init__(self) -> None:
        checks.one_of("mix", self.mix, tuple(MIXES))
        checks.whole("documents", self.documents, 1)
        checks.whole("pictures", self.pictures, 0)

    @staticmethod
    def of(recipe: Recipe, vocabulary: Vocabulary) -> CorpusPlan:
        """The documents that a run of a recipe reads."""
        documents = min(recipe.steps * recipe.batch, MOST_DOCUMENTS)
        count = min(math.ceil(documents * recipe.pictures), MOST_PICTURES)
        return CorpusPlan(documents, count, vocabulary, recipe.mix)

    def about(self) -> dict[str, Any]:
        """corpus.json; docstrings are those of the running Python, and are counted."""
        about: dict[str, Any] = {"mix": MIXES[self.mix], "tokenizer": self.vocabulary.fingerprint}
        about |= {"documents": self.documents, "pictures": self.pictures}
        if "docstrings" in MIXES[self.mix]:
            about |= {"docstrings": len(sources.docstrings()), "python": platform.python_version()}
        return about

    def make_in(self, folder: Path, say: Say | None = None) -> None:
        """Makes and saves the corpus: an .npy for each table, and then corpus.json. One that is there stays."""
        if (folder / ABOUT).exists():
            made_of(folder, **self.about())
            return
        if say is not None:
            say(f"making {self.documents:,} documents")
        tables = self.made(say=say)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"documents cannot be kept in {folder} ({error}): name another folder") from error
        for name, table in tables.items():
            np.save(folder / f"{name}.npy", table)
        write_json(folder / ABOUT, self.about())

    def made(self, workers: int | None = None, say: Say | None = None) -> Corpus:
        """Generates and tokenises; the result does not depend on the number of workers.

        Args:
            workers: processes; None: as many as there are cores, or one for few documents.
            say: called with the progress at every tenth. Two million documents take a minute on many cores, and long on few.
        """
        texts, drawn = (
            [(pictured, first, min(first + CHUNK, count)) for first in range(0, max(count, 1), CHUNK)]
            for pictured, count in ((False, self.documents), (True, self.pictures))
        )
        if workers is None:
            workers = 1 if self.documents < FEW_DOCUMENTS else os.cpu_count() or 1
        if workers <= 1:
            parts = list(self._told(map(self._make, texts + drawn), len(texts), say))
        else:
            # Spawned, not forked: the parent may hold a GPU or threads of a tokenizer.
            alone = ("TOKENIZERS_PARALLELISM", "false")
            with ProcessPoolExecutor(workers, get_context("spawn"), os.putenv, alone) as pool:
                parts = list(self._told(pool.map(self._make, texts + drawn), len(texts), say))
        columns = (*zip(*parts[: len(texts)], strict=True), *zip(*parts[len(texts) :], strict=True))
        return dict(zip(TABLES, map(np.concatenate, columns), strict=True))

    def _told(self, chunks: Iterable[Any], total: int, say: Say | None) -> Iterator[Any]:
        """The chunks; the progress of the first `total` is said at every tenth of them."""
        for done, chunk in enumerate(chunks, 1):
            if say is not None and 10 <= total >= done and done * 10 // total > (done - 1) * 10 // total:
                say(f"documents: {done / total:.0%} of {self.documents:,}")
            yield chunk

    @cached_property
    def rows(self) -> RowMaker:
        """What makes rows of documents and pictures."""
        return RowMaker(self.vocabulary)

    def _make(self, job: Job) -> tuple[Array, ...]:
        """The table of documents, or those of pictures to draw and to describe."""
        pictured, *numbers = job
        return self._pictures(range(*numbers)) if pictured else self._texts(range(*numbers))

    def _texts(self, numbers: range) -> tuple[Array, ...]:
        encode, rows = self.vocabulary.encode, []
        names = [self._source(number) for number in numbers]
        texts = [sources.document(name, number) for number, name in zip(numbers, names, strict=True)]
        questions, answers = (encode([text[part] for text in texts]) for part in (0, 1))
        for index, name in enumerate(names):
            question, answer = questions[index], answers[index]
            # An answer needs room for its end token. What does not fit becomes prose: dropping it would shift all later ones.
            fits = len(question) <= QUESTION and len(answer) < ANSWER
            if question and not fits:
                answer = encode([sources.prose(numbers[index])])[0]
            chat = bool(question) and fits
            if not chat:
                whole = answer[: LENGTH - 1]
                cut = max(0, len(whole) - END) if name in sources.GIVEN else 0
                question, answer = whole[:cut], whole[cut:]
            rows.append(self.rows.text(question, answer, chat))
        return (self.rows.table(rows),)

    def _pictures(self, numbers: range) -> tuple[Array, ...]:
        scenes = [pictures.scene(number) for number in numbers]
        captions = self.vocabulary.encode([pictures.caption(scene) for scene in scenes])
        pairs = [(caption, pictures.render(scene)) for caption, scene in zip(captions, scenes, strict=True)]
        return tuple(self.rows.table([way(*pair) for pair in pairs]) for way in (self.rows.drawn, self.rows.described))

    def _source(self, number: int) -> str:
        slot = (number * GOLDEN_RATIO) % 1.0
        for name, share in MIXES[self.mix].items():
            if slot < share:
                return name
            slot -= share
        return "prose"


def made_of(folder: Path, **plan: Any) -> dict[str, Any]:
    """What a saved corpus was made from; one that was made from something else than wanted is refused."""
    path = folder / ABOUT
    if not path.exists():
        raise InputError(f"there is no corpus in {folder}; leave the option out, and one is made")
    try:
        about: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        differ = [name for name, value in plan.items() if about.get(name) != value]
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"{path} cannot be read ({error}): make the corpus again") from error
    for name in differ:
        raise InputError(
            f"the documents in {folder} are others than these: their {name} is {about.get(name)}, and {plan[name]} is wanted. "
            "Choose another folder, or make them again"
        )
    return about


def open_corpus(folder: Path) -> Corpus:
    """A saved corpus, mapped into memory and not read."""
    absent = [name for name in TABLES if not (folder / f"{name}.npy").exists()]
    if absent:
        raise InputError(f"the corpus in {folder} has no {', '.join(absent)}: another version made it; make it again")
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in TABLES}


class Reader:
    """Gives the batch of any step."""

    def __init__(self, recipe: Recipe, corpus: Corpus, vocabulary: Vocabulary, device: torch.device) -> None:
        self.recipe, self.vocabulary, self.device = recipe, vocabulary, device
        self.pictured = round(recipe.batch * recipe.pictures)
        # torch cannot index with uint16 on every device, and int32 holds every id.
        arrays = (np.ascontiguousarray(corpus[name]).astype(np.int32) for name in TABLES)
        self.texts, self.drawn, self.described = (torch.from_numpy(array).to(device) for array in arrays)

    def batch(self, step: int) -> Batch:
        """The whole batch of a step."""
        return self.rows(*self.chosen(step))

    def chosen(self, step: int) -> tuple[Tensor, ...]:
        """The numbers of the texts of a step, and of its pictures where the recipe has any."""
        size, pictured, seed = self.recipe.batch, self.pictured, self.recipe.seed
        texts = in_order(seed, len(self.texts), step * size, size, self.device)[pictured:]
        if not pictured:
            return (texts,)
        return texts, in_order(seed, len(self.drawn), step * pictured, pictured, self.device)

    def rows(self, texts: Tensor, images: Tensor | None = None) -> Batch:
        """The whole batch of these texts and pictures: nothing but operations on the device, of shapes that never change."""
        recipe, lead, half = self.recipe, self.vocabulary.lead, self.pictured // 2
        parts = [self.texts[texts]]
        if images is not None:
            parts = [self.drawn[images[:half]], self.described[images[half:]], *parts]
        batch = Batch.of(torch.cat(parts))
        if recipe.targets == "all" or recipe.causal:
            # A causal model learns a text whole, however much of it a diffusion model is given.
            batch = batch.whole(lead, turns=recipe.targets == "all")
        if recipe.packed > 1:
            batch = batch.packed(recipe.packed, self.vocabulary.eos, recipe.causal, lead)
        return batch

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of a whole batch."""
        count = self.recipe.packed
        return self.recipe.batch // count, count * LENGTH if count > 1 else LENGTH + self.vocabulary.lead - 1


def in_order(seed: int, total: int, first: int, count: int, device: torch.device) -> Tensor:
    """Long [count]: the documents, of `total`, whose turn it is from number `first` on; the order is new in every epoch."""
    epochs = range(first // total, (first + count - 1) // total + 1)
    begins = [first - epoch * total for epoch in epochs]
    orders = (_epoch(seed, total, epoch, device) for epoch in epochs)
    return torch.cat([order[max(begin, 0) : begin + count] for order, begin in zip(orders, begins, strict=True)])


@lru_cache(maxsize=4)
def _epoch(seed: int, total: int, epoch: int, device: torch.device) -> Tensor:
    random = torch.Generator().manual_seed(1_000_003 * seed + epoch)
    return torch.randperm(total, generator=random).to(device)
