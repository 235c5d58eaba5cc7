"""A study's own modules, and the names in it: nothing is computed before all of them are known."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sinkscope.errors import InputError, SinkscopeError, nearest

if TYPE_CHECKING:
    from sinkscope.study.spec import Study


def check_names(study: Study) -> None:
    """Import the study's modules, and refuse tasks, policies, reuse rules, decodings and options that nobody has registered."""
    from sinkscope.decoding import decoding_from_options
    from sinkscope.policies import parse_policy
    from sinkscope.reuse import parse_reuse
    from sinkscope.tasks import registry
    from sinkscope.trace.capture import Capture

    import_modules(study.modules)
    for grid in study.grids:
        for task in grid.tasks:
            base = str(task).partition(":")[0]
            if base not in registry.names():
                raise InputError(
                    f"the study names an unknown task {base!r}: {nearest(base, registry.names())}"
                )
        for policy in grid.policies:
            parse_policy(policy)
        for rule in grid.reuse:
            parse_reuse(rule)
    for traced in study.trace:
        known = {item.name for item in dataclasses.fields(Capture)}
        for name in traced.capture:
            if name not in known:
                raise InputError(f"capture has no option {name!r}; {nearest(name, known)}")
        Capture(**traced.capture)
    for name, families in study.decodings.items():
        for family, options in families.items():
            decoding_from_options(family, options, f"decoding {name!r}")


def import_modules(modules: Sequence[str]) -> None:
    """Import the modules that a study names."""
    for name in modules:
        try:
            importlib.import_module(name)
        except SinkscopeError:
            raise
        except Exception as error:  # a stranger's module may raise anything
            raise InputError(
                f"the module {name!r} that the study names cannot be imported ({type(error).__name__}: {error}); install it, "
                "or put its folder on PYTHONPATH, on every machine that runs the study"
            ) from error
