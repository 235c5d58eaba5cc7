"""How commands are declared: `options.toml` has the options of each, and `add_command` joins them to the function behind it.

The function has the same parameters, and is imported when the command runs.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

PANEL = "Decoding"
TYPES: dict[str, Any] = {
    "int": int, "float": float, "str": str, "bool": bool, "flag": bool, "path": Path, "strs": list[str], "ints": list[int],
    "paths": list[Path],
}  # fmt: skip
KINDS = {"int": "N", "integer": "N", "float": "NUMBER", "path": "PATH"}
"""A parameter's type, as click or typer call it → what stands for its value in help."""

TABLE: dict[str, Any] = tomllib.loads((Path(__file__).parent / "options.toml").read_text(encoding="utf-8"))
DECODING: Mapping[str, tuple[str, str, str]] = TABLE["decoding"]
"""Option of a decoding → its type, what stands for its value in help, and its help."""

READING: Mapping[str, tuple[str, str, str]] = DECODING | TABLE["reading"]
"""The same with the options of readings."""


def parameter(
    name: str, kind: str, value: str, words: str, more: Mapping[str, Any] | None = None
) -> inspect.Parameter:
    """An option or argument as options.toml writes it."""
    more = more or {}
    default = more.get("default", False if kind == "flag" else None)
    shown: dict[str, Any] = {"help": words, "metavar": value or None, "rich_help_panel": more.get("panel")}
    flag = more.get("flag", f"--{name.replace('_', '-')}" if kind == "flag" else "")
    info = typer.Argument(**shown) if more.get("argument") else typer.Option(*filter(None, [flag]), **shown)
    wanted = TYPES[kind]
    if more.get("required"):
        default = inspect.Parameter.empty
    elif default is None:
        wanted = wanted | None
    kept = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kept, default=default, annotation=Annotated[wanted, info])


def add_command(
    app: typer.Typer,
    name: str,
    words: str,
    options: Mapping[str, Any],
    function: str | Callable[..., Any],
    more: Mapping[str, tuple[str, str, str]] | None = None,
) -> None:
    """Register a command.

    Args:
        words: its help. options: as in options.toml.
        function: what it calls, or "module:function", which is imported then.
        more: further options, such as DECODING; those that were given reach the function as `decoding`, by name.
    """
    parameters = [
        parameter(key, *(TABLE["shared"][key] if told == "shared" else told)) for key, told in options.items()
    ]
    for key, (kind, value, help) in (more or {}).items():
        parameters.append(parameter(key, kind, value, help, {"panel": PANEL}))

    def run(**given: Any) -> None:
        if more is not None:
            decoding = {key: given.pop(key) for key in more}
            given["decoding"] = {key: value for key, value in decoding.items() if value is not None}
        if isinstance(function, str):
            module, _, called = function.partition(":")
            getattr(import_module(module), called)(**given)
        else:
            function(**given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    app.command(name, cls=Command, help=words)(run)


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


class CommandGroup(TyperGroup):
    """A group of commands whose help names values in plain words."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [_in_plain_words(parameter) for parameter in super().get_params(ctx)]
