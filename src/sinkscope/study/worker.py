"""What a worker of any executor does with a job: some answers of a cell (a shard), or the speed of its model.

A shard is idempotent. Run it again after a kill, with other bounds, on another machine: the answers that are there stay, the rest
is done.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from threadpoolctl import threadpool_limits

from sinkscope.base.checks import whole
from sinkscope.base.errors import InputError, SinkscopeError
from sinkscope.base.files import differences, write_atomically
from sinkscope.decoding import Decoding
from sinkscope.decoding.reading import Reading
from sinkscope.generation.generate import generate
from sinkscope.generation.replay import replay
from sinkscope.generation.run import Run
from sinkscope.models.load import load
from sinkscope.models.model import Model
from sinkscope.policies.mask_top import MaskTop
from sinkscope.policies.policy import Policy
from sinkscope.study.cells import Cell, brief, questions
from sinkscope.study.documents import prompt_lengths
from sinkscope.study.estimate import Speed
from sinkscope.study.plugged import PLUGINS
from sinkscope.study.spec import StudyModel, import_modules
from sinkscope.study.store import Store, part_bytes, statistics_bytes
from sinkscope.tasks.answer import BatchSize, Item, Items, answer, recorded
from sinkscope.tasks.experiment import ModelIdentity
from sinkscope.tasks.grading import can_grade
from sinkscope.tasks.prompting import Encoded, decode_answer, encode_prompt
from sinkscope.tasks.reading import ReadTask, text_ids
from sinkscope.tasks.records import Generation, Key, RunFolder
from sinkscope.tasks.task import Task
from sinkscope.trace.capture import Capture

Made = tuple[Run, Encoded, Mapping[str, Any]]
"""A generation, its prompt, and what its record says besides."""


STEPS = 4
"""Forward passes that a measurement times."""


@dataclass(frozen=True)
class Shard:
    """Some answers of a cell.

    Attributes:
        start, stop: its bounds in the cell's answers, ordered by length of prompt.
        numbers: the same answers by their number in `cell.items`.
    """

    cell: Cell
    start: int
    stop: int
    numbers: tuple[int, ...]


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
        entry = job.cell.model
        if (entry, device) not in AT_HAND:
            AT_HAND.clear()  # the old one is freed before the new one is read
            AT_HAND[entry, device] = load(entry.source, device, entry.dtype, entry.revision)
        model = AT_HAND[entry, device]
        if isinstance(job, Measurement):
            return JobResult(measure(job.cell, model))
        run_shard(settings.root, job, model, settings.batch_size)
        return JobResult(None)
    except SinkscopeError as error:
        return JobResult(None, str(error))
    except Exception:
        return JobResult(None, traceback.format_exc())


# ---- shards --------------------------------------------------------------------------------------


def cut(cells: Sequence[Cell], answered: Mapping[str, int], size: int) -> list[Shard]:
    """The shards of unfinished cells, about `size` answers each, evenly cut.

    `answered`: id of a cell → how many of its answers are there (`Store.answered`).

    Answers with prompts of similar length share a shard, because equally long ones are answered together.
    """
    shards = []
    for cell in cells:
        if answered[cell.id] >= cell.answers:
            continue
        parts = max(1, round(cell.answers / size))
        order = by_length(cell) if parts > 1 else list(range(cell.answers))  # one shard: all share it
        edges = [round(i * cell.answers / parts) for i in range(parts + 1)]
        shards += [Shard(cell, start, stop, tuple(order[start:stop])) for start, stop in itertools.pairwise(edges)]
    return shards


def by_length(cell: Cell) -> list[int]:
    """The numbers of a cell's answers, those with the shortest prompts first; in order where lengths are not known."""
    lengths: Sequence[int] = ()
    if cell.kind == "evaluate" and cell.experiment.decoding.generates:
        lengths = prompt_lengths(cell.model, cell.experiment.task, max(cell.documents) + 1)
    seeds, numbers = len(cell.experiment.seeds), list(range(cell.answers))
    return sorted(numbers, key=lambda number: lengths[cell.documents[number // seeds]]) if lengths else numbers


def run_shard(root: Path, shard: Shard, model: Model, batch_size: Any = "auto") -> None:
    """Do the missing answers of a shard, and grade them where that can be done here.

    Raises InputError when the model, task or documents here are not those of the cell.
    """
    cell, store = shard.cell, Store(root)
    check_identity(cell, model)
    folder = store.refuse_links(store.shard_folder(cell.id, shard.start, shard.stop))
    try:
        # A worker that was lost may take a moment to let go of its lock.
        with RunFolder.write(folder, cell.settings, wait=60.0) as run:
            elsewhere = {
                row.key
                for other in store.runs(cell.id)
                if other.path != run.path  # shards that were cut differently in an earlier call
                for row in other.generations
                if store.complete(cell, row.index, row.seed)
            }
            items = cell.items()
            chosen = [items[n] for n in shard.numbers if items[n].key not in elsewhere]
            if cell.kind == "evaluate" and chosen:
                answer(model, cell.experiment, chosen, run, batch_size, can_grade(cell.experiment.task))
            elif cell.kind == "replay" and not cell.exact:
                left = [item for item in chosen if item.key not in run.generations]
                for rows in _compared(cell, model, left, batch_size):
                    run.generations.append(rows)
            elif cell.kind != "evaluate":
                _one_by_one(cell, store, model, chosen, run)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        where, fix = ("no room", "make room") if full else (f"{error.filename} is in the way", "move it away")
        raise InputError(
            f"{where} to write in {root} ({error.strerror}); what is there is safe: {fix} and run the same command again"
        ) from error


def check_identity(cell: Cell, model: Model) -> None:
    """Refuse to work on a cell with another model, task or documents than it was planned with."""
    here = replace(cell, experiment=replace(cell.experiment, model=ModelIdentity.of(model)), questions=questions(cell))
    different = list(differences(cell.identity, here.identity))
    if different:
        raise InputError(f"{cell.title} was planned with something else than is here: {'; '.join(different[:3])}")


def _one_by_one(cell: Cell, store: Store, model: Model, items: list[Item], run: RunFolder) -> None:
    """Traces, maps, replays and inspections: one document at a time."""
    kinds: dict[str, Callable[..., Made]] = {"replay": _replayed, "inspect": partial(_inspected, {})}
    for item in items:
        if item.key in run.generations and store.complete(cell, item.index, item.seed):
            continue
        generated, prompt, more = kinds.get(cell.kind, _traced)(cell, store, model, item)
        row = recorded(model, cell.experiment.task, item, generated, prompt, more)
        if item.key in run.generations:  # its file was lost; the record is made anew
            run.generations.replace([row for row in run.generations if row.key != item.key])
        run.generations.append([row])


def _generate(
    cell: Cell, model: Model, item: Item, policy: Policy | None = None, **options: Any
) -> tuple[Run, Encoded]:
    task, decoding = cell.experiment.task, cell.experiment.decoding
    prompt = encode_prompt(model, task.prompt(item.document), task.scheme)
    if isinstance(task, ReadTask) and model.shape.context is not None:
        # A text has no question at its end: where the context is short, less of it is gone on with.
        prompt = replace(prompt, ids=prompt.ids[: max(1, model.shape.context - decoding.new_tokens)])
    run = generate(model, torch.tensor([prompt.ids]), decoding, policy=policy, seed=[item.stream], **options)
    return run, prompt


def _traced(cell: Cell, store: Store, model: Model, item: Item) -> Made:
    """A recorded generation; its file and its statistics are complete before the record says so."""
    from sinkscope.sinks.sink_statistics import PARTS, SETTINGS, sink_statistics

    path = store.refuse_links(store.trace_file(cell.id, item.index, item.seed))
    path.parent.mkdir(parents=True, exist_ok=True)
    run, prompt = _generate(
        cell, model, item, cell.experiment.policy, capture=cell.capture, out=path, **cell.experiment.extras,
        overwrite=True,  # what a kill left
    )  # fmt: skip
    more: dict[str, Any] = {"trace": path.name, "bytes": path.stat().st_size}
    if cell.kind == "trace":
        parts = PARTS if cell.experiment.policy or not cell.exact else (*PARTS, SETTINGS)
        measured = sink_statistics(run.trace, **cell.sinks, parts=parts)
        write_atomically(store.statistics_file(cell.id, item.index, item.seed), statistics_bytes(measured))
    if not cell.keep:
        path.unlink()
    return run, prompt, more


def _replayed(cell: Cell, store: Store, model: Model, item: Item) -> Made:
    """A generation without the policy, and what the policy would have changed at each of its steps."""
    policy = cell.experiment.policy
    if policy is None:
        raise InputError("a replay compares a policy with none; name policies other than none")
    run, prompt = _generate(cell, model, item)
    changes = replay(model, run, policy).summary()
    return run, prompt, {name: None if math.isnan(value) else round(value, 6) for name, value in changes.items()}


def _compared(cell: Cell, model: Model, items: Items, batch_size: BatchSize) -> Iterator[list[Generation]]:
    """Generations under an extra beside exact ones, as its plug-in compares them."""
    name, *others = cell.experiment.extras
    compared = PLUGINS[name].compared if name in PLUGINS else None
    if others or compared is None:
        raise InputError(
            f"{cell.title} cannot be compared with the exact run: [[replay]] takes extras of one kind that does so"
        )
    return compared(cell, model, items, batch_size)


def _inspected(runs: dict[Key, tuple[Run, Encoded]], cell: Cell, store: Store, model: Model, item: Item) -> Made:
    """The inside of a generation is measured; patches take their vectors from the cell's next answer.

    runs: where that one is kept for its turn.
    """
    from sinkscope.inspection.survey import survey, void_flags

    items, task = cell.items(), cell.experiment.task
    if len(items) < 2:
        raise InputError(f"{cell.title} has one document; an inspection needs at least two")
    number = [one.key for one in items].index(item.key)
    pair = (item, items[(number + 1) % len(items)])
    (run, prompt), (other, _) = generations = [runs.get(one.key) or _generate(cell, model, one) for one in pair]
    runs.clear()
    runs.update(zip((one.key for one in pair), generations, strict=True))
    labels: dict[str, list[Any]] = {"task": [task.name]}
    if can_grade(task):
        output = decode_answer(model, run.answer(0), task.scheme)
        labels["right"] = [float(task.grade(item.document, output).passed)]
    (part,) = survey(model, run, other, cell.looks, labels)
    path = store.refuse_links(store.statistics_file(cell.id, item.index, item.seed))
    write_atomically(path, part_bytes(part))
    return run, prompt, {"void": void_flags(model, run)}


# ---- speed ---------------------------------------------------------------------------------------


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
