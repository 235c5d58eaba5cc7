"""Processes that draw: `python -m sinkscope.study.pens ROOT`, one figure for each line of JSON that comes in.

A process that is lost is replaced, and its figure drawn again. They end with the one that started them.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sinkscope.errors import SinkscopeError

TRIES = 2


@dataclass
class Pen:
    """Draws in this process; a trace is opened once."""

    root: Path
    _open: dict[str, Any] = field(default_factory=dict)

    def draw(self, name: str, traces: Mapping[str, str]) -> dict[str, Any]:
        """A figure of traces (label → file) into figures/: its files, from ROOT on, and what was left out and why."""
        from sinkscope.report.figures import save_all
        from sinkscope.trace.trace import Trace

        for file in traces.values():
            if file not in self._open:
                self._open[file] = Trace.open(file)
        opened = {label: self._open[file] for label, file in traces.items()}
        accuracies = self._accuracies() if name == "table_1" else None
        made = save_all(opened, self.root / "figures", only=[name], accuracies=accuracies)
        files = [path.relative_to(self.root).as_posix() for paths in made.files.values() for path in paths]
        return {"files": files, "left_out": dict(made.left_out)}

    def _accuracies(self) -> Any:
        """The rows of the result table for the first decoding; None without accuracies."""
        import pandas as pd

        path = self.root / "tables" / "results.parquet"
        if not path.is_file():
            return None
        table = pd.read_parquet(path)
        first = table["decoding_name"].iloc[0]
        return table[table["decoding_name"] == first][["task", "policy", "model", "accuracy", "stderr"]]


class Pens:
    """Several processes that draw; `draw` may be called from as many threads as there are."""

    def __init__(self, root: Path, many: int) -> None:
        self.root = root
        self._closed = False
        self._every = [self._start() for _ in range(many)]
        self._idle: queue.Queue[subprocess.Popen[str]] = queue.Queue()
        for process in self._every:
            self._idle.put(process)

    def draw(self, name: str, traces: Mapping[str, str]) -> dict[str, Any]:
        """`Pen.draw` in a process that is idle."""
        process = self._idle.get()
        try:
            for _ in range(TRIES):
                answer = _ask(process, {"name": name, "traces": dict(traces)})
                if answer is not None and "failed" in answer:
                    raise SinkscopeError(f"drawing {name} failed: {answer['failed']}")
                if answer is not None:
                    return answer
                if self._closed:
                    break
                process = self._replace(process)
        finally:
            self._idle.put(process)
        raise SinkscopeError(f"the process that draws {name} was lost; run the same command again")

    def close(self) -> None:
        """Ends all processes at once."""
        self._closed = True
        for process in self._every:
            process.kill()
        for process in self._every:
            process.wait()
            _close_pipes(process)

    def _replace(self, lost: subprocess.Popen[str]) -> subprocess.Popen[str]:
        lost.kill()
        lost.wait()
        _close_pipes(lost)
        fresh = self._start()
        self._every[self._every.index(lost)] = fresh
        return fresh

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(  # noqa: S603 (our own module)
            [sys.executable, "-m", "sinkscope.study.pens", str(self.root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # a Ctrl-C in the terminal is the parent's to handle
        )


def _ask(process: subprocess.Popen[str], question: Mapping[str, Any]) -> dict[str, Any] | None:
    """One line there and one back; None when the process is gone."""
    if process.stdin is None or process.stdout is None:
        return None
    try:
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except (OSError, ValueError):  # a pipe that broke, or was closed
        return None
    answer: dict[str, Any] | None = json.loads(line) if line.endswith("\n") else None
    return answer


def _close_pipes(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:  # what was not written yet is of no use to anybody
                continue


def main(arguments: list[str]) -> None:
    """Entry point."""
    import traceback

    from sinkscope.study.serve import die_with

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(os.getppid())
    answers, sys.stdout = sys.stdout, sys.stderr  # nothing but answers goes through the pipe
    pen = Pen(Path(arguments[0]))
    for line in sys.stdin:
        try:
            answer = pen.draw(**json.loads(line))
        except Exception as error:
            known = isinstance(error, (SinkscopeError, OSError))
            answer = {"failed": str(error) if known else traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
