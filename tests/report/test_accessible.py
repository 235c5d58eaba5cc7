"""axe-core finds no error on the report, at both widths, in both themes.

axe-core is no package of Python: `npm install --no-save axe-core` in the repository's root puts it where it is looked for, or
SINKSCOPE_AXE names its axe.min.js. Without it the test is left out. Of another page, such as the default study's:

    python -m tests.report.test_accessible study/report.html
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.report.browser import Browser

PLACES = (os.environ.get("SINKSCOPE_AXE", ""), Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js")
AXE = next((Path(place) for place in PLACES if place and Path(place).is_file()), None)
HOW = "axe-core is not here: npm install --no-save axe-core, or SINKSCOPE_AXE=…/axe.min.js"
SIZES = ((1440, 900), (390, 844))


def errors(browser: Browser, rule: str = "") -> list[str]:
    """What axe-core says against the page that is open: its rules (or one), each with the first elements.

    Rows of long tables are alike: the first six of each are looked at.
    """
    assert AXE is not None, HOW
    browser.js(AXE.read_text(encoding="utf-8"))
    options = {"resultTypes": ["violations"], **({"runOnly": [rule]} if rule else {})}
    where = {"include": [["html"]], "exclude": [["tbody > tr:nth-child(n+7)"]]}
    asked = f"axe.run({json.dumps(where)}, {json.dumps(options)})"
    found: list[dict[str, Any]] = json.loads(browser.js(f"{asked}.then((told) => JSON.stringify(told.violations))"))
    return [
        f"{one['id']} ({one['impact']}): {one['help']}: {[node['target'] for node in one['nodes'][:3]]}"
        for one in found
    ]


def check(browser: Browser, page: Path, folded: bool = True) -> dict[str, list[str]]:
    """Width, theme and folding → errors; folded: also of the page as it opens, which shows less."""
    told: dict[str, list[str]] = {}
    for wide, high in SIZES:
        browser.open(page)
        with browser.sized(wide, high):
            for scheme in ("light", "dark"):
                browser.media(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
                for unfolded in ("false", "true")[not folded :]:
                    browser.js(f"document.querySelectorAll('details').forEach((one) => one.open = {unfolded})")
                    browser.settle()
                    told[f"{wide} {scheme} {'unfolded' if unfolded == 'true' else 'folded'}"] = errors(browser)
    browser.media()
    return told


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(AXE is None, reason=HOW)
def test_axe_finds_no_error(shared: Browser, planted: Path) -> None:
    told = check(shared, planted / "report.html", folded=False)
    assert list(told.values()) == [[]] * 4


@pytest.mark.browser
@pytest.mark.skipif(AXE is None, reason=HOW)
def test_axe_sees_an_error(shared: Browser, planted: Path) -> None:
    shared.open(planted / "report.html")
    shared.js("document.querySelector('img').removeAttribute('alt')")
    assert [error.split()[0] for error in errors(shared, "image-alt")] == ["image-alt"]


if __name__ == "__main__":
    if AXE is None:
        sys.exit(HOW)
    opened = Browser()
    try:
        result = check(opened, Path(sys.argv[1]))
    finally:
        opened.close()
    for name, lines in result.items():
        print(f"{name}: {len(lines)} errors", *lines, sep="\n  ")
    sys.exit(any(result.values()))
