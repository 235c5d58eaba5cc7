"""A hub of our own: a local server with the few routes that huggingface_hub uses, which writes down every request."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Hub:
    """Repositories with revisions: `repositories[id][commit]` is a folder, `branches[id][name]` a commit."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, Path]] = {}
        self.branches: dict[str, dict[str, str]] = {}
        self.requests: list[tuple[str, str]] = []
        self.address = ""

    def add(self, name: str, folder: Path, commit: str, *branches: str) -> None:
        """Puts a folder on the hub under a commit, which the branches then point at."""
        self.repositories.setdefault(name, {})[commit] = folder
        self.branches.setdefault(name, {}).update(dict.fromkeys(branches, commit))

    def files_asked_for(self) -> set[str]:
        """Names of all files that anybody asked for, by HEAD or GET."""
        return {path.split("/resolve/")[1].split("/", 1)[1] for _, path in self.requests if "/resolve/" in path}

    def commit(self, name: str, revision: str) -> str | None:
        """The commit that a branch or a commit id names."""
        found = self.branches[name].get(revision, revision)
        return found if found in self.repositories[name] else None


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            path = unquote(urlsplit(self.path).path).strip("/")
            hub.requests.append((self.command, path))
            if path.startswith("api/models/"):
                name, _, revision = path.removeprefix("api/models/").partition("/revision/")
                self.describe(name, revision or "main")
            elif "/resolve/" in path:
                name, _, rest = path.partition("/resolve/")
                revision, _, file = rest.partition("/")
                self.send_file(name, revision, file)
            else:
                self.fail(404, "RepoNotFound")

        def describe(self, name: str, revision: str) -> None:
            if name not in hub.repositories:
                self.fail(401, "RepoNotFound")
            elif (commit := hub.commit(name, revision)) is None:
                self.fail(404, "RevisionNotFound")
            else:
                folder = hub.repositories[name][commit]
                files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
                body = {
                    "id": name, "modelId": name, "sha": commit, "siblings": [{"rfilename": f} for f in files],
                }  # fmt: skip
                self.respond(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

        def send_file(self, name: str, revision: str, file: str) -> None:
            if name not in hub.repositories:
                return self.fail(401, "RepoNotFound")
            commit = hub.commit(name, revision)
            if commit is None:
                return self.fail(404, "RevisionNotFound")
            path = hub.repositories[name][commit] / file
            if not path.is_file():
                return self.fail(404, "EntryNotFound")
            content = path.read_bytes()
            headers = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
            return self.respond(200, content, headers)

        def fail(self, code: int, what: str) -> None:
            self.respond(code, b"{}", {"X-Error-Code": what, "X-Error-Message": what})

        def respond(self, code: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(code)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Tests read `requests` instead."""

    return Handler


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub that answers at `hub.address` until the block ends."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
