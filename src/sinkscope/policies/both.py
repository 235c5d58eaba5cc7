"""`a & b`: mask what either policy masks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sinkscope.base.errors import InputError
from sinkscope.policies.policy import Policy, Rule


@dataclass(frozen=True)
class Both(Policy):
    """The union of what two policies mask; both must have the same effect."""

    first: Policy
    second: Policy

    def __post_init__(self) -> None:
        for policy in (self.first, self.second):
            if not isinstance(policy, Policy):
                raise InputError(f"& combines policies, got {type(policy).__name__}")
        if isinstance(self.second, Both):
            # One form for one text: a & (b & c) is (a & b) & c.
            object.__setattr__(self, "first", Both(self.first, self.second.first))
            object.__setattr__(self, "second", self.second.second)
        rules = list(self.parts())
        if len({rule.effect for rule in rules}) > 1:
            raise InputError(
                f"{self.first} and {self.second} have different effects; combine policies that both hide or both silence"
            )
        if len({(rule.queries, rule.prefill) for rule in rules}) > 1:
            raise InputError(
                f"{self.first} and {self.second} act on different queries; give both the same queries= and prefill="
            )
        if sum(rule.band() is not None for rule in rules) > 1:
            raise InputError("two windows cannot be combined; give the narrower one")

    def parts(self) -> Iterator[Rule]:
        yield from self.first.parts()
        yield from self.second.parts()

    @property
    def original(self) -> Policy:
        return Both(self.first.original, self.second.original)

    def with_seed(self, seed: int) -> Policy:
        return Both(self.first.with_seed(seed), self.second.with_seed(seed))

    def __str__(self) -> str:
        return f"{self.first} & {self.second}"
