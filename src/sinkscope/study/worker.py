"""What a worker does, whoever started it: keeps one model warm, and runs jobs with it.

Jobs are plain data, so that any executor can send them: a shard to do, or a model whose speed is to be measured.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.study.cell import Cell, items_of, task_of
from sinkscope.study.plan import Speed
from sinkscope.study.shard import Shard, run_shard
from sinkscope.study.spec import StudyModel

if TYPE_CHECKING:
    from sinkscope.models.model import Model

STEPS = 4
"""Forward passes that a measurement times."""


@dataclass(frozen=True)
class Measurement:
    """Measure a model's speed on a cell of it."""

    cell: Cell

    @property
    def name(self) -> str:
        """Unique in a study."""
        return f"speed of {self.cell.model.name}"

    @property
    def work(self) -> float:
        """All alike."""
        return 1.0


Job = Shard | Measurement
Tell = Callable[[int, int], None]


@dataclass
class Bench:
    """A worker's place: the study's folder, a device, and the model that was loaded last."""

    root: Path
    device: str = "auto"
    threads: int | None = None
    batch_size: Any = "auto"
    _key: StudyModel | None = None
    _model: Model | None = None

    def run(self, job: Job, tell: Tell | None = None) -> Any:
        """Does a job; the answer is plain data."""
        import torch

        if self.threads is not None:
            torch.set_num_threads(self.threads)
        model = self.model(job.cell.model)
        if isinstance(job, Measurement):
            return measure(job.cell, model)
        run_shard(self.root, job, model, tell, self.batch_size)
        return None

    def model(self, wanted: StudyModel) -> Model:
        """The model, loaded when it is not the one at hand."""
        if self._model is None or self._key != wanted:
            from sinkscope.models.load import load

            self._model = None  # the old one goes before the new one comes
            self._model = load(wanted.source, self.device, wanted.dtype, wanted.revision)
            self._key = wanted
        return self._model


class _Enough(Exception):  # noqa: N818 (no error: it ends a measurement)
    """Enough steps were timed."""


def measure(cell: Cell, model: Model) -> Speed:
    """Seconds for a forward pass of one answer: plain, under a policy, and recorded.

    Timed over some steps in the middle of a generation, on as many documents with equally long prompts as are answered
    together in this cell.
    """
    import torch

    from sinkscope.policies import MaskTop
    from sinkscope.tasks.prompting import encode_prompt
    from sinkscope.trace.capture import Capture

    task = task_of(cell)
    prompts = [
        (encode_prompt(model, task.prompt(item.document), task.scheme).ids, item.stream)
        for item in items_of(cell, task)[:32]
    ]
    lengths = [len(ids) for ids, _ in prompts]
    common = max(set(lengths), key=lambda length: (lengths.count(length), length))
    equal = [prompt for prompt in prompts if len(prompt[0]) == common][:8]
    rows = torch.tensor([list(ids) for ids, _ in equal])
    streams = [stream for _, stream in equal]
    decoding = cell.parsed_decoding()
    _timed(model, rows[:1], streams[:1], decoding)  # the first passes of a process are slow
    return Speed(
        _timed(model, rows, streams, decoding),
        _timed(model, rows, streams, decoding, policy=MaskTop(1)),
        _timed(model, rows[:1], streams[:1], decoding, capture=Capture(anatomy=True, by_query=True)),
    )


def _timed(model: Model, rows: Any, streams: list[int], decoding: Any, **options: Any) -> float:
    """Seconds per forward pass and row, the first one left out (it reads the prompt, and nothing is hidden in it)."""
    from sinkscope.generation.generate import generate

    begun: list[float] = []

    def progress(done: int, expected: int, states: Any) -> None:
        begun.append(time.perf_counter())
        if len(begun) > STEPS:
            raise _Enough

    start = time.perf_counter()
    with contextlib.suppress(_Enough):
        generate(model, rows, decoding, seed=streams, progress=progress, **options)
    spent = begun[-1] - begun[0] if len(begun) > 1 else begun[-1] - start
    return spent / max(1, len(begun) - 1) / len(rows)
