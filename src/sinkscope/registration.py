"""`ss.register`: make a policy, decoding, reuse rule, family or task of one's own known to sinkscope.

The same things can be announced by an installed package through the entry-point groups `sinkscope.policies`,
`sinkscope.decodings`, `sinkscope.reuse`, `sinkscope.families` and `sinkscope.tasks`; then nothing has to be called.
"""

from __future__ import annotations

from typing import Any, TypeVar

from sinkscope.errors import InputError

Thing = TypeVar("Thing")


def register(thing: Thing) -> Thing:
    """Register a policy, decoding or reuse rule (a class), a family (an object) or a task (an object), and return it.

    Can be used as a decorator. Registered things are known to `--policy`, to `parse_policy`, to studies and their workers
    (a study file names the modules to import) like our own.

    >>> import sinkscope as ss
    >>> from dataclasses import dataclass
    >>> @ss.register
    ... @dataclass(frozen=True)
    ... class MaskLast(ss.FixedRule):
    ...     k: int
    ...     word = "last"
    ...     def columns(self, layer, visibility, device):
    ...         import torch
    ...         index = torch.arange(visibility.keys, device=device)
    ...         return (index >= visibility.keys - self.k)[None, None]
    >>> str(ss.parse_policy("last:3"))
    'last:3'
    """
    from sinkscope.decoding.base import DECODINGS, Decoding
    from sinkscope.models.family import FAMILIES, Family
    from sinkscope.policies.policy import POLICIES, Policy
    from sinkscope.reuse.rule import REUSES, Reuse
    from sinkscope.tasks.registry import REGISTERED
    from sinkscope.tasks.task import Task

    anything: Any = thing
    if isinstance(thing, type) and issubclass(thing, Policy):
        POLICIES.add(anything)
    elif isinstance(thing, type) and issubclass(thing, Decoding):
        DECODINGS.add(anything)
    elif isinstance(thing, type) and issubclass(thing, Reuse):
        REUSES.add(anything)
    elif isinstance(thing, Family):
        FAMILIES.add(anything)
    elif isinstance(thing, Task):
        REGISTERED.add(anything)
    else:
        raise InputError(
            f"register takes a policy, decoding or reuse class, a family or a task, got {thing!r}; see CONTRIBUTING on adding one"
        )
    return thing
