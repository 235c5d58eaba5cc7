"""Generating and recording need torch, transformers, numpy and safetensors alone."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.helpers import golden

PROGRAM = """
import sys

# None in sys.modules is how Python says that a package is not there, to import and to whoever looks first.
BLOCKED = ["xarray", "zarr", "pandas", "matplotlib", "pyarrow", "numcodecs", "typer", "rich", "scipy"]
sys.modules.update(dict.fromkeys(BLOCKED))

import torch
import sinkscope as ss

for family, decoding in {
    "llada": ss.LladaDecoding(length=8, steps=4, block=4),
    "dream": ss.DreamDecoding(length=8, steps=4),
    "mmada": ss.MmadaDecoding(length=8, steps=4, block=4),
    "llama": ss.GreedyDecoding(length=4, eos=None),
}.items():
    model = ss.load(f"{sys.argv[1]}/{family}/checkpoint", device="cpu", dtype="float32")
    ids = torch.arange(12).view(2, 6)
    plain = ss.generate(model, ids, decoding)
    capture = ss.Capture(by_query=True, anatomy=True)
    run = ss.generate(model, ids, decoding, policy=ss.MaskTop(1), seed=[1, 2], capture=capture)
    assert plain.trace is None
    assert run.trace is not None
    assert len(run.trace) == 4
    assert run.trace.attributes["family"] == model.family
    try:
        run.trace.dataset
    except ModuleNotFoundError as error:
        assert error.name == "xarray"
    else:
        raise SystemExit("the block does not block")
print("done", [name for name in BLOCKED if sys.modules[name] is not None])
"""


def test_generation_and_recording_without_the_heavy_packages() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(golden.ROOT)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.strip().endswith("done []")
