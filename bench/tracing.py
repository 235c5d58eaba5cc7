"""How much tracing costs on this machine: one step with attention recorded against the same step without.

Medians of one run, as ratios. The network has random weights in LLaDA's layout (8 layers, 8 heads, width 256); the times say
nothing about other sizes. Run it with `make bench`.
"""

from __future__ import annotations

import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

import itertools

from random_llada import write_random_llada

import sinkscope as ss

LENGTHS = (128, 256, 512)
REPEATS = 3


def seconds_per_step(model: ss.Model, length: int, capture: ss.Capture | None) -> float:
    """Median time of one denoising step, the first of each run left out."""
    prompt = torch.randint(0, 400, (1, length // 2), generator=torch.Generator().manual_seed(0))
    decoding = ss.LladaDecoding(length=length // 2, steps=8, block=length // 2)
    times: list[float] = []
    for _ in range(REPEATS):
        stamps: list[float] = []
        ss.generate(
            model,
            prompt,
            decoding,
            capture=capture,
            progress=lambda *_, at=stamps: at.append(time.perf_counter()),
        )
        times += [after - before for before, after in itertools.pairwise(stamps)]
    return statistics.median(times)


def main() -> None:
    """Prints one line per length."""
    print(
        f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    with tempfile.TemporaryDirectory() as folder:
        write_random_llada(Path(folder), layers=8, heads=8, width=256, vocabulary=2048)
        model = ss.load(folder, device="cpu", check=True)
        print(f"{'length':>8} {'plain':>10} {'traced':>10} {'ratio':>7}")
        for length in LENGTHS:
            seconds_per_step(model, length, None)
            plain = seconds_per_step(model, length, None)
            traced = seconds_per_step(model, length, ss.Capture())
            print(f"{length:>8} {plain * 1e3:>7.1f} ms {traced * 1e3:>7.1f} ms {traced / plain:>7.2f}")


if __name__ == "__main__":
    main()
