"""sinkscope: an instrument for attention sinks in language models that generate step by step.

The public names, and nothing else. They are imported when first used, so that `import sinkscope` and `sinkscope --help`
stay fast and a machine without xarray or pandas can still load, generate and train.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sinkscope.errors import CheckpointError, InputError, SinkscopeError
from sinkscope.version import __version__

if TYPE_CHECKING:
    from sinkscope.models.load import load
    from sinkscope.models.model import Model
    from sinkscope.policies import MaskKeys

_WHERE = {
    "load": "sinkscope.models.load",
    "Model": "sinkscope.models.model",
    "MaskKeys": "sinkscope.policies",
}
"""Public name → the module that defines it."""

__all__ = ["CheckpointError", "InputError", "MaskKeys", "Model", "SinkscopeError", "__version__", "load"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'sinkscope' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
