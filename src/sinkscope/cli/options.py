"""What several commands take, and how an option is declared: what stands for its value in `--help`, and its words."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from sinkscope.base.errors import InputError
from sinkscope.base.extras import read_extras


def argument(value: str, words: str) -> Any:
    """An argument: what stands for its value, and what it is."""
    return typer.Argument(metavar=value, help=words)


def option(value: str, words: str, flag: str = "", panel: str | None = None) -> Any:
    """An option; flag: where it does not follow from the parameter's name."""
    return typer.Option(*filter(None, [flag]), metavar=value, help=words, rich_help_panel=panel)


def switch(flag: str, words: str, panel: str | None = None) -> Any:
    """An option that is off unless it is given."""
    return typer.Option(flag, help=words, rich_help_panel=panel)


def refuse(context: typer.Context, why: str, *names: str, but: Collection[str] = ()) -> None:
    """Refuse what was given and would do nothing: parameters of these names, or without names all `but` those."""
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if (name in names if names else name not in but) and source is not None and source.name == "COMMANDLINE":
            word = parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.metavar
            raise InputError(f"{word} {why}")


def extras_of(text: str | None) -> dict[str, Any]:
    """What `Extra` says, as kind → extra."""
    return read_extras({"reuse": text})


SOURCE_HELP = (
    "a folder in the Hugging Face layout, a hub id, or an organism (a small model that we ship: organism/scratch); "
    "…@causal: its causal mode"
)
Source = Annotated[str, argument("MODEL", SOURCE_HELP)]
Device = Annotated[str, option("NAME", "auto, cpu, cuda, cuda:0 or mps")]
Dtype = Annotated[str, option("NAME", "auto, float32, bfloat16, float16 or float64")]
Revision = Annotated[str | None, option("NAME", "branch, tag or commit on the hub")]
Family = Annotated[str | None, option("NAME", "the model's family, if its files do not say")]
MaskId = Annotated[int | None, option("ID", "the mask token, if the model's files do not say")]
Policy = Annotated[str | None, option("POLICY", "keys to mask: top:5, top:1@layer, random(top:5), window:64,first=4")]
Extra = Annotated[str | None, option("RULE", "approximate steps: prefix:8, drift:0.9, fast-dllm", "--reuse")]
_DECODING = "options of the model's decoding, such as block=16,temperature=0.5; a wrong one lists them"
DecodingText = Annotated[str | None, option("NAME=VALUE,…", _DECODING, "--decoding")]
Length = Annotated[int | None, option("N", "new tokens; of a text that is read: its tokens")]
Steps = Annotated[int | None, option("N", "forward passes; default: the family's")]
Data = Annotated[Path | None, option("FILE", "the task's JSON-lines file; default: from the hub")]
_RULE = "what a sink is: sum, distance, mean, percent or zscore; auto: as the model's attention asks"
Epsilon = Annotated[float | None, option("NUMBER", "the threshold of a sink; default: 3")]
Rule = Annotated[str, option("RULE", _RULE)]
_SANDBOX = "what confines model-written code: auto, bubblewrap, landlock; none runs it with your rights"
Sandbox = Annotated[str, option("NAME", _SANDBOX)]
Yes = Annotated[bool, switch("--yes", "confirm --sandbox none beforehand; needed without a terminal")]
Force = Annotated[bool, switch("--force", "replace what exists already")]
Json = Annotated[bool, switch("--json", "print one JSON document in place of text")]
