"""A training step as one CUDA graph: a small network's step is hundreds of small kernels, and starting them is most of its time.

What differs between steps (the numbers of the documents, random numbers, the learning rate) is copied into tensors that stay
where they are; everything else, from rows of tokens to the optimiser, is recorded once and replayed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

WARM = 3
"""Steps that are taken before one is recorded: they compile, and make the optimiser's state. They are steps of the training."""
AHEAD = 8
"""Steps that may wait for the GPU. A process that is further ahead sleeps: without this it would fill CUDA's queue and then wait
with its core at full load, which a sweep of many runs, and the study beside it, need for themselves."""


class ReplayedStep:
    """Takes the steps of a training: the first ones as they are, then by replaying one.

    Args:
        update: takes a step with what was drawn for it, and returns its loss.
        optimizer: its learning rate becomes a tensor that `update` leaves alone.
        note: called with a sentence when a step cannot be recorded; then all are taken as they are.
    """

    def __init__(
        self,
        update: Callable[..., Tensor],
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        note: Callable[[str], None],
    ) -> None:
        self.update, self.note = update, note
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.rate = torch.zeros((), device=device)
        for group in optimizer.param_groups:
            group["lr"], group["capturable"] = self.rate, True
        self.inputs: tuple[Tensor, ...] = ()
        self.taken = 0
        self.graph: Any = None
        self.loss: Tensor | None = None
        self.waiting: deque[torch.cuda.Event] = deque()

    def __call__(self, rate: float, *drawn: Tensor) -> Tensor:
        """One step; returns its loss."""
        self.rate.fill_(rate)
        if not self.inputs:
            self.inputs = tuple(tensor.clone() for tensor in drawn)
        for fixed, new in zip(self.inputs, drawn, strict=True):
            fixed.copy_(new)
        if self.taken == WARM:
            self._record()
        self.taken += 1
        if self.graph is not None and self.loss is not None:
            self.graph.replay()
            self._wait()
            return self.loss
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            loss = self.update(*self.inputs)
        torch.cuda.current_stream().wait_stream(self.stream)
        return loss

    def _wait(self) -> None:
        """Sleeps while more than AHEAD steps wait for the GPU."""
        ended = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        ended.record()
        self.waiting.append(ended)
        if len(self.waiting) > AHEAD:
            self.waiting.popleft().synchronize()

    def _record(self) -> None:
        """Records a step without taking it."""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                loss = self.update(*self.inputs)
        except RuntimeError as error:
            self.note(f"a step cannot be recorded as a CUDA graph ({error}); training goes on without")
            return
        self.graph, self.loss = graph, loss
