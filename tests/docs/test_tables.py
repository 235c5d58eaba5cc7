"""Tables that the site takes from tables of the laboratory: every marker becomes one, and its numbers are written as it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from docs import tables
from sinkscope.statistics.interval import mean_interval

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    page
    for page in sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / "lab").glob("*.md")])
    if "<!-- table:" in page.read_text("utf-8")
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_marker_becomes_a_table_with_numbers_in_every_row_and_column(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<!-- table:" not in tables.on_page_markdown(text)
    for marker in tables.MARKER.finditer(text):
        _, _, *lines = tables.on_page_markdown(marker[0]).splitlines()
        cells = [[cell.strip() for cell in line.strip("|").split("|")[1:]] for line in lines]
        assert all(map(any, cells)), (page.name, marker[0])
        assert all(map(any, zip(*cells, strict=True))), (page.name, marker[0])


def table(*arguments: Any, **options: Any) -> str:
    """As `tables.table` makes it, with plain spaces."""
    return tables.table(*arguments, **options).replace("\N{NO-BREAK SPACE}", " ")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    (tmp_path / "costs.csv").write_text(
        "model,seed,policy,lost,lost_low,lost_high,share,low,high,p,n\n"
        "b,0,top,0.5,0.25,0.75,0.1,0.05,0.2,0.01,20\n"
        "a,0,top,-0.25,-0.5,0.125,0.2,0.1,0.3,0.2,19\n"
        "a,0,none,,,,0.3,0.2,0.4,,20\n"
        "seeds,0,top,1,,,,,,,20\n"
        "seeds,1,top,2,,,,,,,20\n"
    )
    return "costs.csv"


def test_values_intervals_signs_and_bold(file: str) -> None:
    made = table(file, ["model"], {"lost": "nats"}, columns=["policy"], where="model != 'seeds'", signed=True, bold="p")
    assert made.splitlines() == [
        "|  | top, nats | none, nats |",
        "| --- | --- | --- |",
        "| b | **+0.50 [0.25, 0.75]** |  |",
        "| a | −0.25 [−0.50, 0.12] |  |",
    ]


def test_names_choose_and_order_and_low_and_high_are_of_the_first_value(file: str) -> None:
    made = table(
        file, ["model"], {"share": "part", "p": "p"}, where="policy == 'top'", title="model",
        names={"model": {"b": "Second", "a": "First"}}, digits=1, before="policy", usual=20,
    )  # fmt: skip
    assert made.splitlines() == [
        "| model | part | p |",
        "| --- | --- | --- |",
        "| Second | top 0.1 [0.1, 0.2] | top 0.0 |",
        "| First | top 0.2 [0.1, 0.3] (n = 19) | top 0.2 (n = 19) |",
    ]
    words = table(file, ["model"], {"share": ""}, where="model == 'b'", before="policy", words={"top": "yes"})
    assert "| b | yes 0.10 [0.05, 0.20] |" in words


def test_rows_of_one_name_are_averaged_with_students_interval(file: str) -> None:
    value, low, high = mean_interval([1.0, 2.0])
    made = table(file, ["model"], {"lost": ""}, where="model == 'seeds'")
    assert made.splitlines()[2] == f"| seeds | {value:.2f} [{low:.2f}, {high:.2f}] |".replace("-", "−")


def test_a_table_of_nothing_is_an_error(file: str) -> None:
    with pytest.raises(ValueError, match="no row"):
        tables.table(file, ["model"], {"lost": ""}, names={"model": {"c": "C"}})
