"""One shard: some answers of one cell, from the model to records on disk. The unit of every executor, and idempotent.

Run it again after a kill, with other bounds, on another machine: the answers that are there stay, the rest is done.
"""

from __future__ import annotations

import errno
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sinkscope.errors import InputError
from sinkscope.files import differences, write_atomically
from sinkscope.generation.agreement import agreement
from sinkscope.generation.generate import generate
from sinkscope.generation.replay import replay
from sinkscope.generation.run import Run
from sinkscope.locks import LOST
from sinkscope.models.model import Model
from sinkscope.models.prompts import pad
from sinkscope.policies.policy import Policy
from sinkscope.study.cells import Cell, identified
from sinkscope.study.documents import prompt_lengths
from sinkscope.study.facts import facts_of_loaded
from sinkscope.study.store import Key, Store, save_part, statistics_bytes
from sinkscope.tasks.answer import BatchSize, Item, Items, answer, approximated, batches, halving
from sinkscope.tasks.grading import can_grade
from sinkscope.tasks.prompting import decode_answer, encode_prompt
from sinkscope.tasks.records import Generation, RunFolder
from sinkscope.tasks.task import Task, fingerprint


@dataclass(frozen=True)
class Shard:
    """Some answers of a cell.

    Attributes:
        start, stop: its bounds in the cell's answers, ordered by length of prompt.
        numbers: the same answers by their number in `cell.items`.
        work: about how much there is to do, in any unit.
    """

    cell: Cell
    start: int
    stop: int
    numbers: tuple[int, ...]
    work: float = field(default=1.0, compare=False)

    @property
    def name(self) -> str:
        """Unique in a study."""
        return f"{self.cell.id}/{self.start:06d}-{self.stop:06d}"

    @property
    def size(self) -> int:
        """The number of answers."""
        return self.stop - self.start


def cut(cells: Sequence[Cell], answered: Mapping[str, AbstractSet[int]], size: int) -> list[Shard]:
    """The shards of unfinished cells, about `size` answers each, evenly cut.

    `answered`: id of a cell → the numbers of the answers that are there (`Store.answered`).

    Answers with prompts of similar length share a shard, because equally long ones are answered together.
    """
    shards = []
    for cell in cells:
        if len(answered[cell.id]) >= cell.answers:
            continue
        parts = max(1, round(cell.answers / size))
        order = by_length(cell) if parts > 1 else list(range(cell.answers))  # one shard: all share it
        edges = [round(i * cell.answers / parts) for i in range(parts + 1)]
        shards += [
            Shard(cell, start, stop, tuple(order[start:stop]))
            for start, stop in itertools.pairwise(edges)
            if stop > start
        ]
    return shards


