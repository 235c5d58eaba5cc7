"""Runs under a reuse rule beside exact ones: the records of [[replay]]."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from sinkscope.generation.generate import generate
from sinkscope.models.model import Model
from sinkscope.models.prompts import pad
from sinkscope.reuse.agreement import Shadowed, agreement
from sinkscope.study.cells import Cell
from sinkscope.tasks.answer import BatchSize, Items, batches, encoded, halving, recorded
from sinkscope.tasks.records import Generation


def compared(cell: Cell, model: Model, wanted: Items, batch_size: BatchSize) -> Iterator[list[Generation]]:
    """Generations under a reuse rule beside exact ones, as many at a time as fit.

    The run with an exact forward beside each approximate one comes first: the first run of a process is slow, and the two that
    follow are timed. Documents of a batch share its time equally. Where a rule runs rows one by one, the exact run does too.
    """
    task, decoding = cell.experiment.task, cell.experiment.decoding
    rule: Any = cell.experiment.extras["reuse"]
    prompts = encoded(model, task, wanted)
    lengths = [len(prompts[item.document.id].ids) for item in wanted]
    if decoding.own_pace or rule.alone:
        batch_size = 1

    def beside_exact(batch: Items) -> list[Generation]:
        padded = pad(model, [list(prompts[item.document.id].ids) for item in batch])
        streams = [item.stream for item in batch]
        call = partial(generate, model, padded.ids, decoding, seed=streams, attention_mask=padded.real)
        beside = call(reuse=Shadowed(rule))
        begun = time.perf_counter()
        exact = call()
        between = time.perf_counter()
        run = call(reuse=rule)
        ended = time.perf_counter()
        rows = []
        for row, (item, measured) in enumerate(zip(batch, agreement(exact, beside), strict=True)):
            more = {
                "tokens_equal": round(measured.tokens_equal, 6), "first_step": measured.first_step, "kl": measured.kl,
                "steps_exact": exact.steps(row), "seconds": round((ended - between) / len(batch), 5),
                "seconds_exact": round((between - begun) / len(batch), 5), "timed_with": batch[0].document.id,
            }  # fmt: skip
            rows.append(recorded(model, task, item, run, prompts[item.document.id], more, row))
        return rows

    queue = [[wanted[index] for index in part] for part in batches(model, decoding, lengths, batch_size)]
    return halving(queue, beside_exact, batch_size == "auto")
