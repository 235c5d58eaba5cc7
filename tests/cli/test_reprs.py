"""What a result looks like in an interpreter: it fits a screen of 80 columns and 24 lines. (xarray shows its own arrays.)"""

from __future__ import annotations

from typing import Any

import pytest

import sinkscope as ss
from sinkscope.inspection.inspect import inspect_run
from sinkscope.tasks.registry import get

PROMPTS = ["Ann has 3 pens. She buys 2. How many pens?", "Tom has 5 nuts. He eats 2. How many nuts?"]


def lines_of(result: object) -> int:
    """Lines on a screen of 80 columns."""
    return sum(max(1, -(-len(line) // 80)) for line in repr(result).splitlines())


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    model = ss.load("organism/scratch", device="cpu")
    short: dict[str, Any] = {"length": 16, "block": 16, "seed": [0, 1]}
    run = ss.generate(model, PROMPTS, capture=True, **short)
    masked = ss.generate(model, PROMPTS, capture=True, policy="top:1", **short)
    evaluation = ss.evaluate("organism/causal", "battery", ss.GreedyDecoding(length=4), limit=27)
    diagnosis = ss.diagnose(run.trace)
    return {
        "model": model, "run": run, "trace": run.trace, "summary": ss.summary(run.trace),
        "sinks": ss.sink_table(run.trace), "masked": masked,
        "diagnosis": diagnosis, "verdict": diagnosis.verdicts[0], "evaluation": evaluation,
        "record": evaluation.records[0], "records": evaluation.records, "text": ss.evaluate("organism/causal", "text", limit=1),
        "replay": ss.replay(model, run, "top:1"), "lens": ss.lens(model, run), "check": model.check(),
        "patch": ss.patch(model, run, "nothing", what="value", step=4), "inspection": inspect_run(model, run, 1),
        "decoding": run.decoding, "policy": ss.parse_policy("random(top:5)"), "task": get("humaneval", "llada"),
    }  # fmt: skip


@pytest.mark.slow
def test_every_result_fits_a_screen(results: dict[str, Any]) -> None:
    assert {name: lines_of(result) for name, result in results.items() if lines_of(result) > 24} == {}
    assert "more rows" in repr(results["summary"])
    assert "of one document, which has no interval" in repr(results["text"])
