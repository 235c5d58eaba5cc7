"""Held-out answers of an organism, through the official loop and graded by the task; and its accuracy while it trains.

A checkpoint in training is saved, loaded and asked as any model is, so what the monitor says is what `ss.generate` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

import sinkscope as ss
from sinkscope.tasks import registry
from sinkscope.tasks.evaluate import decoding_for
from sinkscope_train import pictures
from sinkscope_train.layout import save
from sinkscope_train.rows import CAPTION_ANSWER, RowMaker
from sinkscope_train.vocabulary import Vocabulary, shipped

TASKS = ("word_problems", "small_code")
IMAGE = ss.MmadaImageDecoding(timesteps=18, guidance=0.0, temperature=1.0)
CAPTION = ss.MmadaDecoding(length=CAPTION_ANSWER, steps=CAPTION_ANSWER // 2, block=CAPTION_ANSWER)
SEED = 0
"""Of the image loop, the only one that draws."""


def held_out_answers(
    model: ss.Model, count: int, batch: int = 128, note: Callable[[str], None] = lambda _: None
) -> dict[str, dict[str, Any]]:
    """The answers to the first `count` held-out questions of every task that the model's family is trained on.

    Args:
        note: called with what begins now.

    Returns:
        Task → decoding (as JSON data) and answers (texts; for drawings, lists of 64 codes).
    """
    answered: dict[str, dict[str, Any]] = {}
    for name in TASKS:
        note(f"answers {count} held-out questions of {name}")
        task = registry.get(name, model.family)
        decoding = decoding_for(task, model.family)
        texts = [task.prompt(document).turns[-1].content for document in task.documents(count)]
        answers = [text for part in _parts(texts, batch) for text in ss.generate(model, part, decoding).texts]
        answered[name] = {"decoding": decoding.as_dict(), "answers": answers}
    if model.family == "mmada":
        note(f"draws and describes {count} held-out pictures")
        drawings, captions = [], []
        for scenes in _parts(_held_out_scenes(count), batch):
            ids, real = to_draw(scenes)
            drawn = ss.generate(model, ids, IMAGE, attention_mask=real, seed=SEED).codes
            drawings += [] if drawn is None else drawn.tolist()
            captions += ss.generate(model, to_describe(scenes), CAPTION).texts
        answered["drawing"] = {"decoding": IMAGE.as_dict(), "seed": SEED, "answers": drawings}
        answered["caption"] = {"decoding": CAPTION.as_dict(), "answers": captions}
    return answered


def right_answers(name: str, family: str, answers: Sequence[Any], run_programs: bool = True) -> list[bool]:
    """A mark for each answer to the first held-out questions of a task: right or not.

    Args:
        run_programs: run what `small_code` wrote, in a sandbox; otherwise it is compared with the worked answer, which gives
            a lower bound.
    """
    if name in TASKS:
        task = registry.get(name, family)
        pairs = list(zip(task.documents(len(answers)), answers, strict=True))
        if task.runs_code and not run_programs:
            return [document.answer == text.strip() for document, text in pairs]
        return [verdict.passed for verdict in task.grade_many(pairs)]
    drawn = list(zip(_held_out_scenes(len(answers)), answers, strict=True))
    if name == "drawing":
        return [pictures.describes(pictures.caption(scene), codes) for scene, codes in drawn]
    return [pictures.describes(text, pictures.render(scene)) for scene, text in drawn]


def accuracies(
    network: Any, layout: str, vocabulary: Vocabulary, count: int, device: torch.device, note: Callable[[str], None]
) -> dict[str, float]:
    """Task → share of right answers of a network in training; programs are not run."""
    with TemporaryDirectory() as folder:
        save(network, layout, vocabulary, Path(folder))
        model = ss.load(folder, device=str(device), check=False)
        answered = held_out_answers(model, count, note=note)
    right = {
        name: right_answers(name, model.family, entry["answers"], run_programs=False)
        for name, entry in answered.items()
    }
    return {name: round(sum(marks) / len(marks), 4) for name, marks in right.items()}


def to_draw(scenes: Sequence[pictures.Scene]) -> tuple[Tensor, Tensor]:
    """Ids [B, S] with masked image slots and mask [B, S] with 0 in left padding, as the image loop takes them."""
    rows, words = RowMaker(shipped("mmada")), shipped("mmada")
    slots = [*[int(words.mask or 0)] * pictures.CELLS, words.token("<|eoi|>")]
    captions = words.encode([pictures.caption(scene) for scene in scenes])
    asked = [[*rows.drawing(caption), *slots] for caption in captions]
    longest = max(map(len, asked))
    ids = torch.tensor([[words.pad] * (longest - len(row)) + row for row in asked])
    real = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in asked])
    return ids, real


def to_describe(scenes: Sequence[pictures.Scene]) -> Tensor:
    """Ids [B, S]: a picture and the request to describe it."""
    rows = RowMaker(shipped("mmada"))
    return torch.tensor([rows.describing(pictures.render(scene)) for scene in scenes])


def _held_out_scenes(count: int) -> list[pictures.Scene]:
    return [pictures.scene(index, held_out=True) for index in range(count)]


def _parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]
