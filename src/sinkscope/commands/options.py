"""Options that several commands share, and how help shows them.

`with_decoding` gives a command the decoding options of all families and hands those that were given to its parameter
`decoding`, by name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

PANEL = "Decoding"

Source = Annotated[
    str, typer.Argument(help="an organism, a hub id, or a folder in the Hugging Face layout", metavar="MODEL")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:0 or mps", metavar="NAME")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16, float16 or float64", metavar="NAME")]
Revision = Annotated[str | None, typer.Option(help="branch, tag or commit on the hub", metavar="NAME")]
Sandbox = Annotated[
    str,
    typer.Option(
        help="what confines model-written code: auto, bubblewrap, landlock; none runs it with your rights",
        metavar="NAME",
    ),
]
PolicyText = Annotated[
    str | None,
    typer.Option(
        help="which keys to hide: top:5, top:1@layer, random(top:5), window:64,first=4, …", metavar="POLICY"
    ),
]
ReuseText = Annotated[
    str | None,
    typer.Option(
        help="approximate steps: prefix:8, sparse:0.5,by=sinks, drift:0.9, or a published setting such as fast-dllm",
        metavar="RULE",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="print one JSON document in place of text")]
Data = Annotated[
    Path | None,
    typer.Option(help="the task's JSON-lines file; default: from the hub", metavar="FILE"),
]

DECODING: dict[str, tuple[Any, str, str]] = {
    "length": (int, "N", "new tokens; default: 128 or 256, and 64 for the organisms"),
    "steps": (int, "N", "forward passes; of llada2 and sdar those of one block; default: the family's"),
    "block": (int, "N", "tokens in a block; default: 32, and 4 for sdar"),
    "small_block": (int, "N", "fast_dllm_v2: tokens of a sub-block; default: 8"),
    "temperature": (float, "NUMBER", "0 takes the most likely token, more draws"),
    "cfg": (float, "NUMBER", "llada, mmada: classifier-free guidance; default: 0, none"),
    "remasking": (
        str,
        "NAME",
        "llada, mmada, a2d: low_confidence or random; sdar: low_confidence_dynamic, …_static, sequential",
    ),
    "threshold": (
        float,
        "NUMBER",
        "llada2, sdar, fast_dllm_v2: all tokens of higher probability are written; llada, mmada, dream: the same, by choice",
    ),
    "factor": (
        float,
        "NUMBER",
        "llada, mmada, dream: n tokens are written while (n + 1)(1 − probability) < it",
    ),
    "minimal_topk": (int, "N", "llada2: bounds the steps of a block by length / N"),
    "eos_early_stop": (bool, "", "llada2: stop as soon as nothing before the end token is masked"),
    "editing_threshold": (
        float,
        "NUMBER",
        "llada2 (2.1): written tokens give way to others of higher probability",
    ),
    "max_post_steps": (int, "N", "llada2 (2.1): steps in which only edits are left"),
    "num_to_transfer": (int, "N", "llada2 (2.1): masks that a step decides at least"),
    "scoring": (str, "NAME", "sdar: filtered, or raw as in its evaluation"),
    "block_cache": (bool, "", "fast_dllm_v2: keep the active block's keys too; they grow stale"),
    "greedy": (bool, "", "rnd1: the most likely token, else one is drawn"),
    "eb_gamma": (float, "NUMBER", "rnd1: a bound on entropy decides how many tokens a step writes"),
    "logits_eos_inf": (bool, "", "llada: the end token is never written"),
    "confidence_eos_eot_inf": (bool, "", "llada: end tokens are written last"),
    "eot_id": (int, "ID", "llada: the end-of-turn token; default: the tokenizer's"),
    "algorithm": (
        str,
        "NAME",
        "dream, open_dcoder: origin, maskgit_plus, topk_margin, entropy; open_dcoder: p2; default: entropy",
    ),
    "top_p": (float, "NUMBER", "draw among the likeliest tokens with this much probability"),
    "top_k": (int, "N", "draw among so many likeliest tokens"),
    "alg_temp": (float, "NUMBER", "dream, open_dcoder: temperature of the choice of positions; default: 0"),
    "eps": (float, "NUMBER", "dream: end of the noise schedule; default: 0.001"),
    "stop_at": (int, "ID", "mmada: the token that ends a block"),
    "stop": (
        str,
        "IDS",
        "sdar, fast_dllm_v2: where to stop: model, none, or token ids; default: none for sdar",
    ),
    "eos": (str, "IDS", "causal: where to stop: model, none, or token ids such as 2,13; default: model"),
}
"""Option → its type, what stands for its value in help, and its help; the names are those of the decoding dataclasses."""

READING: dict[str, tuple[Any, str, str]] = {
    "scored": (int, "N", "task text: the last so many tokens are scored; default: 128 (causal), else all"),
    "share": (
        float,
        "NUMBER",
        "task text, diffusion models: share of the tokens that is masked; default: the bound",
    ),
    "masks": (int, "N", "task text and choices, diffusion models: masked copies that are averaged"),
}
"""The same for readings: how a given text is read (--length: so many of its tokens; --steps: masks are filled step by step)."""

KINDS = {"int": "N", "integer": "N", "float": "NUMBER", "path": "PATH"}
"""A parameter's type, as click or typer call it → what stands for its value in help."""


def with_decoding(
    command: Callable[..., None], known: dict[str, tuple[Any, str, str]] = DECODING
) -> Callable[..., None]:
    """Add an option for each entry of DECODING to a command; its parameter `decoding` gets those that were given."""
    plain = inspect.signature(command, eval_str=True)
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                kind | None, typer.Option(help=words, rich_help_panel=PANEL, metavar=metavar)
            ],
        )
        for name, (kind, metavar, words) in known.items()
    ]
    kept = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in plain.parameters.items()
        if name != "decoding"
    ]

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        decoding = {name: given.pop(name) for name in known}
        command(**given, decoding={name: value for name, value in decoding.items() if value is not None})

    parameters = [*kept, *options]
    wrapped.__signature__ = plain.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del wrapped.__wrapped__  # its signature is not this one's
    return wrapped


with_reading = functools.partial(with_decoding, known=DECODING | READING)
"""The same with the options of readings."""


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
