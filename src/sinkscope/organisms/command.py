"""`sinkscope train`: options as a person gives them become a recipe and a run.

    torchrun --nproc-per-node 4 -m sinkscope.organisms.command scratch --out runs/scratch

is the same command without typer, for machines that have torch and little else.
"""

from __future__ import annotations

import argparse
import os
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from sinkscope import checks
from sinkscope.errors import InputError, plainly
from sinkscope.files import write_atomically
from sinkscope.organisms import recipe as recipes
from sinkscope.organisms.loop import LoopOptions, prepare
from sinkscope.organisms.train import TrainingOptions, train

TYPES: dict[str, type] = {"str": str, "path": str, "bool": bool, "int": int, "float": float}
TABLE = tomllib.loads((Path(__file__).parent / "data" / "train.toml").read_text(encoding="utf-8"))
OPTIONS = {name: TYPES[told[0]] for name, told in TABLE["recipe"].items() if name not in ("out", "device")}
"""What a run's own command takes, besides its folder and device, and what each is."""
RECIPE_OPTIONS = {field.name for field in fields(recipes.Recipe)}


def train_command(recipe: str, out: str | Path, device: str = "auto", **options: Any) -> dict[str, Any]:
    """Trains an organism, or goes on with a run that was interrupted in the same folder.

    Args:
        recipe: causal, scratch, adapted, multimodal or block; text_only, which is scratch continued, to compare multimodal with.
        out: folder for the checkpoint in its official layout, training.json, emergence.json and log.jsonl.
        device: auto, cpu, cuda. Several GPUs: start the command under torchrun.
        options: settings of the recipe (`Recipe`) and of the run (`TrainingOptions`); None: not given. `size` is one of
            SIZES; `init` a folder or hub id to start from (recipe adapted: any causal Llama or Qwen2 checkpoint).

    Returns:
        What training.json holds.
    """
    given = {name: value for name, value in options.items() if value is not None}
    changes = {name: given.pop(name) for name in list(given) if name in RECIPE_OPTIONS}
    chosen = recipes.recipe(recipe, **changes)
    check_options(given)
    if "documents" in given:
        given["documents"] = Path(given["documents"])
    given["quiet"] = given.get("quiet", False) or int(os.environ.get("RANK", "0")) > 0
    line = as_line(recipe, out=str(out), device=device, **options)
    prepare(LoopOptions(out=Path(out)))
    if not given["quiet"]:
        print(line, flush=True)
    if int(os.environ.get("RANK", "0")) == 0:
        write_atomically(Path(out) / "command.txt", line + "\n")
    return train(TrainingOptions(recipe=chosen, out=Path(out), device=device, **given))


def check_options(given: Mapping[str, Any]) -> None:
    """Refuses options of a run, besides those of its recipe, that would end it hours later."""
    for name, least in (("check_every", 0), ("save_every", 0), ("final_count", 0)):
        checks.whole(name, given.get(name, least), least)
    share = given.get("corpus_share", 0.0)
    if not 0.0 <= share < 1.0:
        raise InputError(
            f"corpus_share is {share}; it must be a share of all documents: 0 or more, and below 1"
        )
    if "corpus" in given and "documents" in given:
        raise InputError(
            "corpus and documents were both given, but documents is already a finished corpus; leave one of them out"
        )


def as_line(recipe: str, **options: Any) -> str:
    """The command that repeats a run, in one line; options that are None, and quiet, are left out.

    >>> as_line("scratch", out="runs/a b", steps=20, gate=True, device="auto")
    "sinkscope train scratch --out 'runs/a b' --steps 20 --gate"
    """
    words = ["sinkscope", "train", recipe]
    for name, value in options.items():
        flag = name.replace("_", "-")
        if value is None or (name, value) == ("device", "auto") or name == "quiet":
            continue
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(value)]
    return shlex.join(words)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train an organism.")
    parser.add_argument("recipe")
    parser.add_argument("--out", required=True)
    for name, kind in OPTIONS.items():
        read: dict[str, Any] = {"action": argparse.BooleanOptionalAction} if kind is bool else {"type": kind}
        words = TABLE["recipe"][name][2].replace("%", "%%")
        parser.add_argument(f"--{name.replace('_', '-')}", **read, help=words)
    parser.add_argument("--device", default="auto")
    with plainly():
        train_command(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
