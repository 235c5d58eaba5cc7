"""MaskLearned: take away learned sinks, the scores in the softmax that have no token (gpt-oss and others)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sinkscope.base.errors import InputError
from sinkscope.policies.policy import POLICIES, FixedRule


@POLICIES.add
@dataclass(frozen=True)
class MaskLearned(FixedRule):
    """Takes the learned sink out of the softmax, in every forward; the tokens get its share. No key is masked.

    >>> str(MaskLearned(layers=(0, 1)))
    'learned,layers=0+1'
    """

    word: ClassVar[str] = "learned"
    takes_learned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.effect == "silence" or self.queries != "all" or self.regions is not None:
            raise InputError(
                "a learned sink has no value to silence, stands in no region and is taken away for all queries; leave out "
                "effect, queries and regions"
            )

    @property
    def most(self) -> int:
        return 0

    def key_share(self, keys: int) -> float | None:
        return 0.0
