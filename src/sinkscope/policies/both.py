"""`a & b`: mask what either policy masks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sinkscope.base.errors import InputError
from sinkscope.policies.policy import Policy, Rule


@dataclass(frozen=True)
class Both(Policy):
    """The union of what several rules mask, in the same way and for the same queries; brackets make no difference."""

    rules: tuple[Rule, ...]

    def __post_init__(self) -> None:
        named = " and ".join(map(str, self.rules))
        if len({rule.effect for rule in self.rules}) > 1:
            raise InputError(f"{named} have different effects; combine policies that both hide or both silence")
        if len({(rule.queries, rule.prefill) for rule in self.rules}) > 1:
            raise InputError(f"{named} act on different queries; give both the same queries= and prefill=")
        if sum(rule.band() is not None for rule in self.rules) > 1:
            raise InputError("two windows cannot be combined; give the narrower one")

    def parts(self) -> Iterator[Rule]:
        yield from self.rules

    @property
    def original(self) -> Policy:
        return Both(tuple(rule.original for rule in self.rules))

    def with_seed(self, seed: int) -> Policy:
        return Both(tuple(rule.with_seed(seed) for rule in self.rules))
