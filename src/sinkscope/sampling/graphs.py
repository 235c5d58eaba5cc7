"""CUDA graphs: the forward of a denoising step, launched as one piece.

At small batches the Python that launches some thousand kernels takes longer than the kernels. The state of a group of rows has
the same shape in every step, so its forward is run once, then captured with whatever the recorder computes in it, and
replayed from there on. What is computed is the same, kernel for kernel; only the launching changes. Set SINKSCOPE_GRAPHS=0 to
switch it off.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_log = logging.getLogger(__name__)

Found = dict[str, list[Tensor]]


@dataclass(frozen=True)
class _Captured:
    """A graph with the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    state: Tensor
    hidden: Tensor
    found: Found


class Graphs:
    """The captured forwards of one group of rows: one with recording, one without.

    Args:
        forward: state Long [B, S] → last hidden states, and what the recorder found.
    """

    def __init__(self, forward: Callable[[Tensor], tuple[Tensor, Found]]) -> None:
        self._forward = forward
        self._seen: set[bool] = set()
        self._captured: dict[bool, _Captured] = {}
        self._works = True

    def run(self, x: Tensor, recorded: bool) -> tuple[Tensor, Found]:
        """The forward on the state x: plain the first time (kernels are compiled and chosen then), later replayed."""
        if not self._works or recorded not in self._seen:
            self._seen.add(recorded)
            return self._forward(x)
        if recorded not in self._captured and not self._capture(x, recorded):
            return self._forward(x)
        one = self._captured[recorded]
        one.state.copy_(x)
        one.graph.replay()
        return one.hidden, one.found

    def _capture(self, x: Tensor, recorded: bool) -> bool:
        """Captures the forward; where the model cannot be captured, says so once and stays with plain launches."""
        state, graph = x.clone(), torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                hidden, found = self._forward(state)
        except RuntimeError as error:
            _log.warning(
                "this forward cannot be captured as a CUDA graph (%s); steps are launched one kernel at a time",
                error,
            )
            torch.cuda.synchronize()
            self._works = False
            return False
        self._captured[recorded] = _Captured(graph, state, hidden, found)
        return True


def wanted(device: torch.device) -> bool:
    """Whether forwards on this device are worth capturing."""
    return device.type == "cuda" and os.environ.get("SINKSCOPE_GRAPHS", "1") != "0"
