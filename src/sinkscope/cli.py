"""The command line. Each command lives in `sinkscope/commands/`; here are only its options and its help.

Everything heavy is imported inside the commands, so that `sinkscope --help` answers at once. Errors that a person can act on
are one line on stderr and exit code 2; nobody sees a stack trace for bad input.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sinkscope.commands.options import Device, Dtype, PolicyText, Revision, Source, with_decoding
from sinkscope.errors import SinkscopeError
from sinkscope.version import __version__

app = typer.Typer(
    name="sinkscope",
    help="An instrument for attention sinks in language models that generate step by step.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

CAPTURE = "What is recorded"


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sinkscope {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Where are the sinks, do they move, what are they made of, and what breaks when they are taken away?"""


@app.command()
def models(
    source: Annotated[
        str | None, typer.Argument(help="a hub id, or a folder in the Hugging Face layout")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="load it and prove that its attention is measured right")
    ] = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: Revision = None,
) -> None:
    """List the families and known checkpoints, or say what a checkpoint is."""
    from sinkscope.commands import models as command

    if source is None:
        command.list_families()
    else:
        command.describe(source, revision, check, device, dtype)


@app.command()
@with_decoding
def trace(
    source: Source,
    out: Annotated[Path, typer.Option(help="where the trace goes; ends in .zarr.zip")],
    prompt: Annotated[list[str] | None, typer.Option(help="a user turn; may be given several times")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="a text file with one user turn")] = None,
    prompt_ids: Annotated[Path | None, typer.Option(help="token ids, a row per line, or JSON")] = None,
    policy: PolicyText = None,
    seed: Annotated[
        int | None, typer.Option(help="random seed; several prompts get seed, seed + 1, …")
    ] = None,
    level: Annotated[str, typer.Option(help="heads | layers | maps", rich_help_panel=CAPTURE)] = "heads",
    by_query: Annotated[
        bool, typer.Option(help="masked, decided, prompt queries apart", rich_help_panel=CAPTURE)
    ] = False,
    anatomy: Annotated[
        bool, typer.Option(help="norms and largest activations", rich_help_panel=CAPTURE)
    ] = False,
    every: Annotated[int, typer.Option(help="record every n-th step", rich_help_panel=CAPTURE)] = 1,
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: Revision = None,
    decoding: dict[str, Any] | None = None,
) -> None:
    """Generate with attention recorded; decoding options are those of the model's family, with its official defaults."""
    from sinkscope.commands import trace as command
    from sinkscope.trace.capture import Capture

    capture = Capture(level, by_query, anatomy, every=every)  # type: ignore[arg-type]  # Capture checks the word
    command.trace(
        command.Request(
            source,
            tuple(prompt or ()),
            prompt_file,
            prompt_ids,
            out,
            decoding or {},
            policy,
            seed,
            capture,
            device,
            dtype,
            revision,
        )
    )


@app.command()
@with_decoding
def evaluate(
    source: Source,
    task: Annotated[
        str,
        typer.Option(
            help="word_problems, small_code, gsm8k, humaneval; gsm8k:paper-llada for a named scheme"
        ),
    ],
    policy: PolicyText = None,
    limit: Annotated[int | None, typer.Option(help="the first so many documents; all when left out")] = None,
    out: Annotated[
        Path | None, typer.Option(help="the run's folder; the same command goes on where it was stopped")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="the task's JSON-lines file; the hub when left out")
    ] = None,
    batch_size: Annotated[
        str, typer.Option(help="answers at a time, or auto; no result depends on it")
    ] = "auto",
    seed: Annotated[
        list[int] | None, typer.Option(help="several times for a decoding that draws; default: 0")
    ] = None,
    grade: Annotated[bool, typer.Option(help="--no-grade: only generate; grade later, or elsewhere")] = True,
    sandbox: Annotated[
        str, typer.Option(help="bubblewrap; none runs model-written code with your rights")
    ] = "bubblewrap",
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: Revision = None,
    decoding: dict[str, Any] | None = None,
) -> None:
    """Answer a task's documents and grade them; decoding options override those of the task's scheme."""
    from sinkscope.commands import evaluate as command

    command.evaluate(
        command.Request(
            source, task, policy, limit, out, data, batch_size, tuple(seed or (0,)), grade, sandbox, decoding or {},
            device, dtype, revision,
        )
    )  # fmt: skip


