"""The commands of the Makefile reach every test."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_browser_tests_lie_where_make_looks_for_them() -> None:
    """`make test` runs them first and alone, and collects only the folders that have some."""
    named = re.search(r"^WITH_BROWSER := (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert named
    marked = [
        path.relative_to(ROOT)
        for path in (ROOT / "tests").rglob("test_*.py")
        if "mark.browser" in path.read_text(encoding="utf-8") and path != Path(__file__)
    ]
    assert {"/".join(path.parts[:2]) for path in marked} == set(named[1].split())
