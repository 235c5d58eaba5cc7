"""Data, not sentences: nothing of sinkscope reads its own words back."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from jinja2 import Environment, nodes

from sinkscope.verdicts import Reason, Status
from sinkscope.verdicts.wording import HERE

SOURCE = Path(__file__).parents[1] / "src" / "sinkscope"
ALLOWED = {
    "base/textform.py": "reads what people write: policies, decodings, captures",
    "cli/inputs.py": "reads an option: 128x64",
    "models/settings.py": "reads names of settings of a checkpoint",
    "policies/text.py": "reads what people write: policies",
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


TEXTS = ("note", "caption", "sentence", "evidence", "verdict", "reason", "policy", "title", "label", "text", "line")
"""Names of texts of ours."""
READERS = ("startswith", "endswith", "partition", "rpartition", "split", "rsplit", "removeprefix", "removesuffix")
ROOMS = ("sinks", "statistics", "verdicts", "inspection", "study", "report", "generation", "cli")
"""Folders through which numbers travel from a trace to a page, and in which a text is nobody's input."""
READ = {
    "cli/__init__.py": (3, "the name of a module; a warning and a message of libraries"),
    "cli/inputs.py": (6, "what was typed, and files of prompts"),
    "cli/inspect.py": (1, "the name of a file"),
    "cli/lm_eval.py": (2, "an option; the name of a module"),
    "cli/options.py": (1, "the flag of an option"),
    "cli/show.py": (6, "options, and names of files"),
    "cli/study_output.py": (1, "the name of a model, which people write"),
    "cli/trace.py": (4, "names of files"),
    "generation/timing.py": (1, "the name of a type of torch"),
    "inspection/lens.py": (1, "parts of a tensor"),
    "inspection/tuned_lens.py": (1, "the name of a type of torch"),
    "report/figures/look.py": (1, "the name of a model, which people write"),
    "report/live.py": (2, "a request of a browser"),
    "report/study/charts.py": (7, "an SVG of matplotlib"),
    "sinks/dataset.py": (2, "names of variables of a trace, which others may add to"),
    "study/comparison.py": (1, "names of columns with p"),
    "study/facts.py": (1, "the name of a type of torch"),
    "study/plugged.py": (1, "the name of a table of a plug-in"),
    "study/store.py": (1, "names of files"),
}
"""Files of these rooms that take a text apart: how often, and what it is."""
OTHERS = {"base/textform.py": "a type in a declaration", "cli/inputs.py": "what was typed", "models/hub.py": "names of files",
          "models/load.py": "a path", "sinks/categories.py": "a token",
          "tasks/small_code.py": "a template",
          "tasks/sandbox/bubblewrap.py": "what a program says of itself",
          "tasks/sandbox/rungs.py": "what the system says"}  # fmt: skip
"""Files that look for words in a text: whose it is."""


def takes_apart(node: ast.AST) -> bool:
    """`text.startswith(…)`, whatever it is called; also of a column of texts."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in READERS
        and not isinstance(node.func.value, ast.Constant)
    )


def looks_for_words(node: ast.AST) -> bool:
    """`"by=distant" in policy`, `"few" in note`: a text that is told by its words."""
    looked = isinstance(node, ast.Compare) and any(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops)
    if not isinstance(node, ast.Compare) or not looked:
        return False
    left, told = node.left, [ast.unparse(one).rpartition(".")[2] for one in node.comparators]
    if not isinstance(left, ast.Constant) or not isinstance(left.value, str):
        return False
    return not left.value.isidentifier() or any(name in TEXTS for name in told)


TEMPLATES = {"parts.jinja": "the name of a model, to break it in lines", "settings.jinja": "the lines of a TOML file"}
"""Templates that take a text apart, once each: what it is."""
WORDS = {word.value for kind in (Status, Reason) for word in kind} | set(HERE.values())
"""What verdicts are in words, which is for people: programs ask for the member itself."""


def asks_for_words(node: ast.AST) -> bool:
    """`row["reason"] == Reason.TIES.value`, or with the words themselves."""
    if not isinstance(node, ast.Compare):
        return False
    return any(
        (isinstance(side, ast.Attribute) and side.attr == "value" and getattr(side.value, "attr", "").isupper())
        or (isinstance(side, ast.Constant) and side.value in WORDS)
        for side in (node.left, *node.comparators)
    )


def read_by_template(text: str) -> tuple[int, int]:
    """How often a template takes a text apart, and how often it compares one with the words of a verdict."""
    tree = Environment(autoescape=True).parse(text)
    calls = [call.node for call in tree.find_all(nodes.Call) if isinstance(call.node, nodes.Getattr)]
    sides = [
        side for one in tree.find_all(nodes.Compare) for side in (one.expr, *(operand.expr for operand in one.ops))
    ]
    words = [const for side in sides for const in (side, *side.find_all(nodes.Const)) if isinstance(const, nodes.Const)]
    return sum(call.attr in READERS for call in calls), sum(const.value in WORDS for const in words)


def test_templates_take_no_text_of_ours_apart() -> None:
    found = {path.name: read_by_template(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.jinja")}
    assert {name: counts for name, counts in found.items() if any(counts)} == dict.fromkeys(TEMPLATES, (1, 0))
    assert read_by_template('{{ "" if answers|list == ["undecided"] or note.startswith("few") }}') == (1, 1)


def test_no_verdict_is_told_by_its_words() -> None:
    found = [f"{name}:{node.lineno}" for name, tree in sources() for node in ast.walk(tree) if asks_for_words(node)]  # type: ignore[attr-defined]
    assert found == []


def test_regular_expressions_read_what_others_wrote() -> None:
    users = {name for name, tree in sources() if imports_re(tree)}
    assert sorted(users) == sorted(ALLOWED), "say in ALLOWED what it reads, or pass data on"


def test_no_text_of_ours_is_told_by_its_words() -> None:
    found = {
        name for name, tree in sources() for node in ast.walk(tree) if finds_in_json(node) or looks_for_words(node)
    }
    assert found <= OTHERS.keys()


def test_between_a_trace_and_a_page_no_text_is_taken_apart() -> None:
    found = Counter(
        name for name, tree in sources() for node in ast.walk(tree) if name.split("/")[0] in ROOMS and takes_apart(node)
    )
    assert found == {name: count for name, (count, _) in READ.items()}, "pass data on, or say in READ whose text it is"


def test_no_reason_is_told_by_how_it_begins() -> None:
    """In the other rooms texts of models and people are read; none of ours is, by its name."""
    found = [
        f"{name}:{node.lineno}"
        for name, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and takes_apart(node)
        and ast.unparse(node.func.value).rpartition(".")[2].rstrip("s") in ("note", "caption", "sentence", "evidence", "reason")
    ]  # fmt: skip
    assert found == []


@pytest.mark.parametrize(
    "text",
    ["""'"maps"' in cell.capture""", 'note.startswith("few")', '"lost" in row.caption', 'notes.split(";")',
     "said == Reason.TIES.value", 'group[0] == "undecided"',
     '"by=distant" in policy', "record.reason.startswith(BROKE)", 'name.endswith(f" {number}")', 'table["x"].str.endswith(":")',
     '"few" not in said[0].note'],
)  # fmt: skip
def test_the_test_sees_them(text: str) -> None:
    seen = (finds_in_json, looks_for_words, takes_apart, asks_for_words)
    assert any(sees(node) for node in ast.walk(ast.parse(text)) for sees in seen)
