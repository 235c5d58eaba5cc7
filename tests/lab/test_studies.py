"""The study files that the logs name can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from sinkscope.study import spec

STUDIES = sorted((Path(__file__).parents[2] / "lab" / "studies").glob("*.toml"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_it_can_be_read(path: Path) -> None:
    assert spec.read(str(path)).name == path.stem
