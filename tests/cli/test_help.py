"""What --help shows is what was written: rich takes a word in square brackets for markup and drops it; numbers stay."""

from __future__ import annotations

import inspect
import re
from importlib import import_module

import pytest
import typer.main

from sinkscope.cli import app
from sinkscope.commands.options import READING

MARKUP = re.compile(r"\[[a-z#/@]")


def test_no_help_text_holds_what_rich_would_drop() -> None:
    commands = typer.main.get_group(app).commands
    assert len(commands) >= 10
    found = [
        f"{name} {option.name}: {option.help}"
        for name, command in commands.items()
        for option in command.params
        if MARKUP.search(getattr(option, "help", None) or "")
    ]
    found += [name for name, command in commands.items() if MARKUP.search(command.help or "")]
    assert not found, "write '; default: …' instead of brackets"


@pytest.mark.parametrize(
    "name",
    [
        "models",
        "trace",
        "inspect",
        "evaluate",
        "grade",
        "compare",
        "summary",
        "view",
        "study",
        "status",
        "figures",
    ],
)
def test_a_command_and_its_function_have_the_same_parameters(name: str) -> None:
    declared = {option.name for option in typer.main.get_group(app).commands[name].params}
    taken = set(inspect.signature(getattr(import_module(f"sinkscope.commands.{name}"), name)).parameters)
    options = {"decoding"} if declared & READING.keys() >= {"steps", "temperature"} else set()
    assert declared - READING.keys() | options == taken
