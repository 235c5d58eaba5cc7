"""Held-out accuracy of a saved organism, loaded and run as any model is: `load`, the official loop, the task's own grading.

Answers and grades are kept apart, because programs are graded in a sandbox that the GPU machine may not have.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from lab.masking import at_least_one, machine
from sinkscope.decoding import MmadaDecoding, MmadaImageDecoding
from sinkscope.errors import InputError, plainly
from sinkscope.generation.generate import generate
from sinkscope.models.load import find, load
from sinkscope.models.model import Model
from sinkscope.organisms import pictures
from sinkscope.organisms.batches import CAPTION_ANSWER, Pieces
from sinkscope.organisms.layout import write_json
from sinkscope.organisms.vocabulary import shipped
from sinkscope.statistics import wilson
from sinkscope.tasks import registry
from sinkscope.tasks.evaluate import decoding_for

TASKS = ("word_problems", "small_code")
IMAGE = MmadaImageDecoding(timesteps=18, guidance=0.0, temperature=1.0)
CAPTION = MmadaDecoding(length=CAPTION_ANSWER, steps=CAPTION_ANSWER // 2, block=CAPTION_ANSWER)
SEED = 0
"""Of the image loop, the only one that draws."""
KEPT = ("digest", "date", "dtype", "batch")
"""What accuracy.json says as the answers do."""


def answers(source: str | Path, count: int, batch: int = 128, device: str = "auto") -> dict[str, Any]:
    """What a checkpoint answers to the first `count` held-out questions of every task it knows.

    Returns:
        Task → decoding (as JSON data) and answers (texts; for drawings, lists of 64 codes).
    """
    at_least_one(count=count, batch=batch)
    model = load(source, device=device)
    found: dict[str, Any] = {
        "digest": model.digest,
        "family": model.family,
        "dtype": str(model.dtype).removeprefix("torch."),
        "machine": machine(model.device),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "count": count,
        "batch": batch,
        "tasks": {},
    }
    for name in TASKS:
        task = registry.get(name, model.family)
        decoding = decoding_for(task, model.family)
        texts = [task.prompt(document).turns[-1].content for document in task.documents(count)]
        written = [text for part in _parts(texts, batch) for text in generate(model, part, decoding).texts]
        found["tasks"][name] = {"decoding": decoding.as_dict(), "answers": written}
    if model.family == "mmada":
        found["tasks"].update(_pictures(model, count, batch))
    return found


def _pictures(model: Model, count: int, batch: int) -> dict[str, Any]:
    drawings, captions = [], []
    vocabulary = shipped("mmada")
    pieces = Pieces(vocabulary, torch.device("cpu"), pictures=True)
    for part in _parts([pictures.scene(index, held_out=True) for index in range(count)], batch):
        ids, real = to_draw(pieces, part)
        drawn = generate(model, ids, IMAGE, attention_mask=real, seed=SEED).codes
        drawings += [] if drawn is None else drawn.tolist()
        captions += generate(model, to_describe(pieces, part), CAPTION).texts
    return {
        "drawing": {"decoding": IMAGE.as_dict(), "seed": SEED, "answers": drawings},
        "caption": {"decoding": CAPTION.as_dict(), "answers": captions},
    }


def to_draw(pieces: Pieces, scenes: Sequence[pictures.Scene]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids [B, S] with masked image slots and mask [B, S] with 0 in left padding, as the image loop takes them."""
    vocabulary = pieces.vocabulary
    before, after, end = (part.tolist() for part in (pieces.draw_before, pieces.draw_after, pieces.draw_end))
    slots = [int(vocabulary.mask or 0)] * pictures.CELLS
    rows = [
        [*before, *caption, *after, *slots, *end]
        for caption in vocabulary.encode([pictures.caption(scene) for scene in scenes])
    ]
    longest = max(len(row) for row in rows)
    ids = torch.tensor([[vocabulary.pad] * (longest - len(row)) + row for row in rows])
    real = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return ids, real


def to_describe(pieces: Pieces, scenes: Sequence[pictures.Scene]) -> torch.Tensor:
    """Ids [B, S]: a picture and the request to describe it."""
    offset = len(pieces.vocabulary)
    before, after = pieces.see_before.tolist(), pieces.see_after.tolist()
    return torch.tensor(
        [[*before, *(offset + code for code in pictures.render(scene)), *after] for scene in scenes]
    )


def grade(given: dict[str, Any]) -> dict[str, Any]:
    """Task → n, right, accuracy and 95 % Wilson interval."""
    found = {}
    for name, entry in given["tasks"].items():
        written = entry["answers"]
        if name in TASKS:
            task = registry.get(name, given["family"])
            right = [
                task.grade(document, text).passed
                for document, text in zip(task.documents(given["count"]), written, strict=True)
            ]
        else:
            scenes = [pictures.scene(index, held_out=True) for index in range(given["count"])]
            right = [
                pictures.drawing_right(pictures.caption(scene), answer)
                if name == "drawing"
                else pictures.caption_right(pictures.render(scene), answer)
                for scene, answer in zip(scenes, written, strict=True)
            ]
        low, high = wilson(sum(right), len(right))
        found[name] = {
            "n": len(right),
            "right": sum(right),
            "accuracy": round(sum(right) / len(right), 4),
            "interval": [round(low, 4), round(high, 4)],
            "decoding": entry["decoding"],
        }
    return found


def _parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]


def read_answers(path: Path) -> dict[str, Any]:
    """What `--ungraded` wrote, perhaps on another machine."""
    try:
        made = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read as JSON ({error}): give a file that --ungraded wrote"
        ) from error
    if not isinstance(made, dict) or not {*KEPT, "machine", "family", "count", "tasks"} <= made.keys():
        raise InputError(f"{path} holds no answers: give a file that --ungraded wrote")
    return made


def write_accuracy(folder: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Grades answers of these very weights and writes accuracy.json beside them."""
    digest = find(folder).digest
    if given["digest"] != digest:
        raise InputError(
            f"the answers are of weights {given['digest'][:12]}, and those in {folder} are {digest[:12]}: answer again with "
            "these, or name the folder that answered"
        )
    known = {key: given[key] for key in KEPT}
    graded = {**known, "where": given["machine"], "tasks": grade(given)}
    write_json(folder / "accuracy.json", graded)
    return graded


def main(words: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Held-out accuracy of organisms, through the official loops."
    )
    parser.add_argument("folders", type=Path, nargs="+", help="checkpoint folders")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--ungraded",
        type=Path,
        help="write FOLDER/NAME.answers.json there, to be graded where there is a sandbox",
    )
    parser.add_argument("--answers", type=Path, help="answers made elsewhere; only grade them (one folder)")
    options = parser.parse_args(words)
    if options.answers is not None and len(options.folders) > 1:
        parser.error(f"--answers is one file, and {len(options.folders)} folders were given: name one")
    with plainly():
        at_least_one(count=options.count, batch=options.batch)
        for folder in options.folders:
            if not folder.is_dir():
                raise InputError(f"there is no folder {folder}: give a folder with a checkpoint")
        for folder in options.folders:
            _measure(folder, options)


def _measure(folder: Path, options: argparse.Namespace) -> None:
    if options.answers is not None:
        made = read_answers(options.answers)
    else:
        made = answers(folder, options.count, options.batch, options.device)
    if options.ungraded is not None:
        options.ungraded.mkdir(parents=True, exist_ok=True)
        write_json(options.ungraded / f"{folder.resolve().name}.answers.json", made, compact=True)
    else:
        print(json.dumps(write_accuracy(folder, made)["tasks"], indent=1))


if __name__ == "__main__":
    main()
