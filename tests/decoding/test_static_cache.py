"""A static cache gives what the growing one gives: states, scores, masked keys; in Triton's interpreter (on a GPU: tests/gpu)."""

from __future__ import annotations

import pytest
from tests.helpers.interpreter import interpreted

pytest.importorskip("triton", reason="triton is not installed (pip install triton)")


@pytest.mark.parametrize(
    ("words", "least"),
    [
        pytest.param(("some",), 8, marks=pytest.mark.slow, id="a policy of each kind"),
        pytest.param((), 20, marks=pytest.mark.soak, id="every policy"),
    ],
)
@pytest.mark.timeout(900)
def test_static_and_growing_caches_agree(words: tuple[str, ...], least: int) -> None:
    found = interpreted("decode_cases", *words)
    assert found.pop("used")["steps"] > least, "the static cache was not used"
    for case, differences in found.items():
        assert differences.pop("states") == 0, case
        assert {name: value for name, value in differences.items() if value > 2e-4} == {}, case
