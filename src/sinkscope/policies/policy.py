"""What every policy is: data with a text form, and the keys it takes away in one forward pass."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from sinkscope.attention.interface import Hiding
from sinkscope.errors import InputError


@runtime_checkable
class Policy(Protocol):
    """A rule that decides which keys each head may use. `str(policy)` is its text form."""

    def check(self, layers: int, keys: int) -> None:
        """Raises InputError when the policy cannot act on a model of so many layers and sequences of so many keys."""

    def fixed(self) -> Hiding | None:
        """What it hides whatever the model attends to; None for a policy that hides nothing.

        A policy that decides from the scores of an earlier step raises InputError: it has no meaning in a single forward.
        """


def fixed_hiding(policy: Policy | None, layers: int, keys: int) -> Hiding | None:
    """The checked policy as what one single forward hides."""
    if policy is None:
        return None
    if not isinstance(policy, Policy):
        raise InputError(f"policy should be a policy such as ss.MaskKeys({{0: [0]}}), got {type(policy).__name__}")
    policy.check(layers, keys)
    return policy.fixed()
