"""A model answers documents into a run's folder, and each answer is graded once it is saved.

This is the unit of all evaluations: a list of documents (all of them, or one shard), one writer, safe against a kill at any
moment. Every document has a random stream of its own, so its record does not depend on the batch that it was answered in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from sinkscope.base.checks import whole
from sinkscope.base.errors import InputError
from sinkscope.base.masked import MASK, Masked
from sinkscope.decoding import Decoding
from sinkscope.generation.generate import check_decoding, generate
from sinkscope.generation.run import Run
from sinkscope.models.model import Model
from sinkscope.models.prompts import pad
from sinkscope.policies.policy import check_policy
from sinkscope.tasks.experiment import Experiment
from sinkscope.tasks.grading import check_documents, grade_in_parts
from sinkscope.tasks.prompting import Encoded, decode_answer, encode_prompt
from sinkscope.tasks.reading import ReadTask, check_reading, rounded
from sinkscope.tasks.records import Generation, RunFolder
from sinkscope.tasks.task import Document, Task, fingerprint, in_parts, seed_of

BatchSize = int | Literal["auto"]
Progress = Callable[[int, int, int], None]
"""Called with how many answers are there, how many of them are right, and how many there will be."""

CPU_TOKENS = 2048  # a batch on a CPU; more gives no speed
MOST_ROWS = 256
READ_AT_ONCE, READ_AT_ONCE_ON_GPU = 16, 512
"""Documents that are read before their records are written. Short ones of equal length run together: a GPU wants many."""


@dataclass(frozen=True)
class Item:
    """One answer to give: a document, its place in the task, and a seed."""

    index: int
    document: Document
    seed: int

    @property
    def key(self) -> tuple[str, int]:
        return (self.document.id, self.seed)

    @property
    def stream(self) -> int:
        """The seed of this answer's own random stream, to give to `ss.generate` as seed=[stream]."""
        return seed_of(f"{self.seed}/{self.document.id}")

    def record(
        self, output: str, steps: int, forwards: int, hidden: float | None, prompt: str = "", /, **more: Any
    ) -> Generation:
        """The record of its answer, before grading."""
        facts = {"fingerprint": fingerprint(self.document), "stream": self.stream, **more}
        return Generation(self.document.id, self.index, self.seed, prompt, output, steps, forwards, hidden, facts)


Items = Sequence[Item]
Prompts = dict[str, Encoded]
"""Document → its prompt."""


def items(task: Task, limit: int | None = None, seeds: Sequence[int] = (0,)) -> list[Item]:
    """The answers that an evaluation wants, in order; a study cuts shards from this list."""
    if limit is not None:
        whole("limit", limit, 1)
    documents = task.documents(limit)
    return [Item(index, document, seed) for index, document in enumerate(documents) for seed in seeds]


def answer(
    model: Model,
    experiment: Experiment,
    wanted: Items,
    run: RunFolder,
    batch_size: BatchSize = "auto",
    grade: bool = True,
    progress: Progress | None = None,
) -> None:
    """Answer what is not in the folder yet, and grade it.

    Args:
        wanted: from `items`, or a part of it.
        run: open for writing, with the settings of this experiment.
        batch_size: answers at a time; "auto": by the model's size and the memory that is free. No record depends on it.
        grade: False leaves the grades to `grading.grade_run`, on a machine that has a sandbox.
    """
    task, documents = experiment.task, {item.document.id: item.document for item in wanted}
    check_documents((row for row in run.generations if row.document in documents), documents, run.path)
    keys = {item.key for item in wanted}
    left = [item for item in wanted if item.key not in run.generations]
    done = len(keys) - len(left)
    right = sum(row.passed for row in run.grades if row.key in keys) if grade else 0
    rows = _records(model, experiment, left, batch_size)
    if grade:  # what was saved, but not graded, before a kill
        saved = [row for row in run.generations if row.document in documents and row.key not in run.grades]
        right += _right(run, task, documents, saved)
    progress = progress or (lambda done, right, total: None)
    progress(done, right, len(keys))
    for records in rows:
        run.generations.append(records)
        done += len(records)
        if grade:
            right += _right(run, task, documents, records)
        progress(done, right, len(keys))


