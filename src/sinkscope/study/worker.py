"""What a worker of any executor does with a job: a shard to do, or a model whose speed is to be measured."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from threadpoolctl import threadpool_limits

from sinkscope.base.checks import whole
from sinkscope.base.errors import SinkscopeError
from sinkscope.decoding import Decoding
from sinkscope.decoding.reading import Reading
from sinkscope.generation.generate import generate
from sinkscope.models.load import load
from sinkscope.models.model import Model
from sinkscope.policies.mask_top import MaskTop
from sinkscope.study.cells import Cell, brief
from sinkscope.study.estimate import Speed
from sinkscope.study.shard import Shard, run_shard
from sinkscope.study.spec import StudyModel, import_modules
from sinkscope.tasks.answer import Item
from sinkscope.tasks.prompting import encode_prompt
from sinkscope.tasks.reading import text_ids
from sinkscope.tasks.task import Task
from sinkscope.trace.capture import Capture

STEPS = 4
"""Forward passes that a measurement times."""


@dataclass(frozen=True)
class Measurement:
    """A job: measure the speed of a cell's model."""

    cell: Cell


Job = Shard | Measurement


class JobResult(NamedTuple):
    """The result of a job, or the reason why it could not be done."""

    value: Any
    failure: str | None = None


@dataclass(frozen=True)
class WorkerSettings:
    """What workers have in common.

    Attributes:
        root: the study's folder. workers: at a time; None: as many as there are GPUs, else cores.
        memory: bytes that one model takes; it limits the workers on a CPU.
        modules: imported before the first job; they register policies, tasks, decodings and families.
        options: of the executor.
    """

    root: Path
    device: str = "auto"
    workers: int | None = None
    batch_size: Any = "auto"
    memory: int = 0
    modules: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.workers is not None:
            whole("workers", self.workers, 1)


AT_HAND: dict[tuple[StudyModel, str], Model] = {}
"""The model that this process loaded last, and its device."""


def do(settings: WorkerSettings, job: Job, device: str, threads: int | None = None) -> JobResult:
    """Do a job in this process; errors come back as text.

    threads: of this process; None: as many as the libraries choose.
    """
    try:
        import_modules(settings.modules)
        if threads is not None:  # of torch, and of the BLAS and OpenMP libraries that numpy and others have loaded
            threadpool_limits(threads)
            torch.set_num_threads(threads)
        wanted = job.cell.model
        if (wanted, device) not in AT_HAND:
            AT_HAND.clear()  # the old one is freed before the new one is read
            AT_HAND[wanted, device] = load(wanted.source, device, wanted.dtype, wanted.revision)
        model = AT_HAND[wanted, device]
        if isinstance(job, Measurement):
            return JobResult(measure(job.cell, model))
        run_shard(settings.root, job, model, settings.batch_size)
        return JobResult(None)
    except SinkscopeError as error:
        return JobResult(None, str(error))
    except Exception:
        return JobResult(None, traceback.format_exc())


class _Enough(Exception):  # noqa: N818 (no error: it ends a measurement)
    """Enough steps were timed."""


def measure(cell: Cell, model: Model) -> Speed:
    """Seconds for a forward pass of one answer: plain, under a policy, and recorded.

    Timed over some steps in the middle of a generation, on as many documents with equally long prompts as are answered
    together in this cell.
    """
    task, decoding = cell.experiment.task, cell.experiment.decoding
    prompts = [(_prompt(model, task, item, decoding), item.stream) for item in cell.items()[:32]]
    lengths = [len(ids) for ids, _ in prompts]
    common = max(set(lengths), key=lambda length: (lengths.count(length), length))
    equal = [prompt for prompt in prompts if len(prompt[0]) == common][:8]
    rows = torch.tensor([list(ids) for ids, _ in equal])
    streams = [stream for _, stream in equal]
    if not decoding.generates:  # a forward of a reading takes about as long
        decoding = brief(model.family)
    _timed(model, rows[:1], streams[:1], decoding)  # the first passes of a process are slow
    return Speed(
        _timed(model, rows, streams, decoding),
        _timed(model, rows, streams, decoding, policy=MaskTop(1)),
        _timed(model, rows[:1], streams[:1], decoding, capture=Capture(anatomy=True, by_query=True)),
    )


def _prompt(model: Model, task: Task, item: Item, decoding: Decoding) -> tuple[int, ...]:
    """Token ids of a document's prompt; of a text that is read, its begin, so that what is generated makes it as long."""
    if isinstance(decoding, Reading):
        text = item.document.question or item.document.answer
        return tuple(text_ids(model, text)[: max(1, decoding.length - brief(model.family).new_tokens)])
    return encode_prompt(model, task.prompt(item.document), task.scheme).ids


def _timed(model: Model, rows: Any, streams: list[int], decoding: Any, **options: Any) -> float:
    """Seconds per forward pass and row, without the first pass, which reads the prompt and masks nothing."""
    begun: list[float] = []

    def progress(done: int, expected: int, states: Any) -> None:
        states.cpu()  # a GPU has done the step then
        begun.append(time.perf_counter())
        if len(begun) > STEPS:
            raise _Enough

    start = time.perf_counter()
    with contextlib.suppress(_Enough):
        generate(model, rows, decoding, seed=streams, progress=progress, **options)
    spent = begun[-1] - begun[0] if len(begun) > 1 else begun[-1] - start
    return spent / max(1, len(begun) - 1) / len(rows)
