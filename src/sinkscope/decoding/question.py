"""What the host wants to know of a GPU while the GPU goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Generic, TypeVar

import torch
from torch import Tensor

from sinkscope.decoding.graphs import on

T = TypeVar("T")


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


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
            main, own = torch.cuda.current_stream(), _stream(self._device)
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
