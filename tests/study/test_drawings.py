"""Figures drawn in processes: the same files as in this one, also when a process is killed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from tests.helpers import golden

import sinkscope as ss
from sinkscope.errors import SinkscopeError
from sinkscope.study.pens import Pen, Pens


@pytest.mark.slow
def test_processes_draw_what_this_one_draws_and_are_replaced(tmp_path: Path) -> None:
    out = tmp_path / "t.zarr.zip"
    ids = torch.tensor([[5, 9, 2, 30, 41, 7]])
    ss.generate(golden.model("llada"), ids, ss.LladaDecoding(8, 4, 4), capture=ss.Capture(), seed=0, out=out)
    traces = {"llada": str(out)}
    here = Pen(tmp_path).draw("figure_10", traces)
    assert sorted(here["files"]) == [f"figures/figure_10.{end}" for end in ("csv", "pdf", "svg", "txt")]
    same = [name for name in here["files"] if not name.endswith("svg")]  # an SVG holds names drawn at random
    kept = {name: (tmp_path / name).read_bytes() for name in same}
    pens = Pens(tmp_path, 2)
    try:
        for killed in (False, True):
            shutil.rmtree(tmp_path / "figures")
            if killed:
                for process in pens._every:
                    process.kill()
                    process.wait()
            assert pens.draw("figure_10", traces) == here
            assert {name: (tmp_path / name).read_bytes() for name in same} == kept
            assert (tmp_path / "figures" / "figure_10.svg").stat().st_size > 0
        with pytest.raises(SinkscopeError, match="drawing figure_99 failed: unknown figure"):
            pens.draw("figure_99", traces)
    finally:
        pens.close()
    assert all(process.poll() is not None for process in pens._every)
