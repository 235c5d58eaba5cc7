"""The process of a local worker: `python -m sinkscope.study.serve FD ROOT DEVICE THREADS BATCH`, started by `local.py`.

It reads jobs from a pipe, answers with progress and results, and ends when the other end of the pipe is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sinkscope.errors import SinkscopeError
from sinkscope.study.worker import Bench

PR_SET_PDEATHSIG = 1


def serve(pipe: Connection[Any, Any], bench: Bench) -> None:
    """Runs jobs until the pipe ends."""

    def tell(done: int, right: int) -> None:
        pipe.send(("progress", done, right))

    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer: tuple[Any, ...] = ("done", bench.run(job, tell))
        except (BrokenPipeError, ConnectionResetError):
            return
        except SinkscopeError as error:
            answer = ("failed", str(error))
        except Exception:
            answer = ("failed", traceback.format_exc())
        with contextlib.suppress(OSError):
            pipe.send(answer)


def die_with(parent: int) -> None:
    """Ends this process when its parent ends, whatever it is doing."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    if os.getppid() != parent:
        os._exit(1)
    threading.Thread(target=watch, daemon=True).start()


def main(arguments: list[str]) -> None:
    """Entry point."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(os.getppid())
    descriptor, root, device, threads, batch = arguments
    bench = Bench(Path(root), device, int(threads), batch if batch == "auto" else int(batch))
    import sinkscope.models.load
    import sinkscope.tasks.answer  # noqa: F401 (seconds, while the first job is still on its way)

    serve(Connection(int(descriptor)), bench)


if __name__ == "__main__":
    main(sys.argv[1:])
