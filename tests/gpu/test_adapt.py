"""Adapting on a GPU, compiled and in bfloat16, learns what the CPU learns.

Runs under pytest (mark `gpu`), or as a plain script on machines without it: `python tests/gpu/test_adapt.py`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import sinkscope as ss
from sinkscope.organisms.adapt import AdaptOptions, adapt, adaptation
from sinkscope.organisms.documents import prose

try:
    import pytest

    pytestmark = pytest.mark.gpu
except ImportError:
    pass


def steps_agree(rate: float = 1.5e-4, **changes: Any) -> None:
    """The losses of six steps fall and agree, and the checkpoint that the GPU saved can be loaded.

    The rate stands between two others: at the usual one the first steps of all weights overshoot, and at a tenth of it bfloat16
    rounds the change away before the network sees it. At both, bfloat16 alone changes losses by 3 to 6 %, at this one by about 1.
    """
    losses = {}
    with TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "mine.txt").write_text("\n\n".join(prose(seed) for seed in range(400)), encoding="utf-8")
        for device in ("cpu", "cuda"):
            settings = adaptation(
                "organism/causal", steps=6, batch=8, length=64, learning_rate=rate, **changes
            )
            options = AdaptOptions(
                adaptation=settings, text=str(folder / "mine.txt"), out=folder / device, device=device, rows_at_a_time=4,
                report_every=1, check_every=0, probe=False, quiet=True,
            )  # fmt: skip
            about = adapt(options)
            log = (folder / device / "log.jsonl").read_text().splitlines()
            losses[device] = [entry["loss"] for entry in map(json.loads, log) if "loss" in entry]
            assert about["hardware"].startswith("CPU") == (device == "cpu")
        np.testing.assert_allclose(losses["cuda"], losses["cpu"], rtol=0.03)
        assert losses["cuda"][-1] < 0.9 * losses["cuda"][0]
        logits = ss.load(folder / "cuda", device="cuda").logits(torch.arange(8)[None])
    assert logits.isfinite().all()


def test_all_weights() -> None:
    steps_agree()


def test_adapters() -> None:
    steps_agree(rate=2e-3, lora=4)


def test_annealed_attention() -> None:
    steps_agree(anneal=4)


def test_a_causal_model() -> None:
    steps_agree(objective="causal")


if __name__ == "__main__":
    import traceback

    failed = 0
    for name, test in list(globals().items()):
        if name.startswith("test_") and (len(sys.argv) == 1 or name in sys.argv[1:]):
            try:
                test()
                print("passed", name, flush=True)
            except Exception:
                failed += 1
                print("FAILED", name, flush=True)
                traceback.print_exc()
    sys.exit(bool(failed))
