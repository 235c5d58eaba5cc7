"""Reading what a model wrote: bounded in time, memory and depth, and one answer's failure is its own."""

from __future__ import annotations

import signal
import time

import pytest

from sinkscope.tasks import bounded
from sinkscope.tasks.extraction import EXTRACTORS, extract, is_right

GOOD = ("sanitized", "", "def f():\n    return 1\n", "f")

HOSTILE = {
    "a long sum": "def f(x):\n    return " + " + ".join(["x"] * 20_000),
    "parentheses": "def f(): return " + "(" * 100_000 + ")" * 100_000,
    "attributes": "x = a" + ".b" * 100_000,
    "calls": "x = a" + "()" * 30_000,
    "unary operators": "x = " + "-" * 100_000 + "1",
    "a hundred long lines that do not end": "\n".join(["x = " + "1+" * 3000 + "1 ("] * 100),
    "a million characters": "x" * 1_000_000,
    "a lone surrogate": "x = '\ud800'",
    "null bytes": "x = '\0'",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_no_answer_stops_the_next(name: str) -> None:
    begun = time.monotonic()
    readings = bounded.apply([GOOD, ("sanitized", "", HOSTILE[name], "f"), GOOD], seconds=1.0)
    assert time.monotonic() - begun < 6
    assert readings[0] == readings[2] == bounded.BoundedResult("def f():\n    return 1")
    assert readings[1].value is None or len(readings[1].value) <= len(HOSTILE[name])


@pytest.mark.slow
def test_what_takes_too_long_or_ends_the_child_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    slow = bounded.apply([("sanitized", "", HOSTILE["a hundred long lines that do not end"], "f")], seconds=0.5)
    assert slow == [bounded.BoundedResult(None, "took more than 0.5 s to read")]
    monkeypatch.setattr(bounded, "SCRIPT", "/dev/null")  # a child that ends at once
    assert bounded.apply([GOOD]) == [bounded.BoundedResult(None, "ended the reader")]


@pytest.mark.slow
def test_memory_is_bounded() -> None:
    """Each of the nested lists is small to write and large to hold."""
    [reading] = bounded.apply([("syntax-error", "x = [" + "[]," * 800_000 + "]")], seconds=60.0)
    assert reading.value is None
    assert "MemoryError" in reading.error or reading.error == "ended the reader"


def test_syntax_errors_are_told_as_a_traceback_would() -> None:
    readings = bounded.apply([("syntax-error", "x = 1"), ("syntax-error", "def f(:"), ("syntax-error", "x = '\\d'")])
    assert [reading.value for reading in readings] == ["", "SyntaxError: invalid syntax", ""]


@pytest.mark.parametrize("name", EXTRACTORS)
@pytest.mark.parametrize("text", ["1", "1.", "#", "# ", "-", "$1,", "The answer is ", "#### "])
def test_extraction_takes_linear_time(name: str, text: str) -> None:
    begun = time.monotonic()
    found = extract(name, text * 200_000)
    is_right(name, found, "so\n#### 7")
    is_right(name, text * 200_000, "so\n#### 7")
    assert time.monotonic() - begun < 2


def test_extraction_still_ignores_what_lm_eval_ignores() -> None:
    assert is_right("gsm8k-strict", "1,000.", "a #### 5\n#### 1000")
    assert is_right("gsm8k-strict", "$7", "#### 7")
    assert is_right("gsm8k-strict", "first #### 3 then #### 7", "#### 7")
    assert not is_right("gsm8k-strict", "7 #### ", "#### 7")


def test_a_parent_that_ignores_alarms_has_a_limit_too() -> None:
    """A child inherits what its parent ignores and blocks."""
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    try:
        [reading] = bounded.apply(
            [("sanitized", "", HOSTILE["a hundred long lines that do not end"], "f")], seconds=0.05
        )
    finally:
        signal.signal(signal.SIGALRM, before)
    assert "took more than 0.05 s" in reading.error
