"""The command line. `commands/options.toml` has the options and the help of every command; `commands/NAME.py` is what it does.

Everything heavy is imported when a command runs, so that `sinkscope --help` answers at once. An error that a person can act
on is one line on stderr and exit code 2; bad input never shows a stack trace.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from typing import Annotated

import typer

from sinkscope.commands.options import DECODING, READING, TABLE, Command, CommandGroup, add_command
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


def _lm_eval(context: typer.Context) -> None:
    from sinkscope.lm_eval import main as lm_eval_main

    lm_eval_main(context.args)


for _name, _about in TABLE["command"].items():
    if _name == "lm-eval":  # every option is lm-eval's own
        _rest = {"allow_extra_args": True, "ignore_unknown_options": True}
        _add = app.command(
            _name, cls=Command, help=_about["help"], add_help_option=False, context_settings=_rest
        )
        _add(_lm_eval)
        continue
    _function = _about.get("call", f"sinkscope.commands.{_name}:{_name}")
    _more = {"decoding": DECODING, "reading": READING}.get(_about.get("more", ""))
    add_command(app, _name, _about["help"], _about["options"], _function, _more)
app.add_typer(train, name="train")


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
        # Usage errors are click's or, from typer 0.29 on, of the copy of click inside typer: known by what they can do.
        if not hasattr(error, "show") or not hasattr(error, "exit_code"):
            raise
        error.show()
        sys.exit(error.exit_code)
    sys.exit(code if isinstance(code, int) else 0)


def _while_reading(error: Exception) -> bool:
    """Whether zarr raised it while it read a trace; arrays are read when they are used, long after the trace was opened."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(str(frame.f_globals.get("__name__")).startswith("zarr.") for frame, _ in frames)


def _fail(message: str, code: int) -> None:
    from sinkscope.text import visible

    print("error: " + visible(" ".join(message.split())), file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
