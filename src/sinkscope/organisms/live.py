"""What a person sees while training runs, and the log that stays: one JSON line per report."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


class Live:
    """Appends to log.jsonl and shows progress: a bar in a terminal that has rich, plain lines elsewhere."""

    def __init__(self, folder: Path, name: str, steps: int, done: int, quiet: bool = False) -> None:
        self.path = folder / "log.jsonl"
        self.name, self.steps = name, steps
        self._drop_after(done)
        self.bar: Any = None
        self.quiet = quiet
        if not quiet and sys.stdout.isatty():
            self._start_bar(done)

    def _drop_after(self, step: int) -> None:
        """A resumed run writes the steps after its checkpoint again."""
        kept = [entry for entry in read_log(self.path) if entry["step"] <= step]
        self.path.write_text("".join(json.dumps(entry) + "\n" for entry in kept), encoding="utf-8")

    def _start_bar(self, done: int) -> None:
        try:
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        except ImportError:
            return
        self.bar = Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self.bar.start()
        self.task = self.bar.add_task(self.name, total=self.steps, completed=done)

    def report(self, entry: dict[str, Any]) -> None:
        """One report: step, loss, speed, or accuracies."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        if self.quiet:
            return
        words = " ".join(f"{key} {_short(value)}" for key, value in entry.items() if key != "step")
        if self.bar is not None:
            self.bar.update(self.task, completed=entry["step"], description=f"{self.name} {words}")
        else:
            print(f"{self.name} {entry['step']}/{self.steps} {words}", flush=True)

    def note(self, words: str) -> None:
        """What takes long now; it is shown and not kept."""
        if self.bar is not None:
            self.bar.update(self.task, description=f"{self.name} {words}")
        elif not self.quiet:
            print(f"{self.name}: {words}", flush=True)

    def close(self) -> None:
        """Leaves the terminal as it was."""
        if self.bar is not None:
            self.bar.stop()


def read_log(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a log; a line cut off by a crash is left out."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return " ".join(f"{key}={_short(inner)}" for key, inner in value.items())
    return str(value)
