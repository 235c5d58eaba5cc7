"""`sinkscope train`: a recipe carried out from the command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError, plainly
from sinkscope.organisms.recipe import recipe as named
from sinkscope.organisms.train import Run, train


def train_command(
    recipe: str,
    out: str | Path,
    device: str = "auto",
    init: str | None = None,
    *,
    size: str | None = None,
    steps: int | None = None,
    batch: int | None = None,
    learning_rate: float | None = None,
    seed: int | None = None,
    targets: str | None = None,
    packed: int | None = None,
    weight_decay: float | None = None,
    mix: str | None = None,
    corpus: str | None = None,
    corpus_share: float = 0.2,
    documents: str | Path | None = None,
    check_every: int = 1000,
    save_every: int = 1000,
    final_count: int = 256,
    compile: bool | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Trains an organism, or goes on with a run that was interrupted in the same folder.

    Args:
        recipe: causal, scratch, adapted or multimodal; text_only, which is scratch continued, to compare multimodal with.
        out: folder for the checkpoint in its official layout, training.json, emergence.json and log.jsonl.
        device: auto, cpu, cuda. Several GPUs: start the command under torchrun.
        init: folder or hub id to start from instead of what the recipe says; with the recipe adapted, any causal Llama or
            Qwen2 checkpoint, such as HuggingFaceTB/SmolLM2-135M-Instruct.
        size: 1m, 3m, 6m, 30m or smoke, for recipes that start from random weights.
        targets: answers or all: whether prompts are learned too (causal: all; the others: answers).
        packed: documents in one row of a causal model; the recipe has 4, or what of it divides the batch.
        mix: surprising (as the recipes have it) or plain: what the documents are made of.
        corpus: a text file or hub data set to mix in, at `corpus_share` of the documents.
        documents: a folder with a corpus that several runs share (`python -m sinkscope.organisms.corpus FOLDER`).
        final_count: held-out questions per task in the monitor's last check.
        compile: None: on a GPU only.

    Returns:
        What training.json holds.
    """
    given: dict[str, Any] = {
        "size": size,
        "steps": steps,
        "batch": batch,
        "learning_rate": learning_rate,
        "seed": seed,
    }
    given |= {"targets": targets, "packed": packed, "weight_decay": weight_decay, "mix": mix}
    chosen = named(recipe, **{key: value for key, value in given.items() if value is not None})
    if not 0.0 <= corpus_share < 1.0:
        raise InputError(f"corpus_share is {corpus_share}; it is a share of all documents, from 0 to below 1")
    if corpus is not None and documents is not None:
        raise InputError(
            "corpus and documents were both given: documents is a finished corpus; leave one of them out"
        )
    run = Run(
        recipe=chosen,
        out=Path(out),
        device=device,
        init=init,
        documents=None if documents is None else Path(documents),
        corpus=corpus,
        corpus_share=corpus_share,
        check_every=check_every,
        save_every=save_every,
        final_count=final_count,
        compile=compile,
        quiet=quiet or int(os.environ.get("RANK", "0")) > 0,
    )
    return train(run)


def main() -> None:
    """The same without typer, for machines that have torch and little else: python -m sinkscope.organisms.command."""
    import argparse

    parser = argparse.ArgumentParser(description="Train an organism.")
    parser.add_argument("recipe")
    parser.add_argument("--out", required=True)
    for name in ("device", "init", "size", "targets", "mix", "corpus", "documents"):
        parser.add_argument(f"--{name}")
    for name in ("steps", "batch", "seed", "packed", "check-every", "save-every", "final-count"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("learning-rate", "weight-decay", "corpus-share"):
        parser.add_argument(f"--{name}", type=float)
    options = {key: value for key, value in vars(parser.parse_args()).items() if value is not None}
    with plainly():
        train_command(**options)


if __name__ == "__main__":
    main()
