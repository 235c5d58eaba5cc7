"""Training reaches the instrument through its public names, a short list of modules, and entry points; never the other way."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import sinkscope
from sinkscope.cli.plugged import GROUP
from sinkscope.study.plugged import PLUGINS

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = {
    "sinkscope": "public names",
    "sinkscope.base": "errors, checks, files and texts, and the rule that says what a sink is",
    "sinkscope.statistics": "intervals and tests",
    "sinkscope.policies": "the scope and control of a policy, from its text",
    "sinkscope.attention": "an attention call, and received attention, for the probe of a network in training",
    "sinkscope.models": "layouts, variants of attention, and devices",
    "sinkscope.sinks.categories": "kinds of tokens",
    "sinkscope.tasks": "generated documents, and tasks that answers are graded by",
    "sinkscope.study.plugged": "the seam for tables",
    "sinkscope.report.figures.look": "how figures look",
}
"""Module or package of the instrument → what training takes from it."""


def imported(folder: Path) -> Iterator[tuple[str, str]]:
    """(file, module) of every import, inside functions too."""
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((path.name, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield from ((path.name, f"{node.module}.{alias.name}") for alias in node.names)


def test_only_public_modules_of_the_instrument_are_imported() -> None:
    used = set()
    for file, module in imported(ROOT / "train" / "src"):
        if module.split(".")[0] == "sinkscope":
            fits = [name for name in PUBLIC if name != "sinkscope" and f"{module}.".startswith(f"{name}.")]
            assert fits or module == "sinkscope", f"{file} imports {module}, which is not public"
            used |= set(fits)
    assert used == set(PUBLIC) - {"sinkscope"}, "a module that nothing imports any more is not on the list"


def test_the_instrument_knows_nothing_of_training() -> None:
    modules = {module.split(".")[0] for _, module in imported(ROOT / "src")}
    assert "sinkscope_train" not in modules


def test_the_entry_points_are_what_the_instrument_looks_for() -> None:
    project = tomllib.loads((ROOT / "train" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(project["entry-points"]) == {GROUP, PLUGINS.group}
    assert PLUGINS["ladder"].title == "Training runs"
    assert project["version"] == sinkscope.__version__
