"""Training with replayed steps on a GPU takes the steps that training without takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sinkscope.organisms.recipe import recipe
from sinkscope.organisms.train import TrainingOptions, train

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("name", "changes"),
    [("causal", {}), ("scratch", {}), ("scratch", {"softmax": "learned"}), ("causal", {"gate": True})],
)
def test_replayed_steps_are_the_same_steps(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    losses = {}
    for graphs in (False, True):
        chosen = recipe(name, size="smoke", steps=40, batch=8, mix="plain", **changes)
        options = TrainingOptions(
            recipe=chosen, out=tmp_path / str(graphs), device="cuda", graphs=graphs, report_every=1, check_every=0,
            final_count=0, quiet=True,
        )  # fmt: skip
        train(options)
        log = (tmp_path / str(graphs) / "log.jsonl").read_text().splitlines()
        losses[graphs] = [entry["loss"] for entry in map(json.loads, log) if "loss" in entry]
    assert losses[True] == pytest.approx(losses[False], rel=0.02)
    assert losses[True][-1] < losses[True][0]
