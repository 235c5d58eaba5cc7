"""The training documents as arrays of token ids, made once by all CPU cores and shared by every recipe.

A corpus holds questions and answers without a chat template: all recipes read the same documents in the same order, and only
the tokens around them differ. Files are plain .npy, which several training processes map into memory together.

    python -m sinkscope.organisms.corpus FOLDER
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sinkscope.errors import InputError, plainly
from sinkscope.organisms import documents as sources
from sinkscope.organisms import pictures
from sinkscope.organisms.layout import write_json
from sinkscope.organisms.recipe import ANSWER, LENGTH, MIX, MIXES, PROMPT, SPELLINGS
from sinkscope.organisms.vocabulary import Vocabulary, shipped

TEMPLATE = 12
"""Tokens that the longest chat template of the families (LLaDA's, Llama's) puts around a question."""
QUESTION = PROMPT - TEMPLATE
"""Most tokens of a task's question."""
END = 8
"""Tokens at the end of a given text: what diffusion models learn of it."""
CAPTION = 30
"""Most tokens of a caption."""
LEAST_ROOM = 24
"""Fewest tokens that a chat template must leave for a question."""
CHUNK = 4096
"""Documents that a worker makes at a time."""
MOST_DOCUMENTS, MOST_PICTURES = 2_000_000, 400_000
"""Of a corpus; a run that needs more reads them again in another order."""
GOLDEN_RATIO = 0.6180339887498949
"""Its multiples modulo 1 are spread evenly over any stretch of documents."""

Array = NDArray[Any]
Job = tuple[int, int]
"""Documents or pictures from one number up to, and without, another."""


