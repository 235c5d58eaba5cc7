"""Commands of other distributions: an entry point of the group `sinkscope.commands` is a typer app, its name the command's.

They are looked up when a command is not one of ours, or all are listed, so that ours do not wait for them.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from sinkscope.base.errors import InputError

GROUP = "sinkscope.commands"
APART = ("train",)
"""Commands that this project has as distributions of their own, sinkscope-NAME in the folder NAME: listed where installed."""
PASSED_ON: dict[str, Any] = {
    "add_help_option": False,
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
}
"""Settings of a command whose options are another program's."""


class _InPlainWords:
    """Help without Python's types: typer from 0.27 on would show <list[str]>, and <bool> beside a switch."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            switch = parameter.param_type_name == "argument" or getattr(parameter, "is_flag", False)
            words = None if switch else parameter.metavar or "VALUE"
            parameter.display_type_rich = lambda ctx, words=words: words
        return parameters


class Command(_InPlainWords, TyperCommand):
    """One of ours, or of a plug-in."""


class CommandGroup(_InPlainWords, TyperGroup):
    """Several of a plug-in."""


class PluggedGroup(CommandGroup):
    """Our commands and those of other distributions."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *plugged()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, cmd_name) or plugged().get(cmd_name)


@cache
def plugged() -> dict[str, Any]:
    """Name → command of what is installed; in place of one that is not, or is broken, a command that says so."""
    app, points = typer.Typer(), entry_points(group=GROUP)
    refused = {
        name: f"sinkscope {name} is not installed here: pip install sinkscope-{name} (in a checkout: pip install -e {name})"
        for name in APART
    }
    for point in points:
        try:
            theirs = point.load()
            for info in (theirs.info, *theirs.registered_commands):  # their help reads like ours
                info.cls = CommandGroup if info is theirs.info else Command
            app.add_typer(theirs, name=point.name)
            refused.pop(point.name, None)
        except Exception as error:  # a stranger's package may raise anything when it is imported
            refused[point.name] = f"{point.value} cannot be loaded ({error}); mend or uninstall it"
    for name, why in refused.items():
        missing = name not in [point.name for point in points]
        app.command(name, cls=Command, help="Cannot be loaded.", hidden=missing, **PASSED_ON)(_refusal(why))
    return dict(typer.main.get_group(app).commands)


def _refusal(why: str) -> Any:
    def refuse() -> None:
        raise InputError(why)

    return refuse
