"""The viewer while a generation is going on: a small web server on this machine alone, reading what has been recorded so far.

It listens on 127.0.0.1, answers GET requests that carry a random token in their path and name this machine as their host,
and nothing else. The page asks again for what is new; when the generation is over it shows the same as `sinkscope show --view`.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sinkscope.base.errors import InputError
from sinkscope.report.html import page, viewer_parts
from sinkscope.report.payload import views
from sinkscope.trace.trace import Trace

GRACE = 8.0
"""Seconds that a finished generation waits for an open page to fetch its end."""

WAITING = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="1"><link rel="icon" href="data:,">'
    "<title>sinkscope</title><p>waiting for the first step"
)


class LiveViewer:
    """`with LiveViewer(out) as live: open(live.address); …` serves the trace that is being recorded to `out`."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.token = secrets.token_urlsafe(24)
        self.finished = False
        self._asked = 0.0  # when a page last asked, and whether it was told the end
        self._told = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}/{self.token}/"
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> LiveViewer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finished = True
        # Whoever stops a generation does not wait for a page.
        end = time.monotonic() + (GRACE if kind is None else 0.0)
        while not self._told and time.monotonic() < end and time.monotonic() - self._asked < GRACE:
            time.sleep(0.1)
        self._server.shutdown()
        self._server.server_close()

    def page(self) -> str:
        """The viewer with what is recorded so far; a page that asks again while nothing is."""
        embedded = self._views()
        if not embedded:
            return WAITING
        parts = viewer_parts(embedded, live="data")
        body = f'<main>\n<div class="title"><h1>sinkscope</h1><p>as it is generated</p></div>\n{parts.body}\n</main>'
        return page("live · sinkscope", body, scripts=[parts.script], styles=[parts.style], connect=True)

    def data(self, known: int) -> dict[str, Any]:
        """The views when there are more than `known` steps; whether the generation is over; milliseconds to wait."""
        over, began = self.finished, time.monotonic()
        embedded = self._views()
        finished = over and bool(embedded)
        answer: dict[str, Any] = {"finished": finished}
        if embedded and (len(embedded[0]["steps"]) > known or finished):
            answer["views"] = embedded
        # Reading takes time from the generation: at most a quarter of it.
        answer["wait"] = int(max(400.0, 3000 * (time.monotonic() - began)))
        if finished:
            answer["file"] = self.out.name
            self._told = True
        return answer

    def _views(self) -> list[dict[str, Any]]:
        """The first sample of the recording; empty when there is nothing to read yet, or while it is being packed."""
        with self._lock:
            try:
                trace = Trace.open(self.out)
                return views(trace, samples=[0], file=str(self.out)) if len(trace) else []
            except (InputError, OSError, KeyError, ValueError):
                return []

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        live = self

        class Handler(BaseHTTPRequestHandler):
            """One request."""

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                host = self.headers.get("Host", "").partition(":")[0]
                if host not in ("127.0.0.1", "localhost"):
                    self.send_error(403)  # another name that leads here: a page elsewhere is asking
                    return
                place = parts.path.removeprefix(f"/{live.token}/")
                if place == parts.path or place not in ("", "data"):
                    self.send_error(404)
                    return
                live._asked = time.monotonic()
                known = parse_qs(parts.query).get("steps", ["0"])[0]
                text = json.dumps(live.data(int(known) if known.isdecimal() else 0)) if place else live.page()
                body = text.encode("utf-8", "backslashreplace")
                self.send_response(200)
                headers = {
                    "Content-Type": "application/json" if place else "text/html; charset=utf-8",
                    "Content-Length": str(len(body)),
                    "Cache-Control": "no-store",
                    "X-Content-Type-Options": "nosniff",
                    "Referrer-Policy": "no-referrer",
                }
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *given: Any) -> None:
                """Nothing is logged: the address holds the token."""

        return Handler
