"""The way of a step's tensors from the GPU to the recorder: copied without waiting, delivered in order by a thread.

On a CPU there is nothing to copy, and a parcel is delivered at once.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

WAITING = 4
"""Parcels under way at most: a slow disk then slows the generation instead of filling the memory."""


@dataclass(frozen=True)
class Parcel:
    """What one group of rows sends in one step.

    Attributes:
        rows: their places in the batch. offset: their first column in the frame.
        step: fields of the loop's Step → tensor. arrays: variable → [B, layer, …].
    """

    rows: list[int]
    offset: int
    step: dict[str, Tensor]
    arrays: dict[str, Tensor]


Delivery = Callable[[int, "list[Parcel | None]"], None]


class Outbox:
    """Sends parcels to `deliver(step, parcels)`, whose tensors then lie on the CPU."""

    def __init__(self, deliver: Delivery) -> None:
        self._deliver = deliver
        self._queue: queue.Queue[tuple[int, list[Parcel | None], torch.cuda.Event] | None] = queue.Queue(
            WAITING
        )
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def send(self, step: int, parcels: list[Parcel | None]) -> None:
        """Takes one step of all groups; the tensors may be overwritten by what runs on the GPU afterwards."""
        if self._error is not None:
            self.close()
        on_gpu = any(one.is_cuda for parcel in parcels if parcel is not None for one in parcel.step.values())
        if not on_gpu:
            self._deliver(step, parcels)
            return
        copies = [None if parcel is None else _copied(parcel) for parcel in parcels]
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="sinkscope-recorder", daemon=True)
            self._thread.start()
        self._queue.put((step, copies, done))

    def close(self) -> None:
        """Waits until everything is delivered; raises what went wrong on the way."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            if self._error is not None:
                continue  # keep taking, so that nobody waits for a full queue
            step, parcels, done = item
            try:
                done.synchronize()
                self._deliver(step, parcels)
            except BaseException as error:
                self._error = error


def _copied(parcel: Parcel) -> Parcel:
    """The parcel in pinned memory, once the stream gets there."""
    step, arrays = (
        {name: _to_host(value) for name, value in tensors.items()} for tensors in (parcel.step, parcel.arrays)
    )
    return Parcel(parcel.rows, parcel.offset, step, arrays)


def _to_host(value: Tensor) -> Tensor:
    if not value.is_cuda:
        return value
    host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
    return host.copy_(value, non_blocking=True)
