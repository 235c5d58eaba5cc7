"""A large trace on disk is summarised within its bounds: 30 s on two cores, 1 GB for the whole process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.sinks import synthetic

SHAPE = (1, 256, 32, 32, 512)
SECONDS = 30.0
START, MEGABYTES = 256.0, 1024.0
"""A process that has imported what it needs, and all that it may take; between them it grows with the steps."""

SOME_STEPS = 64

PROGRAM = """
import resource, sys, time
import xarray
from sinkscope.sinks import summary
began = time.perf_counter(), time.process_time()
data = xarray.open_zarr(sys.argv[1], chunks=None, consolidated=False)
table = summary(data).set_index("measure")["value"]
wall, seconds = time.perf_counter() - began[0], time.process_time() - began[1]
lines = open('/proc/self/status').read().splitlines()
peak = next(int(line.split()[1]) for line in lines if line.startswith('VmHWM')) / 1024
print(wall, seconds, peak, table["heads"], table["static heads"], table["sinks per head"])
"""


def write(path: Path, T: int) -> None:
    """Stored as traces are: one chunk for each step, half precision; half of the layers also have a moving
    sink."""
    zarr = pytest.importorskip("zarr")
    _, _, L, H, K = SHAPE
    small = synthetic.trace("none", lengths=(K - T,), answer=T, block=32, layers=1, heads=1)
    small = small.isel(layer=0, head=0, drop=True).drop_vars("received")
    small["region"] = small["region"].astype(object)
    small.assign_coords(layer=np.arange(L), head=np.arange(H)).to_zarr(path, consolidated=False)
    group = zarr.open_group(str(path))
    names = ("sample", "step", "layer", "head", "key")
    array = group.create_array(
        "received", shape=(1, T, L, H, K), chunks=(1, 1, L, H, K), dtype="float16", dimension_names=names
    )
    rng = np.random.default_rng(0)
    noise = rng.lognormal(0, 0.8, (7, L, H, K)).astype(np.float32)
    for t in range(T):
        step = np.roll(noise[t % 7], t, axis=-1)
        step[..., 0] = 60.0
        step[::2, :, K - T + t // 32 * 32] += 30.0
        array[0, t] = (step * (K / step.sum(axis=-1, keepdims=True))).astype(np.float16)


@pytest.mark.parametrize(
    "steps", [pytest.param(SOME_STEPS, marks=pytest.mark.slow), pytest.param(SHAPE[1], marks=pytest.mark.soak)]
)
@pytest.mark.timeout(600)
def test_a_large_trace_is_summarised_in_time_and_memory(tmp_path, steps):
    path = tmp_path / "large.zarr"
    write(path, steps)
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, check=True)
    wall, seconds, peak, heads, static, sinks = (float(x) for x in done.stdout.split())
    print(f"summarised in {wall:.1f} s, of which {seconds:.1f} s of work, {peak:.0f} MB at most")
    assert heads == 1024
    assert static == 1.0
    assert 1.5 < sinks < 20
    # The work, not the wall: a machine that is busy with other things does not make this slower. On a free one the
    # wall is at most the work.
    part = steps / SHAPE[1]
    assert seconds < SECONDS * part
    assert peak < START + (MEGABYTES - START) * part
