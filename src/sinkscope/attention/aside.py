"""Measuring beside the forward: a second stream of the GPU for what no layer waits for.

What policy and recorder compute from an attention call is only wanted when the step is over. In a captured step it therefore
runs on a stream of its own while the layers go on: at small batches their kernels leave much of the GPU idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

BEHIND = 2
"""Calls under way at most: their inputs stay in memory until they are done, and the main stream waits for the oldest of them."""


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for each GPU: torch hands out few, and then the same ones again."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Aside:
    """The measuring of one forward on the second stream.

    Memory is given back in the order of the stream that took it. So inputs are held until the main stream has waited for
    what reads them, and results are read after `join`.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = _stream(device)
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

    def join(self) -> None:
        """Let the main stream go on when all is done; results may be read and inputs given back."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._under_way.clear()
