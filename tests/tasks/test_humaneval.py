"""HumanEval: the official prompts and post-processing; canonical solutions pass, empty ones fail."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.helpers.marks import needs_sandbox
from tests.tasks.shared_data import shared_file

from sinkscope.base.errors import InputError
from sinkscope.tasks import get, sandbox
from sinkscope.tasks.code_text import RULES, sanitize
from sinkscope.tasks.humaneval import SCHEMES, HumanEval
from sinkscope.tasks.task import Document

PROMPT = 'def twice(x):\n    """ Double {x}.\n    >>> twice(2)\n    4\n    """\n'
BODY = "    return 2 * x\n"
ROW = {
    "task_id": "Own/0",
    "prompt": PROMPT,
    "entry_point": "twice",
    "canonical_solution": BODY,
    "test": "def check(candidate):\n    assert candidate(3) == 6\n    assert candidate(-1) == -2\n",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps(ROW) + "\n", encoding="utf-8")
    return path


def _answer(scheme: str) -> str:
    """The right solution as the scheme expects a model to write it."""
    extraction = get(f"humaneval:{scheme}").scheme.extraction
    return {
        "completion": BODY,
        "completion-before-fence": f"{BODY}```\nThat is all.",
        "first-block": f"Here it is:\n```python\n{PROMPT}{BODY}```\nAs you see.",
        "sanitized": f"{BODY}```\nThat is all.",
    }[extraction]


@pytest.mark.slow
@needs_sandbox
@pytest.mark.parametrize("name", [scheme.name for scheme in SCHEMES])
def test_every_scheme_grades_right_and_wrong(name: str, file: Path) -> None:
    task = get(f"humaneval:{name}", data=file)
    document = task.documents()[0]
    answer = _answer(name)
    assert task.grade(document, answer).passed
    wrong = task.grade(document, answer.replace("2 * x", "3 * x"))
    assert not wrong.passed
    assert wrong.reason.startswith("AssertionError")
    assert "3 * x" in wrong.extracted
    assert not task.grade(document, "").passed


def test_prompts(file: Path) -> None:
    def prompt(name: str) -> tuple[str, str, bool]:
        made = get(f"humaneval:{name}", data=file)
        shown = made.prompt(made.documents()[0])
        assert len(shown.turns) == 1
        return shown.turns[0].content, shown.prefix, shown.chat

    assert prompt("llada-pure") == (f"Complete the following python code:\n{PROMPT}", "", True)
    ask = "Write a solution to the following problem and make sure that it passes the tests:\n"
    start = f"Here is the completed function:\n```python\n{PROMPT}\n"
    assert prompt("llama-instruct") == (f"{ask}```python\n{PROMPT}\n```\n", start, True)
    assert prompt("dream-instruct") == (f"{ask}```{PROMPT}", start, True)
    assert prompt("causal-base") == (PROMPT, "", False)


def test_post_processing() -> None:
    two = "```python\nfirst\n```\n```\nsecond\n```"
    assert RULES["first-block"]("P\n", two, "f") == "P\nfirst\n"
    assert RULES["first-block"]("P\n", "   no fence", "f") == "P\nno fence"
    assert RULES["completion-before-fence"]("P", "a\n```\nb", "f") == "Pa\n"
    assert RULES["completion"]("P", "a\n```\nb", "f") == "Pa\n```\nb"


def test_an_unknown_rule_is_refused(file: Path) -> None:
    task = get("humaneval:llada-pure", data=file)
    assert isinstance(task, HumanEval)
    task = replace(task, scheme=replace(task.scheme, extraction="first-blok"))
    with pytest.raises(InputError, match="did you mean first-block"):
        task.grade(task.documents()[0], "")


@needs_sandbox
def test_an_answer_that_cannot_be_read_fails_alone(file: Path) -> None:
    """Dream's rule writes programs anew: a sum of a hundred thousand terms ends its reader, and no other answer."""
    task = get("humaneval:dream-base", data=file)
    document = task.documents()[0]
    sums = ["    return 2 * x + " + " + ".join(["0"] * terms) + "\n" for terms in (400, 20_000)]
    verdicts = task.grade_many([(document, answer) for answer in (BODY, *sums, BODY)])
    assert [verdict.passed for verdict in verdicts] == [True, True, False, True]
    assert "RecursionError" in verdicts[2].reason


