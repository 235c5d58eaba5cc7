"""Small work beside a forward: on a GPU in a stream of its own, so that waiting for it is not waiting for the forward."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor


class Beside:
    """Marks a point in the work of a device. What is asked for later may need what was launched before it, and nothing else.

    On a CPU there is nothing to wait for, and everything happens in order.
    """

    def __init__(self, device: torch.device) -> None:
        self._reached: Any = None
        if device.type == "cuda":
            self._main: Any = torch.cuda.current_stream(device)
            self._own = _stream(device)
            self._reached = self._main.record_event()

    def positions(self, where: Tensor) -> tuple[Tensor, ...]:
        """The indices at which `where`, Bool of any shape, is True: one Long tensor per axis."""
        if self._reached is None:
            return where.nonzero(as_tuple=True)
        with torch.cuda.stream(self._own):
            self._own.wait_event(self._reached)
            found = where.nonzero(as_tuple=True)  # the host waits here, for this stream alone
        for one in found:
            one.record_stream(self._main)  # it is used there: its memory must not be given away before
        return found


@cache
def _stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
