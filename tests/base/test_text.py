"""Text of others cannot steer a terminal, a page or a spreadsheet."""

from __future__ import annotations

import io

import pandas as pd

from sinkscope.base.text import csv_text, html_table, visible


def test_characters_that_steer_are_spelled_out():
    assert visible("a\x1b]0;title\x07\u202eb\n\t") == "a⟨U+001B⟩]0;title⟨U+0007⟩⟨U+202E⟩b\n\t"


def test_no_cell_of_a_csv_is_a_formula_and_nothing_is_lost():
    frame = pd.DataFrame(
        {
            "text": ['=HYPERLINK("http://x")', "+1", "-1", "@a", "'quoted", "null", "plain"],
            "number": [-1.5, 2, 3, 4, 5, 6, 7],
        }
    )
    text = csv_text(frame)
    for line in text.splitlines()[1:]:
        assert not line.lstrip('"').startswith(("=", "+", "-", "@"))
    assert ",-1.5" in text
    written = pd.read_csv(io.StringIO(text), keep_default_na=False)
    assert written["text"].str.removeprefix("'").tolist() == [cell.removeprefix("'") for cell in frame["text"]]
    assert written["number"].tolist() == frame["number"].tolist()


def test_tables_for_notebooks_are_escaped():
    page = html_table("<b>", ("<i>",), [("<script>", "\x1b")])
    assert "<script>" not in page
    assert "⟨U+001B⟩" in page
