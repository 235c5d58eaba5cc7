"""How commands are declared: options that several share, the function behind each command, and values in help.

`cli.py` has a signature for each command; `command` joins it to the function of the same name and parameters in
`sinkscope/commands/NAME.py`, which is imported when the command runs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import tomllib
import typer
from typer.core import TyperCommand, TyperGroup

PANEL = "Decoding"
TYPES = {"int": int, "float": float, "str": str, "bool": bool}
KINDS = {"int": "N", "integer": "N", "float": "NUMBER", "path": "PATH"}
"""A parameter's type, as click or typer call it → what stands for its value in help."""


def option(help: str, metavar: str | None = None, *flags: str, panel: str | None = None) -> Any:
    """An option. flags: where they do not follow from the parameter's name; panel: of the help."""
    return typer.Option(*flags, help=help, metavar=metavar, rich_help_panel=panel)


def argument(help: str, metavar: str | None = None) -> Any:
    """An argument, which is given by its place."""
    return typer.Argument(help=help, metavar=metavar)


Source = Annotated[str, argument("an organism, a hub id, or a folder in the Hugging Face layout", "MODEL")]
Device = Annotated[str, option("auto, cpu, cuda, cuda:0 or mps", "NAME")]
Dtype = Annotated[str, option("auto, float32, bfloat16, float16 or float64", "NAME")]
Revision = Annotated[str | None, option("branch, tag or commit on the hub", "NAME")]
Sandbox = Annotated[
    str,
    option(
        "what confines model-written code: auto, bubblewrap, landlock; none runs it with your rights", "NAME"
    ),
]
PolicyText = Annotated[
    str | None,
    option("which keys to hide: top:5, top:1@layer, random(top:5), window:64,first=4, …", "POLICY"),
]
ReuseText = Annotated[
    str | None,
    option(
        "approximate steps: prefix:8, sparse:0.5,by=sinks, drift:0.9, or a published setting: fast-dllm, …",
        "RULE",
    ),
]
Json = Annotated[bool, option("print one JSON document in place of text", None, "--json")]
Data = Annotated[Path | None, option("the task's JSON-lines file; default: from the hub", "FILE")]

_TABLE = tomllib.loads((Path(__file__).parent / "decoding.toml").read_text(encoding="utf-8"))
DECODING: Mapping[str, tuple[str, str, str]] = _TABLE["decoding"]
"""Option of a decoding → its type, what stands for its value in help, and its help."""

READING: Mapping[str, tuple[str, str, str]] = DECODING | _TABLE["reading"]
"""The same with the options of readings."""


def command(app: typer.Typer, more: Mapping[str, tuple[str, str, str]] | None = None) -> Callable[..., Any]:
    """Register a signature as the command of its name.

    more: further options, such as DECODING; those that were given reach the function as `decoding`, by name.
    """

    def register(signature: Callable[..., None]) -> Callable[..., None]:
        plain, name = inspect.signature(signature, eval_str=True), signature.__name__
        parameters = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in plain.parameters.values()
        ]
        for key, (kind, metavar, words) in (more or {}).items():
            value: Any = TYPES[kind] | None
            parameters.append(
                inspect.Parameter(
                    key, inspect.Parameter.KEYWORD_ONLY, default=None,
                    annotation=Annotated[value, option(words, metavar, panel=PANEL)],
                )
            )  # fmt: skip

        @functools.wraps(signature)
        def run(**given: Any) -> None:
            if more is not None:
                decoding = {key: given.pop(key) for key in more}
                given["decoding"] = {key: value for key, value in decoding.items() if value is not None}
            getattr(import_module(f"sinkscope.commands.{name}"), name)(**given)

        run.__signature__ = plain.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del run.__wrapped__  # its signature is not this one's
        app.command(cls=Command)(run)
        return run

    return register


def _in_plain_words(parameter: Any) -> Any:
    """Keep Python's types out of a parameter's help: typer would write <list[str]>, and <bool> beside a switch."""
    if parameter.param_type_name == "argument" or getattr(parameter, "is_flag", False):
        words = None
    else:
        kind = parameter.bare_type() if hasattr(parameter, "bare_type") else parameter.type.name
        parameter.metavar = words = parameter.metavar or KINDS.get(str(kind).lower(), "TEXT")
    if hasattr(parameter, "display_type_rich"):  # typer from 0.27 on
        parameter.display_type_rich = lambda ctx: words
    return parameter


class Command(TyperCommand):
    """A command whose help names values in plain words."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [_in_plain_words(parameter) for parameter in super().get_params(ctx)]


class Group(TyperGroup):
    """A group of commands whose help names values in plain words."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [_in_plain_words(parameter) for parameter in super().get_params(ctx)]
