"""The site builds without a warning, opens from disk, and has every public name and every command."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from tests.report import browser as chromium

import sinkscope
from sinkscope import cli

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (pip install '.[docs]')")
    folder = tmp_path_factory.mktemp("site")
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, env=variables, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.slow
def test_the_reference_is_complete(site: Path) -> None:
    overview = (site / "reference" / "api.html").read_text(encoding="utf-8")
    for name in (name for name in sinkscope.__all__ if not name.startswith("__")):
        home = re.search(rf'href="(api/\w+\.html)#sinkscope\.{name}"', overview)
        assert home, name
        page = (site / "reference" / home[1]).read_text(encoding="utf-8")
        assert f'id="sinkscope.{name}"' in page, name
    commands = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    group = typer.main.get_group(cli.app)
    for name in group.list_commands(typer.Context(group)):
        assert f'id="{name}"' in commands


@pytest.mark.slow
def test_api_pages_have_examples_and_whole_signatures(site: Path) -> None:
    pages = [page.read_text(encoding="utf-8") for page in (site / "reference" / "api").glob("*.html")]
    assert not any('<h2 id="more"' in page for page in pages)
    assert sum(page.count("&gt;&gt;&gt;") for page in pages) >= len(sinkscope.__all__) - 1
    signatures = [
        re.sub(r"<[^>]+>", "", code)
        for page in pages
        for code in re.findall(r'<div class="doc-signature highlight">(.*?)</div>', page, re.DOTALL)
    ]
    lines = [line for text in signatures for line in html.unescape(text).splitlines()]
    assert len(lines) > 3 * len(sinkscope.__all__)
    assert max(map(len, lines)) < 110


@pytest.mark.slow
def test_the_menu_has_pages_for_readers_only(site: Path) -> None:
    """The laboratory's logs are linked, neither in the menu nor found by the search."""
    index = (site / "index.html").read_text(encoding="utf-8")
    menu = set(re.findall(r'<a href="([^"]+)" class="md-nav__link"', index))
    assert {"your-model.html", "results.html", "reference/api/models.html"} <= menu
    assert not [link for link in menu if link.startswith("lab/")]
    found = {entry["location"].partition("#")[0] for entry in json.loads(search_index(site))["docs"]}
    assert "your-model.html" in found
    assert not [place for place in found if place.startswith("lab/")]


def search_index(site: Path) -> str:
    return (site / "search" / "search_index.json").read_text(encoding="utf-8")


@pytest.mark.slow
def test_what_newcomers_look_for_has_a_heading(site: Path) -> None:
    titles = " | ".join(entry["title"].lower() for entry in json.loads(search_index(site))["docs"])
    for words in (
        "loglikelihood_rolling",
        "learned sinks",
        "which study",
        "several gpus",
        "length a measure holds",
        "wrap",
    ):
        assert words in titles


@pytest.mark.slow
def test_nothing_is_fetched_from_the_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(
            r'<(?:script|img|iframe)[^>]*\ssrc="(https?:[^"]+)"|<link[^>]*rel="stylesheet"[^>]*href="(https?:[^"]+)"',
            text,
        )
        assert not fetched, (page.name, fetched)


@pytest.mark.slow
def test_every_link_between_pages_leads_to_a_file(site: Path) -> None:
    for page in site.rglob("*.html"):
        for target in re.findall(r'\shref="([^"#:]+)(?:#[^"]*)?"', page.read_text(encoding="utf-8")):
            if page.name != "404.html":
                assert (page.parent / target.split("?")[0]).exists(), (page.relative_to(site), target)


@pytest.mark.slow
def test_logs_of_the_laboratory_are_pages(site: Path) -> None:
    """Links of the docs to lab/ are links of the site; links to other files of the repository name them."""
    assert {page.stem for page in (site / "lab").glob("*.html")} == {
        log.stem for log in (ROOT / "lab").glob("*.md") if log.name != "README.md"
    }
    install = (site / "install.html").read_text(encoding="utf-8")
    assert 'href="lab/measurements.html#threads-on-a-busy-host"' in install
    assert "<code>bench/results</code>" in (site / "lab" / "speed.html").read_text(encoding="utf-8")


WIDTHS = (1440, 760, 390)
LOADED = "document.readyState === 'complete' && location.protocol === 'file:'"
SEARCH = """(() => {
  const box = document.querySelector('#__search');
  box.checked = true;
  box.dispatchEvent(new Event('change'));
  const field = document.querySelector('.md-search__input');
  field.focus();
  field.value = 'learned sinks';
  field.dispatchEvent(new KeyboardEvent('keyup', { bubbles: true }));
  return document.querySelectorAll('.md-search-result__item').length;
})()"""


@pytest.fixture
def browser() -> Iterator[chromium.Browser]:
    """A browser without a network."""
    if chromium.find() is None:
        pytest.skip("needs Chromium (apt-get install chromium)")
    found = chromium.Browser(1400, 1000)
    yield found
    found.close()


def resize(browser: chromium.Browser, wide: int) -> None:
    size = {"width": wide, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    browser.call("Emulation.setDeviceMetricsOverride", **size)


CUT = """[...document.querySelectorAll('.md-typeset pre > code')]
  .filter(code => code.scrollWidth > code.clientWidth + 1 && !code.closest('.jp-Notebook, .jupyter-wrapper, .doc'))
  .map(code => code.textContent.split('\\n')[0])"""
CONTRAST = """(() => {
  const light = colour => { const [r, g, b] = colour.match(/[\\d.]+/g).map(Number); return (0.3 * r + 0.6 * g + 0.1 * b) / 255; };
  const body = getComputedStyle(document.body), words = getComputedStyle(document.querySelector('.md-typeset'));
  return light(words.color) - light(body.backgroundColor);
})()"""


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_a_screen_a_tablet_and_a_phone(site: Path, browser: chromium.Browser, scheme: str) -> None:
    pages = [page for page in sorted(site.rglob("*.html")) if page.name != "404.html"]
    assert len(pages) > 25
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    for page in pages:
        resize(browser, WIDTHS[0])  # before it is opened: the search field takes a moment to grow
        browser.open(page, ready=LOADED)
        for wide in WIDTHS if scheme == "light" else WIDTHS[::2]:
            resize(browser, wide)
            assert browser.js("document.documentElement.scrollWidth <= innerWidth"), (page.name, wide)
            if wide == WIDTHS[0] and "lab" not in page.parts:
                assert browser.js(CUT) == [], page.name
        assert browser.problems() == [], page.name
    assert (browser.js(CONTRAST) > 0.4) == (scheme == "dark")


@pytest.mark.slow
@pytest.mark.browser
def test_the_search_works_from_disk(site: Path, browser: chromium.Browser) -> None:
    for wide in WIDTHS:
        resize(browser, wide)
        browser.open(site / "index.html", ready=LOADED)
        browser.until(f"{SEARCH} > 3")
        assert browser.problems() == []
