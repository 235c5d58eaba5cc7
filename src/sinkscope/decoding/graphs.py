"""CUDA graphs: the forward of a denoising step, launched as one piece.

At small batches the Python that launches some thousand kernels takes longer than the kernels. The state of a group of rows has
the same shape in every step, so its forward is run once, then captured with whatever recorder and policy compute in it, and
replayed from there on. What is computed is the same, kernel for kernel; only the launching changes. SINKSCOPE_GRAPHS=0
switches it off.
"""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

_log = logging.getLogger(__name__)

Recorded = dict[str, Tensor]
"""Variable → [B, layer, …]."""


@dataclass(frozen=True)
class _Captured:
    """A graph with the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    state: Tensor
    hidden: Tensor
    recorded: Recorded


class Graphs:
    """The captured forwards of one group of rows, one of each kind (with recording, without).

    Args:
        forward: state Long [B, S], and whether it is being captured → last hidden states, and what was recorded.
        remember: gives a function that puts back what a forward changes outside of the GPU, for captures that fail.
        warm_ups: plain forwards before a capture, in which kernels are compiled and chosen.
    """

    def __init__(
        self,
        forward: Callable[[Tensor, bool], tuple[Tensor, Recorded]],
        remember: Callable[[], Callable[[], None]],
        warm_ups: int = 1,
    ) -> None:
        self._forward, self._remember, self._warm_ups = forward, remember, warm_ups
        self._seen: Counter[Hashable] = Counter()
        self._captured: dict[Hashable, _Captured] = {}
        self._works = True

    def run(self, x: Tensor, kind: Hashable) -> tuple[Tensor, Recorded]:
        """The forward on the state x: plain the first times, later replayed."""
        self._seen[kind] += 1
        if not self._works or self._seen[kind] <= self._warm_ups:
            return self._forward(x, False)
        if kind not in self._captured and not self._capture(x, kind):
            return self._forward(x, False)
        captured = self._captured[kind]
        captured.state.copy_(x)
        captured.graph.replay()
        return captured.hidden, captured.recorded

    def _capture(self, x: Tensor, kind: Hashable) -> bool:
        """Captures the forward; where the model cannot be captured, says so once and stays with plain launches."""
        put_back = self._remember()
        state, graph = x.clone(), torch.cuda.CUDAGraph()
        # An older graph that is thrown away during a capture spoils it, and so would the recorder's thread by waiting.
        collecting = gc.isenabled()
        if (
            not self._captured
        ):  # collecting takes longer than a step; what is thrown away later waits behind the capture
            gc.collect()
        gc.disable()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                hidden, recorded = self._forward(state, True)
        except RuntimeError as error:
            put_back()
            _log.warning(
                "this forward cannot be captured as a CUDA graph (%s); steps are launched one kernel at a time",
                error,
            )
            torch.cuda.synchronize()
            self._works = False
            return False
        finally:
            if collecting:
                gc.enable()
        self._captured[kind] = _Captured(graph, state, hidden, recorded)
        return True
