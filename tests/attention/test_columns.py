"""The Triton kernel for received attention against the dense reference in float64, in Triton's interpreter on the CPU.

The interpreter is chosen when triton is imported, so the cases run in a process of their own; on a GPU `tests/gpu` runs the
same cases on the real thing.
"""

from __future__ import annotations

import pytest
from tests.helpers import column_cases
from tests.helpers.interpreter import interpreted

pytestmark = pytest.mark.slow

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def errors() -> dict[str, dict[str, float]]:
    """Case → largest error and its limit, computed by the interpreter."""
    return interpreted("column_cases")


@pytest.mark.parametrize("name", [case.name for case in (*column_cases.CASES, *column_cases.RAW)])
def test_kernel_equals_dense_reference(errors: dict[str, dict[str, float]], name: str) -> None:
    """Every pattern, head layout, dtype and kind of scores."""
    assert errors[name]["error"] <= errors[name]["limit"], errors[name]
    assert errors[name]["wrong_nan"] == 0


def test_every_case_ran_in_the_kernel(errors: dict[str, dict[str, float]]) -> None:
    """A case that fell back to the tiled path would prove nothing."""
    assert set(errors) == {case.name for case in (*column_cases.CASES, *column_cases.RAW)}
    assert all(found["kernel"] == 1 for found in errors.values())
