"""The answers in docs/inside.md are those of the shipped table."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = {
    "content": "Is content read there?",
    "any value": "Is any value read there?",
    "key needed": "Must attention go there?",
    "content, at masks": "Is content read at mask tokens?",
    "any value, at masks": "Is any value read at mask tokens?",
    "lens: a token due elsewhere": "Can the answer be read off them?",
    "values move more": "Do they move more than other places?",
    "first step finds the block's keys": "Does the first look find the block's keys?",
    "score from the angle": "Does their score come from the angle?",
    "which look (step, masks left, block)": "Do sinks hold: step?",
    "column decided next": "Do sinks hold: next decided?",
    "length of the answer": "Do sinks hold: answer length?",
    "right": "Do sinks hold: right?",
}
TASKS = {"problems": "word_problems", "code": "small_code"}
CELL = re.compile(r"(yes|no|not shown) (\S+) \[(\S+), (\S+)\](?:; \S+)?(?: \(n = (\d+)\))?")


def shown() -> list[tuple[str, str, str, str]]:
    """Model, task, question and text of every cell."""
    found, heads = [], []
    text = (ROOT / "docs" / "inside.md").read_text(encoding="utf-8")
    for line in text.partition("## What was found")[2].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| |"):
            heads = cells[1:]
        model, _, task = cells[0].partition(", ")
        if line.startswith("|") and task in TASKS:
            found += [
                (model, TASKS[task], COLUMNS[head], cell) for head, cell in zip(heads, cells[1:], strict=True)
            ]
    return found


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def test_every_answer_is_that_of_the_table() -> None:
    with (ROOT / "lab" / "inside" / "holdings.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["model"], row["task"], row["question"]): row for row in csv.DictReader(file)}
    cells = shown()
    assert len(cells) == 8 * len(COLUMNS)
    for model, task, question, text in cells:
        row = rows.get((f"organism/{model}", task, question))
        if row is None or row["answer"] == "void":
            assert text == ("–" if row is None else "void")
            continue
        read = CELL.fullmatch(text)
        assert read is not None, text
        answer, *numbers, n = read.groups()
        digits = len(numbers[0].partition(".")[2])
        close = pytest.approx([float(row[name]) for name in ("value", "low", "high")], abs=0.6 * 10**-digits)
        assert (answer, int(n or 200)) == (row["answer"], int(row["n"]))
        assert [number(each) for each in numbers] == close, (model, task, question)
