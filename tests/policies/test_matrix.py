"""Every policy × scope × scores × when × effect × family × loop against a slow dense re-implementation.

Masked sets must be the same, received attention, attention removed, sinks hit and logits agree to 1e-4, and the loop must decide
what the official definition decides from the dense logits.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.policies.follow import PLAIN, SETTINGS, Setting, follow
from tests.policies.matrix import everything, some

USUAL = [
    pytest.param(setting, policy, id=f"{setting}-{name}")
    for turn, setting in enumerate(SETTINGS)
    for index, (name, policy) in enumerate(some(turn))
    if (index + turn) % (4 if setting in PLAIN else 10) == 0
]
"""Every policy at least once in each kind of batch; the rest is in the slow tests."""

EVERY = 44
"""`make test` runs one in so many of the whole matrix, `make soak` the rest."""


def tier(number: int) -> Any:
    """Whether a case of the whole matrix belongs to the tests or to the soak."""
    return pytest.mark.soak if number % EVERY else pytest.mark.slow


ALL = [
    pytest.param(setting, policy, id=f"{setting}-{name}", marks=tier(number + turn))
    for turn, setting in enumerate(PLAIN)
    for number, (name, policy) in enumerate(everything())
]

RAGGED = [
    # Other policies in every setting: 5 and 44 have no divisor in common.
    pytest.param(setting, policy, id=f"{setting}-{name}-{turn}", marks=tier(number + turn + 5 * place))
    for place, setting in enumerate(SETTINGS)
    if setting not in PLAIN
    for turn in range(3)
    for number, (name, policy) in enumerate(some(turn))
]


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "policy"), USUAL)
def test_policy_equals_dense(setting: Setting, policy: Any) -> None:
    follow(setting, policy)


@pytest.mark.parametrize(("setting", "policy"), ALL)
def test_every_option_equals_dense(setting: Setting, policy: Any) -> None:
    follow(setting, policy)


@pytest.mark.parametrize(("setting", "policy"), RAGGED)
def test_ragged_and_guided_batches_equal_dense(setting: Setting, policy: Any) -> None:
    follow(setting, policy)
