"""Processes that are forked from the test's own, which has read its libraries: for commands that are killed, or short of room.

A fresh interpreter reads torch and transformers for seconds before it does anything that such a test is about.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch


def forked(call: Callable[[], object], said: Path | None = None) -> BaseProcess:
    """A process that has begun `call`; what it prints goes to the file `said`, or nowhere.

    Its exit code is that of a program that does nothing else. Only for work on a CPU without gradients: the threads of torch's
    other parts do not survive a fork.
    """
    process = multiprocessing.get_context("fork").Process(target=_run, args=(call, said or Path(os.devnull)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12 on, where this process has several threads
        process.start()
    return process


def _run(call: Callable[[], object], said: Path) -> None:
    with said.open("w") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    torch.set_num_threads(1)  # as torch's own data loaders do: the pool of OpenMP was left behind
    call()
