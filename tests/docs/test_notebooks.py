"""The tutorials run from top to bottom, each in a kernel and a folder of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "docs" / "tutorials").glob("*.ipynb"))


def test_there_are_tutorials() -> None:
    assert len(NOTEBOOKS) == 8


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_tutorial_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed (pip install '.[docs]')")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed (pip install '.[docs]')")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv(
        "PYTHONPATH", str(path.parents[2] / "src") + os.pathsep + os.environ.get("PYTHONPATH", "")
    )
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
