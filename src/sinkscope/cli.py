"""The command line. Each command lives in `sinkscope/commands/`; here are only its options and its help.

Everything heavy is imported inside the commands, so that `sinkscope --help` answers at once. Errors that a person can act on
are one line on stderr and exit code 2; nobody sees a stack trace for bad input.
"""

from __future__ import annotations

import sys
from typing import Annotated, Optional

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

Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:0, mps")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16, float16, float64")]
Revision = Annotated[Optional[str], typer.Option(help="branch, tag or commit on the hub")]


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
    source: Annotated[Optional[str], typer.Argument(help="a hub id, or a folder in the Hugging Face layout")] = None,
    check: Annotated[bool, typer.Option("--check", help="load it and prove that its attention is measured right")] = False,
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
