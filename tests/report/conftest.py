"""The browser and the pages that the viewer's tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.report import pages
from tests.report.browser import Browser


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """one.html, two.html and hostile.html."""
    from sinkscope.report.html import write_viewer

    made = tmp_path_factory.mktemp("viewer")
    write_viewer(made / "one.html", pages.diffusion(), heads=[(1, 2)])
    write_viewer(made / "two.html", pages.diffusion(), pages.causal(), samples=[0])
    write_viewer(made / "hostile.html", pages.hostile())
    return made


@pytest.fixture(scope="session")
def shared() -> Iterator[Browser]:
    """One browser for all tests."""
    made = Browser()
    yield made
    made.close()


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small finished study, with its report."""
    from filelock import FileLock
    from tests.report import studies

    from sinkscope.report.study import make_report

    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # whichever process is first makes it for all
    made = base / "planted-study"
    with FileLock(base / "planted-study.lock"):
        if not (made / "report.html").exists():
            made.mkdir(exist_ok=True)
            make_report(studies.make(made))
    return made


@pytest.fixture
def report(shared: Browser, planted: Path) -> Iterator[Browser]:
    """The report, open from disk. Whatever a test does, nothing may be wrong in the console, and nothing asked of a network."""
    shared.call("Emulation.setEmulatedMedia", media="", features=[])
    shared.open(planted / "report.html")
    yield shared
    assert shared.problems() == []
    assert {url.split("#")[0] for url in shared.requests()} == {(planted / "report.html").as_uri()}


@pytest.fixture
def page(shared: Browser, folder: Path) -> Iterator[Browser]:
    """one.html, open. Whatever a test does, nothing may be wrong in the console, and nothing asked of a network."""
    shared.call("Emulation.setEmulatedMedia", media="", features=[])
    shared.open(folder / "one.html")
    yield shared
    assert shared.problems() == []
    asked = shared.requests()
    assert asked, "the page itself is seen"
    assert all(url.startswith("file://") and url.split("#")[0].endswith(".html") for url in asked)
