"""The site builds without a warning, opens from disk, and has every public name and every command."""

from __future__ import annotations

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
    python = (site / "reference" / "api.html").read_text(encoding="utf-8")
    for name in sinkscope.__all__:
        assert name.startswith("__") or re.search(rf'id="sinkscope[\w.]*\.{name}"', python), name
    commands = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    group = typer.main.get_group(cli.app)
    for name in group.list_commands(typer.Context(group)):
        assert f'id="{name}"' in commands


@pytest.mark.slow
def test_the_api_page_has_examples_and_no_leftovers(site: Path) -> None:
    python = (site / "reference" / "api.html").read_text(encoding="utf-8")
    assert '<h2 id="more"' not in python
    assert python.count("&gt;&gt;&gt;") >= len(sinkscope.__all__) - 1


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


WIDTHS = (1400, 760, 390)
LOADED = "document.readyState === 'complete' && location.protocol === 'file:'"
SEARCH = """(() => {
  const box = document.querySelector('#__search');
  box.checked = true;
  box.dispatchEvent(new Event('change'));
  const field = document.querySelector('.md-search__input');
  field.focus();
  field.value = 'residence';
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


@pytest.mark.slow
@pytest.mark.browser
def test_every_page_fits_a_screen_a_tablet_and_a_phone(site: Path, browser: chromium.Browser) -> None:
    pages = [page for page in sorted(site.rglob("*.html")) if page.name != "404.html"]
    assert len(pages) > 25
    for page in pages:
        browser.open(page, ready=LOADED)
        for wide in WIDTHS:
            resize(browser, wide)
            assert browser.js("document.documentElement.scrollWidth <= innerWidth"), (page.name, wide)
        assert browser.problems() == [], page.name


@pytest.mark.slow
@pytest.mark.browser
def test_the_search_works_from_disk(site: Path, browser: chromium.Browser) -> None:
    for wide in WIDTHS:
        resize(browser, wide)
        browser.open(site / "index.html", ready=LOADED)
        browser.until(f"{SEARCH} > 3")
        assert browser.problems() == []
