"""`sinkscope lm-eval`: lm-eval with sinkscope's models."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Sequence

import typer

from sinkscope.base.errors import InputError, SinkscopeError
from sinkscope.base.files import one_line

INSTALL = "pip install 'sinkscope[eval]'"


def handed_over(words: Sequence[str]) -> list[str]:
    """The command line for lm-eval: without `--model` ours is meant, and without `--device` the best one that is here.

    >>> handed_over(["--tasks", "gsm8k"])
    ['--tasks', 'gsm8k', '--model', 'sinkscope', '--device', 'auto']
    """
    words = list(words) or ["--help"]
    if words[0] in ("ls", "validate") or {"-h", "--help"} & set(words):
        return words
    for names, value in ((("--model", "-M"), "sinkscope"), (("--device",), "auto")):
        if not any(word.split("=")[0] in names for word in words):
            words += [names[0], value]
    return words


def lm_eval(context: typer.Context) -> None:
    """Run lm-eval with sinkscope's models and policies; every option is lm-eval's own (`sinkscope lm-eval --help`).

    sinkscope lm-eval --model_args pretrained=GSAI-ML/LLaDA-8B-Instruct,policy=top:5 --tasks gsm8k
    """
    run(context.args)


def run(words: Sequence[str]) -> None:
    """lm-eval's own command line."""
    words = handed_over(words)
    if importlib.util.find_spec("lm_eval") is None:
        if {"-h", "--help"} & set(words):
            print(lm_eval.__doc__, f"\nIts options are shown here once it is installed: {INSTALL}")
            return
        raise InputError(f"lm-eval is not installed: {INSTALL}")
    from lm_eval.__main__ import cli_evaluate

    import sinkscope.tasks.lm_eval  # noqa: F401 (it registers the model)

    sys.argv = ["lm-eval", *words]
    try:
        cli_evaluate()
    except SinkscopeError:
        raise
    except ValueError as error:  # so lm-eval says that an option or a task's name is wrong
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if not str(frame.f_globals.get("__name__")).startswith("lm_eval."):
            raise
        raise InputError(f"lm-eval: {one_line(error)}") from error
