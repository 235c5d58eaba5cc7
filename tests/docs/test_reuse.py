"""The numbers in the tables of docs/reuse.md and lab/reuse.md are those of the shipped table."""

from __future__ import annotations

import csv
import re

import pytest
from tests.helpers.pages import ROOT, tables

DIFFERENCES = {  # header: the row that has the difference, its column, its sign
    "sinks − random": ("sinks", "minus_random", 1),
    "sinks − recent": ("sinks", "minus_recent", 1),
    "sinks − first": ("first", "minus_sinks", -1),
    "received − sinks": ("received", "minus_sinks", 1),
    "− exact": ("", "minus_exact", 1),
    "− random keys": ("", "minus_random", 1),
    "− nearest keys": ("", "minus_recent", 1),
    "accuracy": ("", "accuracy", 1),
}
NUMBER = re.compile(r"[+−]?\d?\.\d+")
Row = dict[str, str]


def shipped() -> dict[tuple[str, str], Row]:
    """By model and rule, without the cells that unmask by threshold."""
    with (ROOT / "lab" / "reuse" / "reuse.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["decoding"] == "scheme"]
    return {(row["model"].removeprefix("organism/"), row["rule"]): row for row in rows}


def interval(row: Row, stem: str, sign: int) -> list[float]:
    low, high = ("low", "high") if stem == "accuracy" else (f"{stem}_low", f"{stem}_high")
    value, *ends = (sign * float(row[name]) for name in (stem, low, high))
    return [value, *sorted(ends)]


@pytest.mark.parametrize(("page", "least"), [("docs/reuse.md", 9 * 7), ("lab/reuse.md", 9 * 9 + 300)])
def test_every_number_is_that_of_the_table(page: str, least: int) -> None:
    rows, checked = shipped(), 0
    for first, name, head, text in tables(page):
        model, _, keep = name.partition(", ")
        of_rules = first.partition(" (")[0]
        rule = "none" if name == "exact" else name.strip("`")
        if first == "keep" and head.startswith("by "):
            expected = [float(rows[model, f"sparse:{keep},{head.replace(' ', '=')}"]["accuracy"])]
        elif first == "keep" and head in DIFFERENCES:
            by, stem, sign = DIFFERENCES[head]
            expected = interval(rows[model, f"sparse:{keep},by={by}"], stem, sign)
        elif (of_rules, rule) in rows and head in DIFFERENCES:
            _, stem, _ = DIFFERENCES[head]
            row = rows[of_rules, rule]
            expected = interval(row, stem, 1) if row[stem] else []
            if stem != "accuracy" and row[stem]:
                assert text.startswith("**") == (float(row[f"{stem}_p_holm"]) < 0.05), (name, head)
        else:
            continue
        shown = [float(each.replace("−", "-")) for each in NUMBER.findall(text)]
        assert shown == pytest.approx(expected, abs=6e-4), (first, name, head)
        checked += 1
    assert checked >= least
