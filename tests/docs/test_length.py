"""The site can be finished: its pages have at most so many words, and its code fits beside the menus."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
MOST_WORDS = 45_000
LONGEST = 75


def words(text: str) -> int:
    """Words of Markdown, tables and code included, without comments, of which tables are made when the site is built."""
    return len(re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).split())


def test_all_pages_and_notebooks_together_are_short() -> None:
    """All that is written by hand, also to look things up in; the generated reference and the logs are not counted."""
    pages = sum(words(page.read_text(encoding="utf-8")) for page in PAGES)
    notebooks = sum(
        words("".join(cell["source"]))
        for path in DOCS.rglob("*.ipynb")
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "markdown"
    )
    assert 20_000 < pages + notebooks <= MOST_WORDS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_lines_of_code_are_not_cut_off(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert not [line for block in blocks for line in block.splitlines() if len(line) > LONGEST]
