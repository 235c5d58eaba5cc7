"""Headless Chromium over its debugging pipe: JSON messages that end in a zero byte, on file descriptors 3 and 4.

No driver and no package: start, open a page, evaluate, press keys, emulate media, collect what the console and the network
said.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage",
    "--no-first-run", "--disable-extensions", "--disable-component-update", "--mute-audio", "--remote-debugging-pipe",
)  # fmt: skip
KEYS = {
    "ArrowLeft": 37, "ArrowRight": 39, "ArrowUp": 38, "ArrowDown": 40, "Home": 36, "End": 35, "Escape": 27, " ": 32, "Tab": 9,
    "Enter": 13,
}  # fmt: skip


def find() -> str | None:
    """The browser's path, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One browser with one page."""

    def __init__(self, width: int = 1400, height: int = 1000) -> None:
        path = find()
        if path is None:
            raise FileNotFoundError("no chromium")
        self._profile = tempfile.mkdtemp(prefix="sinkscope-browser-")
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()

        def place() -> None:
            # Both ends may already be 3 or 4, so go through high numbers.
            high = [os.dup2(end, 100 + i) for i, end in enumerate((to_browser, from_browser))]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            [
                path, *FLAGS, f"--user-data-dir={self._profile}", f"--window-size={width},{height}", "about:blank",
            ],
            preexec_fn=place,
            pass_fds=(3, 4, to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank", newWindow=True, width=width, height=height)[
            "targetId"
        ]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        os.close(self._out)
        os.close(self._in)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command, and its answer; events that come meanwhile are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        while True:
            answer = self._read(60)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _read(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            chunk = os.read(self._in, 1 << 20)
            if not chunk:
                raise ConnectionError("the browser has gone")
            self._buffer += chunk
        message, self._buffer = self._buffer.split(b"\0", 1)
        found: dict[str, Any] = json.loads(message)
        return found

    def open(
        self,
        path: Path,
        hash: str = "",
        offline: bool = True,
        ready: str = "document.querySelector('[data-ready]') !== null",
    ) -> None:
        """Opens a file and waits until its viewer has drawn, or another condition holds."""
        self.call(
            "Network.emulateNetworkConditions", offline=offline, latency=0, downloadThroughput=-1, uploadThroughput=-1,
        )  # fmt: skip
        self.call("Page.navigate", url="about:blank")
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri() + hash)
        self.until(ready)

    def js(self, expression: str) -> Any:
        """The value of an expression; promises are awaited, exceptions raised."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def until(self, condition: str, seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not self.js(condition):
            if time.monotonic() > end:
                raise TimeoutError(condition)
            time.sleep(0.02)

    def press(self, key: str) -> None:
        code = KEYS[key]
        more = {"text": {" ": " ", "Enter": "\r"}[key]} if key in (" ", "Enter") else {}
        for kind in ("keyDown", "keyUp"):
            extra = more if kind == "keyDown" else {}
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code="Space" if key == " " else key, windowsVirtualKeyCode=code,
                **extra,
            )  # fmt: skip
        self.settle()

    def mouse(self, kind: str, x: float, y: float, held: bool = False) -> None:
        """kind: mouseMoved, mousePressed or mouseReleased."""
        button = "left" if held or kind != "mouseMoved" else "none"
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=int(held), clickCount=1)

    def click(self, x: float, y: float) -> None:
        self.mouse("mousePressed", x, y, held=True)
        self.mouse("mouseReleased", x, y)
        self.settle()

    def settle(self) -> None:
        """Until what is loading is drawn."""
        self.js(
            "(async () => { const v = document.querySelector('[data-sinkscope]')?.sinkscope; await v?.ready;"
            " await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))); })()"
        )

    def media(self, **features: str) -> None:
        """media="print", or prefers_color_scheme="dark"."""
        media = features.pop("media", "")
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", media=media, features=named)
        self.settle()

    @contextmanager
    def sized(self, width: int, height: int = 900) -> Iterator[None]:
        """A window of this many pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        try:
            self.settle()
            yield
        finally:
            self.call("Emulation.clearDeviceMetricsOverride")

    def busy(self) -> float:
        """Seconds of processor time that the page's main thread has used."""
        self.call("Performance.enable", timeDomain="threadTicks")
        metrics = self.call("Performance.getMetrics")["metrics"]
        return next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration")

    def screenshot(self, path: Path, whole: bool = False, **options: Any) -> None:
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole, **options)["data"]
        path.write_bytes(base64.b64decode(data))

    def downloads(self, folder: Path) -> None:
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))

    def problems(self) -> list[str]:
        """Console errors and warnings, exceptions, policy violations since the page was opened."""
        self.js("0")
        found = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(str(params["args"]))
            if method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """Every address asked for since the page was opened, without the page itself, data and blobs."""
        self.js("0")
        asked = [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
        return [url for url in asked if not url.startswith(("data:", "blob:", "about:"))]
