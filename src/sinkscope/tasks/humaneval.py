"""HumanEval (Chen et al. 2021): functions to complete, put and graded as each model's official evaluation does it.

The test set has 164 documents: `HumanEval.jsonl.gz` of github.com/openai/human-eval, or `openai/openai_humaneval` on the hub.
Programs run in the sandbox, three seconds each as in the original, with the standard library alone.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sinkscope.base.checks import one_of
from sinkscope.tasks import bounded
from sinkscope.tasks.bounded import BoundedResult
from sinkscope.tasks.code_text import RULES
from sinkscope.tasks.programs import CodeTask
from sinkscope.tasks.schemes import choose, compose, read_schemes
from sinkscope.tasks.sources import HubData, read_rows
from sinkscope.tasks.task import Document, Prompt, Scheme, cut

TEST = HubData(
    "openai/openai_humaneval", "openai_humaneval", "test", "HumanEval.jsonl.gz or HumanEval.jsonl (164 lines)", 164,
    ("task_id", "prompt", "entry_point", "canonical_solution", "test"), "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
)  # fmt: skip

SCHEMES, DEFAULTS = read_schemes("humaneval")


@dataclass(frozen=True)
class HumanEval(CodeTask):
    """The task. `data`: the file of documents."""

    scheme: Scheme
    data: Path | None = None
    name: str = "humaneval"

    def documents(self, limit: int | None = None) -> list[Document]:
        rows = read_rows(TEST, self.data)
        return [
            Document(
                row["task_id"],
                row["prompt"],
                row["canonical_solution"],
                {"entry_point": row["entry_point"], "tests": f"{row['test']}\ncheck({row['entry_point']})"},
            )
            for row in rows[:limit]
        ]

    def prompt(self, document: Document) -> Prompt:
        # Not str.format: prompts contain braces of their own.
        wording = (self.scheme.question, self.scheme.prefix)
        asked, prefix = (text.replace("{question}", document.question) for text in wording)
        prompt = compose(self.scheme, asked)
        return Prompt(prompt.turns, prefix, prompt.chat)

    def programs(self, pairs: Sequence[tuple[Document, str]]) -> list[BoundedResult]:
        rule, until = one_of("extraction", self.scheme.extraction, RULES), self.scheme.until
        calls = [(rule, one.question, cut(output, until), one.extra["entry_point"]) for one, output in pairs]
        return bounded.apply(calls)

    def tests(self, document: Document) -> tuple[str, str]:
        """Where they call functions that the prompt gives beside the one to complete, they stand behind these functions.

        So tests do not take the program's word for what they compute. Officially they are the program's: one that lacks
        them fails, and does so here, by the bare names at the beginning.
        """
        tests, entry_point = document.extra["tests"], document.extra["entry_point"]
        try:
            nodes = [node for node in ast.parse(document.question).body if getattr(node, "name", "") != entry_point]
            used = {node.id for node in ast.walk(ast.parse(tests)) if isinstance(node, ast.Name)}
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return tests, entry_point
        names = [node.name for node in nodes if isinstance(node, ast.FunctionDef) and node.name in used]
        return "\n".join([*names, *map(ast.unparse, nodes), tests]) if names else tests, entry_point


def task(scheme: str | None = None, family: str | None = None, data: str | Path | None = None) -> HumanEval:
    return HumanEval(choose("humaneval", SCHEMES, DEFAULTS, scheme, family), None if data is None else Path(data))
