"""The training documents as arrays of token ids, made once by all CPU cores and shared by every recipe.

A corpus holds questions and answers without a chat template, so that all recipes read the same documents in the same order
and only the pieces around them differ. Files are plain .npy, which several training processes map into memory together.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sinkscope.errors import InputError, plainly
from sinkscope.organisms import pictures, sources
from sinkscope.organisms.layout import write_json
from sinkscope.organisms.recipe import ANSWER, LENGTH, MIX, MIXES, PROMPT
from sinkscope.organisms.surprising import docstrings
from sinkscope.organisms.vocabulary import Vocabulary, shipped

TEMPLATE = 12
"""Tokens that the longest chat template of the families (LLaDA's, Llama's) puts around a question."""
QUESTION = PROMPT - TEMPLATE
"""Most tokens of a task's question."""
END = 8
"""Tokens at the end of a text that is given: what diffusion models learn of it."""
CAPTION = 30
"""Most tokens of a caption."""
LEAST_ROOM = 24
"""A chat template that leaves less for a question would leave hardly a question."""
CHUNK = 4096
"""Documents that one worker makes at a time."""
MOST_DOCUMENTS, MOST_PICTURES = 2_000_000, 400_000
"""Of a corpus; a run that needs more reads them again in another order."""

Array = NDArray[Any]


@dataclass(frozen=True)
class Corpus:
    """Documents and pictures.

    Attributes:
        questions, answers: [N, LENGTH]: token ids, the rest 0. A text on its own has no question; the question of one that is
            given is all of it but its end.
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

    def save(self, folder: Path, about: dict[str, Any]) -> None:
        """One .npy per array, and what it was made from."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"documents cannot be kept in {folder} ({error}): name another folder"
            ) from error
        for name in FIELDS:
            np.save(folder / f"{name}.npy", getattr(self, name))
        write_json(folder / "corpus.json", {**about, "documents": len(self), "pictures": len(self.codes)})

    @staticmethod
    def open(folder: Path) -> Corpus:
        """A saved corpus, mapped and not read."""
        if not (folder / "corpus.json").exists():
            raise InputError(f"there is no corpus in {folder}; leave the option out, and one is made")
        absent = [name for name in FIELDS if not (folder / f"{name}.npy").exists()]
        if absent:
            raise InputError(
                f"the corpus in {folder} has no {', '.join(absent)}: another version made it; make it again"
            )
        return Corpus(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in FIELDS))


FIELDS = (
    "questions",
    "question_lengths",
    "answers",
    "answer_lengths",
    "chat",
    "captions",
    "caption_lengths",
    "codes",
)


def make(
    documents: int,
    picture_count: int,
    vocabulary: Vocabulary,
    extra: Sequence[str] = (),
    share: float = 0.0,
    workers: int = 0,
    mix: str = MIX,
    say: Callable[[str], None] | None = None,
) -> Corpus:
    """Generates and tokenises; the result does not depend on the number of workers.

    Args:
        documents: how many, mixed as MIXES says of `mix`.
        extra: paragraphs of the user's own, which take a share of the documents (and repeat when there are too few).
        say: told how far it is, a tenth at a time; for two million documents that takes a minute on many cores, and long on few.
    """
    if documents < 1 or picture_count < 0:
        raise InputError(
            f"{documents} documents and {picture_count} pictures were asked for: at least 1 and 0 are needed"
        )
    if not 0.0 <= share < 1.0:
        raise InputError(f"the corpus' share is {share}; it is a share of all documents, from 0 to below 1")
    jobs = [(start, min(start + CHUNK, documents)) for start in range(0, documents, CHUNK)]
    pictured = [(start, min(start + CHUNK, picture_count)) for start in range(0, picture_count, CHUNK)]
    paragraphs = tuple(extra) if share > 0 else ()
    setup = (vocabulary.backend.to_str(), vocabulary.before, vocabulary.after, paragraphs, share, mix)
    workers = workers or min(os.cpu_count() or 1, max(1, len(jobs) + len(pictured)))
    if workers <= 1:
        _start(*setup)
        texts = list(_told(map(_texts, jobs), len(jobs), documents, say))
        drawn = [_pictures(job) for job in pictured]
    else:
        # Spawned, not forked: the parent may hold a GPU or threads of a tokenizer.
        with ProcessPoolExecutor(workers, get_context("spawn"), _start, setup) as pool:
            texts = list(_told(pool.map(_texts, jobs), len(jobs), documents, say))
            drawn = list(pool.map(_pictures, pictured))
    if not drawn:
        drawn = [_picture_arrays([], [])]
    return Corpus(
        *(np.concatenate(parts) for parts in (*zip(*texts, strict=True), *zip(*drawn, strict=True)))
    )


def _told(
    chunks: Iterable[Any], total: int, documents: int, say: Callable[[str], None] | None
) -> Iterator[Any]:
    """The chunks, and a word for every tenth of them."""
    for done, chunk in enumerate(chunks, 1):
        if say is not None and done * 10 // total > (done - 1) * 10 // total and total >= 10:
            say(f"documents: {done / total:.0%} of {documents:,}")
        yield chunk


_worker: dict[str, Any] = {}


def _start(
    backend: str, before: str, after: str, paragraphs: tuple[str, ...], share: float, mix: str
) -> None:
    from tokenizers import Tokenizer

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _worker.update(tokenizer=Tokenizer.from_str(backend), paragraphs=paragraphs, share=share, mix=MIXES[mix])
    room = PROMPT - sum(map(len, _encode([before, after])))
    if room < LEAST_ROOM:
        raise InputError(
            f"the chat template leaves {room} of {PROMPT} tokens for a question; use a shorter one"
        )
    _worker["room"] = min(room, QUESTION)


