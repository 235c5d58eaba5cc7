"""What --help shows is what was written: rich takes a word in square brackets for markup and drops it; numbers stay."""

from __future__ import annotations

import re

import typer.main

from sinkscope.cli import app

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
