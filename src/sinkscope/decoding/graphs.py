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
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

_log = logging.getLogger(__name__)

_FAILED: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()
"""Network → what could not be captured with it: it is tried once in a process, because a failed try leaves memory behind."""

Recorded = dict[str, Tensor]
"""Variable → [B, layer, …]."""


@dataclass(frozen=True)
class _Captured:
    """A graph with the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    state: Tensor
    hidden: Tensor
    recorded: Recorded


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Inside, this GPU is the current one, whose streams graphs and events belong to; nothing changes for a CPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


Forward = Callable[[Tensor, bool], tuple[Tensor, Recorded]]
"""From the state, Long, and whether it is being captured, to the last hidden states, and what was recorded."""


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream | None:
    """The stream of this GPU that captures run on; torch's own default belongs to whichever GPU captured first."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


class Graphs:
    """The captured forwards of one group of rows, one of each kind (with recording, without).

    Args:
        network: what runs. circumstances: what else decides whether it can be captured: policy, recording.
        remember: gives a function that puts back what a forward changes outside of the GPU, for captures that fail.
        warm_ups: plain forwards before a capture, in which kernels are compiled and chosen.
    """

    def __init__(
        self,
        network: nn.Module,
        circumstances: str,
        remember: Callable[[], Callable[[], None]],
        warm_ups: int = 1,
    ) -> None:
        self._network, self._circumstances = network, circumstances
        self._remember, self._warm_ups = remember, warm_ups
        self._seen: Counter[Hashable] = Counter()
        self._captured: dict[Hashable, _Captured] = {}
        self._works, self._collected = circumstances not in _FAILED.get(network, ()), False

    def forget(self) -> None:
        """Give the captured forwards back; later ones are captured anew."""
        self._seen.clear()
        self._captured.clear()

    def run(self, x: Tensor, kind: Hashable, forward: Forward) -> tuple[Tensor, Recorded, bool]:
        """The forward on the state x, plain the first times, later replayed; and whether it was replayed.

        Args:
            kind: forwards of one kind are the same function of the state.
        """
        self._seen[kind] += 1
        early = not self._works or self._seen[kind] <= self._warm_ups
        if early or (kind not in self._captured and not self._capture(x, kind, forward)):
            return *forward(x, False), False
        captured = self._captured[kind]
        captured.state.copy_(x)
        with on(x.device):
            captured.graph.replay()
        return captured.hidden, captured.recorded, True

    def _capture(self, x: Tensor, kind: Hashable, forward: Forward) -> bool:
        """Captures the forward; where it cannot be captured, says so once and stays with plain launches."""
        put_back = self._remember()
        state, graph = x.clone(), torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream(x.device) if x.is_cuda else None
        # An older graph that is thrown away during a capture spoils it, and so would the recorder's thread by waiting.
        collecting = gc.isenabled()
        # Once: it takes longer than a step, and what is thrown away later waits behind the capture.
        if not self._collected:
            gc.collect()
            self._collected = True
        gc.disable()
        try:
            own = _capture_stream(x.device)
            with on(x.device), torch.cuda.graph(graph, stream=own, capture_error_mode="thread_local"):
                hidden, recorded = forward(state, True)
        except RuntimeError as error:
            put_back()
            _log.warning(
                "this forward cannot be captured as a CUDA graph (%s); steps are launched one kernel at a time",
                error,
            )
            if stream is not None:  # torch stays on the capture's stream when it fails
                with on(x.device):
                    torch.cuda.set_stream(stream)
                    torch.cuda.synchronize()
            self._works = False
            _FAILED.setdefault(self._network, set()).add(self._circumstances)
            return False
        finally:
            if collecting:
                gc.enable()
        self._captured[kind] = _Captured(graph, state, hidden, recorded)
        return True