def _encode(texts: Sequence[str]) -> list[list[int]]:
    return [found.ids for found in _worker["tokenizer"].encode_batch(list(texts), add_special_tokens=False)]


def _texts(job: tuple[int, int]) -> tuple[Array, Array, Array, Array, Array]:
    names = [_source(index) for index in range(*job)]
    drawn = [_text(name, index) for index, name in enumerate(names, job[0])]
    questions, answers = _encode([text.question for text in drawn]), _encode([text.answer for text in drawn])
    # An answer needs room for its end token. What does not fit becomes prose: dropping it would shift all later documents.
    chat = [bool(question) for question in questions]
    for place, name in enumerate(names):
        if chat[place] and (len(questions[place]) > _worker["room"] or len(answers[place]) > ANSWER - 1):
            questions[place], chat[place] = [], False
            answers[place] = _encode([sources.document("prose", job[0] + place).answer])[0]
        if not chat[place]:
            whole = answers[place][: LENGTH - 1]
            cut = max(0, len(whole) - END) if name in sources.GIVEN else 0
            questions[place], answers[place] = whole[:cut], whole[cut:]
    kind = _dtype()
    return (
        *_ragged(questions, LENGTH, kind),
        *_ragged(answers, LENGTH, kind),
        np.array(chat, dtype=np.uint8),
    )


def _source(index: int) -> str:
    """Which source document number `index` comes from; "" is the user's own text."""
    slot = (index * 0.6180339887498949) % 1.0  # evenly spread at any length
    if slot < _worker["share"]:
        return ""
    slot = (slot - _worker["share"]) / (1.0 - _worker["share"])
    mix: dict[str, float] = _worker["mix"]
    for name, share in mix.items():
        if slot < share:
            return name
        slot -= share
    return "prose"


def _text(source: str, index: int) -> sources.Text:
    if not source:
        return sources.Text("", _worker["paragraphs"][index % len(_worker["paragraphs"])])
    return sources.document(source, index)


def _pictures(job: tuple[int, int]) -> tuple[Array, Array, Array]:
    scenes = [pictures.scene(index) for index in range(*job)]
    return _picture_arrays(
        _encode([pictures.caption(scene) for scene in scenes]), [pictures.render(scene) for scene in scenes]
    )


def _picture_arrays(captions: list[list[int]], codes: list[tuple[int, ...]]) -> tuple[Array, Array, Array]:
    longest = max((len(caption) for caption in captions), default=0)
    if longest > CAPTION:
        raise InputError(
            f"a caption has {longest} tokens, more than {CAPTION}; the tokenizer does not fit the pictures"
        )
    rows, lengths = _ragged(captions, CAPTION, np.uint16 if not _worker else _dtype())
    return rows, lengths, np.array(codes, dtype=np.uint8).reshape(-1, pictures.CELLS)


def _dtype() -> type:
    return np.uint16 if _worker["tokenizer"].get_vocab_size() < 1 << 16 else np.int32


def _ragged(rows: list[list[int]], width: int, kind: type) -> tuple[Array, Array]:
    filled: Array = np.zeros((len(rows), width), dtype=kind)
    for place, row in enumerate(rows):
        filled[place, : len(row)] = row
    return filled, np.array([len(row) for row in rows], dtype=np.uint8)


def ingredients(
    mix: str, vocabulary: Vocabulary, share: float = 0.0, corpus: str | None = None
) -> dict[str, Any]:
    """What a corpus is made of, for corpus.json; docstrings are those of the running Python, and are counted."""
    found: dict[str, Any] = {"mix": MIXES[mix], "corpus": corpus, "corpus_share": share}
    found["tokenizer"] = vocabulary.fingerprint
    if "docstrings" in MIXES[mix]:
        found |= {"docstrings": len(docstrings()), "python": platform.python_version()}
    return found


def made_of(folder: Path) -> dict[str, Any]:
    """The ingredients of a saved corpus, and how many documents and pictures it has."""
    path = folder / "corpus.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        missing = [
            name for name in ("mix", "corpus", "tokenizer", "documents", "pictures") if name not in found
        ]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} cannot be read ({error}): make the corpus again") from error
    if missing:
        raise InputError(f"{path} does not say {', '.join(missing)}: another version made it; make it again")
    return found


def same_ingredients(folder: Path, wanted: dict[str, Any]) -> None:
    """Refuses a saved corpus that is not of what is wanted."""
    found = made_of(folder)
    for name, value in wanted.items():
        if found.get(name) != value:
            raise InputError(
                f"the documents in {folder} are others than these: their {name} is {found.get(name)}, and {value} is wanted. "
                "Choose another folder, or make them again"
            )


def main() -> None:
    """The command line."""
    import argparse
    import time

    parser = argparse.ArgumentParser(description="Make the corpus that several training processes share.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=MOST_DOCUMENTS)
    parser.add_argument("--pictures", type=int, default=MOST_PICTURES)
    parser.add_argument("--corpus", help="text to mix in: a file, or a hub data set")
    parser.add_argument("--corpus-share", type=float, default=0.2)
    parser.add_argument("--mix", default=MIX, choices=list(MIXES))
    options = parser.parse_args()
    began = time.monotonic()
    with plainly():
        extra = () if options.corpus is None else sources.read_corpus(options.corpus)
        share = options.corpus_share if extra else 0.0
        words = shipped("llada")
        made = make(options.documents, options.pictures, words, extra, share, mix=options.mix, say=print)
        about = ingredients(options.mix, words, share, options.corpus)
        about["seconds"] = round(time.monotonic() - began, 1)
        made.save(options.folder, about)
    print(json.dumps({**about, "documents": len(made)}))


if __name__ == "__main__":
    main()
