"""Options that several commands share, declared once.

`with_decoding` gives a command the decoding options of all families and hands those that were given to its parameter
`decoding`, by name, None where not given.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

PANEL = "Decoding"

Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:0, mps")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16, float16, float64")]
Revision = Annotated[str | None, typer.Option(help="branch, tag or commit on the hub")]
Sandbox = Annotated[
    str,
    typer.Option(
        help="what confines model-written code: auto, bubblewrap, landlock; none runs it with your rights"
    ),
]
Source = Annotated[str, typer.Argument(help="a hub id, or a folder in the Hugging Face layout")]
PolicyText = Annotated[
    str | None, typer.Option(help="such as top:5, top:1@layer, random(top:5), window:64,first=4")
]

DECODING: dict[str, tuple[Any, str]] = {
    "length": (int, "new tokens [128]"),
    "steps": (int, "llada, dream, mmada: forward passes"),
    "block": (int, "llada, mmada: tokens per block [32]"),
    "temperature": (float, "0: the most likely token"),
    "cfg": (float, "llada, mmada: guidance"),
    "remasking": (str, "llada, mmada: low_confidence | random"),
    "logits_eos_inf": (bool, "llada"),
    "confidence_eos_eot_inf": (bool, "llada"),
    "eot_id": (int, "llada: end-of-turn id"),
    "algorithm": (str, "dream: origin | maskgit_plus | topk_margin | entropy"),
    "top_p": (float, "dream, causal"),
    "top_k": (int, "dream"),
    "alg_temp": (float, "dream"),
    "eps": (float, "dream: end of the schedule"),
    "stop_at": (int, "mmada: id that ends a block"),
    "eos": (str, "causal: model | none | ids"),
}
"""Option → its type and help; the names are those of the decoding dataclasses."""


def with_decoding(command: Callable[..., None]) -> Callable[..., None]:
    """Adds an option for each entry of DECODING to a command; its parameter `decoding` gets them as a dict."""
    plain = inspect.signature(command, eval_str=True)
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[kind | None, typer.Option(help=words, rich_help_panel=PANEL)],
        )
        for name, (kind, words) in DECODING.items()
    ]
    kept = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in plain.parameters.items()
        if name != "decoding"
    ]

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        decoding = {name: given.pop(name) for name in DECODING}
        command(**given, decoding=decoding)

    parameters = [*kept, *options]
    wrapped.__signature__ = plain.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del wrapped.__wrapped__  # its signature is not this one's
    return wrapped
