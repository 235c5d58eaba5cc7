"""The answers in docs/inside.md are those of the shipped tables."""

from __future__ import annotations

import csv
import gzip
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
MEASURES = {
    "content, control not subtracted": ("patch", "value of another run: kl", "sinks"),
    "any value, control not subtracted": ("patch", "no value: kl", "sinks"),
    "key needed, control not subtracted": ("patch", "key of an ordinary place: kl", "sinks"),
    "best candidates that change without their values": ("patch", "no value: flipped", "sinks"),
    "share of attention to sinks": ("attention", "share to", "sinks"),
    "cosine of queries and keys at sinks": ("scores", "cosine", "sinks"),
    "cosine elsewhere": ("scores", "cosine", "others"),
    "length of keys at sinks": ("scores", "key length", "sinks"),
    "length of keys elsewhere": ("scores", "key length", "others"),
    "positions with a massive entry": ("channels", "massive", "all"),
    "dormant heads": ("dormant", "heads", "all"),
    "deeper layers' sinks that are sinks of layer l": ("foresight", "of the sinks behind", "recall"),
    "the same by chance": ("foresight", "of the sinks behind", "by chance"),
}
"""Rows of the table of SmolLM2's twin that no rule asks about."""
MODELS = ("smollm2-twin",)
TASKS = {"problems": "word_problems", "code": "small_code"}
CELL = re.compile(r"(?:(yes|no|not shown) )?(\S+) \[(\S+), (\S+)\](?:; \S+)?(?: \(n = (\d+)\))?")


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


def check(text: str, row: dict[str, str] | None) -> None:
    """The cell says what the row of the table says."""
    if row is None or row.get("answer") == "void":
        assert text == ("–" if row is None else "void")
        return
    read = CELL.fullmatch(text)
    assert read is not None, text
    answer, *numbers, n = read.groups()
    digits = len(numbers[0].partition(".")[2])
    close = pytest.approx([float(row[name]) for name in ("value", "low", "high")], abs=0.6 * 10**-digits)
    assert (answer, int(n or 200)) == (row.get("answer"), int(row["n"])), (text, row)
    assert [number(each) for each in numbers] == close, (text, row)


def answers(name: str) -> dict[tuple[str, str, str], dict[str, str]]:
    with (ROOT / "lab" / "inside" / name).open(encoding="utf-8", newline="") as file:
        return {(row["model"], row["task"], row["question"]): row for row in csv.DictReader(file)}


def test_every_answer_is_that_of_the_table() -> None:
    rows, cells = answers("holdings.csv"), shown()
    assert len(cells) == 6 * len(COLUMNS)
    for model, task, question, text in cells:
        check(text, rows.get((f"organism/{model}", task, question)))


def test_every_number_of_the_pair_is_that_of_its_tables() -> None:
    rows = answers("english-holdings.csv")
    with gzip.open(ROOT / "lab" / "inside" / "english-inspection.csv.gz", "rt", encoding="utf-8") as file:
        means = [row for row in csv.DictReader(file) if row["layer"] == "-1"]
    measured = {(row["model"], row["section"], row["measure"], row["place"]): row for row in means}
    text = (ROOT / "docs" / "inside.md").read_text(encoding="utf-8")
    table = text.partition("## A real model and its diffusion twin")[2].partition("\n## ")[0]
    lines = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")]
    cells = {name.strip(): [cell.strip() for cell in both] for name, *both in lines[2:]}
    assert set(cells) == set(COLUMNS) | set(MEASURES)
    for name, both in cells.items():
        for model, cell in zip(MODELS, both, strict=True):
            if name in COLUMNS:
                check(cell, rows.get((model, "text", COLUMNS[name])))
            else:
                check(cell, measured[(model, *MEASURES[name])])
