"""The numbers in the tables of docs/mechanisms.md and lab/mechanisms.md are those of the shipped table."""

from __future__ import annotations

import csv
import re

import pytest
from tests.helpers.pages import ROOT, tables

NUMBER = re.compile(r"[+−]?\d?\.\d+")
BY_ORDER = "confidence - random"
MEASURES = {
    "another best token": "flipped",
    "change of confidence": "confidence_change",
    "KL in nats": "kl",
    "attention to the old sinks": "attention to old sinks: top:1",
    "attention to new sinks": "attention to new sinks: top:1",
    "dependent − other tokens: confidence": "confidence change of dependent less other tokens: top:1",
    "dependent − other tokens: steps later": "delay of dependent less other tokens: top:1",
}
"""Heads of the tables of replays and of pairs of traces → names of the study."""
Row = dict[str, str]
Key = tuple[str, str, str, str, str, str]  # question, model, block, order, window, what


def shipped() -> dict[Key, Row]:
    with (ROOT / "lab" / "mechanisms" / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    names = ("question", "model", "block", "order", "window", "what")
    found = {(r[names[0]], r[names[1]], r[names[2]], r[names[3]], r[names[4]], r[names[5]]): r for r in rows}
    assert len(found) == len(rows)
    return found


def accuracies(model: str, block: str, order: str, window: str, *whats: str) -> list[Key]:
    return [("accuracy", model, block, order, window, what) for what in whats]


def of_order(model: str, block: str, head: str) -> list[Key]:
    first, _, rest = head.partition(": ")
    if rest.startswith("none"):
        return accuracies(model, block, first, "", "none", "top:1", "control")
    return [
        ("order", model, block, BY_ORDER, "", head.removesuffix(", confidence − random").replace("−", "-"))
    ]


def of_window(model: str, place: str, head: str) -> list[Key]:
    block, order, window = place.split(", ", 2)
    window = window.strip("`")
    if head == "accuracy":
        return accuracies(model, block, order, window, "none")
    if head.startswith("with top:1"):
        return accuracies(model, block, order, window, "top:1", "control")
    question = "window" if head.startswith("window") else "damage"
    return [(question, model, block, order, window, head.replace("−", "-"))]


def of_blocks(model: str, block: str, head: str) -> list[Key]:
    what, order, *minus = head.replace("−", "-").split(", ")
    return [
        ("blocks", model, f"{block} - 64", order, "", what)
        if minus
        else ("damage", model, block, order, "", what)
    ]


def of_replay(model: str, place: str, head: str) -> list[Key]:
    block, _, order = place.partition(", ")
    name, _, policy = head.rpartition(", ")
    return [("replay", model, block, order or BY_ORDER, "", f"{MEASURES[name]}: {policy}")]


def of_pairs(model: str, block: str, head: str) -> list[Key]:
    if head in MEASURES:
        return [("pairs", model, block, "confidence", "", MEASURES[head])]
    policy = head.removeprefix("head-steps without a sink, ")
    return [("sinks", model, block, "confidence", "", f"heads without: {policy}")]


def of_kept(model: str, block: str, head: str) -> list[Key]:
    what, _, order = head.partition(", ")
    return [("kept", model, block, order.replace("−", "-"), "", what)]


def of_seed(model: str, block: str, head: str) -> list[Key]:
    return [("seed", model, block, f"{BY_ORDER} {head.removeprefix('seed ')}", "", "top:1 - control")]


READERS = {
    "order": of_order,
    "accuracy by order": of_order,
    "window": of_window,
    "blocks": of_blocks,
    "replay": of_replay,
    "replay, confidence − random": of_replay,
    "pairs": of_pairs,
    "kept": of_kept,
    "seed": of_seed,
}
"""Head of a table's first column → which rows a cell shows."""


@pytest.mark.parametrize(("page", "cells"), [("docs/mechanisms.md", 174), ("lab/mechanisms.md", 418)])
def test_every_number_is_that_of_the_table(page: str, cells: int) -> None:
    rows, checked = shipped(), 0
    for first, name, head, text in tables(page):
        if first not in READERS or text in ("", "same answers"):
            continue
        model, _, place = name.partition(", ")
        found = [rows[key] for key in READERS[first](model, place, head)]
        columns = ("value",) if "[" not in text else ("value", "low", "high")
        expected = [float(row[column]) for row in found for column in columns]
        shown = [float(each.replace("−", "-")) for each in NUMBER.findall(text)]
        assert shown == pytest.approx(expected, abs=6e-4), (first, name, head)
        if found[0]["p_holm"]:
            assert text.startswith("**") == (float(found[0]["p_holm"]) < 0.05), (first, name, head)
        checked += 1
    assert checked == cells


def test_blocks_of_one_have_no_order() -> None:
    """Both orders must give the same answers there, except under controls, which have more draws in random orders."""
    rows = shipped()
    for (question, model, block, order, window, what), row in rows.items():
        if (question, block, order) == ("accuracy", "1", "confidence") and what != "control":
            assert row["value"] == rows[question, model, block, "random", window, what]["value"]


def test_what_survives_the_correction_is_what_the_page_says() -> None:
    tested = [row for row in shipped().values() if row["p_holm"]]
    text = (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf-8")

    def survive(question: str, within: bool | None = None) -> tuple[int, int]:
        group = [r for r in tested if r["question"] == question and within in (None, bool(r["window"]))]
        return sum(float(row["p_holm"]) < 0.05 for row in group), len(group)

    assert f"all {len(tested)} tests" in text
    assert survive("damage", within=False) == (28, 28)
    assert survive("damage", within=True) == (3, 84)
    assert survive("window") == (42, 42)
    assert survive("order") == (0, 26)
    assert survive("blocks") == (0, 24)
