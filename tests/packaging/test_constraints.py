"""The versions that make installs: each suits the lowest Python that we state."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
LINES = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
PINS = dict(line.split("==") for line in LINES if line and not line.startswith("#"))


def lowest_python() -> str:
    """The first release that requires-python admits: ">=3.11" is 3.11.0, which lacks what a later patch brought."""
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    (number,) = re.findall(r"^>=(\d+\.\d+)$", stated)
    return f"{number}.0"


@pytest.fixture(scope="module")
def installed() -> dict[str, tuple[str, str]]:
    """Version (without the build, as in 2.13.0+cpu) and Requires-Python of every pinned package that is installed here."""
    found = {}
    for name in PINS:
        try:
            about = distribution(name)
        except PackageNotFoundError:  # another platform's, or the study's environment without the test extra
            continue
        found[name] = Version(about.version).public, about.metadata["Requires-Python"] or ""
    assert {"torch", "transformers", "pytest"} <= set(found), "this environment has hardly a pinned package"
    return found


def test_every_pin_admits_the_lowest_python(installed: dict[str, tuple[str, str]]) -> None:
    lowest = lowest_python()
    refused = {name: wants for name, (_, wants) in installed.items() if lowest not in SpecifierSet(wants)}
    assert not refused, f"a fresh machine with Python {lowest} cannot install these; pin earlier releases"