def _records(model: Model, experiment: Experiment, left: Items, batch_size: BatchSize) -> Iterator[list[Generation]]:
    """Records, some documents at a time; all that can be wrong is refused before the first forward."""
    task, decoding, policy = experiment.task, experiment.decoding, experiment.policy
    if isinstance(task, ReadTask):
        check_reading(model, decoding)
        experiment.check_extras(model, reads=f"{task.name} reads texts")
        return (
            task.read(model, experiment, batch, batch_size)
            for batch in in_parts(left, READ_AT_ONCE_ON_GPU if model.device.type == "cuda" else READ_AT_ONCE)
        )
    prompts = encoded(model, task, left)
    check_decoding(model, decoding)
    if not decoding.new_tokens:
        raise InputError("tasks are text; image decodings have no answer to grade")
    for length in sorted({len(prompt.ids) for prompt in prompts.values()}):
        keys, kind = length + decoding.new_tokens, decoding.attention_kind(model)
        check_policy(policy, model.shape.layers, keys, kind, model.shape.heads, model.has_learned_sinks)
    experiment.check_extras(model)
    lengths = [len(prompts[item.document.id].ids) for item in left]
    queue = [[left[index] for index in batch] for batch in batches(model, decoding, lengths, batch_size)]
    return halving(queue, partial(_generate, model, experiment, prompts), batch_size == "auto")


def encoded(model: Model, task: Task, items: Items) -> Prompts:
    return {item.document.id: encode_prompt(model, task.prompt(item.document), task.scheme) for item in items}


def halving(
    queue: list[list[Item]], give: Callable[[Items], list[Generation]], allowed: bool
) -> Iterator[list[Generation]]:
    """Generated answers, batch by batch; a batch that does not fit into a GPU is halved, where that is allowed."""
    while queue:
        batch = queue.pop(0)
        try:
            yield give(batch)
            continue
        except torch.cuda.OutOfMemoryError:
            if len(batch) == 1 or not allowed:
                raise
        from sinkscope.gpu.graphs import drop_unused

        drop_unused()  # not above, where the error still holds on to the tensors of the failed batch
        half = -(-len(batch) // 2)
        queue[:0] = [batch[:half], batch[half:]]


def _right(run: RunFolder, task: Task, documents: dict[str, Document], rows: Sequence[Generation]) -> int:
    """Grade some answers into the run; return how many are right."""
    return sum(grade.passed for part in grade_in_parts(run, task, documents, rows) for grade in part)


def batches(model: Model, decoding: Decoding, lengths: Sequence[int], batch_size: BatchSize) -> Iterator[list[int]]:
    """Which prompts run together, as indices into `lengths`; the longest first: a prompt that does not fit is found at once.

    On a GPU prompts of different lengths run together, padded to the longest of them (see `decoding.groups`); on a CPU
    equally long ones.
    """
    queue = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    while queue:
        longest = lengths[queue[0]]
        size = rows_at_once(model, longest + decoding.new_tokens, batch_size)
        if model.device.type != "cuda":
            size = min(size, sum(lengths[index] == longest for index in queue))
        yield queue[:size]
        queue = queue[size:]


def rows_at_once(model: Model, columns: int, batch_size: BatchSize) -> int:
    """Sequences of `columns` tokens that run together."""
    if batch_size != "auto":
        return whole("batch_size", batch_size, 1)
    if model.device.type != "cuda":
        return max(1, min(MOST_ROWS, CPU_TOKENS // columns))
    free, _ = torch.cuda.mem_get_info(model.device)
    shape = model.shape
    # Per token: logits in float32 and float64 with a copy each, hidden states, and a causal model's keys and values.
    each = 24 * shape.vocabulary + 64 * shape.width + 4 * shape.layers * shape.kv_heads * shape.head_dim
    return max(1, min(MOST_ROWS, int(free * 0.5) // (each * columns)))


def _generate(model: Model, experiment: Experiment, prompts: Prompts, batch: Items) -> list[Generation]:
    """One batch of prompts, each with its own stream."""
    decoding, policy = experiment.decoding, experiment.policy
    padded = pad(model, [list(prompts[item.document.id].ids) for item in batch])
    run = generate(
        model, padded.ids, decoding, policy=policy, seed=[item.stream for item in batch], attention_mask=padded.real,
        **experiment.extras,
    )  # fmt: skip
    rows = []
    for row, item in enumerate(batch):
        keys = padded.lengths[row] + len(run.answer(row))
        shares: dict[str, Any] = {name: getattr(run, name) for name in MASK if name != Masked.REMOVED}
        acted = {name: share if share is None else rounded(float(share[row])) for name, share in shares.items()}
        acted[Masked.KEYS] = None if policy is None else policy.key_share(keys)
        rows.append(recorded(model, experiment.task, item, run, prompts[item.document.id], acted, row))
    return rows


def recorded(
    model: Model, task: Task, item: Item, run: Run, prompt: Encoded, more: Mapping[str, Any], row: int = 0
) -> Generation:
    """The record of one row of a run; `more`: numbers of its own besides."""
    hidden = None if run.hidden_share is None else rounded(float(run.hidden_share[row]))
    output = decode_answer(model, run.answer(row), task.scheme)
    numbers = {"prompt_tokens": len(prompt.ids), "ties": int(run.ties[:, row].sum()), **run.row_extras(row)}
    return item.record(output, run.steps(row), run.forwards[row], hidden, prompt.text, **numbers, **more)
