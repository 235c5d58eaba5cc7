"""The numbers in the tables of docs/training.md are those of the shipped tables."""

from __future__ import annotations

import csv
import re

import pytest
from tests.helpers.pages import ROOT, tables

SIZES = {"0.8M": 842976, "2.5M": 2501280, "5.7M": 5673216, "12M": 12008000}
SINKS = {
    "sinks per head": "sinks",
    "main sink, × uniform": "main_sink",
    "moving or vanishing heads": "moving",
}
NUMBER = re.compile(r"−?\d+\.\d+")


def shipped(name: str) -> list[dict[str, str]]:
    with (ROOT / "lab" / "ladder" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def one(name: str, **wanted: str) -> dict[str, str]:
    (row,) = (
        row for row in shipped(name) if all((row.get(key) or "") == value for key, value in wanted.items())
    )
    return row


def test_every_number_of_the_tables_is_that_of_the_study() -> None:
    checked = 0
    for _, name, head, text in tables("docs/training.md"):
        if head not in (*SIZES, "for ten times the parameters"):
            continue
        objective, _, what = name.partition(", ")
        trend = head not in SIZES
        if what in SINKS:
            measure, stem, table = SINKS[what], "value", "ladder_sinks"
            key = {"measure": measure}
        else:
            policy = what.split("`")[1]
            stem, table = ("beyond_mass" if "mass-matched" in what else "damage"), "ladder"
            measure, key = f"{stem}: text, {policy}", {"task": "text", "policy": policy}
        if trend:
            row, stem = one("ladder_trends", objective=objective, measure=measure), "slope"
        else:
            row = one(table, objective=objective, intervention="", parameters=str(SIZES[head]), **key)
        expected = [float(row[f"{stem}{end}"]) for end in ("", "_low", "_high")]
        shown = [float(each.replace("−", "-")) for each in NUMBER.findall(text)]
        assert shown == pytest.approx(expected, abs=5.01e-3), (name, head)
        checked += 1
    assert checked == 5 * (8 + 3)