def by_length(cell: Cell) -> list[int]:
    """The numbers of a cell's answers, those with the shortest prompts first; in order where lengths are not known."""
    numbers = list(range(cell.answers))
    if cell.kind != "evaluate" or not cell.parsed_decoding().generates:
        return numbers
    lengths = prompt_lengths(cell.model, cell.task, cell.family, max(cell.documents) + 1, cell.data)
    if not lengths:
        return numbers
    return sorted(numbers, key=lambda number: (lengths[cell.documents[number // len(cell.seeds)]], number))


def run_shard(root: Path, shard: Shard, model: Model, batch_size: Any = "auto", grade: bool = True) -> None:
    """Do the missing answers of a shard, and grade them where that can be done here; without `grade` they are only saved.

    Raises InputError when the model, task or documents here are not those of the cell.
    """
    cell, store = shard.cell, Store(root)
    task = cell.parsed_task()
    check_identity(cell, model, task)
    folder = store.refuse_links(store.shard_folder(cell.id, shard.start, shard.stop))
    try:
        # A worker that was lost may take a moment to let go of its lock.
        with RunFolder.write(folder, cell.settings(), wait=2 * LOST) as run:
            elsewhere = _elsewhere(store, cell, run)
            items = cell.items(task)
            wanted = [items[n] for n in shard.numbers if items[n].key not in elsewhere]
            if cell.kind == "evaluate" and wanted:
                graded = grade and can_grade(task)
                answer(
                    model, task, wanted, cell.parsed_decoding(), cell.parsed_policy(), run, batch_size, graded,
                    reuse=cell.parsed_reuse(),
                )  # fmt: skip
            elif cell.kind == "replay" and cell.reuse != "none":
                left = [item for item in wanted if item.key not in run.generations]
                for rows in _agreements(cell, model, task, left, batch_size):
                    run.generations.append(rows)
            elif cell.kind != "evaluate":
                _one_by_one(cell, store, model, task, wanted, run)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        where, fix = ("no room", "make room") if full else (f"{error.filename} is in the way", "move it away")
        raise InputError(
            f"{where} to write in {root} ({error.strerror}); what is there is safe: {fix} and run the same command again"
        ) from error


def check_identity(cell: Cell, model: Model, task: Task) -> None:
    """Refuse to work on a cell with another model, task or documents than it was planned with."""
    identity = identified(cell, facts_of_loaded(model), task).identity
    different = list(differences(cell.identity, identity))
    if different:
        raise InputError(
            f"{cell.title} was planned with something else than is here: {'; '.join(different[:3])}"
        )


def _elsewhere(store: Store, cell: Cell, run: RunFolder) -> set[Key]:
    """The answers in other shards of the cell, which were cut differently in an earlier call."""
    return {
        (row.document, row.seed)
        for other in store.runs(cell.id)
        if other.path != run.path
        for row in other.generations
        if (file := store.result_file(cell, row.index, row.seed)) is None or file.is_file()
    }


def _one_by_one(
    cell: Cell, store: Store, model: Model, task: Task, wanted: list[Item], run: RunFolder
) -> None:
    """Traces, maps, replays and inspections: one document at a time."""
    kinds: dict[str, Callable[..., Generation]] = {"replay": _replayed, "inspect": _Inspector()}
    record = kinds.get(cell.kind, _traced)
    for item in wanted:
        file = store.result_file(cell, item.index, item.seed)
        lost = file is not None and not file.is_file()
        if item.key in run.generations and not lost:
            continue
        row = record(cell, store, model, task, item)
        if item.key in run.generations:  # its file was lost; the record is made anew
            run.generations.replace([row for row in run.generations if (row.document, row.seed) != item.key])
        run.generations.append([row])


def _generate(
    cell: Cell, model: Model, task: Task, item: Item, policy: Policy | None, **options: Any
) -> tuple[Run, str]:
    prompt = encode_prompt(model, task.prompt(item.document), task.scheme)
    ids = torch.tensor([prompt.ids])
    return generate(model, ids, cell.parsed_decoding(), policy, seed=[item.stream], **options), prompt.text


def _traced(cell: Cell, store: Store, model: Model, task: Task, item: Item) -> Generation:
    """A recorded generation; its file and its statistics are complete before the record says so."""
    from sinkscope.sinks import sink_statistics
    from sinkscope.trace.capture import Capture

    path = store.refuse_links(store.trace_file(cell.id, item.index, item.seed))
    path.parent.mkdir(parents=True, exist_ok=True)
    capture = Capture(**json.loads(cell.capture))
    run, text = _generate(
        cell, model, task, item, cell.parsed_policy(), capture=capture, out=path, reuse=cell.parsed_reuse(),
        overwrite=True,  # what a kill left
    )  # fmt: skip
    more: dict[str, Any] = {"trace": path.name, "bytes": path.stat().st_size}
    if cell.kind == "trace":
        part = sink_statistics(run.trace, **json.loads(cell.sinks or "{}"))
        write_atomically(store.statistics_file(cell.id, item.index, item.seed), statistics_bytes(part))
        steps = float(part["head_steps"].sum())
        # Exemplars are chosen by this number.
        more["sinks_per_head"] = round(float(part["detections"].sum()) / steps, 6) if steps else 0.0
    if not cell.keep:
        path.unlink()
    return _row(model, task, item, run, text, more)


def _replayed(cell: Cell, store: Store, model: Model, task: Task, item: Item) -> Generation:
    """A generation without the policy, and what the policy would have changed at each of its steps."""
    policy = cell.parsed_policy()
    if policy is None:
        raise InputError("a replay compares a policy with none; name policies other than none")
    run, text = _generate(cell, model, task, item, None)
    changes = replay(model, run, policy).summary()
    more = {name: None if math.isnan(value) else round(value, 6) for name, value in changes.items()}
    return _row(model, task, item, run, text, more)


def _agreements(
    cell: Cell, model: Model, task: Task, wanted: Sequence[Item], batch_size: BatchSize
) -> Iterator[list[Generation]]:
    """Generations under a reuse rule beside exact ones, as many at a time as fit.

    The run with an exact forward beside each approximate one comes first: the first run of a process is slow, and the two that
    follow are timed. Documents of a batch share its time equally. Where a rule runs rows one by one, the exact run does too.
    """
    prompts = {item.key: encode_prompt(model, task.prompt(item.document), task.scheme) for item in wanted}
    lengths = [len(prompts[item.key].ids) for item in wanted]
    decoding, rule = cell.parsed_decoding(), cell.parsed_reuse()
    if decoding.own_pace or (rule is not None and rule.alone):
        batch_size = 1

    def compared(batch: Items) -> list[Generation]:
        padded = pad(model, [list(prompts[item.key].ids) for item in batch])
        one = partial(
            generate,
            model,
            padded.ids,
            decoding,
            seed=[item.stream for item in batch],
            attention_mask=padded.real,
        )
        beside = one(reuse=rule, shadow=True)
        begun = time.perf_counter()
        exact = one()
        between = time.perf_counter()
        run = one(reuse=rule)
        ended = time.perf_counter()
        rows = []
        for row, (item, found) in enumerate(zip(batch, agreement(exact, beside), strict=True)):
            more = {
                "tokens_equal": round(found.tokens_equal, 6), "first_step": found.first_step, "kl": found.kl,
                "steps_exact": _steps(exact, row), "seconds": round((ended - between) / len(batch), 5),
                "seconds_exact": round((between - begun) / len(batch), 5), "timed_with": batch[0].document.id,
            }  # fmt: skip
            rows.append(_row(model, task, item, run, prompts[item.key].text, more, row, padded.lengths[row]))
        return rows

    queue = [[wanted[index] for index in part] for part in batches(model, decoding, lengths, batch_size)]
    return halving(queue, compared, batch_size == "auto")


class _Inspector:
    """Measures the inside of generations; patches take their vectors from the cell's next answer, which is kept for its turn."""

    def __init__(self) -> None:
        self.runs: dict[tuple[str, int], tuple[Run, str]] = {}

    def __call__(self, cell: Cell, store: Store, model: Model, task: Task, item: Item) -> Generation:
        from sinkscope.inspection.survey import survey, void_flags

        items = cell.items(task)
        if len(items) < 2:
            raise InputError(f"{cell.title} has one document; an inspection needs at least two")
        place = [one.key for one in items].index(item.key)
        pair = (item, items[(place + 1) % len(items)])
        self.runs = {
            one.key: self.runs.get(one.key) or _generate(cell, model, task, one, None) for one in pair
        }
        (run, text), (other, _) = (self.runs[one.key] for one in pair)
        labels: dict[str, list[Any]] = {"task": [task.name]}
        if can_grade(task):
            output = decode_answer(model, run.sequences[0, run.prompt :].tolist(), task.scheme)
            labels["right"] = [float(task.grade(item.document, output).passed)]
        (part,) = survey(model, run, other, int(json.loads(cell.capture)["looks"]), labels)
        path = store.refuse_links(store.statistics_file(cell.id, item.index, item.seed))
        path.parent.mkdir(parents=True, exist_ok=True)
        save_part(part, path)
        return _row(model, task, item, run, text, {"void": void_flags(model, run)})


def _row(
    model: Model,
    task: Task,
    item: Item,
    run: Run,
    text: str,
    more: dict[str, Any],
    row: int = 0,
    length: int | None = None,
) -> Generation:
    """The record of one row of a run; `length`: tokens of its prompt, None: all columns of the prompts."""
    share = None if run.hidden_share is None else float(run.hidden_share[row])
    steps = _steps(run, row)
    # What follows the end of a causal answer is padding, whose amount depends on the batch.
    tokens = run.answers[row][:steps] if run.decoding.causal else run.answers[row]
    return Generation(
        document=item.document.id,
        index=item.index,
        seed=item.seed,
        prompt=text,
        output=decode_answer(model, tokens, task.scheme),
        steps=steps,
        forwards=run.forwards[row],
        hidden=None if share is None or math.isnan(share) else round(share, 5),
        more={
            "fingerprint": fingerprint(item.document), "stream": item.stream,
            "prompt_tokens": run.prompt if length is None else length,
            "ties": int(run.ties[:, row].sum()), **approximated(run, row), **more,
        },
    )  # fmt: skip


def _steps(run: Run, row: int) -> int:
    """Steps of a row; guidance takes two forwards for each."""
    return run.forwards[row] // (2 if run.decoding.guided else 1)
