"""Groups: the rows of a batch that run together, each with its loop.

With one seed (or none) the batch is one group, as in the official loops. With a seed per row, rows are grouped by the length
of their prompts, so that no row is padded and each equals its run alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sinkscope.decoding import causal as causal_loop
from sinkscope.decoding import dream, llada, mmada
from sinkscope.decoding.engine import Engine, Step
from sinkscope.decoding.options import (
    Decoding,
    DreamDecoding,
    GreedyDecoding,
    LladaDecoding,
    MmadaDecoding,
    MmadaImageDecoding,
    SamplingDecoding,
)
from sinkscope.decoding.streams import Streams
from sinkscope.errors import InputError
from sinkscope.models.model import Model
from sinkscope.models.prompts import Batch
from sinkscope.policies.policy import Policy
from sinkscope.policies.runtime import PolicyRuntime


@dataclass
class Group:
    """Rows that run together.

    Attributes:
        rows: their places in the batch. offset: their first column in the batch's frame.
        steps: the loop; None once it has ended.
        state: Long [b, S − offset]: the latest state.
    """

    rows: list[int]
    offset: int
    engine: Engine
    steps: Iterator[Step]
    state: Tensor
    ended: bool = False
    codes: Tensor | None = None


def draws(decoding: Decoding) -> bool:
    """Whether a decoding uses random numbers."""
    if isinstance(decoding, (LladaDecoding, MmadaDecoding)):
        return decoding.temperature > 0 or decoding.remasking == "random"
    if isinstance(decoding, DreamDecoding):
        return decoding.temperature > 0 or decoding.algorithm == "origin" or bool(decoding.alg_temp)
    return isinstance(decoding, (SamplingDecoding, MmadaImageDecoding))


def grouped(rows: int, lengths: list[int], per_row: bool) -> list[list[int]]:
    """Rows that run together: all of them, or with a stream per row those whose prompts are equally long."""
    if not per_row:
        return [list(range(rows))]
    by_length: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        by_length.setdefault(length, []).append(row)
    return [by_length[length] for length in sorted(by_length)]


def build_group(
    model: Model,
    batch: Batch,
    rows: list[int],
    decoding: Decoding,
    seed: int | list[int] | None,
    twin: tuple[Tensor, Tensor | None] | None,
    policy: Policy | None,
    everything: bool,
) -> Group:
    """A group with its loop, not started yet."""
    per_row = isinstance(seed, list)
    offset = batch.ids.shape[1] - batch.lengths[rows[0]] if per_row else 0
    ids = batch.ids[rows][:, offset:]
    real = None if per_row or batch.real is None else batch.real[rows]
    seeds = [seed[row] for row in rows] if isinstance(seed, list) else seed
    streams = None if seeds is None or not draws(decoding) else Streams(seeds, model.device)
    prompt = ids.shape[1]
    keys, causal = row_keys(seed, rows), model.kind.causal
    if isinstance(decoding, MmadaImageDecoding):
        engine = Engine(model, real, everything=everything)
        slots = mmada.find_slots(engine, ids, decoding)
        if policy is not None:
            engine.acting = PolicyRuntime(policy, keys, causal, slots.first, slots.last)
        group = Group(rows, offset, engine, iter(()), ids)
        own = (
            None
            if twin is None
            else (twin[0][rows][:, offset:], None if twin[1] is None else twin[1][rows][:, offset:])
        )
        if streams is None:
            raise RuntimeError("image decoding always draws")
        group.steps = _with_codes(group, mmada.image_steps(engine, ids, decoding, streams, slots, own))
        return group
    length: int = decoding.length  # type: ignore[attr-defined]
    if real is not None:
        real = torch.cat([real, real.new_ones(len(rows), length)], 1)
    acting = None if policy is None else PolicyRuntime(policy, keys, causal, prompt)
    engine = Engine(model, real, acting=acting, everything=everything)
    if isinstance(decoding, GreedyDecoding):
        state = torch.cat([ids, ids.new_full((len(rows), length), -1)], 1)
        return Group(rows, offset, engine, causal_loop.steps(engine, ids, decoding, streams), state)
    state = torch.cat([ids, ids.new_full((len(rows), length), engine.mask_id)], 1)
    if isinstance(decoding, LladaDecoding):
        rules = llada.llada_rules(engine, decoding)
        steps = llada.steps(engine, state, prompt, decoding, streams, rules)
    elif isinstance(decoding, MmadaDecoding):
        steps = mmada.text_steps(engine, state, prompt, decoding, streams, per_row)
    elif isinstance(decoding, DreamDecoding):
        steps = dream.steps(engine, state, decoding, streams, per_row)
    else:
        raise InputError(f"there is no loop for {type(decoding).__name__}")
    return Group(rows, offset, engine, steps, state)


def row_keys(seed: int | list[int] | None, rows: list[int]) -> list[int]:
    """What keys a row's random controls: its own seed, else its place under the batch's seed."""
    if isinstance(seed, list):
        return [seed[row] for row in rows]
    return [((seed or 0) * 1_000_003 + row) % 2**63 for row in rows]


def _with_codes(group: Group, steps: Iterator[tuple[Step, Tensor]]) -> Iterator[Step]:
    for step, codes in steps:
        group.codes = codes
        yield step
