"""Groups: the rows of a batch that run together, each with its loop.

With one seed (or none) the batch is one group, as in the official loops. With a seed per row each row equals its run alone. On a
CPU such rows are grouped by the length of their prompts, so that none is padded, and the equality is bit for bit. On a GPU, where
a forward of few rows costs as much as one of many, they run together, padded on the left: equal up to the rounding of kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from numbers import Integral

import torch
from torch import Tensor

from sinkscope.base.errors import InputError
from sinkscope.base.fast import INTERPRETED, fast
from sinkscope.decoding.base import Decoding
from sinkscope.decoding.engine import Engine
from sinkscope.decoding.step import ForwardRecorder, Prompts, Step, Twin
from sinkscope.decoding.streams import Streams
from sinkscope.models.family import Padding
from sinkscope.models.model import Model
from sinkscope.models.prompts import PromptBatch
from sinkscope.policies.policy import Policy
from sinkscope.policies.runtime import PolicyRuntime

Wrap = Callable[[Engine, list[int]], None]
"""Puts something between an engine and its loop, before the loop begins; keys: a number for each row, for random choices."""


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
    codes: Tensor | None = None

    def advance(self) -> Step | None:
        """The next step; None once the loop has ended."""
        step = next(self.steps, None)
        if step is None:
            return None
        self.state, self.codes = step.after, step.codes
        for note in self.engine.notes:
            step = note(step)
        return step


def grouped(columns: int, lengths: list[int], per_row: bool, together: bool = False, alone: bool = False) -> list[Rows]:
    """Rows that run together: all of them, or with a stream per row those whose prompts are equally long.

    Args:
        columns: of the padded prompts. lengths: real tokens of each prompt.
        together: rows with streams of their own run together whatever their lengths, padded.
        alone: rows with streams of their own run one by one.
    """
    everyone = list(range(len(lengths)))
    if not per_row:
        return [Rows(everyone, 0, False)]
    if together and not alone and len(set(lengths)) > 1:
        return [Rows(everyone, 0, True, tuple(columns - length for length in lengths))]
    return [Rows(rows, columns - length, True) for length, rows in _alike(lengths, alone)]


def grouped_right(
    lengths: list[int], per_row: bool, padding: Padding, unseen: int = 0, alone: bool = False
) -> list[Rows]:
    """Rows that run together where every prompt begins in column 0.

    Args:
        padding: "right": unequal rows of one stream run together, padded; "apart": only equally long ones run together.
        unseen: columns at the beginning that no forward sees.
        alone: rows with streams of their own run one by one.
    """
    if not per_row and padding == "right":
        return [Rows(list(range(len(lengths))), 0, False)]
    return [Rows(rows, unseen, per_row, end=length) for length, rows in _alike(lengths, per_row and alone)]


def _alike(lengths: list[int], alone: bool) -> list[tuple[int, list[int]]]:
    """Each length with the rows that have it, the shortest first; alone: with every row by itself."""
    if alone:
        return [(length, [row]) for row, length in enumerate(lengths)]
    return [(length, [row for row, other in enumerate(lengths) if other == length]) for length in sorted(set(lengths))]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the rows of one generation share, and how they run together.

    Attributes:
        seed: one for the official single stream, or one for each row; None: nothing is drawn.
        twin: the unconditional prompt, for image guidance. policy: checked, or None.
        cached: a block loop keeps finished blocks in a KV cache. apart: rows with streams of their own run one by one.
    """

    model: Model
    batch: PromptBatch
    decoding: Decoding
    seed: int | list[int] | None = None
    twin: Twin | None = None
    policy: Policy | None = None
    cached: bool = False
    apart: bool = False

    @property
    def per_row(self) -> bool:
        """Whether every row has a random stream and a schedule of its own."""
        return isinstance(self.seed, list)

    @property
    def alone(self) -> bool:
        """Whether each row runs as in a batch of one."""
        return self.decoding.alone(len(self.batch.ids), self.per_row)

    def groups(self) -> list[Rows]:
        """The rows that run together."""
        batch, decoding, padding = self.batch, self.decoding, self.model.spec.padding
        if not batch.right:
            together = runs_together(self.model, decoding, self.policy)
            lengths = [decoding.padded_length(length) for length in batch.lengths]
            return grouped(batch.ids.shape[1], lengths, self.per_row, together, self.apart)
        if not self.alone:
            unseen = decoding.unseen(min(batch.lengths))
            return grouped_right(batch.lengths, self.per_row, padding, unseen)
        # In a block loop rows wait for each other, so that a step of the batch is not each row's own.
        rules = () if self.policy is None else self.policy.parts()
        counted = any(getattr(rule, "like", rule).steps is not None for rule in rules)
        apart = counted and decoding.cached is not None
        groups = grouped_right(batch.lengths, self.per_row, padding, alone=apart)
        return [replace(rows, offset=decoding.unseen(batch.lengths[rows.rows[0]])) for rows in groups]

    def ids(self, rows: Rows) -> Tensor:
        """Long [b, n]: the prompts of some rows, as these see them."""
        return self.batch.ids[rows.rows][:, rows.offset : rows.end]

    def engine(self, rows: Rows, recorder: ForwardRecorder | None = None) -> Engine:
        """The model for some rows."""
        unseen = rows.offset if self.batch.right else 0
        lengths = [self.batch.lengths[row] - unseen for row in rows.rows]
        every = lengths[:1] if self.alone else [length - unseen for length in self.batch.lengths]
        prompts = Prompts(tuple(lengths), min(every), max(every), self.alone, tuple(rows.rows))
        policy, real = self._policy(rows, lengths), self._padding(rows)
        return accelerated(Engine(self.model, real, policy, recorder, self.cached, prompts))

    def start(self, rows: Rows, recorder: ForwardRecorder | None = None, wraps: Iterable[Wrap] = ()) -> Group:
        """A group with its loop, not started yet."""
        decoding, engine = self.decoding, self.engine(rows, recorder)
        for wrap in wraps:
            wrap(engine, row_keys(self.seed, rows.rows))
        streams = None
        if self.seed is not None and decoding.draws:
            seeds = [self.seed[row] for row in rows.rows] if isinstance(self.seed, list) else self.seed
            streams = Streams(seeds, self.model.device, rows.padding)
        twin = None
        if self.twin is not None:
            other, seen = self.twin
            columns = slice(rows.offset, None)
            twin = other[rows.rows][:, columns], None if seen is None else seen[rows.rows][:, columns]
        loop = decoding.on(engine)
        loop.begin(self.ids(rows), streams, rows.per_row, twin)
        return Group(rows, engine, loop.run(), loop.x)

    def _padding(self, rows: Rows) -> Tensor | None:
        """Bool [b, n]: the padding of prompts and answers; None where nothing is padded."""
        if self.batch.real is None or not rows.padded:
            return None
        real = self.batch.real[rows.rows]
        new = real.new_ones(len(real), self.decoding.new_tokens)
        # With padding on the right the answer follows each prompt at once.
        return torch.cat([new, real] if self.batch.right else [real, new], 1)

    def _policy(self, rows: Rows, lengths: list[int]) -> PolicyRuntime | None:
        """The policy for rows whose prompts have so many tokens that their group sees."""
        if self.policy is None:
            return None
        model, ids = self.model, self.ids(rows)
        first: int | Tensor
        first, last = self.decoding.answer_columns(model, ids)
        if self.batch.right and len(set(lengths)) > 1:
            first = torch.tensor(lengths, device=model.device)[:, None, None]
        keys, width = row_keys(self.seed, rows.rows), ids.shape[1] + self.decoding.new_tokens
        return PolicyRuntime(self.policy, keys, model.spec.causal, first, last, width, model.words)


def accelerated(engine: Engine) -> Engine:
    """An engine that no forward went through yet, with what makes it fast around it where its device can do that."""
    if wraps(engine.model.device):
        from sinkscope.gpu.replay import accelerate

        accelerate(engine)
    return engine


def wraps(device: torch.device) -> bool:
    """Whether forwards on a device are made fast."""
    return (device.type == "cuda" or INTERPRETED) and fast(device)


def runs_together(model: Model, decoding: Decoding, policy: Policy | None) -> bool:
    """Whether rows of different lengths share a forward: on a GPU, unless a policy or decoding counts columns."""
    counted = policy is not None and any(rule.by_column for rule in policy.parts())
    return model.device.type == "cuda" and decoding.new_tokens > 0 and not counted


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
