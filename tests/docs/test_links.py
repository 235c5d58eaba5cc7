"""Every link inside the documentation leads somewhere: to a file of the repository, and to a heading that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "lab").rglob("*.md")])
GENERATED = {"reference/api.md", "reference/commands.md"}
"""Pages that `make docs` writes."""


def anchors(page: Path) -> set[str]:
    """What GitHub and mkdocs make of a page's headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+?)\s*$", text, re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", title)).strip().lower() for title in titles]
    return {re.sub(r" ", "-", title) for title in plain} | {re.sub(r"[ -]+", "-", title) for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "", text)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if any(str(file).endswith(generated) for generated in GENERATED):
            continue
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(target)
    assert not broken
