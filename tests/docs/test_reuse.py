"""The numbers in the tables of docs/reuse.md and lab/reuse.md are those of the shipped table."""

from __future__ import annotations

import csv
import re

import pytest
from tests.helpers.pages import ROOT, tables

from sinkscope.reuse import parse_reuse
from sinkscope.statistics import mean_difference

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


def numbers(text: str) -> list[float]:
    return [float(each.replace("−", "-")) for each in NUMBER.findall(text)]


ENGLISH = {
    "KL, nats": "kl",
    "KL − random keys": "kl_over_random",
    "KL − nearest keys": "kl_over_recent",
    "tokens equal": "tokens_equal",
}
MODELS = {"SmolLM2": "smollm2", "SmolLM2's twin": "smollm2-twin"}


def test_every_number_on_english_is_that_of_the_study() -> None:
    with (ROOT / "lab" / "reuse" / "english" / "reuse.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["model"], str(parse_reuse(row["reuse"]))): row for row in csv.DictReader(file)}
    checked = 0
    for first, name, head, text in tables("docs/reuse.md"):
        if first not in MODELS or head not in ENGLISH:
            continue
        row, stem = rows[MODELS[first], str(parse_reuse(name.split("`")[1]))], ENGLISH[head]
        expected = [float(row[f"{stem}{end}"]) for end in ("", "_low", "_high")] if row[stem] else []
        assert numbers(text) == pytest.approx(expected, abs=6e-4), (first, name, head)
        checked += 1
    assert checked == 4 * len(rows)


@pytest.mark.parametrize(
    ("model", "rule", "shown"),
    [
        ("smollm2-twin", "sparse:0.25,by=received", [-0.021, -0.118, 0.002]),
        ("smollm2", "sparse:0.25,by=received+recent", [0.009, -0.040, 0.059]),
        ("smollm2", "sparse:0.25,by=first:4+recent", [0.234, 0.150, 0.353]),
    ],
)
def test_differences_to_sinks_are_paired_over_passages(model: str, rule: str, shown: list[float]) -> None:
    with (ROOT / "lab" / "reuse" / "english" / "agreement.csv").open(encoding="utf-8", newline="") as file:
        errors = {
            (row["model"], row["reuse"], row["document"]): float(row["kl"]) for row in csv.DictReader(file)
        }
    passages = sorted({document for _, _, document in errors})
    own, sinks = ([errors[model, name, passage] for passage in passages] for name in (rule, "sparse:0.25"))
    assert list(mean_difference(own, sinks)) == pytest.approx(shown, abs=6e-4)
    value, low, high = (f"{abs(number):.3f}".lstrip("0") for number in shown)
    page = (ROOT / "docs" / "reuse.md").read_text(encoding="utf-8")
    assert f"{value} [{'−' if shown[1] < 0 else ''}{low}, {high}]" in page


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
        assert numbers(text) == pytest.approx(expected, abs=6e-4), (first, name, head)
        checked += 1
    assert checked >= least
