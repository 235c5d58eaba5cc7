"""The examples in docstrings are true, and every public name has one.

They run after docs/preamble.py, which the API page shows: a small model, a prompt, a decoding, one run and its trace.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import sinkscope

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (ROOT / "src", ROOT / "train" / "src")
FILES = sorted(
    path for source in SOURCES for path in source.rglob("*.py") if ">>> " in path.read_text(encoding="utf-8")
)
PUBLIC = [name for name in sinkscope.__all__ if not name.startswith("__")]


@cache
def preamble() -> dict[str, Any]:
    """The names that examples may use."""
    space: dict[str, Any] = {}
    exec(compile((ROOT / "docs" / "preamble.py").read_text(encoding="utf-8"), "preamble.py", "exec"), space)
    del space["__builtins__"]
    return space


def module_name(path: Path) -> str:
    (source,) = (source for source in SOURCES if path.is_relative_to(source))
    return ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_examples(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(module_name(path))
    # The module's own names come first: an example inside it means them.
    names = {**preamble(), **vars(module)} if uses_the_preamble(path) else None
    result = doctest.testmod(module, globs=names, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
    assert result.attempted > 0


def uses_the_preamble(path: Path) -> bool:
    """Examples that name something of the preamble; the others need no model."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if re.match(r"\s*(>>>|\.\.\.) ", line)]
    return any(re.search(r"\b(ss|model|prompts|decoding|run|trace)\b", line) for line in lines)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_an_example(name: str) -> None:
    thing = getattr(sinkscope, name)
    assert ">>> " in (inspect.getdoc(thing) or ""), f"{name} ({inspect.getsourcefile(thing)}) has no example"
