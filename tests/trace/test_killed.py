"""kill -9 in the middle of a recording: what is on disk opens, and equals the first steps of the whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.helpers import golden

import sinkscope as ss

PROGRAM = """
import sys, time
import torch
import sinkscope as ss

model = ss.load(sys.argv[1], device="cpu", dtype="float32")

def slowly(done, expected, states):
    print(done, flush=True)
    time.sleep(0.05)

ss.generate(model, torch.arange(20).view(2, 10), ss.LladaDecoding(length=64, steps=64, block=32),
            capture=ss.Capture(by_query=True), out=sys.argv[2], progress=slowly)
"""


@pytest.mark.slow
def test_a_killed_recording_opens(tmp_path: Path) -> None:
    import torch

    out = tmp_path / "t.zarr.zip"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(golden.checkpoint("llada")), str(out)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == 7:
                break
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    assert process.returncode == -signal.SIGKILL
    assert not out.exists()
    trace = ss.Trace.open(out)
    steps = len(trace)
    assert 7 <= steps < 64
    whole = ss.generate(
        golden.model("llada"),
        torch.arange(20).view(2, 10),
        ss.LladaDecoding(length=64, steps=64, block=32),
        capture=ss.Capture(by_query=True),
    ).trace.dataset.isel(step=slice(0, steps))
    assert trace.dataset["step"].values.tolist() == list(range(steps))
    for name in ("tokens", "masked", "candidate", "decided", "ties"):
        np.testing.assert_array_equal(trace.dataset[name].values, whole[name].values, err_msg=name)
    for name in ("received", "received_by", "confidence"):
        np.testing.assert_allclose(
            trace.dataset[name].values, whole[name].values, rtol=1e-3, atol=1e-5, err_msg=name
        )
    assert trace.attributes["weights_digest"] == golden.model("llada").digest
