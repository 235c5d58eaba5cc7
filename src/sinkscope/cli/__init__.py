"""The command line: each command is a plain typer function in a file of its own.

Everything heavy is imported when a command runs, so that `sinkscope --help` answers at once. An error that a person can act
on is one line on stderr and exit code 2; bad input never shows a stack trace.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from typing import Annotated, Any

import typer

from sinkscope.base.errors import SinkscopeError
from sinkscope.base.version import __version__
from sinkscope.cli import bench, compare, evaluate, inspect, lm_eval, models, show, study, trace
from sinkscope.cli.plugged import PASSED_ON, Command, PluggedGroup

app = typer.Typer(
    name="sinkscope",
    cls=PluggedGroup,
    help="An instrument for attention sinks in language models that generate step by step.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _module, _name in (
    (models, "models"), (trace, "trace"), (show, "show"), (evaluate, "evaluate"), (compare, "compare"),
    (inspect, "inspect"), (study, "study"), (bench, "bench"), (models, "fetch"),
):  # fmt: skip
    app.command(cls=Command)(getattr(_module, _name))
app.command("lm-eval", cls=Command, **PASSED_ON)(lm_eval.lm_eval)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"sinkscope {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Where are the sinks, do they move, what are they made of, and what breaks when they are taken away?"""


def main() -> None:
    """Run the command line, and turn errors into one line and an exit code."""
    # Read when torch is imported. By default the threads of a parallel loop wait by spinning: on a host that others use too,
    # that made a trace five times slower (85 s instead of 16 s, two cores under a load of 8). Results are the same bits.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # zarr reads the chunks of a trace in tasks. Of several that fail one is asked why; asyncio would print the others' traces.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
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
            warnings.simplefilter("ignore")  # about zarr's other tasks, which nobody waits for any more
            _fail(f"the trace is damaged: its numbers cannot be read ({error}); record it again", 2)
        if isinstance(error, OSError) and error.filename is not None:
            from sinkscope.base.files import remedy

            _fail(f"{error.filename}: {error.strerror}; {remedy(error)}", 2)
        # Usage errors are click's or, from typer 0.29 on, of the copy of click inside typer: known by what they can do.
        if not hasattr(error, "format_message") or not hasattr(error, "exit_code"):
            raise
        usage: Any = error
        if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command: its help
            usage.show()
            sys.exit(usage.exit_code)
        message, context = usage.format_message(), getattr(usage, "ctx", None)
        stop = "" if message.endswith((".", "?")) else "."
        _fail(f"{message}{stop} See {context.command_path} --help" if context else message, usage.exit_code)
    sys.exit(code if isinstance(code, int) else 0)


def _while_reading(error: Exception) -> bool:
    """Whether zarr raised it while it read a trace; arrays are read when they are used, long after the trace was opened."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(str(frame.f_globals.get("__name__")).startswith("zarr.") for frame, _ in frames)


def _fail(message: str, code: int) -> None:
    from sinkscope.base.text import visible

    print("error: " + visible(" ".join(message.split())), file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
