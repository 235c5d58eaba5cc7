"""The processes that train together under torchrun; torch's DistributedDataParallel averages their gradients."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sinkscope.models.load import resolve_device


@dataclass(frozen=True)
class World:
    """The processes that train together."""

    rank: int
    size: int
    device: torch.device

    @property
    def main(self) -> bool:
        """True for the process that writes files and reports."""
        return self.rank == 0

    @property
    def hardware(self) -> str:
        """The device in words."""
        if self.device.type == "cuda":
            return str(torch.cuda.get_device_name(self.device))
        return f"CPU, {torch.get_num_threads()} threads"

    def wait(self) -> None:
        """Returns when all processes have called it."""
        if self.size > 1:
            torch.distributed.barrier()

    def total(self, value: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.size > 1:
            value = value.clone()
            torch.distributed.all_reduce(value)
        return value

    def shared(self, loss: nn.Module) -> nn.Module:
        """A module whose backward pass averages gradients over the processes."""
        return loss if self.size == 1 else DistributedDataParallel(loss)

    def apart(self, loss: Any) -> AbstractContextManager[None]:
        """Inside, what `shared` made adds gradients up without averaging them: the last part of a step averages all."""
        return nullcontext() if self.size == 1 else loss.no_sync()


@contextmanager
def world(device: str) -> Iterator[World]:
    """The processes that torchrun started, or this one alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World(0, 1, resolve_device(device))
        return
    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    on_gpu = device != "cpu" and torch.cuda.is_available()
    where = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(where)
    torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
    try:
        yield World(rank, size, where)
    finally:
        torch.distributed.destroy_process_group()
