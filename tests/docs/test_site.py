"""The site builds without a warning, opens from disk, and has every public name and every command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
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
    for name in typer.main.get_group(cli.app).commands:
        assert f'id="{name}"' in commands


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
@pytest.mark.browser
@pytest.mark.skipif(chromium.find() is None, reason="needs Chromium (apt-get install chromium)")
def test_every_page_fits_a_screen_a_tablet_and_a_phone(site: Path) -> None:
    pages = [page for page in sorted(site.rglob("*.html")) if page.name != "404.html"]
    assert len(pages) > 25
    browser = chromium.Browser(1400, 1000)
    try:
        for wide in (1400, 760, 390):
            browser.call(
                "Emulation.setDeviceMetricsOverride",
                width=wide,
                height=1000,
                deviceScaleFactor=1,
                mobile=False,
            )
            for page in pages:
                browser.open(
                    page, ready="document.readyState === 'complete' && location.protocol === 'file:'"
                )
                assert browser.js("document.documentElement.scrollWidth <= innerWidth"), (page.name, wide)
                assert browser.problems() == [], page.name
    finally:
        browser.close()
