"""CUDA graphs, played on a CPU: the forward that was captured runs again, with what Python knew at the capture."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from torch import Tensor

from sinkscope.decoding import graphs


class Repeated(graphs.Graphs):
    """Runs the first forward of each kind again, in the state of Python in which it was met."""

    used = 0

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.kept: dict[Hashable, tuple[graphs.Forward, Any]] = {}

    def forget(self) -> None:
        super().forget()
        self.kept.clear()

    def run(self, x: Tensor, kind: Hashable, forward: graphs.Forward) -> tuple[Tensor, graphs.Recorded, bool]:
        policy = self._remember.__self__.policy  # type: ignore[attr-defined]
        self._seen[kind] += 1
        if self._seen[kind] <= self._warm_ups:
            return *forward(x, False), False
        names = ("previous", "_current", "step", "model_scores")
        now = None if policy is None else {name: getattr(policy, name) for name in names}
        first, before = self.kept.setdefault(kind, (forward, now))
        for name, value in (before or {}).items():
            setattr(policy, name, value)
        Repeated.used += 1
        return *first(x, True), True
