"""The viewer of a generation that is going on: what it serves, to whom, and that the page follows to the end."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch
from tests.helpers import golden
from tests.report import browser as chromium
from tests.report.driving import APP, COUNT, STATE

import sinkscope as ss
from sinkscope.report.live import LiveViewer

IDS = torch.tensor([[5, 9, 2, 30, 41, 7]])


def recorded(out: Path, act) -> None:
    """A generation of four steps; `act(step)` runs after each, while it is still going on."""
    ss.generate(
        golden.model("llada"), IDS, ss.LladaDecoding(8, 4, 4), capture=ss.Capture(), seed=0, out=out,
        progress=lambda done, expected, state: act(done),
    )  # fmt: skip


def get(address: str, **headers: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, b""


@pytest.mark.slow
def test_it_serves_what_is_recorded_and_then_the_end(tmp_path: Path):
    out = tmp_path / "run.zarr.zip"
    seen: list[int] = []
    with LiveViewer(out) as live:
        assert b"waiting for the first step" in get(live.address)[1]

        def look(step: int) -> None:
            answer = json.loads(get(f"{live.address}data?steps=0")[1])
            assert not answer["finished"]
            seen.append(len(answer["views"][0]["steps"]) if "views" in answer else 0)

        recorded(out, look)
        assert seen == sorted(seen)
        assert seen[-1] >= 2, seen
        page = get(live.address)[1].decode()
        assert "connect-src 'self'" in page
        live.finished = True
        end = json.loads(get(f"{live.address}data?steps=4")[1])
        assert end["finished"]
        assert end["file"] == "run.zarr.zip"
        assert len(end["views"][0]["steps"]) == 4
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(live.address, timeout=2)


@pytest.mark.slow
def test_strangers_get_nothing(tmp_path: Path):
    with LiveViewer(tmp_path / "none.zarr.zip") as live:
        root = live.address.removesuffix(f"{live.token}/")
        assert live.address.startswith("http://127.0.0.1:")
        assert live._server.server_address[0] == "127.0.0.1"
        assert len(live.token) >= 32
        assert LiveViewer(tmp_path / "x").token != live.token
        for place in ("", "data", "x/", f"{live.token}", f"{live.token}/../", f"{live.token}/other"):
            assert get(root + place)[0] == 404, place
        assert get(live.address, Host="evil.example")[0] == 403, "a name elsewhere that leads to this machine"
        request = urllib.request.Request(live.address, data=b"x", method="POST")
        with pytest.raises(urllib.error.HTTPError, match="501"):
            urllib.request.urlopen(request, timeout=5)


@pytest.mark.browser
@pytest.mark.skipif(chromium.find() is None, reason="needs Chromium (apt-get install chromium), and none is installed")
def test_the_page_follows_to_the_end(shared, tmp_path: Path):
    shared.call(
        "Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1,
    )  # fmt: skip
    out = tmp_path / "run.zarr.zip"
    with LiveViewer(out) as live:
        shared.call("Page.navigate", url=live.address)
        shared.events.clear()
        steps: list[int] = []

        def look(step: int) -> None:
            if step == 2:
                shared.until("document.querySelector('[data-ready]') !== null")
            if step >= 2:
                shared.until(f"{APP}.views[0].T >= {step - 1}", 20)
                steps.append(shared.js(f"{APP}.views[0].T"))
                assert shared.js(f"{STATE}.step") in (0, shared.js(f"{APP}.last"))

        recorded(out, look)
        live.finished = True
        shared.until("document.querySelector('.status')?.textContent.startsWith('finished after 4 steps')", 20)
        shared.settle()
        assert shared.js(COUNT).endswith(" of 3")
        assert steps[0] < 4
        assert shared.problems() == []
        asked = {url.split("?")[0] for url in shared.requests()}
        assert all(url.startswith(live.address) or url.endswith("/favicon.ico") for url in asked), asked
    time.sleep(0.1)