def test_sanitize_keeps_what_the_function_needs() -> None:
    text = (
        "Sure, here is the code:\n"
        "import math\n"
        "LIMIT = 3\n"
        "UNUSED = 4\n"
        "def helper(x):\n    return min(x, LIMIT)\n"
        "def f(x):\n    return math.sqrt(helper(x))\n"
        "def other():\n    return 1\n"
        "print(f(2))\n"
        "Hope this helps!\n"
    )
    kept = sanitize(text, "f")
    assert kept == (
        "import math\nLIMIT = 3\ndef helper(x):\n    return min(x, LIMIT)\ndef f(x):\n    return math.sqrt(helper(x))"
    )
    assert "other" in sanitize(text, "missing")  # an unknown entry point keeps everything
    assert sanitize("nothing here, sorry", "f") == ""
    assert sanitize("def f():\n\treturn 1\r\n", "f") == "def f():\n    return 1"


def test_the_official_sanitizer_drops_helpers_of_the_tests() -> None:
    """Known, and kept as it is: the tests of HumanEval/50 call a function that the solution does not."""
    text = "def encode(s):\n    return s\n\ndef decode(s):\n    return s\n"
    assert "encode" not in sanitize(text, "decode")


def _file_task(name: str = "causal-base") -> HumanEval:
    task = get(f"humaneval:{name}", data=shared_file("HumanEval.jsonl.gz"))
    assert isinstance(task, HumanEval)
    return task


# Every right solution by one scheme in `make test`; by the others, and empty ones, every fifth document: all in `make soak`.
EVERY = [pytest.param(5, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.soak)]


# Writes a test that says "passed", and is itself called like the module that runs all tests which it finds.
FORGED = (
    "    pass\n"
    "import types\n"
    "with open('test_x.py', 'w') as file:\n"
    "    file.write('import os\\nos.write(3, b\\'passed\\'); os._exit(0)')\n"
    "{} = types.ModuleType('unittest.__main__')\n"
)


@pytest.mark.parametrize("kind", ["bubblewrap", "landlock"])
@pytest.mark.parametrize("every", EVERY)
def test_canonical_solutions_pass_and_others_fail(every: int, kind: str) -> None:
    if sandbox.available(kind) is None:
        pytest.skip(sandbox.reason(kind))
    task = replace(_file_task(), sandbox=kind)
    documents = task.documents()
    assert len(documents) == 164
    started = time.monotonic()
    right = task.grade_many([(document, document.answer) for document in documents])
    some = documents[::every]
    empty = task.grade_many([(document, "") for document in some])
    forgeries = [(document, FORGED.format(document.extra["entry_point"])) for document in some]
    forged = task.grade_many(forgeries)
    seconds = time.monotonic() - started
    assert [document.id for document, verdict in zip(documents, right, strict=True) if not verdict.passed] == []
    assert [document.id for document, verdict in zip(some, empty, strict=True) if verdict.passed] == []
    assert [document.id for document, verdict in zip(some, forged, strict=True) if verdict.passed] == []
    assert seconds < 60


@needs_sandbox
@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("name", ["llada-pure", "dream-instruct", "llama-instruct"])
def test_canonical_solutions_pass_by_the_official_post_processing(name: str, every: int) -> None:
    task = _file_task(name)
    documents = task.documents()[::every]

    def answer(document: Document) -> str:
        if task.scheme.extraction == "first-block":
            return f"Here:\n```python\n{document.question}{document.answer}```\n"
        return f"{document.answer}```\nDone."

    verdicts = task.grade_many([(document, answer(document)) for document in documents])
    failed = [document.id for document, verdict in zip(documents, verdicts, strict=True) if not verdict.passed]
    # The tests of HumanEval/50 use a helper that Dream's sanitizer removes.
    assert failed == (["HumanEval/50"] if name == "dream-instruct" else [])


@needs_sandbox
def test_helpers_of_the_prompt_are_not_the_programs(tmp_path: Path) -> None:
    """Tests that call a function which the prompt gives use the prompt's, and Python's own builtins."""
    helper = 'import math\n\ndef half(x):\n    """ Halve x. """\n    return x / 2\n\n'
    test = "def check(candidate):\n    assert half(candidate(3)) == 3 and abs(candidate(-1) + 2) < math.ulp(4)\n"
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({**ROW, "prompt": helper + PROMPT, "test": test}) + "\n", encoding="utf-8")
    task = get("humaneval:causal-base", data=path)
    document = task.documents()[0]
    assert task.grade(document, BODY).passed
    for result, fake in (
        ("6", "abs = lambda x: 0"),
        ("-2", "half = lambda x: 3"),
        ("5", "half = lambda x: 3\nabs = lambda x: 0"),
    ):
        verdict = task.grade(document, f"    return {result}\n\n{fake}\n")
        assert not verdict.passed, fake
        assert fake in verdict.extracted
