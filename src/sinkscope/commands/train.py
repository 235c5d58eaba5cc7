"""`sinkscope train`: a subcommand for each recipe of the small models, `sweep`, and `adapt` for a causal model of one's own."""

from __future__ import annotations

import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import typer

from sinkscope.commands.options import CommandGroup, add_command

TABLE: dict[str, Any] = tomllib.loads(
    (Path(__file__).parents[1] / "organisms" / "data" / "train.toml").read_text(encoding="utf-8")
)
train = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    help="Train one of the small models, or adapt a causal model of your own.",
)


def _recipe(name: str, **options: Any) -> None:
    from sinkscope.organisms.command import train_command

    train_command(name, **options)


def _sweep(plan: bool, **options: Any) -> None:
    from sinkscope.organisms.sweep_command import sweep_command

    sweep_command(**options, planned=plan)


for _name, _help in TABLE["recipes"].items():
    add_command(train, _name, _help, TABLE["recipe"], partial(_recipe, _name))
add_command(
    train,
    "sweep",
    "Train many models from one file: sizes, recipes, interventions and seeds; each run can be repeated with one command.",
    TABLE["sweep"],
    _sweep,
)
add_command(
    train,
    "adapt",
    "Turn a causal model into a masked diffusion model on running text, or continue it as its causal twin.",
    TABLE["adapt"],
    "sinkscope.organisms.adapt:adapt_command",
)
