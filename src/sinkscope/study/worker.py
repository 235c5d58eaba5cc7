"""What a worker does, whoever started it: keeps one model warm, and runs jobs with it.

Jobs are plain data, so that any executor can send them: a shard to do, or a model whose speed is to be measured.
"""

from __future__ import annotations

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

LEAST_SECONDS = 1.0
"""A measurement runs at least so long."""


@dataclass(frozen=True)
class Measurement:
    """Measure a model's speed on a cell of it."""

    cell: Cell

    @property
    def name(self) -> str:
        """Unique in a study."""
        return f"speed of {self.cell.model.name}"


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


def measure(cell: Cell, model: Model) -> Speed:
    """Seconds for a forward pass of one answer: plain, under a policy, and recorded, on the cell's first documents."""
    import torch

    from sinkscope.policies import MaskTop
    from sinkscope.sampling.generate import generate
    from sinkscope.tasks.prompting import encode_prompt
    from sinkscope.trace.capture import Capture

    task = task_of(cell)
    decoding = cell.parsed_decoding()
    prompts = [
        (torch.tensor([encode_prompt(model, task.prompt(item.document), task.scheme).ids]), item.stream)
        for item in items_of(cell, task)[:2]
    ]

    def timed(**options: Any) -> float:
        passes, begun = 0, time.perf_counter()
        for ids, stream in prompts:
            run = generate(model, ids, decoding, seed=[stream], **options)
            passes += max(1, run.forwards[0])
            if time.perf_counter() - begun > LEAST_SECONDS:
                break
        return (time.perf_counter() - begun) / passes

    generate(model, prompts[0][0][:, :4], decoding, seed=[0])  # the first pass of a process is slow
    return Speed(timed(), timed(policy=MaskTop(1)), timed(capture=Capture(anatomy=True)))
