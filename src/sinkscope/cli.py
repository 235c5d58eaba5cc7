"""The command line. Each command lives in `sinkscope/commands/`; here are only its options and its help.

Everything heavy is imported inside the commands, so that `sinkscope --help` answers at once. Errors that a person can act on
are one line on stderr and exit code 2; nobody sees a stack trace for bad input.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import click
import typer

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

DECODING, CAPTURE = "Decoding", "What is recorded"

Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:0, mps")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16, float16, float64")]
Revision = Annotated[str | None, typer.Option(help="branch, tag or commit on the hub")]


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
def trace(
    source: Annotated[str, typer.Argument(help="a hub id, or a folder in the Hugging Face layout")],
    out: Annotated[Path, typer.Option(help="where the trace goes; ends in .zarr.zip")],
    prompt: Annotated[list[str] | None, typer.Option(help="a user turn; may be given several times")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="a text file with one user turn")] = None,
    prompt_ids: Annotated[Path | None, typer.Option(help="token ids, a row per line, or JSON")] = None,
    policy: Annotated[
        str | None, typer.Option(help="such as top:5, top:1@layer, random(top:5), window:64,first=4")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="random seed; several prompts get seed, seed + 1, …")
    ] = None,
    length: Annotated[int | None, typer.Option(help="new tokens [128]", rich_help_panel=DECODING)] = None,
    steps: Annotated[
        int | None, typer.Option(help="llada, dream, mmada: forward passes", rich_help_panel=DECODING)
    ] = None,
    block: Annotated[
        int | None, typer.Option(help="llada, mmada: tokens per block [32]", rich_help_panel=DECODING)
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0: the most likely token", rich_help_panel=DECODING)
    ] = None,
    cfg: Annotated[
        float | None, typer.Option(help="llada, mmada: guidance", rich_help_panel=DECODING)
    ] = None,
    remasking: Annotated[
        str | None, typer.Option(help="llada, mmada: low_confidence | random", rich_help_panel=DECODING)
    ] = None,
    logits_eos_inf: Annotated[bool | None, typer.Option(help="llada", rich_help_panel=DECODING)] = None,
    confidence_eos_eot_inf: Annotated[
        bool | None, typer.Option(help="llada", rich_help_panel=DECODING)
    ] = None,
    eot_id: Annotated[
        int | None, typer.Option(help="llada: end-of-turn id", rich_help_panel=DECODING)
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(help="dream: origin | maskgit_plus | topk_margin | entropy", rich_help_panel=DECODING),
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="dream, causal", rich_help_panel=DECODING)] = None,
    top_k: Annotated[int | None, typer.Option(help="dream", rich_help_panel=DECODING)] = None,
    alg_temp: Annotated[float | None, typer.Option(help="dream", rich_help_panel=DECODING)] = None,
    eps: Annotated[
        float | None, typer.Option(help="dream: end of the schedule", rich_help_panel=DECODING)
    ] = None,
    stop_at: Annotated[
        int | None, typer.Option(help="mmada: id that ends a block", rich_help_panel=DECODING)
    ] = None,
    eos: Annotated[
        str | None, typer.Option(help="causal: model | none | ids", rich_help_panel=DECODING)
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
) -> None:
    """Generate with attention recorded; decoding options are those of the model's family, with its official defaults."""
    from sinkscope.commands import trace as command
    from sinkscope.trace.capture import Capture

    options = {
        "length": length, "steps": steps, "block": block, "temperature": temperature, "cfg": cfg, "remasking": remasking,
        "logits_eos_inf": logits_eos_inf, "confidence_eos_eot_inf": confidence_eos_eot_inf, "eot_id": eot_id,
        "algorithm": algorithm, "top_p": top_p, "top_k": top_k, "alg_temp": alg_temp, "eps": eps, "stop_at": stop_at, "eos": eos,
    }  # fmt: skip
    capture = Capture(level, by_query, anatomy, every=every)  # type: ignore[arg-type]  # Capture checks the word
    command.trace(
        command.Request(
            source,
            tuple(prompt or ()),
            prompt_file,
            prompt_ids,
            out,
            options,
            policy,
            seed,
            capture,
            device,
            dtype,
            revision,
        )
    )


@app.command()
def summary(
    path: Annotated[
        Path, typer.Argument(help="a .zarr.zip, or the .partial folder of a recording that was stopped")
    ],
) -> None:
    """Say what is in a trace: where the sinks are, how strong, moving or not, made of what."""
    from sinkscope.commands.summary import summarise

    summarise(path)


def main() -> None:
    """Entry point: runs the command and turns errors into one line and an exit code."""
    try:
        code = app(standalone_mode=False)
    except click.exceptions.Abort:
        _fail("interrupted", 130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except SinkscopeError as error:
        _fail(str(error), 2)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except BrokenPipeError:
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> None:
    print("error: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
