"""A study that takes seconds: golden checkpoints with a byte-level tokenizer, and the means to run, kill and compare it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import torch
from tests.helpers.forked import forked
from tests.helpers.tokenizers import golden_with_tokenizer
from typer.testing import CliRunner

from sinkscope import LladaDecoding, cli, parse_policy
from sinkscope.study.cells import Cell
from sinkscope.study.spec import StudyModel
from sinkscope.tasks import registry
from sinkscope.tasks.experiment import Experiment, ModelIdentity

SHORT = LladaDecoding(length=8, steps=4, block=4)
TABLES = ("results", "records", "sinks", "depth", "diagnosis", "replay")
ROOT = Path(__file__).parents[2]


def cell(policy: str = "none", task: str = "word_problems", family: str = "llada", **changes: Any) -> Cell:
    """A cell of three documents whose questions were read."""
    experiment = Experiment(
        ModelIdentity("m", family, "float32", "abc"), registry.get(task, family), SHORT, parse_policy(policy)
    )
    known = Cell("evaluate", experiment, StudyModel("somewhere", name="m"), task, "short", (0, 1, 2), questions="0")
    return replace(known, **changes)


def write_blocks(folder: Path, models: tuple[str, ...], blocks: str, name: str = "small") -> Path:
    """A study file: golden checkpoints, which are put beside it, and `blocks` of TOML, with decodings and what is computed."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f'name = "{name}"']
    for family in models:
        if not (folder / family).exists():
            golden_with_tokenizer(family, folder / family)
        lines += ["[[models]]", f'source = "{folder / family}"', f'name = "{family}"']
    path = folder / "small.toml"
    path.write_text("\n".join([*lines, blocks]), encoding="utf-8")
    return path


def write_study(folder: Path, models: tuple[str, ...] = ("llada", "llama"), samples: int = 4) -> Path:
    """A study that evaluates, traces and replays."""
    blocks = [
        "[decodings.short]", "causal = { length = 6 }", "llada = { length = 8, steps = 4, block = 4 }", "[[evaluate]]",
        'task = "word_problems"', 'decodings = ["short"]', f"samples = {samples}",
        'policies = ["none", "top:1", "random(top:1)"]', "[[trace]]", 'task = "word_problems"', 'decodings = ["short"]',
        "samples = 2", "capture = { anatomy = true }", "maps = 1", "maps_every = 2", "[[replay]]", 'task = "word_problems"',
        'decodings = ["short"]', "samples = 2", 'policies = ["top:1"]',
    ]  # fmt: skip
    return write_blocks(folder, models, "\n".join(blocks))


def command(study: Path, out: Path, *more: str) -> list[str]:
    """The command line that runs a study."""
    return [
        sys.executable, "-m", "sinkscope", "study", str(study), "--out", str(out), "--device", "cpu", *more,
    ]  # fmt: skip


def environment() -> dict[str, str]:
    """One thread, no network."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def run(study: Path, out: Path, *more: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end."""
    done = subprocess.run(
        command(study, out, *more), capture_output=True, text=True, env=environment(), cwd=ROOT, timeout=600, check=False,
    )  # fmt: skip
    if check and done.returncode:
        raise AssertionError(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def run_here(study: Path, out: Path, *more: str, processes: bool = False) -> str:
    """The command in this process, which has read its libraries already, and so have the jobs unless `processes`.

    For runs that others are compared with, and for going on after a loss. Returns what the command printed.
    """
    words = command(study, out, *more, *([] if processes else ["--on", "here"]))[3:]
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    threads = torch.get_num_threads()
    try:
        with mock.patch.dict(os.environ, environment()):
            done = CliRunner().invoke(cli.app, words, catch_exceptions=False)
    finally:
        torch.set_num_threads(threads)
        for one, handler in before.items():
            signal.signal(one, handler)
    assert done.exit_code == 0, done.output
    return done.stdout


def start(
    study: Path, out: Path, *more: str, said: Path | None = None, first: Callable[[], object] = lambda: None
) -> BaseProcess:
    """Starts the command in a process of its own, forked from this one, that calls `first` before; `said`: what it prints."""

    def work() -> None:
        os.environ.update(environment())
        sys.argv = ["sinkscope", *command(study, out, *more)[3:]]
        first()
        cli.main()

    return forked(work, said)


def tables(out: Path) -> dict[str, pd.DataFrame]:
    """The tables of a study."""
    return {name: pd.read_parquet(out / "tables" / f"{name}.parquet") for name in TABLES}


def assert_same(one: Path, two: Path) -> None:
    """Two folders hold the same tables, record for record."""
    first, second = tables(one), tables(two)
    for name in TABLES:
        pd.testing.assert_frame_equal(first[name], second[name], check_exact=True, obj=name)


def without_extra(module: str) -> Any:
    """A mark that skips where an extra is not installed, and says which."""
    import importlib.util

    import pytest

    extra = {"ray": "ray", "submitit": "slurm"}[module]
    return pytest.mark.skipif(
        importlib.util.find_spec(module) is None, reason=f"needs {module}: pip install 'sinkscope[{extra}]'"
    )
