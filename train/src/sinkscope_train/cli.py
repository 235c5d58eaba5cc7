"""`sinkscope train`: a command for each recipe, `adapt` for a causal model of one's own, and `sweep`.

Options are the fields of the dataclasses that they set (`options.kinds_of`). What needs torch is imported when a command runs.
"""

from __future__ import annotations

import inspect
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from sinkscope import SinkscopeError
from sinkscope.base.text import aligned
from sinkscope_train.options import HELP, OF_A_RUN, AdaptOptions, kinds_of
from sinkscope_train.recipe import CONTROLS, RECIPES, Adaptation

train = typer.Typer(no_args_is_help=True, help="Train one of the small models, or adapt a causal model of your own.")
METAVARS = {int: "N", float: "NUMBER", str: "TEXT", Path: "FOLDER"}
REQUIRED = inspect.Parameter.empty


def parameter(name: str, kind: type, words: str, default: Any = None, *flags: str) -> inspect.Parameter:
    """An option; one that is not given is `default`."""
    optional: Any = kind | None if default is None else kind
    annotation = Annotated[optional, typer.Option(*flags, metavar=METAVARS.get(kind), help=words)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


OUT = parameter("out", Path, "folder for what is made; the same command resumes", REQUIRED)
DEVICE = parameter("device", str, "auto, cpu, cuda", "auto")


def add(name: str, call: Callable[..., Any], *first: inspect.Parameter, kinds: Mapping[str, type], words: str) -> None:
    """A command with these parameters and an option for each kind. words: the section of options.toml with their help."""

    def run(**options: Any) -> None:
        call(**options)

    more = (parameter(key, kind, HELP[words][key]) for key, kind in kinds.items())
    run.__signature__ = inspect.Signature([*first, *more])  # type: ignore[attr-defined]
    train.command(name, help=HELP["commands"][name])(run)


def _recipe(name: str, **options: Any) -> None:
    from sinkscope_train.train import train_recipe

    train_recipe(name, **options)


def _adapt(**options: Any) -> None:
    from sinkscope_train.adapt import adapt_source

    adapt_source(**options)


for _name in RECIPES | CONTROLS:
    add(_name, partial(_recipe, _name), OUT, DEVICE, kinds=OF_A_RUN, words="recipe")
add(
    "adapt",
    _adapt,
    parameter("source", str, "the causal model: a folder, hub id or smollm2", REQUIRED, "--from"),
    parameter("text", str, "a folder with train-*.txt and valid-*.txt, a text file, or a hub data set", REQUIRED),
    OUT,
    DEVICE,
    kinds=kinds_of("adapt", Adaptation, AdaptOptions),
    words="adapt",
)


@train.command(help=HELP["commands"]["sweep"])
def sweep(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="a TOML file with base, axes and seeds (docs/training.md)")
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="folder for all runs; the same command resumes")],
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda")] = "auto",
    at_once: Annotated[int, typer.Option(metavar="N", help="runs at a time on this machine")] = 1,
    plan: Annotated[bool, typer.Option("--plan", help="print parameters and tokens of each run, and stop")] = False,
) -> None:
    from sinkscope_train import sweep as sweeps

    asked = sweeps.read_sweep(file)
    if plan:
        rows = [(run.name, *sweeps.cost(run)) for run in asked.runs]
        total = sum(tokens for _, _, tokens in rows)
        table = [["run", "parameters", "tokens"], *([name, f"{p:,}", f"{t:,}"] for name, p, t in rows)]
        print(*aligned([*table, [f"{len(rows)} runs", "", f"{total:,}"]]), sep="\n")
        print("nothing was trained: leave out --plan")
        return
    # A scheduler's SIGTERM ends the runs with the sweep, and so does a Ctrl-C where a shell had it ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    # Each line at once, also where the output is a file that someone watches.
    outcome = sweeps.run_sweep(asked, out, device, at_once, partial(print, flush=True))
    if outcome.failed:
        name, why = next(iter(outcome.failed.items()))
        raise SinkscopeError(
            f"{len(outcome.failed)} of {len(asked.runs)} runs failed, the first: {name}: {why}. See output.txt in their folders "
            f"under {out}; the same command tries them again"
        )
    print(f"all {len(asked.runs)} runs are finished; read them with: sinkscope study ladder --runs {out}")
