"""Second streams of a GPU: measuring beside the layers, and what the host asks while the GPU goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

BEHIND = 2
"""Calls under way at most: their inputs stay in memory until they are done, and the main stream waits for the oldest of them."""


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Inside, this GPU is the current one, whose streams graphs and events belong to; nothing changes for a CPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@cache
def stream_for(purpose: str, device: torch.device, priority: int = 0) -> torch.cuda.Stream:
    """One for each purpose and GPU: torch hands out few, and then the same ones again; cuBLAS keeps memory for each."""
    return torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]


class Aside:
    """The measuring of one forward on the second stream.

    What policy and recorder compute from an attention call is only wanted when the step is over. In a captured step it therefore
    runs on a stream of its own while the layers go on: at small batches their kernels leave much of the GPU idle. Memory is given
    back in the order of the stream that took it, so inputs are held until the main stream has waited for what reads them, and
    results are read on leaving.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = stream_for("measuring", device)
        self._under_way: deque[tuple[torch.cuda.Event, object]] = deque()

    @contextmanager
    def beside(self, inputs: object) -> Iterator[None]:
        """Run what is inside on the second stream, once the main one has come here; inputs: what it reads."""
        main = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream):
            yield
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self._stream)
        self._under_way.append((done, inputs))
        while len(self._under_way) > BEHIND:
            earlier, _ = self._under_way.popleft()
            main.wait_event(earlier)

    def __enter__(self) -> Callable[[object], AbstractContextManager[None]]:
        return self.beside

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Let the main stream go on when all is done; results may be read and inputs given back."""
        try:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        except RuntimeError:
            if error is None:  # else the capture would end in an error about this stream, which hides the first one
                raise
        self._under_way.clear()


class Question(Generic[T]):
    """Something about tensors that are there when all is done that was launched so far.

    The answer is computed on a stream of its own. So the host waits for what was launched before the question, and not for what
    was launched between question and answer: a forward, say, that keeps the GPU busy meanwhile.

    Args:
        ask: a function of these tensors that waits for its result, as `nonzero` and `bool` do.
    """

    def __init__(self, ask: Callable[[], T], device: torch.device) -> None:
        self._ask, self._device = ask, device
        with on(device):
            self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._ready.record()

    def answer(self) -> T:
        """The answer. Tensors in it may be used by whatever is launched from here on."""
        with on(self._device):
            main, own = torch.cuda.current_stream(), stream_for("questions", self._device)
            own.wait_event(self._ready)
            with torch.cuda.stream(own):
                found = self._ask()
            main.wait_stream(own)  # a tensor's size may be known before it is filled
            for tensor in _tensors(found):
                tensor.record_stream(main)
        return found


def _tensors(found: object) -> Iterable[Tensor]:
    """All tensors of nested tuples."""
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, tuple):
        for part in found:
            yield from _tensors(part)