@app.command()
def grade(
    run: Annotated[Path, typer.Argument(help="the folder of an evaluation")],
    again: Annotated[bool, typer.Option("--again", help="grade what has a grade already, too")] = False,
    data: Annotated[
        Path | None, typer.Option(help="the task's JSON-lines file; the hub when left out")
    ] = None,
    sandbox: Annotated[
        str, typer.Option(help="bubblewrap; none runs model-written code with your rights")
    ] = "bubblewrap",
) -> None:
    """Grade the saved answers of an evaluation, without a model, as often as you like."""
    from sinkscope.commands.grade import grade as command

    command(run, again, data, sandbox)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="folders of evaluations, or folders that hold some")],
    csv: Annotated[Path | None, typer.Option(help="also write the table to this file")] = None,
) -> None:
    """Put evaluations in one table: policies against none and against their controls, with paired statistics."""
    from sinkscope.commands.compare import compare as command

    command(runs, csv)


@app.command()
def summary(
    path: Annotated[
        Path, typer.Argument(help="a .zarr.zip, or the .partial folder of a recording that was stopped")
    ],
) -> None:
    """Say what is in a trace: where the sinks are, how strong, moving or not, made of what."""
    from sinkscope.commands.summary import summarise

    summarise(path)


@app.command()
def view(
    path: Annotated[Path, typer.Argument(metavar="TRACE", help="a .zarr.zip, or a .partial folder")],
    other: Annotated[Path | None, typer.Argument(help="a second trace, shown beside the first")] = None,
    out: Annotated[Path | None, typer.Option(help="the page; default: named after the trace, here")] = None,
    heads: Annotated[str, typer.Option(help="layer:head,… to embed in full")] = "",
    samples: Annotated[str, typer.Option(help="which samples, such as 0,2; default: as many as fit")] = "",
) -> None:
    """Make one HTML file to look at a trace in a browser, step by step; two traces stand side by side."""
    from sinkscope.commands.view import view as command

    command(path, other, out, heads, samples)


@app.command()
def study(
    name: Annotated[
        str, typer.Argument(help="organisms, full, paper, mechanisms, quick, or a .toml file")
    ] = "organisms",
    out: Annotated[Path | None, typer.Option(help="the study's folder; default: study-NAME")] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="print cells, forward passes, storage and time, and stop")
    ] = False,
    model: Annotated[
        list[str] | None, typer.Option(help="a model in place of the study's; may be given several times")
    ] = None,
    task: Annotated[str | None, typer.Option(help="a task in place of the study's")] = None,
    samples: Annotated[int | None, typer.Option(help="documents per cell in place of the study's")] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="TASK=FILE: a task's JSON-lines file, such as gsm8k=test.jsonl")
    ] = None,
    on: Annotated[str, typer.Option(help="local | ray | slurm")] = "local",
    workers: Annotated[
        int | None, typer.Option(help="at a time; default: one per GPU, else per core")
    ] = None,
    shard: Annotated[int, typer.Option(help="answers in a shard; may change between two runs")] = 64,
    option: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE for ray (address) or slurm (slurm_partition, …)")
    ] = None,
    sandbox: Annotated[str, typer.Option(help="bubblewrap, or by explicit choice none")] = "bubblewrap",
    device: Device = "auto",
    dtype: Annotated[str | None, typer.Option(help="in place of the study's")] = None,
    no_report: Annotated[
        bool,
        typer.Option("--no-report", help="stop after the tables; the same command without it does the rest"),
    ] = False,
) -> None:
    """Run a whole study, or what is missing of it: evaluations, traces, tables, report."""
    from sinkscope.commands import study as command

    command.study(
        command.Request(
            name,
            out,
            tuple(model or ()),
            task,
            samples,
            tuple(data or ()),
            on,
            device,
            dtype,
            workers,
            shard,
            sandbox,
            tuple(option or ()),
            plan,
            not no_report,
        )
    )


@app.command()
def status(
    folder: Annotated[Path, typer.Argument(help="the folder of a study, running or not")],
) -> None:
    """Say how far a study is; reads while it runs."""
    from sinkscope.commands.status import show

    show(folder)


