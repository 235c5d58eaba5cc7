"""Modules that a study names: what they register is known to the command and to its workers, which are other processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest import mock

import pandas as pd
import pytest
from tests.study import small

from sinkscope.base.errors import InputError
from sinkscope.study import spec
from sinkscope.study.store import Store

MODULE = """
from dataclasses import dataclass

import torch

import sinkscope as ss


@ss.register
@dataclass(frozen=True)
class MaskEvery(ss.FixedRule):
    "Masks every n-th key of the prompt."

    n: int
    word = "every"

    def columns(self, layer, visibility, device):
        index = torch.arange(visibility.keys, device=device)
        return ((index % self.n == 0) & (index > 0) & (index < 20))[None, None]
"""


def write(folder: Path) -> Path:
    """A study under a policy that only `my_policies` knows, and that module in a folder of its own."""
    study = small.write_study(folder, models=("llada",), samples=2)
    text = study.read_text().replace('name = "small"', 'name = "small"\nmodules = ["my_policies"]', 1)
    study.write_text(text.replace('["none", "top:1", "random(top:1)"]', '["none", "every:3", "every:4"]'))
    (folder / "modules").mkdir()
    (folder / "modules" / "my_policies.py").write_text(MODULE)
    return study


@pytest.mark.slow
@pytest.mark.parametrize("on", ["local", pytest.param("ray", marks=[small.without_extra("ray"), pytest.mark.soak])])
def test_workers_know_what_a_module_registers(on: str, tmp_path: Path) -> None:
    study, out = write(tmp_path), tmp_path / "out"
    path = os.pathsep.join([str(tmp_path / "modules"), os.environ.get("PYTHONPATH", "")])
    with mock.patch.dict(os.environ, {"PYTHONPATH": path}):
        words = ("--workers", "1", "--no-report", "--on", on)
        if on == "ray":  # whose threads in this process, of an earlier test, would not survive a fork
            small.run(study, out, *words)
        else:
            said = tmp_path / "said"
            process = small.start(
                study, out, *words, said=said, first=lambda: sys.path.append(str(tmp_path / "modules"))
            )
            process.join(600)
            assert process.exitcode == 0, said.read_text()
    assert "my_policies" not in sys.modules
    table = pd.read_parquet(out / "tables" / "results.parquet")
    assert list(table["policy"]) == ["none", "every:3", "every:4"]
    assert table["cell"].nunique() == 3
    assert Store(out).study() is not None  # reading needs no module


def test_reading_a_folder_imports_nothing_that_it_names(tmp_path: Path) -> None:
    data = spec.read_data(write(tmp_path))
    with pytest.raises(InputError, match=r"'my_policies' .* cannot be imported .* PYTHONPATH"):
        spec.from_data(data)
    Store(tmp_path / "out").write_study(spec.from_data(data, names=False))
    study = Store(tmp_path / "out").study()
    assert study is not None
    assert study.modules == ("my_policies",)
    assert study.evaluate[0].policies == ("none", "every:3", "every:4")
