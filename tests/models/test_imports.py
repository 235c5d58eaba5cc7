"""What is imported when: models, generation and recording need torch, transformers, numpy and safetensors alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tests.helpers import golden


def python(program: str, *arguments: str) -> str:
    """Standard output of a program in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=250, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


HEAVY = (
    "torch", "transformers", "numpy", "xarray", "zarr", "pandas", "matplotlib", "pyarrow", "typer", "rich",
)  # fmt: skip


def test_importing_the_package_imports_nothing_heavy() -> None:
    loaded = json.loads(python("import sinkscope, sys, json; dir(sinkscope); print(json.dumps(sorted(sys.modules)))"))
    assert "sinkscope" in loaded
    assert not [name for name in HEAVY if name in loaded]


def test_importing_the_command_line_imports_nothing_heavy() -> None:
    loaded = json.loads(python("import sinkscope.cli, sys, json; print(json.dumps(sorted(sys.modules)))"))
    assert not [name for name in HEAVY[:8] if name in loaded]


WITHOUT = """
import importlib.metadata, sys
from importlib.machinery import PathFinder
BLOCKED = {
    "xarray", "zarr", "numcodecs", "pandas", "matplotlib", "pyarrow", "typer", "rich", "click", "dask", "scipy"
}

class Hidden:  # as if they were not installed: neither found nor in the list of packages
    find_distributions = PathFinder.find_distributions

    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in BLOCKED else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hidden
right = importlib.metadata.version

def version(name):
    if name.lower() in BLOCKED:
        raise importlib.metadata.PackageNotFoundError(name)
    return right(name)

importlib.metadata.version = version
for name in BLOCKED:
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"{name} is not hidden")

import torch
import sinkscope as ss
decodings = {
    "llada": ss.LladaDecoding(length=8, steps=4, block=4),
    "dream": ss.DreamDecoding(length=8, steps=4),
    "mmada": ss.MmadaDecoding(length=8, steps=4, block=4),
    "causal": ss.GreedyDecoding(length=4, eos=None),
}
for folder in sys.argv[1:]:
    model = ss.load(folder, device="cpu", dtype="float32", check=True)
    ids = torch.arange(12)[None]
    model.logits(ids, policy=ss.MaskKeys({0: [1]}))
    model.attention(ids)
    decoding, ids = decodings[model.family], ids.view(2, 6)
    assert ss.generate(model, ids, decoding).trace is None
    capture = ss.Capture(by_query=True, anatomy=True)
    run = ss.generate(model, ids, decoding, policy=ss.MaskTop(1), seed=[1, 2], capture=capture)
    assert len(run.trace) == 4
    assert run.trace.attributes["family"] == model.family
    try:
        run.trace.dataset
    except ModuleNotFoundError as error:
        assert error.name == "xarray"
    else:
        raise SystemExit("xarray was found")
print("ran", sorted(name for name in sys.modules if name.partition(".")[0] in BLOCKED))
"""


@pytest.mark.slow
def test_loading_generating_and_recording_need_no_heavier_package() -> None:
    assert python(WITHOUT, *(str(golden.checkpoint(family)) for family in golden.FAMILIES)) == "ran []\n"