@dataclass(frozen=True)
class Corpus:
    """Documents and pictures.

    Attributes:
        questions, answers: [N, LENGTH]: token ids, the rest 0. A text on its own has no question; the question of a given
            text is all of it but its end.
        question_lengths, answer_lengths: [N].
        chat: [N], 1 for a question with its answer, which get a chat template, and 0 for a text.
        captions: [M, CAPTION], caption_lengths: [M], codes: [M, 64]: pictures (codes without an offset).
    """

    questions: Array
    question_lengths: Array
    answers: Array
    answer_lengths: Array
    chat: Array
    captions: Array
    caption_lengths: Array
    codes: Array

    def __len__(self) -> int:
        return len(self.questions)

    def save(self, folder: Path, ingredients: dict[str, Any]) -> None:
        """Writes one .npy per array, and corpus.json with what it was made from."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"documents cannot be kept in {folder} ({error}): name another folder"
            ) from error
        for name in FIELDS:
            np.save(folder / f"{name}.npy", getattr(self, name))
        counts = {"documents": len(self), "pictures": len(self.codes)}
        write_json(folder / "corpus.json", {**ingredients, **counts})

    @staticmethod
    def open(folder: Path) -> Corpus:
        """A saved corpus, mapped into memory and not read."""
        if not (folder / "corpus.json").exists():
            raise InputError(f"there is no corpus in {folder}; leave the option out, and one is made")
        absent = [name for name in FIELDS if not (folder / f"{name}.npy").exists()]
        if absent:
            raise InputError(
                f"the corpus in {folder} has no {', '.join(absent)}: another version made it; make it again"
            )
        return Corpus(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in FIELDS))


FIELDS = tuple(field.name for field in fields(Corpus))


def make(
    documents: int,
    picture_count: int,
    vocabulary: Vocabulary,
    extra: Sequence[str] = (),
    share: float = 0.0,
    workers: int = 0,
    mix: str = MIX,
    say: Callable[[str], None] | None = None,
    spelling: str = "whole",
) -> Corpus:
    """Generates and tokenises; the result does not depend on the number of workers.

    Args:
        documents: how many, mixed as MIXES[mix] says.
        extra: paragraphs of the user's own, which take `share` of the documents (and repeat when there are too few).
        workers: processes; 0: as many as there are cores.
        spelling: see `documents.spelled`.
        say: called with the progress at every tenth. Two million documents take a minute on many cores, and long on few.
    """
    if documents < 1 or picture_count < 0:
        raise InputError(
            f"{documents} documents and {picture_count} pictures were asked for: at least 1 and 0 are needed"
        )
    if not 0.0 <= share < 1.0:
        raise InputError(f"the corpus' share is {share}; it is a share of all documents, from 0 to below 1")
    text_jobs, picture_jobs = _chunks(documents), _chunks(picture_count)
    maker = _Maker(vocabulary, tuple(extra) if share > 0 else (), share, MIXES[mix], spelling)
    workers = workers or min(os.cpu_count() or 1, max(1, len(text_jobs) + len(picture_jobs)))
    if workers <= 1:
        texts = list(_told(map(maker.texts, text_jobs), len(text_jobs), documents, say))
        drawn = [maker.pictures(job) for job in picture_jobs]
    else:
        # Spawned, not forked: the parent may hold a GPU or threads of a tokenizer.
        with ProcessPoolExecutor(workers, get_context("spawn"), _set_maker, (maker,)) as pool:
            texts = list(_told(pool.map(_texts, text_jobs), len(text_jobs), documents, say))
            drawn = list(pool.map(_pictures, picture_jobs))
    drawn = drawn or [maker.pictures((0, 0))]
    columns = (*zip(*texts, strict=True), *zip(*drawn, strict=True))
    return Corpus(*(np.concatenate(column) for column in columns))


def _chunks(count: int) -> list[Job]:
    return [(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]


def _told(
    chunks: Iterable[Any], total: int, documents: int, say: Callable[[str], None] | None
) -> Iterator[Any]:
    """The chunks; the progress is said at every tenth of them."""
    for done, chunk in enumerate(chunks, 1):
        if say is not None and done * 10 // total > (done - 1) * 10 // total and total >= 10:
            say(f"documents: {done / total:.0%} of {documents:,}")
        yield chunk


class _Maker:
    """Makes documents and pictures by number."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        paragraphs: tuple[str, ...],
        share: float,
        mix: dict[str, float],
        spelling: str = "whole",
    ) -> None:
        self.vocabulary, self.paragraphs, self.share, self.mix = vocabulary, paragraphs, share, mix
        self.spelling = spelling
        self.dtype = np.uint16 if len(vocabulary) < 1 << 16 else np.int32
        # A sink token makes rows longer and leaves the documents as they are.
        around = sum(map(len, vocabulary.encode([vocabulary.before, vocabulary.after]))) - (
            vocabulary.lead - 1
        )
        room = PROMPT - around
        if room < LEAST_ROOM:
            raise InputError(
                f"the chat template leaves {room} of {PROMPT} tokens for a question; use a shorter one"
            )
        self.room = min(room, QUESTION)

    def texts(self, job: Job) -> tuple[Array, ...]:
        """The arrays of these documents, from questions to chat."""
        names = [self._source(index) for index in range(*job)]
        texts = [self._text(name, index) for index, name in enumerate(names, job[0])]
        questions = self.vocabulary.encode([text.question for text in texts])
        answers = self.vocabulary.encode([text.answer for text in texts])
        chat = [bool(question) for question in questions]
        for place, name in enumerate(names):
            # An answer needs room for its end token. What does not fit becomes prose: dropping it would shift all later ones.
            if chat[place] and (len(questions[place]) > self.room or len(answers[place]) > ANSWER - 1):
                chat[place] = False
                answers[place] = self.vocabulary.encode([self._text("prose", job[0] + place).answer])[0]
            if not chat[place]:
                whole = answers[place][: LENGTH - 1]
                cut = max(0, len(whole) - END) if name in sources.GIVEN else 0
                questions[place], answers[place] = whole[:cut], whole[cut:]
        rows = (*self._ragged(questions, LENGTH), *self._ragged(answers, LENGTH))
        return (*rows, np.array(chat, dtype=np.uint8))

    def pictures(self, job: Job) -> tuple[Array, ...]:
        """The arrays of these pictures, from captions to codes."""
        scenes = [pictures.scene(index) for index in range(*job)]
        captions = self.vocabulary.encode([pictures.caption(scene) for scene in scenes])
        longest = max((len(caption) for caption in captions), default=0)
        if longest > CAPTION:
            raise InputError(
                f"a caption has {longest} tokens, more than {CAPTION}; the tokenizer does not fit the pictures"
            )
        codes = np.array([pictures.render(scene) for scene in scenes], dtype=np.uint8)
        return (*self._ragged(captions, CAPTION), codes.reshape(-1, pictures.CELLS))

    def _source(self, index: int) -> str:
        """The source of document number `index`; "" is the user's own text."""
        slot = (index * GOLDEN_RATIO) % 1.0
        if slot < self.share:
            return ""
        slot = (slot - self.share) / (1.0 - self.share)
        for name, share in self.mix.items():
            if slot < share:
                return name
            slot -= share
        return "prose"

    def _text(self, source: str, index: int) -> sources.Text:
        own = None if source else sources.Text("", self.paragraphs[index % len(self.paragraphs)])
        text = own or sources.document(source, index)
        return sources.spelled(source, text, self.spelling)

    def _ragged(self, rows: list[list[int]], width: int) -> tuple[Array, Array]:
        filled: Array = np.zeros((len(rows), width), dtype=self.dtype)
        for place, row in enumerate(rows):
            filled[place, : len(row)] = row
        return filled, np.array([len(row) for row in rows], dtype=np.uint8)


