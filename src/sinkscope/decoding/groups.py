"""Groups: the rows of a batch that run together, each with its loop.

With one seed (or none) the batch is one group, as in the official loops. With a seed per row each row equals its run alone. On a
CPU such rows are grouped by the length of their prompts, so that none is padded, and the equality is bit for bit. On a GPU, where
a forward of few rows costs as much as one of many, they run together, padded on the left: equal up to the rounding of kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from numbers import Integral

import torch
from torch import Tensor

from sinkscope.decoding.base import Decoding, Twin
from sinkscope.decoding.engine import Engine
from sinkscope.decoding.step import ForwardRecorder, Prompts, Step
from sinkscope.decoding.streams import Streams
from sinkscope.errors import InputError
from sinkscope.models.family import Padding
from sinkscope.models.model import Model
from sinkscope.models.prompts import PromptBatch
from sinkscope.policies.policy import Policy
from sinkscope.policies.runtime import PolicyRuntime
from sinkscope.reuse.causal import CausalReuseRuntime
from sinkscope.reuse.rule import Reuse
from sinkscope.reuse.runtime import ReuseRuntime
from sinkscope.reuse.shadow import Shadow


@dataclass(frozen=True)
class Rows:
    """Rows of a batch that run together.

    Attributes:
        rows: their places in the batch. offset: their first column in the batch's frame.
        per_row: every row has a random stream and a schedule of its own.
        padding: of each row, in columns, where a row with a stream of its own is padded.
        end: the column behind their prompts; None: behind those of the whole batch.
    """

    rows: list[int]
    offset: int
    per_row: bool
    padding: tuple[int, ...] = ()
    end: int | None = None

    @property
    def padded(self) -> bool:
        """Whether rows keep the padding that the batch gives them."""
        return self.end is None and (not self.per_row or any(self.padding))


@dataclass
class Group:
    """Rows that run together, and their loop.

    Attributes:
        state: Long [b, n]: the latest state, of the columns from the offset on. codes: Long [b, N]: image codes; None for text.
    """

    rows: Rows
    engine: Engine
    steps: Iterator[Step]
    state: Tensor
    ended: bool = False
    codes: Tensor | None = None

    def advance(self) -> Step | None:
        """The next step; None once the loop has ended."""
        step = None if self.ended else next(self.steps, None)
        if step is None:
            self.ended = True
        else:
            self.state, self.codes = step.after, step.codes
            if self.engine.reuse is not None:
                shadow = None if step.idle else self.engine.shadow
                step = replace(
                    step, fresh=self.engine.reuse.fresh, error=None if shadow is None else shadow.kl
                )
        return step


def grouped(
    columns: int, lengths: list[int], per_row: bool, together: bool = False, alone: bool = False
) -> list[Rows]:
    """Rows that run together: all of them, or with a stream per row those whose prompts are equally long.

    Args:
        columns: of the padded prompts. lengths: real tokens of each prompt.
        together: rows with streams of their own run together whatever their lengths, padded.
        alone: rows with streams of their own run one by one.
    """
    if not per_row:
        return [Rows(list(range(len(lengths))), 0, False)]
    if alone:
        return [Rows([row], columns - length, True) for row, length in enumerate(lengths)]
    if together and len(set(lengths)) > 1:
        return [Rows(list(range(len(lengths))), 0, True, tuple(columns - length for length in lengths))]
    by_length: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        by_length.setdefault(length, []).append(row)
    return [Rows(by_length[length], columns - length, True) for length in sorted(by_length)]


def grouped_right(
    lengths: list[int], per_row: bool, padding: Padding, unseen: int = 0, alone: bool = False
) -> list[Rows]:
    """Rows that run together where every prompt begins in column 0.

    Args:
        padding: "right": unequal rows of one stream run together, padded; "apart": only equally long ones run together.
        unseen: columns at the beginning that no forward sees.
        alone: rows with streams of their own run one by one.
    """
    if per_row and alone:
        return [Rows([row], unseen, True, end=length) for row, length in enumerate(lengths)]
    if not per_row and padding == "right":
        return [Rows(list(range(len(lengths))), 0, False)]
    by_length: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        by_length.setdefault(length, []).append(row)
    return [Rows(by_length[length], unseen, per_row, end=length) for length in sorted(by_length)]


def start_group(
    model: Model,
    batch: PromptBatch,
    rows: Rows,
    decoding: Decoding,
    seed: int | list[int] | None,
    twin: Twin | None,
    policy: Policy | None,
    recorder: ForwardRecorder | None,
    alone: bool = True,
    cached: bool = False,
    reuse: Reuse | None = None,
    shadow: bool = False,
) -> Group:
    """A group with its loop, not started yet.

    Args:
        alone: each row runs as in a batch of one. cached: a block loop keeps finished blocks in a KV cache.
        shadow: an exact forward runs beside each approximate one, so that its error is known.
    """
    ids = batch.ids[rows.rows][:, rows.offset : rows.end]
    own = [batch.lengths[row] - (rows.offset if batch.right else 0) for row in rows.rows]
    real = None
    if batch.real is not None and rows.padded:
        real = batch.real[rows.rows]
        new = real.new_ones(len(ids), decoding.new_tokens)
        # With padding on the right the answer follows each prompt at once.
        real = torch.cat([new, real] if batch.right else [real, new], 1)
    runtime = None
    if policy is not None:
        first: int | Tensor
        first, last = decoding.answer_columns(model, ids)
        if batch.right and len(set(own)) > 1:
            first = torch.tensor(own, device=model.device)[:, None, None]
        runtime = PolicyRuntime(
            policy,
            row_keys(seed, rows.rows),
            model.spec.causal,
            first,
            last,
            ids.shape[1] + decoding.new_tokens,
            model.words,
        )
    unseen = rows.offset if batch.right else 0
    prompts = Prompts(
        tuple(own),
        min(batch.lengths) - unseen if not alone else own[0],
        max(batch.lengths) - unseen if not alone else own[0],
        alone,
    )
    reusing = None
    if reuse is not None:
        kind = CausalReuseRuntime if model.spec.causal else ReuseRuntime
        reusing = kind(reuse, model, real, row_keys(seed, rows.rows))
    beside = Shadow() if shadow else None
    engine = Engine(model, real, runtime, recorder, recorder is not None, cached, prompts, reusing, beside)
    streams = None
    if seed is not None and decoding.draws:
        seeds = [seed[row] for row in rows.rows] if isinstance(seed, list) else seed
        streams = Streams(seeds, model.device, rows.padding)
    if twin is not None:
        parts = [None if part is None else part[rows.rows][:, rows.offset :] for part in twin]
        twin = (parts[0], parts[1])  # type: ignore[assignment]
    state, steps = decoding.begin(engine, ids, streams, rows.per_row, twin)
    return Group(rows, engine, steps, state)


def row_keys(seed: int | list[int] | None, rows: list[int]) -> list[int]:
    """Numbers that key the random controls of rows: their own seeds, else their places under the batch's seed."""
    if isinstance(seed, list):
        return [seed[row] for row in rows]
    return [((seed or 0) * 1_000_003 + row) % 2**63 for row in rows]


def check_seeds(seed: object, rows: int) -> int | list[int] | None:
    """A seed as the user gave it: None, a whole number, or one whole number per row."""
    if seed is None:
        return None
    if isinstance(seed, (list, tuple)):
        if len(seed) != rows:
            raise InputError(
                f"seed holds {len(seed)} numbers for {rows} rows; give one number per row, or a single one"
            )
        return [_seed(one) for one in seed]
    return _seed(seed)


def _seed(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) < 2**63:
        raise InputError(f"a seed should be a whole number from 0 on, got {value!r}")
    return int(value)
