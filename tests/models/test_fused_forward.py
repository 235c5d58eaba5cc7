"""The fused forward and its kernels against transformers' eager code, in Triton's interpreter on the CPU.

The interpreter is chosen when triton is imported, so the cases run in a process of their own; on a GPU `tests/gpu` runs the
same cases on the real thing.
"""

from __future__ import annotations

import pytest
from tests.helpers import layer_cases
from tests.helpers.interpreter import interpreted

pytest.importorskip("triton")

FUSED = (*layer_cases.NORMS, *layer_cases.ROTATIONS, *layer_cases.GATES)


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, float]]:
    """Case → what the interpreter computed."""
    return interpreted("layer_cases")


@pytest.mark.slow
@pytest.mark.parametrize("name", FUSED)
def test_kernel_rounds_as_the_eager_code_does(found: dict[str, dict[str, float]], name: str) -> None:
    """Bit for bit; where sums may run in another order, a few numbers may fall a step or two aside."""
    case = found[name]
    assert case["sum"] == 1
    if case["exact"]:
        assert case["differ"] == 0, case
    else:
        assert case["steps"] <= (4 if "float32" in name else 2), case
        assert case["differ"] <= (0.5 if "float32" in name else 0.01), case


@pytest.mark.slow
@pytest.mark.parametrize("name", layer_cases.FORWARDS)
def test_forward_equals_the_plain_one(found: dict[str, dict[str, float]], name: str) -> None:
    """Logits and what listeners are told, of a padded batch; switch, hooks and moved weights lead to the plain code."""
    case = found[name]
    assert case["error"] <= (1e-5 if "float32" in name else 1e-2), case
    assert case["attention"] <= (1e-5 if "float32" in name else 1e-2), case
    assert case["same_calls"] == case["switched"] == case["aside"] == 1, case


@pytest.mark.slow
def test_every_case_ran(found: dict[str, dict[str, float]]) -> None:
    assert set(found) == {*FUSED, *layer_cases.FORWARDS}