_maker: _Maker
"""Of a worker process."""


def _set_maker(maker: _Maker) -> None:
    global _maker
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _maker = maker


def _texts(job: Job) -> tuple[Array, ...]:
    return _maker.texts(job)


def _pictures(job: Job) -> tuple[Array, ...]:
    return _maker.pictures(job)


# ---- what a corpus was made from -----------------------------------------------------------------


def ingredients(
    mix: str, vocabulary: Vocabulary, share: float = 0.0, corpus: str | None = None, spelling: str = "whole"
) -> dict[str, Any]:
    """The ingredients of a corpus, for corpus.json; docstrings are those of the running Python, and are counted."""
    about: dict[str, Any] = {"mix": MIXES[mix], "corpus": corpus, "corpus_share": share}
    about["tokenizer"] = vocabulary.fingerprint
    about |= {} if spelling == "whole" else {"spelling": spelling}
    if "docstrings" in MIXES[mix]:
        about |= {"docstrings": len(sources.docstrings()), "python": platform.python_version()}
    return about


def made_of(folder: Path) -> dict[str, Any]:
    """The ingredients of a saved corpus, and how many documents and pictures it has."""
    path = folder / "corpus.json"
    try:
        about: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        missing = [
            name for name in ("mix", "corpus", "tokenizer", "documents", "pictures") if name not in about
        ]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} cannot be read ({error}): make the corpus again") from error
    if missing:
        raise InputError(f"{path} does not say {', '.join(missing)}: another version made it; make it again")
    return about


def same_ingredients(folder: Path, wanted: dict[str, Any]) -> None:
    """Refuses a saved corpus that was made from something else."""
    about = made_of(folder)
    for name, value in wanted.items():
        if about.get(name) != value:
            raise InputError(
                f"the documents in {folder} are others than these: their {name} is {about.get(name)}, and {value} is wanted. "
                "Choose another folder, or make them again"
            )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Make the corpus that several training processes share.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=MOST_DOCUMENTS)
    parser.add_argument("--pictures", type=int, default=MOST_PICTURES)
    parser.add_argument("--corpus", help="text to mix in: a file, or a hub data set")
    parser.add_argument("--corpus-share", type=float, default=0.2)
    parser.add_argument("--mix", default=MIX, choices=list(MIXES))
    parser.add_argument("--spelling", default=SPELLINGS[0], choices=SPELLINGS)
    options = parser.parse_args()
    began = time.monotonic()
    with plainly():
        extra = () if options.corpus is None else sources.read_corpus(options.corpus)
        share = options.corpus_share if extra else 0.0
        words = shipped("llada")
        made = make(
            options.documents, options.pictures, words, extra, share, 0, options.mix, print, options.spelling
        )
        about = ingredients(options.mix, words, share, options.corpus, options.spelling)
        about["seconds"] = round(time.monotonic() - began, 1)
        made.save(options.folder, about)
    print(json.dumps({**about, "documents": len(made)}))


if __name__ == "__main__":
    main()
