"""CUDA graphs, played on a CPU: the forward that was captured runs again, with what Python knew at the capture.

Whatever does not lie in memory that stays, or depends on the step, the place of a block or the generation, is wrong then.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from torch import Tensor

from sinkscope.decoding import groups
from sinkscope.decoding.step import Recorded, Request
from sinkscope.gpu import graphs, replay
from sinkscope.gpu.graphs import Result
from sinkscope.gpu.state import State, _bytes, put, saved
from sinkscope.trace.step_recorder import StepRecorder


class Played:
    """Counts what was captured and replayed.

    Attributes:
        inside: tensors that policy, recorder or cache hold behind a capture, in memory that they did not hold before it. Of a
            CUDA graph that memory is the pool's, which other graphs write to.
    """

    def __init__(self) -> None:
        self.captured = self.replayed = self.inside = 0

    def record(
        self, run: Callable[[Tensor], Result], inputs: Tensor, roots: Sequence[Any], pool: Any = None
    ) -> tuple[Callable[[], None], Result]:
        """As `graphs.record`: nothing is computed at a capture, so that what it wrote is taken back."""
        memory = State(roots).memory
        contents, before = [_bytes(one).clone() for one in memory], saved(roots)
        result = run(inputs)
        there = {one.data_ptr() for one in memory}
        # What is held for a graph alone, no other forward reads.
        there |= {one.data_ptr() for root in roots for one in getattr(root, "held", {}).values()}
        self.inside += sum(one.nbytes() > 0 and one.data_ptr() not in there for one in State(roots).memory)
        for one, content in zip(memory, contents, strict=True):
            _bytes(one).copy_(content)
        self.captured += 1

        def replay() -> None:
            now = saved(roots)
            put(roots, before)
            again = run(inputs)
            result.output.copy_(again.output)
            for name, values in again.recorded.items():
                result.recorded[name].copy_(values)
            put(roots, now)
            self.replayed += 1

        return replay, result


def at_once(patch: pytest.MonkeyPatch, on: bool = True) -> None:
    """Engines work as on a GPU, or as on a CPU."""
    patch.setattr(groups, "wraps", lambda device: on and os.environ.get("SINKSCOPE_FAST") != "0")
    patch.setattr(replay, "captures", lambda device: True)


def play(patch: pytest.MonkeyPatch) -> Played:
    """As on a GPU, with graphs played."""
    player, adopt = Played(), StepRecorder.adopt

    def adopted(self: StepRecorder, arrays: Recorded, request: Request, repeated: bool = False) -> None:
        """With a copy of what the next replay overwrites: on a GPU the outbox makes one."""
        adopt(self, {name: value.clone() for name, value in arrays.items()}, request, repeated)

    patch.setattr(StepRecorder, "adopt", adopted)
    at_once(patch)
    patch.setattr(graphs, "record", player.record)
    patch.setattr(graphs, "_KNOWN", type(graphs._KNOWN)())
    return player


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """How many captures were tried inside, how many of them worked, and how many forwards were replayed; real ones or played."""
    counts: Counter[str] = Counter(captured=0, worked=0, replayed=0)
    record, run = graphs.record, graphs.Graphs.run

    def recording(*given: Any) -> Any:
        counts["captured"] += 1
        graph = record(*given)
        counts["worked"] += 1
        return graph

    def running(self: graphs.Graphs, *given: Any) -> tuple[Result, bool]:
        result, replayed = run(self, *given)
        counts["replayed"] += replayed
        return result, replayed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "record", recording)
        patch.setattr(graphs.Graphs, "run", running)
        yield counts


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    """As on a GPU, with graphs played."""
    return play(monkeypatch)
