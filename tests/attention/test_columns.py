"""The Triton kernel for received attention against the dense reference in float64, in Triton's interpreter on the CPU.

The interpreter is chosen when triton is imported, so the cases run in a process of their own; on a GPU `tests/gpu` runs the
same cases on the real thing.
"""

from __future__ import annotations

from dataclasses import fields

import pytest
from tests.helpers import column_cases
from tests.helpers.interpreter import interpreted

pytest.importorskip("triton")

EVERY = (*column_cases.CASES, *column_cases.RAW)
SOME = (
    "fp16", "width-96", "width-128-bf16", "width-256", "causal-one-row", "causal-behind-a-cache", "window", "window-both-ways",
    "blocks", "blocks-of-odd-size-behind-a-cache", "blocks-wider-than-a-tile-bf16", "blocks-padded-classes",
    "blocks-masked-stranded", "blocks-masked-grouped", "masked-padded-grouped", "padded-causal-bf16",
    "masked-causal-stranded", "masked-all", "two-classes", "four-classes-padded", "six-classes", "masked-known-number", "peaked",
    "adversarial-bf16", "adversarial-causal-masked", "raw-bf16", "raw-grouped", "raw-adversarial", "raw-nothing",
    "raw-padded-one-row",
)  # fmt: skip
"""What `make test` runs; the others go between these, and run in `make soak`."""

REST = tuple(case.name for case in EVERY if case.name not in SOME)


@pytest.mark.parametrize(
    "names",
    [pytest.param(SOME, id="some", marks=pytest.mark.slow), pytest.param(REST, id="the rest", marks=pytest.mark.soak)],
)
def test_kernel_equals_dense_reference(names: tuple[str, ...]) -> None:
    """Every pattern, head layout, dtype and kind of scores; one process for all, whose start takes as long as several cases."""
    errors = interpreted("column_cases", *names)
    assert set(errors) == set(names)
    for name, found in errors.items():
        assert found["error"] <= found["limit"], (name, found)
        assert found["wrong_nan"] == 0, name
        assert found["kernel"] == 1, f"{name} fell back to the tiled path, which proves nothing"


@pytest.mark.parametrize("cases", [column_cases.CASES, column_cases.RAW], ids=["sums", "raw"])
def test_every_value_of_every_field_is_among_the_usual_cases(cases: tuple[column_cases.Case, ...]) -> None:
    usual = [case for case in cases if case.name in SOME]
    for field in fields(column_cases.Case):
        if field.name not in ("name", "queries", "keys"):
            values = {getattr(case, field.name) for case in cases}
            assert {getattr(case, field.name) for case in usual} == values, field.name
