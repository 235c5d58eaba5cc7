"""A large trace stays usable: 256 steps × 32 × 32 heads × 1,024 keys in 20 MB, open in 2 s, 60 frames a second."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import numpy as np
import pytest
from tests.report import browser as chromium
from tests.report.browser import Browser
from tests.report.driving import APP
from tests.sinks import synthetic

from sinkscope.trace.trace import Trace

pytestmark = [
    pytest.mark.browser,
    pytest.mark.soak,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        chromium.find() is None, reason="needs Chromium (apt-get install chromium), and none is installed"
    ),
]
STEPS, LAYERS, HEADS, KEYS = 256, 32, 32, 1024
MEGABYTES, SECONDS, FRAMES = 20.0, 2.0, 60.0

SCRUB = """(async () => {
  const slider = document.querySelector('.scrubber'), frame = () => new Promise((done) => requestAnimationFrame(done));
  await frame();
  const began = performance.now();
  let longest = 0, before = began;
  for (let t = 0; t < 256; t++) {
    slider.value = t;
    slider.dispatchEvent(new Event('input', { bubbles: true }));
    await frame();
    const now = performance.now();
    longest = Math.max(longest, now - before);
    before = now;
  }
  await frame();
  return [256000 / (performance.now() - began), longest, document.querySelector('.count').textContent];
})()"""


def write(path: Path) -> None:
    """Fresh noise in every step, which hardly compresses, a static sink, and in half of the layers a moving one."""
    zarr = pytest.importorskip("zarr")
    small = synthetic.trace("none", lengths=(KEYS - STEPS,), answer=STEPS, block=32, layers=1, heads=1)
    small = small.isel(layer=0, head=0, drop=True).drop_vars("received")
    small["region"] = small["region"].astype(object)
    small.assign_coords(layer=np.arange(LAYERS), head=np.arange(HEADS)).to_zarr(path, consolidated=False)
    names = ("sample", "step", "layer", "head", "key")
    shape = (1, STEPS, LAYERS, HEADS, KEYS)
    array = zarr.open_group(str(path)).create_array(
        "received", shape=shape, chunks=(1, 1, LAYERS, HEADS, KEYS), dtype="float16", dimension_names=names,
        compressors=None,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    # Every head of every step is a piece of one long noise, from a place of its own: as hard to compress, drawn once.
    noise = np.exp(0.8 * rng.standard_normal(4 * LAYERS * HEADS * KEYS, dtype=np.float32))
    pieces = np.lib.stride_tricks.sliding_window_view(noise, KEYS)
    for t in range(STEPS):
        step = pieces[rng.integers(len(pieces), size=(LAYERS, HEADS))]
        step[..., 0] = 60.0
        step[::2, :, KEYS - STEPS + t // 32 * 32] += 30.0
        array[0, t] = (step * (KEYS / step.sum(axis=-1, keepdims=True))).astype(np.float16)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import xarray

    folder = tmp_path_factory.mktemp("large")
    write(folder / "large.zarr")
    began = time.monotonic()
    data = xarray.open_zarr(folder / "large.zarr", chunks=None, consolidated=False)
    Trace(dataset=data).to_html(folder / "large.html")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\nwritten in {time.monotonic() - began:.1f} s, peak memory {peak:.0f} MB")
    return folder / "large.html"


def test_the_file_is_small(large):
    size = large.stat().st_size / 1e6
    print(f"{size:.1f} MB")
    assert size <= MEGABYTES


def test_it_opens_at_once_and_scrubs_smoothly(large):
    # Frames on a machine that others keep busy say more about them than about the page, and are not asked for.
    idle = os.getloadavg()[0] < 1.5 * (os.cpu_count() or 1) and "PYTEST_XDIST_WORKER" not in os.environ
    times = 3 if idle else 1
    page = Browser(1400, 1000)
    try:
        page.call(
            "Page.addScriptToEvaluateOnNewDocument",
            source="new MutationObserver(() => { if (!window.usable && document.querySelector('[data-ready]'))"
            " window.usable = performance.now(); }).observe(document, {subtree: true, attributes: true, childList: true});",
        )
        page.open(large)
        usable = page.js("window.usable") / 1000
        print(f"usable after {usable:.2f} s")
        page.js(SCRUB)  # once, so that the frames below are not the first ones of their kind
        frames, work = {}, {}
        for name, change in {
            "mean": "{layer: -1, head: -1}",
            "layer": "{layer: 5, head: -1}",
            "head": "{layer: 5, head: 3}",
        }.items():
            began = time.monotonic()
            page.js(f"{APP}.set({change})")
            page.settle()
            chosen = time.monotonic() - began
            busy = page.busy()
            # The best of three where frames count: other work on the machine can only slow a browser down.
            tries = [page.js(SCRUB) for _ in range(times)]
            busy = (page.busy() - busy) / (times * STEPS)
            assert all(last == "step 255 of 255" for *_, last in tries)
            frames[name], work[name] = max(rate for rate, *_ in tries), busy
            print(
                f"{name}: chosen in {chosen:.2f} s, {frames[name]:.0f} frames a second, {1000 * busy:.1f} ms of CPU a frame"
            )
        assert page.problems() == []
        assert usable < SECONDS
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        assert max(work.values()) <= 1 / FRAMES, f"processor time of a frame, whatever else runs: {work}"
        if idle:
            assert min(frames.values()) >= 0.9 * FRAMES, f"a frame or two may be lost to other work: {frames}"
    finally:
        page.close()
