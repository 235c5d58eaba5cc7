"""What README's first lines and CITATION.cff claim about the package is what its files say."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from sinkscope.base.version import __version__

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_badges_are_true() -> None:
    badges = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[2].split(" · ")
    versions = [line.split(" :: ")[-1] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert badges[0] == PROJECT["license"]
    assert badges[1] == f"Python {versions[0]} to {versions[-1]}"
    assert PROJECT["requires-python"] == f">={versions[0]}"
    assert any(line.endswith(badges[2].capitalize()) for line in PROJECT["classifiers"])


def test_the_citation_is_of_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(rf"^version: {re.escape(__version__)}$", citation, re.MULTILINE)
    assert "arXiv:2510.15731" in citation
