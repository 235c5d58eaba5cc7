"""CONTRIBUTING names the files that a traced LLaDA prompt walks through: of functions that are entered and dataclasses that are
made, and no other.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import sinkscope as ss
from sinkscope.decoding import DECODINGS

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(ss.__file__).parent


def entered() -> list[str]:
    """Files of the package in the order in which a function of theirs is first called, or a dataclass first made."""
    model = ss.load("organism/scratch", device="cpu")
    decoding, capture = ss.LladaDecoding(length=8, block=8), ss.Capture()

    def generate() -> None:
        ss.generate(model, "Mia has 3 apples.", decoding, capture=capture, seed=0)

    generate()  # what is done once in a process (imports, trials of kernels) is not part of the walk
    files: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if frame.f_code.co_filename == "<string>" and "self" in frame.f_locals:  # the constructor of a dataclass
            module = type(frame.f_locals["self"]).__module__
            path = Path(getattr(sys.modules[module], "__file__", None) or "")
        if event == "call" and path.is_relative_to(PACKAGE):
            files[str(path.relative_to(PACKAGE))] = None

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        generate()
    finally:
        sys.setprofile(before)
    return list(files)


def test_the_walk_in_contributing() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split("## The walk of a traced prompt")[1].split("\n## ")[0]
    told = set(re.findall(r"(?m)^\| `([\w/]+\.py)`", section))
    walked = set(entered())
    assert len(walked) <= 18, f"a newcomer reads {len(walked)} files: {sorted(walked)}"
    assert told >= walked, f"not in CONTRIBUTING: {sorted(walked - told)}"
    assert told <= walked, f"no longer on the walk: {sorted(told - walked)}"


HOT = (
    "decoding/engine.py", "policies/runtime.py", "trace/step_recorder.py", "reuse/runtime.py", "gpu/replay.py",
)  # fmt: skip


@pytest.mark.parametrize("path", HOT)
def test_what_every_forward_goes_through_stays_readable(path: str) -> None:
    """Under 300 lines, no function over 40."""
    text = (PACKAGE / path).read_text(encoding="utf-8")
    assert len(text.splitlines()) < 300
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    long = {node.name for node in functions if (node.end_lineno or 0) - node.lineno >= 40}
    assert not long


RUN_THE_NETWORK = {
    "decoding/engine.py",
    "reuse/runtime.py", "reuse/wrapper.py",  # what takes the place of the engine's `run`
    "models/model.py", "models/masked.py", "generation/maps.py",  # one forward that a user asks for: `logits`, `attention`
    "inspection/observation.py", "models/probe.py", "models/selfcheck.py",
}  # fmt: skip


def test_loops_reach_the_model_through_the_engine_alone() -> None:
    """No file of `decoding` but the engine runs the network; outside, those do that its docstring names."""
    direct = re.compile(r"\bmodel\.(forward|hidden|decode|onward|entering|logits|attention)\(|\bnetwork\(")
    code = {path: re.sub(r"(?m)^ *(>>>|#).*", "", path.read_text("utf-8")) for path in PACKAGE.rglob("*.py")}
    assert {str(path.relative_to(PACKAGE)) for path, text in code.items() if direct.search(text)} == RUN_THE_NETWORK


@pytest.mark.parametrize("kind", sorted(DECODINGS))
def test_a_decoding_is_options(kind: str) -> None:
    """What works on a model's output is its loop's: no method of the options takes an engine, logits or random streams."""
    methods, works = inspect.getmembers(DECODINGS[kind], inspect.isfunction), {"engine", "hidden", "logits", "streams"}
    taken = {name for name, method in methods if works & {*inspect.signature(method).parameters}}
    assert taken == {"on"}


def test_nothing_of_the_gpu_folder_is_imported_without_a_gpu() -> None:
    """A traced and masked generation on a CPU, block loops with a cache and approximate steps included."""
    program = (
        "import sys, torch, sinkscope as ss\n"
        "for given in ({'policy': 'top:1'}, {'reuse': 'prefix:2'}):\n"
        "    ss.generate('organism/scratch', 'Hi', ss.LladaDecoding(8, 8, 8), capture=True, **given)\n"
        "ss.generate('organism/causal', 'Hi', ss.GreedyDecoding(4), capture=True)\n"
        "print([name for name in sys.modules if name.startswith('sinkscope.gpu')])\n"
    )
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"
