"""The numbers in the tables of docs/english.md on mask shares, own order and grammar are those of the shipped tables."""

from __future__ import annotations

import csv
import re

import pytest
from tests.helpers.pages import ROOT, tables

from sinkscope.statistics import mean_difference

NUMBER = re.compile(r"−?\d?\.\d+|\d+(?= %)")
SHARES = {
    "a tenth": "tenth",
    "a quarter": "quarter",
    "half": "half",
    "three quarters": "three-quarters",
    "nine tenths": "nine-tenths",
}
MASS, SILENT = "random(top:1),match=mass", "top:1,effect=silence"
POLICIES = {
    "without a policy": "none",
    "`top:1`": "top:1",
    "the same number of random keys": "random(top:1)",
    "random keys with as much attention, as near as it gets": MASS,
    "`top:1` silenced": SILENT,
    "`first:1`": "first:1",
}
HIDDEN = ("top:1", MASS, SILENT, "first:1")
MODELS = {"SmolLM2": "smollm2", "twin": "smollm2-twin"}
Row = dict[str, str]
Side = tuple[tuple[str, str], ...]  # readings and policies


def rows(name: str) -> list[Row]:
    with (ROOT / "lab" / "english" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def interval(row: Row, stem: str) -> list[float]:
    return [float(row[name]) for name in (stem, f"{stem}_low", f"{stem}_high")]


def same(text: str, expected: list[float]) -> bool:
    """The numbers of a cell, each to the digits that it shows."""
    shown = NUMBER.findall(text)
    near = [0.51 * 10.0 ** -len(number.partition(".")[2]) for number in shown]
    values = [float(number.replace("−", "-")) for number in shown]
    return len(values) == len(expected) and all(
        abs(value - truth) < limit for value, truth, limit in zip(values, expected, near, strict=True)
    )


def over_mass(passages: list[Row]) -> list[float]:
    """What top:1 costs more than the mass-matched control, paired by passage; draws are averaged first."""
    draws = [name for name in passages[0] if name.startswith(MASS) and passages[0][name]]
    control = [sum(float(row[name]) for name in draws) / len(draws) for row in passages]
    return list(mean_difference([float(row["top:1"]) for row in passages], control))


@pytest.mark.parametrize(
    ("first", "study", "readings"),
    [
        ("masked", "shares", SHARES),
        ("reading", "denoising", {"own order": "denoising", "bound": "bound"}),
    ],
)
def test_readings(first: str, study: str, readings: dict[str, str]) -> None:
    known = {(row["decoding_name"], row["policy"]): row for row in rows(f"{study}/likelihood.csv")}
    passages, checked = rows(f"{study}/passages.csv"), 0
    for head, name, column, text in tables("docs/english.md"):
        if head != first or not text:
            continue
        reading = readings[name]
        if column.startswith("attention hidden"):
            found = [known[reading, policy] for policy in HIDDEN if (reading, policy) in known]
            expected = [100 * float(row["hidden_share"]) for row in found]
        elif column == "`top:1` less these":
            expected = over_mass([row for row in passages if row["decoding_name"] == reading])
        else:
            row = known[reading, POLICIES[column]]
            expected = interval(row, "difference") if row["difference"] else [float(row["nll"])]
        assert same(text, expected), (name, column, text, expected)
        checked += 1
    assert checked == len(known) + 2 * len(readings)


def test_grammar() -> None:
    known = {(row["model"], row["policy"]): row for row in rows("grammar/results.csv")}
    checked = 0
    for head, name, column, text in tables("docs/english.md"):
        if not head.startswith("BLiMP"):
            continue
        model, (policy, *other) = MODELS[column], re.findall(r"`(.+?)`", name)
        row = known[model, policy]
        if name.startswith("attention hidden"):
            expected = [100 * float(known[model, each]["hidden_share"]) for each in (policy, *other)]
        elif not other:
            expected = [float(row[each]) for each in ("accuracy", "low", "high")]
        else:
            expected = interval(row, "difference" if other == ["none"] else "over_control")
        assert same(text, expected), (name, column, text, expected)
        checked += 1
    assert checked == 7 * len(MODELS)


@pytest.mark.parametrize(
    ("one", "other", "shown"),
    [
        ((("tenth", "top:1"), ("tenth", "none")), (("nine-tenths", "top:1"), ("nine-tenths", "none")), "0.33 nats [0.19, 0.48]"),
        ((("tenth", SILENT), ("tenth", "none")), (("nine-tenths", SILENT), ("nine-tenths", "none")), "0.01 [−0.09, 0.15]"),
        ((("tenth", "top:1"),), (("tenth", SILENT),), "0.17 [0.05, 0.33]"),
        ((("nine-tenths", SILENT),), (("nine-tenths", "top:1"),), "0.15 [0.02, 0.23]"),
    ],
)  # fmt: skip
def test_differences_between_shares_and_policies(one: Side, other: Side, shown: str) -> None:
    passages = rows("shares/passages.csv")

    def nats(side: Side) -> list[float]:
        """Of each passage: the first reading and policy, less the second where there is one."""
        columns = [
            {row["document"]: float(row[policy]) for row in passages if row["decoding_name"] == reading}
            for reading, policy in side
        ]
        return [columns[0][name] - sum(column[name] for column in columns[1:]) for name in sorted(columns[0])]

    assert same(shown, list(mean_difference(nats(one), nats(other))))
    assert shown in (ROOT / "docs" / "english.md").read_text(encoding="utf-8")
