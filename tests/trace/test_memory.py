"""Tracing many steps to a path must cost less than 50 MB over the same run without capture.

The run without capture is stopped early: all its steps take the same memory, and its states, of which there are more later,
count as cost of the trace.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.helpers import golden

LAYERS, INNER, VOCABULARY = 7, 32, 512

PROGRAM = """
import json, resource, sys
import numpy, torch, xarray, zarr
import sinkscope as ss
from sinkscope.trace import storage

def peak():
    lines = open('/proc/self/status').read().splitlines()  # unlike ru_maxrss, not inherited from the process that started this
    return next(int(line.split()[1]) for line in lines if line.startswith('VmHWM')) / 1024  # MB

torch.set_num_threads(1)
model = ss.load(sys.argv[1], device="cpu", dtype="float32")
length, steps, rows = map(int, sys.argv[3:])
ids = torch.arange(8 * rows).view(rows, 8)
decoding = ss.LladaDecoding(length=length, steps=steps, block=length)
# Opening files, codecs and thread pools once, so that what is measured is the recording.
ss.generate(model, ids, ss.LladaDecoding(length=8, steps=2, block=8), out=sys.argv[2] + "warm.zarr.zip").trace.dataset.load()
before = peak()
class Enough(Exception):
    pass
plain = []
def keep(done, expected, states):
    plain.append(states.clone())
    if done == 32:
        raise Enough
try:
    ss.generate(model, ids, decoding, progress=keep)
except Enough:
    without = peak()
capture = ss.Capture(by_query=True)
run = ss.generate(model, ids, decoding, capture=capture, out=sys.argv[2] + "t.zarr.zip")
extra = peak() - without
sizes = run.trace.dataset["received"].sizes
whole = (run.trace.dataset["received"].nbytes + run.trace.dataset["received_by"].nbytes) / 2**20
print(json.dumps({"before": before, "without": without, "extra": extra, "whole": whole, "steps": sizes["step"],
                  "same": bool(torch.equal(torch.stack(plain), run.states[1:33]))}))
"""


def wide_checkpoint(folder: Path, heads: int) -> None:
    """A LLaDA checkpoint with random weights: small, but with many heads, so that its trace is not."""
    config = json.loads((golden.checkpoint("llada") / "config.json").read_text())
    width = 4 * heads
    config.update(
        d_model=width, n_layers=LAYERS, n_heads=heads, n_kv_heads=heads, mlp_hidden_size=INNER, vocab_size=VOCABULARY,
        embedding_size=VOCABULARY, max_sequence_length=1024,
    )  # fmt: skip
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(0)

    def weight(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 0.2

    tensors = {
        "wte.weight": weight(VOCABULARY, width),
        "ff_out.weight": weight(VOCABULARY, width),
        "ln_f.weight": torch.ones(width),
    }
    for layer in range(LAYERS):
        block = f"blocks.{layer}."
        for name in ("q_proj", "k_proj", "v_proj", "attn_out"):
            tensors[f"{block}{name}.weight"] = weight(width, width)
        for name in ("ff_proj", "up_proj"):
            tensors[f"{block}{name}.weight"] = weight(INNER, width)
        tensors[f"{block}ff_out.weight"] = weight(width, INNER)
        for name in ("attn_norm", "ff_norm"):
            tensors[f"{block}{name}.weight"] = torch.ones(width)
    save_file({f"model.transformer.{name}": tensor for name, tensor in tensors.items()}, folder / "model.safetensors")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("heads", "length", "steps", "rows"),
    [
        pytest.param(64, 48, 48, 4, marks=pytest.mark.slow),
        pytest.param(64, 128, 128, 1, marks=pytest.mark.soak),
        pytest.param(8, 512, 256, 1, marks=pytest.mark.soak),
    ],
)
def test_peak_memory_of_a_long_recording(heads: int, length: int, steps: int, rows: int, tmp_path: Path) -> None:
    """The traces are about equally large; attention over more tokens takes longer."""
    wide_checkpoint(tmp_path / "model", heads)
    result = subprocess.run(
        [
            sys.executable, "-c", PROGRAM, str(tmp_path / "model"), f"{tmp_path}/", str(length), str(steps), str(rows),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=880,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["same"]
    assert found["steps"] == steps
    assert found["whole"] > 100, "the trace itself must be larger than what is allowed, else this test shows nothing"
    assert found["extra"] < 50, found
