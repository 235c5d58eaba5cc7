"""Adapting on a GPU, compiled and in bfloat16, learns what the CPU learns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import sinkscope as ss
from sinkscope.organisms.adapt import AdaptOptions, adapt, adaptation
from sinkscope.organisms.documents import prose

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "changes",
    [{}, {"lora": 4}, {"anneal": 4}, {"objective": "causal"}],
    ids=["all", "LoRA", "annealed", "causal"],
)
def test_a_compiled_step_is_that_of_a_cpu(changes: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("\n\n".join(prose(seed) for seed in range(400)), encoding="utf-8")
    losses = {}
    for device in ("cpu", "cuda"):
        settings = adaptation("organism/causal", steps=6, batch=8, length=64, **changes)
        options = AdaptOptions(
            adaptation=settings, text=str(tmp_path / "mine.txt"), out=tmp_path / device, device=device, rows_at_a_time=4,
            report_every=1, check_every=0, probe=False, quiet=True,
        )  # fmt: skip
        about = adapt(options)
        log = (tmp_path / device / "log.jsonl").read_text().splitlines()
        losses[device] = [json.loads(line)["loss"] for line in log if "loss" in json.loads(line)]
        assert about["hardware"].startswith("CPU") == (device == "cpu")
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=0.02)
    assert ss.load(tmp_path / "cuda", device="cuda").logits(torch.arange(8)[None].cuda()).isfinite().all()
