"""Training reaches the instrument through public names, listed names of a few seams, and entry points; never the other way."""

from __future__ import annotations

import ast
import importlib.util
import tomllib
from collections.abc import Iterator
from pathlib import Path

import sinkscope
from sinkscope.cli.plugged import GROUP
from sinkscope.models.changed import CHANGED
from sinkscope.study.plugged import PLUGINS
from sinkscope_train.variant import MODEL_TYPES

ROOT = Path(__file__).resolve().parents[2]
SEAMS = {
    "attention.context": "AttentionCall ForwardContext current",  # one network in training and in the instrument
    "attention.distant": "whole",
    "attention.fused": "attend",
    "attention.interface": "with_sink",
    "attention.visibility": "Scores Visibility query_weights relative",
    "base.checks": "at_least finite one_of whole",
    "base.errors": "nearest",
    "base.files": "fit read_json read_toml write_atomically",
    "base.sink_rule": "torch_sinks_of",
    "base.text": "aligned",
    "models.changed": "CHANGED ChangedNetwork",  # attention that an option of a recipe changes
    "models.llada": "Llada",  # the official layout in which organisms are saved
    "models.load": "resolve_device",
    "models.mmada": "CHAT_TEMPLATE",
    "report.figures.look": "PAGE PaperFigure finished interval_line sheet style",
    "sinks.categories": "CATEGORIES category_of",
    "base.masked": "MASK",
    "sinks.strength": "GU_EPSILON",
    "statistics": "Estimate bounded holm mean_interval",
    "study.plugged": "Column ShownTable StudyPlugin VERDICT",
    "tasks.evaluate": "decoding_for",
    "tasks.prompting": "SEPARATOR",
    "tasks.registry": "get",
    "tasks.text": "split_text",
    "verdicts": "Measure Reason Status UNKNOWN",  # trends are verdicts, too
    "verdicts.verdict": "point weighed",
    "verdicts.wording": "concluded",
}
"""Module of the instrument → the names that training takes from it, besides the public ones of `sinkscope`."""


def imported(folder: Path) -> Iterator[tuple[str, str]]:
    """(file, module) of every import, inside functions too."""
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((path.name, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield from ((path.name, f"{node.module}.{alias.name}") for alias in node.names)


def taken(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(module of the instrument, name) of everything that a file takes, also through the name of a module."""
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sinkscope":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if importlib.util.find_spec(str(node.module)) and _is_module(inner):
                    modules[alias.asname or alias.name] = inner
                else:
                    yield str(node.module), alias.name
        elif isinstance(node, ast.Import):
            modules |= {a.asname or a.name: a.name for a in node.names if a.name.split(".")[0] == "sinkscope"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield modules[node.value.id], node.attr
    yield from ((module, "") for module in modules.values())


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_training_takes_public_names_and_the_names_of_seams() -> None:
    used: dict[str, set[str]] = {}
    for path in (ROOT / "train" / "src").rglob("*.py"):
        for module, name in taken(ast.parse(path.read_text(encoding="utf-8"))):
            used.setdefault(module.removeprefix("sinkscope").removeprefix("."), set()).add(name)
    public = used.pop("") - {""}
    assert public <= set(sinkscope.__all__), f"{sorted(public - set(sinkscope.__all__))} are no public names"
    assert {module: " ".join(sorted(names - {""})) for module, names in sorted(used.items())} == SEAMS


def test_the_instrument_knows_nothing_of_training() -> None:
    modules = {module.split(".")[0] for _, module in imported(ROOT / "src")}
    assert "sinkscope_train" not in modules


def test_the_entry_points_are_what_the_instrument_looks_for() -> None:
    project = tomllib.loads((ROOT / "train" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(project["entry-points"]) == {GROUP, PLUGINS.group, CHANGED.group}
    assert set(project["entry-points"][CHANGED.group]) == set(MODEL_TYPES.values()) <= set(CHANGED)
    assert PLUGINS["ladder"].title == "Training runs"
    assert project["version"] == sinkscope.__version__
