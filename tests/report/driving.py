"""What the browser tests read and press on the viewer's page."""

from __future__ import annotations

import re

from tests.report.browser import Browser

APP = "document.querySelector('[data-sinkscope]').sinkscope"
STATE = f"{APP}.state"
COUNT = "document.querySelector('.count').textContent"
MAP = "document.querySelector('.card.main canvas.base').toDataURL()"


def rows(page: Browser, table: int, panel: int = 0) -> list[list[str]]:
    """The texts of a table: 0 the strongest keys of this step, 1 where sinks stay."""
    found: list[list[str]] = page.js(
        f"[...document.querySelectorAll('.panel')[{panel}].querySelectorAll('table')[{table}].tBodies[0].rows]"
        ".filter((r) => !r.hidden).map((r) => [...r.cells].map((c) => c.textContent))"
    )
    return found


def choose(page: Browser, label: str, value: str) -> None:
    """Picks an entry of a list, as a person would."""
    page.js(
        f"(() => {{ const s = document.querySelector('select[aria-label=\"{label}\"]'); s.value = '{value}';"
        " s.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )
    page.settle()


def error(page: Browser) -> float:
    """The error that the page states, as a share of 1 + value, half a displayed digit included."""
    text = page.js("document.querySelector('.note').textContent")
    found = re.search(r"±([0-9.]+) %", text)
    if found is None:
        raise AssertionError(f"the page states no error: {text}")
    return (float(found[1]) + 0.05) / 100


def centre(page: Browser, selector: str, x: float = 0.5, y: float = 0.5) -> tuple[float, float]:
    """A point of an element, by shares of its width and height, scrolled into view."""
    page.js(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center', behavior: 'instant'}})")
    box = page.js(
        f"(() => {{ const b = document.querySelector({selector!r}).getBoundingClientRect();"
        " return [b.x, b.y, b.width, b.height]; })()"
    )
    return box[0] + x * box[2], box[1] + y * box[3]
