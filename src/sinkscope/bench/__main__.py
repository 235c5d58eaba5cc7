"""`python -m sinkscope.bench`: the benchmark without typer, for machines that have torch and little else."""

from __future__ import annotations

import argparse
from pathlib import Path

from sinkscope.bench.command import bench_command
from sinkscope.errors import plainly

parser = argparse.ArgumentParser(description="How much tracing costs here, as ratios of one run.")
parser.add_argument("shape", nargs="?")
parser.add_argument("--device", default="auto")
parser.add_argument("--dtype", default="auto")
parser.add_argument("--grid", help="such as 1x384,8x512")
parser.add_argument("--steps", type=int)
parser.add_argument("--alone", action="store_true", help="leave out the official style and eager maps")
parser.add_argument("--out", type=Path)
with plainly():
    bench_command(**vars(parser.parse_args()))
