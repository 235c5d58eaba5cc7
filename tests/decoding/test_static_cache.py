"""A static cache gives what the growing one gives: states, scores, masked keys; in Triton's interpreter (on a GPU: tests/gpu)."""

from __future__ import annotations

import pytest
from tests.helpers.interpreter import interpreted

pytest.importorskip("triton", reason="triton is not installed (pip install triton)")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_static_and_growing_caches_agree() -> None:
    found = interpreted("decode_cases")
    assert found.pop("used")["steps"] > 20, "the static cache was not used"
    for case, differences in found.items():
        assert differences.pop("states") == 0, case
        assert {name: value for name, value in differences.items() if value > 2e-4} == {}, case
