"""lm-eval with sinkscope's models: `sinkscope lm-eval …`, or `python -m sinkscope.lm_eval …`.

    sinkscope lm-eval --model_args pretrained=GSAI-ML/LLaDA-8B-Instruct,policy=top:5 --tasks gsm8k

Registers the model "sinkscope" (see `sinkscope.tasks.lm_eval`) and hands over to lm-eval's own command line, whose options all
hold. From Python: `sinkscope.lm_eval.register()`, then `lm_eval.simple_evaluate(model="sinkscope", …)`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

from sinkscope.errors import InputError, plainly

NAME = "sinkscope"


def register() -> None:
    """Make lm-eval know the model "sinkscope" in this process."""
    try:
        from lm_eval.api.registry import get_model, register_model
    except ImportError as error:
        raise InputError(f"lm-eval is not installed ({error}): pip install 'sinkscope[eval]'") from error
    from sinkscope.tasks.lm_eval import SinkscopeLM

    try:
        known = get_model(NAME)
    except Exception:  # lm-eval's versions say in different ways that a name is new
        register_model(NAME)(SinkscopeLM)
        return
    if known is not SinkscopeLM:
        raise InputError(
            f"lm-eval has another model called {NAME!r} ({known!r}): uninstall what registers it"
        )


def handed_over(words: Sequence[str]) -> list[str]:
    """The command line for lm-eval: without `--model` ours is meant, and without `--device` the best one that is here.

    >>> handed_over(["--tasks", "gsm8k"])
    ['--tasks', 'gsm8k', '--model', 'sinkscope', '--device', 'auto']
    """
    words = list(words) or ["--help"]
    if words[0] in ("ls", "validate") or {"-h", "--help"} & set(words):
        return words
    for names, value in ((("--model", "-M"), NAME), (("--device",), "auto")):
        if not any(word.split("=")[0] in names for word in words):
            words += [names[0], value]
    return words


def main(words: Sequence[str] | None = None) -> None:
    """Run lm-eval's command line; a mistake that a person can mend ends it with one line."""
    words = handed_over(sys.argv[1:] if words is None else words)
    with plainly():
        if {"-h", "--help"} & set(words) and importlib.util.find_spec("lm_eval") is None:
            print(
                __doc__,
                "Its options are shown here once it is installed: pip install 'sinkscope[eval]'",
                sep="\n",
            )
            return
        register()
        from lm_eval.__main__ import cli_evaluate

        sys.argv = ["lm-eval", *words]
        cli_evaluate()


if __name__ == "__main__":
    main()