@app.command()
def figures(
    source: Annotated[
        Path, typer.Argument(metavar="TRACE_OR_DIR", help="a .zarr.zip, or a folder with several")
    ],
    out: Annotated[Path, typer.Option(help="the folder for SVG, PDF, CSV and captions")],
    only: Annotated[
        str, typer.Option(help="such as figure_1,table_2; default: all that the traces allow")
    ] = "",
    accuracies: Annotated[
        Path | None, typer.Option(help="for table 1: CSV with task, policy, model, accuracy, stderr")
    ] = None,
) -> None:
    """Draw the paper's figures and tables, with the data behind each; figures 4, 6 and 8 need a trace at level maps."""
    from sinkscope.commands.figures import figures as command

    command(source, out, only, accuracies)


@app.command()
def bench(
    shape: Annotated[
        str | None,
        typer.Argument(
            help="llada-8b, dream-7b, llada-small (random weights), or a checkpoint; default: by device"
        ),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    grid: Annotated[str | None, typer.Option(help="batch x length pairs, such as 1x384,8x512")] = None,
    steps: Annotated[int | None, typer.Option(help="steps of each measurement")] = None,
    alone: Annotated[
        bool, typer.Option("--alone", help="leave out the official style and eager maps")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="a JSON file to keep the result in")] = None,
) -> None:
    """Measure what tracing costs on this machine, as ratios of one run."""
    from sinkscope.bench.command import bench_command

    bench_command(shape, device, dtype, grid, steps, alone, out)


@app.command()
def train(
    recipe: Annotated[
        str, typer.Argument(help="causal, scratch, adapted, multimodal, or text_only: scratch continued")
    ],
    out: Annotated[Path, typer.Option(help="folder for the checkpoint; the same command resumes")],
    device: Device = "auto",
    init: Annotated[str | None, typer.Option(help="a folder, hub id or organism to start from")] = None,
    size: Annotated[
        str | None, typer.Option(help="1m, 3m, 6m or 30m, for recipes that start from random weights")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="optimiser steps")] = None,
    batch: Annotated[int | None, typer.Option(help="sequences per step")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="peak learning rate")] = None,
    seed: Annotated[
        int | None, typer.Option(help="seed of weights, masks and the order of documents")
    ] = None,
    targets: Annotated[
        str | None,
        typer.Option(help="answers, or all: prompts are learned too; default: all for causal, else answers"),
    ] = None,
    packed: Annotated[
        int | None,
        typer.Option(
            help="documents in one row of a causal model; default: 4, or what of it divides the batch"
        ),
    ] = None,
    weight_decay: Annotated[float | None, typer.Option(help="AdamW's, on matrices")] = None,
    mix: Annotated[
        str | None,
        typer.Option(help="surprising, or plain: what the documents are made of; default: surprising"),
    ] = None,
    corpus: Annotated[str | None, typer.Option(help="a text file, or a hub data set, to mix in")] = None,
    corpus_share: Annotated[float | None, typer.Option(help="its share of all documents")] = None,
    documents: Annotated[
        Path | None,
        typer.Option(help="documents that several runs share (python -m sinkscope.organisms.corpus)"),
    ] = None,
) -> None:
    """Train one of the small models, or adapt a causal checkpoint into a diffusion model by Dream's recipe."""
    from sinkscope.organisms.command import train_command

    given = {
        "device": device, "init": init, "size": size, "steps": steps, "batch": batch, "learning_rate": learning_rate,
        "seed": seed, "targets": targets, "packed": packed, "weight_decay": weight_decay,
        "mix": mix, "corpus": corpus, "corpus_share": corpus_share, "documents": documents,
    }  # fmt: skip
    train_command(recipe, out, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


def main() -> None:
    """Entry point: runs the command and turns errors into one line and an exit code."""
    try:
        code = app(standalone_mode=False)
    except SinkscopeError as error:
        _fail(str(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", 130)
    except BrokenPipeError:
        sys.exit(1)
    except Exception as error:
        # Usage errors are click's or, from typer 0.29 on, of the copy of click inside typer: known by what they can do.
        if not hasattr(error, "show") or not hasattr(error, "exit_code"):
            raise
        error.show()
        sys.exit(error.exit_code)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> None:
    print("error: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
