"""Data, not sentences: nothing of sinkscope reads its own words back."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "sinkscope"
ALLOWED = {
    "base/textform.py": "reads what people write: policies, decodings, captures",
    "cli/bench.py": "reads an option: 128x64",
    "sinks/categories.py": "reads tokens",
    "study/names.py": "sorts names: numbers in them by their value",
    "tasks/battery/__init__.py": "reads a document's id, its key in records",
    "tasks/battery/skills.py": "reads a model's answer",
    "tasks/code_text.py": "reads a model's answer",
    "tasks/extraction.py": "reads a model's answer",
    "tasks/generated.py": "reads a document's id, its key in records",
    "tasks/own.py": "reads a model's answer",
    "tasks/word_problems.py": "fills the sums of a template in, which is a task's own language",
}
"""Files that use regular expressions: what they read with them."""


def sources() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield str(path.relative_to(SOURCE)), ast.parse(path.read_text(encoding="utf-8"))


def imports_re(tree: ast.AST) -> bool:
    return any(
        (isinstance(node, ast.Import) and any(name.name in ("re", "regex") for name in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module in ("re", "regex"))
        for node in ast.walk(tree)
    )


def finds_in_json(node: ast.AST) -> bool:
    """`'"maps"' in text`: a part of JSON that is looked for as text."""
    looked = isinstance(node, ast.Compare) and any(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops)
    left = getattr(node, "left", None)
    return looked and isinstance(left, ast.Constant) and isinstance(left.value, str) and '"' in left.value


def tells_notes_apart(node: ast.AST) -> bool:
    """`note.startswith(…)`, `"…" in caption`: a sentence that is told by its words."""
    words = ("note", "caption", "sentence", "evidence", "verdict")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        told = node.func.attr in ("startswith", "endswith", "partition", "split")
        return told and ast.unparse(node.func.value).rpartition(".")[2].rstrip("s") in words
    if (
        isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Constant)
        and isinstance(node.left.value, str)
    ):
        looked = [ast.unparse(one).rpartition(".")[2] for one in node.comparators]
        return isinstance(node.ops[0], ast.In) and any(name in words for name in looked)
    return False


def test_regular_expressions_read_what_others_wrote() -> None:
    users = {name for name, tree in sources() if imports_re(tree)}
    assert sorted(users) == sorted(ALLOWED), "say in ALLOWED what it reads, or pass data on"


def test_no_sentence_and_no_json_is_told_by_its_words() -> None:
    found = [
        f"{name}:{getattr(node, 'lineno', 0)}"
        for name, tree in sources()
        for node in ast.walk(tree)
        if finds_in_json(node) or tells_notes_apart(node)
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    ["""'"maps"' in cell.capture""", 'note.startswith("few")', '"lost" in row.caption', 'notes.split(";")'],
)
def test_the_test_sees_them(text: str) -> None:
    assert any(finds_in_json(node) or tells_notes_apart(node) for node in ast.walk(ast.parse(text)))
