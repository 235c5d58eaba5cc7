"""From the GPU to the recorder: a step's tensors are copied without waiting, and delivered in order by a thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sinkscope.gpu.streams import on, stream_for

if TYPE_CHECKING:
    from sinkscope.trace.recorder import Parcel

WAITING = 4
"""Parcels under way at most: a slow disk then slows the generation instead of filling the memory."""


@dataclass(frozen=True)
class _Sent:
    """Parcels on their way to the host.

    Attributes:
        sources: the same on the GPU, whose memory must not be given away before `done`.
    """

    step: int
    parcels: list[Parcel]
    sources: list[Parcel]
    done: torch.cuda.Event


Delivery = Callable[[int, "list[Parcel]"], None]


class Outbox:
    """Sends parcels to `deliver(step, parcels)`, whose tensors then lie on the CPU."""

    def __init__(self, deliver: Delivery) -> None:
        self._deliver = deliver
        self._queue: queue.Queue[_Sent | None] = queue.Queue(WAITING)
        self._spare: dict[tuple[torch.Size, torch.dtype], list[Tensor]] = {}
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def send(self, step: int, parcels: list[Parcel]) -> None:
        """Takes one step of all groups; its arrays may be overwritten by what runs on the GPU afterwards, its fields may not."""
        if self._error is not None:
            self.close()
        device = next(field.device for parcel in parcels for field in parcel.step.values() if field.is_cuda)
        with on(device):
            sent = self._sent(step, parcels, device)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="sinkscope-recorder", daemon=True)
            self._thread.start()
        self._queue.put(sent)

    def _sent(self, step: int, parcels: list[Parcel], device: torch.device) -> _Sent:
        """The parcels on their way to pinned memory, on a stream of their own, beside the next step.

        What a repeated graph recorded is set aside first, because it writes the next step to the same place.
        """
        aside = [
            replace(parcel, arrays={name: value.clone() for name, value in parcel.arrays.items()})
            if parcel.repeated
            else parcel
            for parcel in parcels
        ]
        # Of another pool than the streams that captures run on: what a capture sees must not come from a second thread.
        stream = stream_for("recordings", device, priority=-1)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            copies = [parcel.completed().on_host(self._to_host) for parcel in aside]
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(stream)
        return _Sent(step, copies, aside, done)

    def _to_host(self, value: Tensor) -> Tensor:
        """A copy in pinned memory, which is used again once it was delivered.

        torch would use it again only when copies are done that wait for later steps, and pin more meanwhile, at 8 ms for 16 MB.
        """
        if not value.is_cuda:
            return value
        spare = self._spare.get((value.shape, value.dtype))
        host = spare.pop() if spare else torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        host.copy_(value, non_blocking=True)
        return host

    def _give_back(self, parcels: list[Parcel]) -> None:
        """Keep the pinned memory of delivered parcels for later ones; not that of arrays that grow with every step."""
        for parcel in parcels:
            for tensor in (*parcel.step.values(), *(parcel.arrays.values() if parcel.repeated else ())):
                if tensor.is_pinned():
                    self._spare.setdefault((tensor.shape, tensor.dtype), []).append(tensor)

    def close(self) -> None:
        """Waits until everything is delivered; raises what went wrong on the way."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        self._spare.clear()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _work(self) -> None:
        while (sent := self._queue.get()) is not None:
            if self._error is not None:  # keep taking, so that nobody waits for a full queue
                with suppress(RuntimeError):
                    sent.done.synchronize()  # the copies still read what this parcel holds
                continue
            try:
                sent.done.synchronize()
                sent.sources.clear()
                self._deliver(sent.step, sent.parcels)
                self._give_back(sent.parcels)
            except BaseException as error:
                self._error = error
