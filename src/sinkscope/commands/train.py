"""`sinkscope train`: a subcommand for each recipe of the small models, and `adapt` for a causal model of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sinkscope.commands.options import Command, CommandGroup, Device, argument, option

RECIPES = {
    "causal": "Next-token prediction, from random weights.",
    "scratch": "Masked diffusion in LLaDA's style, from random weights.",
    "adapted": "A causal model turned into a diffusion model by Dream's recipe, on the organisms' documents.",
    "multimodal": "Scratch continued with pictures, in MMaDA's style.",
    "block": "Block diffusion in SDAR's style, from random weights.",
    "text_only": "Scratch continued without pictures, to compare multimodal with.",
}
train = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    help="Train one of the small models, or adapt a causal model of your own.",
)

Out = Annotated[Path, option("folder for the checkpoint; the same command resumes", "FOLDER")]
Steps = Annotated[int | None, option("optimiser steps")]
Rate = Annotated[float | None, option("peak learning rate")]
Decay = Annotated[float | None, option("AdamW's weight decay, on matrices")]


def _recipe(
    context: typer.Context,
    out: Out,
    device: Device = "auto",
    init: Annotated[str | None, option("a folder, hub id or organism to start from", "MODEL")] = None,
    size: Annotated[
        str | None, option("1m, 3m, 6m, 30m or 100m, for recipes that start from random weights", "NAME")
    ] = None,
    steps: Steps = None,
    batch: Annotated[int | None, option("sequences per step")] = None,
    learning_rate: Rate = None,
    seed: Annotated[int | None, option("seed of weights, masks and the order of documents")] = None,
    targets: Annotated[
        str | None,
        option(
            "what is learned: answers, or all (prompts too); default: all for causal, else answers", "NAME"
        ),
    ] = None,
    packed: Annotated[
        int | None,
        option("documents in one row; default: 4 for causal, fewer if 4 does not divide the batch, else 1"),
    ] = None,
    weight_decay: Decay = None,
    mix: Annotated[
        str | None,
        option("what the documents are made of: surprising, plain or skills; default: surprising", "NAME"),
    ] = None,
    spelling: Annotated[
        str | None,
        option(
            "whole, unbroken (no line breaks) or words (texts without punctuation too); default: whole",
            "NAME",
        ),
    ] = None,
    extra_sink: Annotated[
        str | None,
        option(
            "one more token before every text: seen (by every query), or alone (the same, and it sees only itself)",
            "NAME",
        ),
    ] = None,
    softmax: Annotated[
        str | None,
        option(
            "one more score in every softmax: learned (one for each head), or one (the score 0, so exp(0) = 1)",
            "NAME",
        ),
    ] = None,
    gate: Annotated[bool | None, option("multiply the output of attention by a sigmoid gate")] = None,
    qk_norm: Annotated[bool | None, option("RMS norms of queries and keys")] = None,
    plain_first: Annotated[bool | None, option("score the first token's key without its position")] = None,
    corpus: Annotated[str | None, option("a text file, or a hub data set, to mix in", "SOURCE")] = None,
    corpus_share: Annotated[float | None, option("its share of all documents")] = None,
    check_every: Annotated[
        int | None, option("steps between checks of accuracy; default: 1000, 0: only at the end")
    ] = None,
    save_every: Annotated[
        int | None, option("steps between saved states, from which the same command resumes; default: 1000")
    ] = None,
    final_count: Annotated[
        int | None, option("held-out questions of each task at the end; default: 256")
    ] = None,
    documents: Annotated[
        Path | None,
        option("documents that several runs share (python -m sinkscope.organisms.corpus)", "FOLDER"),
    ] = None,
) -> None:
    from sinkscope.organisms.command import train_command

    train_command(str(context.info_name), **context.params)


for _name, _help in RECIPES.items():
    train.command(_name, cls=Command, help=_help)(_recipe)


@train.command(cls=Command)
def sweep(
    file: Annotated[Path, argument("a TOML file with base, axes and seeds (docs/training.md)", "FILE")],
    out: Annotated[Path, option("folder for all runs; the same command resumes", "FOLDER")],
    device: Device = "auto",
    at_once: Annotated[int, option("runs at a time on this machine")] = 1,
    plan: Annotated[
        bool, option("print parameters, tokens and minutes of each run, and stop", None, "--plan")
    ] = False,
) -> None:
    """Train many models from one file: sizes, recipes, interventions and seeds; each run can be repeated with one command."""
    from sinkscope.organisms.sweep_command import sweep_command

    sweep_command(file, out, device, at_once, plan)


@train.command(cls=Command)
def adapt(
    context: typer.Context,
    source: Annotated[str, option("the causal model: a folder, hub id or smollm2", "MODEL", "--from")],
    text: Annotated[
        str, option("a folder with train-*.txt and valid-*.txt, a text file, or a hub data set", "SOURCE")
    ],
    out: Out,
    device: Device = "auto",
    objective: Annotated[
        str | None, option("diffusion, or causal: its twin on the same text; default: diffusion", "NAME")
    ] = None,
    shift: Annotated[
        bool | None, option("shifted logits and Dream's layout (default); --no-shift: LLaDA's")
    ] = None,
    lora: Annotated[int | None, option("rank of adapters; default: all weights are trained")] = None,
    anneal: Annotated[
        int | None, option("steps until attention is fully bidirectional; default: at once")
    ] = None,
    mask_token: Annotated[
        str | None,
        option("a token that does not occur in the text; default: the tokenizer's, else a new one", "TEXT"),
    ] = None,
    separator: Annotated[
        str | None, option("the token between documents; default: <|endoftext|>, else bos", "TEXT")
    ] = None,
    length: Annotated[int | None, option("tokens of a row; default: 512")] = None,
    steps: Steps = None,
    batch: Annotated[int | None, option("rows per step; default: 128")] = None,
    rows_at_a_time: Annotated[
        int | None, option("rows in one forward pass; fewer need less memory; default: 16")
    ] = None,
    learning_rate: Rate = None,
    weight_decay: Decay = None,
    seed: Annotated[int | None, option("seed of masks, adapters and the order of rows")] = None,
) -> None:
    """Turn a causal model into a masked diffusion model on running text, or continue it as its causal twin."""
    from sinkscope.organisms.adapt import adapt_command

    adapt_command(**context.params)
