"""LLaDA2's loops: blocks from left to right, all confident positions of a block at once; 2.1 also edits what it has written.

The canvas is prompt and answer, rounded up to whole blocks. Every step computes the window up to the end of the active block
again; with `ss.generate(…, cache=True)` finished blocks are kept instead, which gives the same states. A batch of one follows the
models' own `generate`, and so does every row with a random stream of its own; other batches follow dllm's sampler, which does not
stop at end tokens and returns the whole canvas. At temperature 0 the arg max is taken (the first published file sampled there).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sinkscope.checks import at_least, share, whole
from sinkscope.decoding.base import DECODINGS, Decoding, Twin
from sinkscope.decoding.blocks import Blocks, even_plan, filtered, placed
from sinkscope.decoding.engine import Engine, Step
from sinkscope.decoding.streams import Streams
from sinkscope.errors import InputError
from sinkscope.models.model import Model

STALLED = 8
"""Steps, as a multiple of the block, after which an editing block with masks left is given up; officially it goes on for ever."""


@dataclass
class _Rows:
    """What the loop knows of its rows while it runs.

    Attributes:
        given: Bool [B, S]: prompt columns, which are never edited. alive: Bool [B]: rows that have not ended.
        stops: rows end at end tokens, each by itself. end_id: the end token, or None.
    """

    given: Tensor
    alive: Tensor
    stops: bool
    end_id: int | None


@DECODINGS.add
@dataclass(frozen=True)
class Llada2Decoding(Decoding):
    """LLaDA2's generate: 2.0, and with `editing_threshold` 2.1.

    Attributes:
        length: new tokens at most. block: tokens of a block, counted from the first column.
        steps: steps of a block; at most length // minimal_topk.
        temperature: 0 takes the arg max; above, every position of the block is sampled after top_k and top_p.
        threshold: all positions with a higher probability are written; too few of them, and the step's share of the most
            confident ones is.
        eos_early_stop: stop as soon as nothing before the first end token is masked. 2.0 stops after a block with an end
            token in any case, 2.1 only so.
        editing_threshold: written tokens are replaced by others of a higher probability than this (LLaDA2.1); None: never.
        max_post_steps: steps of a block, at most, in which only edits are left. num_to_transfer: masks that a step of 2.1
            decides at least.
    """

    length: int = 256
    block: int = 32
    steps: int = 32
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    threshold: float = 0.95
    minimal_topk: int = 1
    eos_early_stop: bool = False
    editing_threshold: float | None = None
    max_post_steps: int = 16
    num_to_transfer: int = 1

    kind: ClassVar[str] = "llada2"
    families: ClassVar[tuple[str, ...]] = ("llada2",)
    replayable: ClassVar[bool] = False
    cached: ClassVar[bool | None] = False
    uneven: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("length", "block", "steps", "minimal_topk", "num_to_transfer"):
            whole(name, getattr(self, name), 1)
        whole("max_post_steps", self.max_post_steps, 0)
        at_least("temperature", self.temperature, 0.0)
        at_least("threshold", self.threshold, 0.0)
        if self.editing_threshold is not None:
            at_least("editing_threshold", self.editing_threshold, 0.0)
        if self.top_p is not None:
            share("top_p", self.top_p, "; leave it out to keep all tokens")
        if self.top_k is not None:
            whole("top_k", self.top_k, 0)
        if self.minimal_topk > self.length:
            raise InputError(f"minimal_topk {self.minimal_topk} leaves no step for {self.length} tokens")

    @property
    def draws(self) -> bool:
        """Above temperature 0."""
        return self.temperature > 0

    @property
    def edits(self) -> bool:
        """With an editing threshold."""
        return self.editing_threshold is not None

    @property
    def block_steps(self) -> int:
        """Steps of one block at most."""
        if self.edits:
            return STALLED * self.block + self.max_post_steps
        return min(self.steps, self.length // self.minimal_topk)

    @property
    def max_steps(self) -> int:
        """Of all blocks, one more than the answer fills, because the prompt need not end with a block."""
        usual = self.block + self.max_post_steps if self.edits else self.block_steps
        return usual * (-(-self.length // self.block) + 1)

    def columns(self, prompt: int) -> int:
        """Prompt and answer, rounded up to whole blocks."""
        return -(-(prompt + self.length) // self.block) * self.block

    def begin(
        self, engine: Engine, ids: Tensor, streams: Streams | None, per_row: bool, twin: Twin | None = None
    ) -> tuple[Tensor, Iterator[Step]]:
        """Prompts followed by masks up to the end of a block, and the loop."""
        B, prompt = ids.shape
        state = torch.cat([ids, ids.new_full((B, self.columns(prompt) - prompt), engine.mask_id)], 1)
        return state, self._steps(engine, state, prompt, streams, per_row or B == 1)

    def _steps(
        self, engine: Engine, x: Tensor, prompt: int, streams: Streams | None, stops: bool
    ) -> Iterator[Step]:
        given = torch.arange(x.shape[1], device=x.device)[None].expand_as(x) < prompt
        alive = torch.ones(len(x), dtype=torch.bool, device=x.device)
        ends = engine.model.ids.eos
        rows = _Rows(given, alive, stops, ends[0] if ends else None)
        blocks = Blocks(engine, self.block)
        first = prompt // self.block * self.block
        blocks.prefill(x, first)
        for start in range(first, x.shape[1], self.block):
            loop = self._editing_block if self.edits else self._block
            for step in loop(blocks, x, prompt, start, rows, streams):
                x = step.after
                yield step
            rows.alive = rows.alive & ~self._ended(x, prompt, start + self.block, rows, engine.mask_id)
            if not bool(rows.alive.any()):
                return
            if start + self.block < x.shape[1]:
                blocks.store(x, start + self.block, rows.alive)

    def _block(
        self, blocks: Blocks, x: Tensor, prompt: int, start: int, rows: _Rows, streams: Streams | None
    ) -> Iterator[Step]:
        """The steps of one block of 2.0."""
        end, mask_id = start + self.block, blocks.engine.mask_id
        for count in even_plan(self.block, self.block_steps):
            open_rows = rows.alive & (x[:, start:end] == mask_id).any(1)
            if not bool(open_rows.any()):
                return
            tokens, confidence = self._candidates(blocks, x, end, open_rows, streams, rows.stops)
            masked = x[:, start:end] == mask_id
            chosen, ties = transferred(confidence, masked, [count] * len(x), self.threshold)
            step = _step(x, start, tokens, confidence, chosen & open_rows[:, None], ties, open_rows, mask_id)
            x = step.after
            yield step
            if self.eos_early_stop and rows.end_id is not None:
                written = chosen & open_rows[:, None]
                if rows.stops:
                    new = ((tokens == rows.end_id) & written).any(1)
                    rows.alive = rows.alive & ~(new & _complete(x[:, :end], prompt, rows.end_id, mask_id))
                elif bool((x[:, start:end] == rows.end_id).any()):  # as dllm's sampler: on to the next block
                    return

    def _editing_block(
        self, blocks: Blocks, x: Tensor, prompt: int, start: int, rows: _Rows, streams: Streams | None
    ) -> Iterator[Step]:
        """The steps of one block of 2.1: as many as it takes."""
        end, mask_id = start + self.block, blocks.engine.mask_id
        post = torch.zeros(len(x), dtype=torch.long, device=x.device)
        going = rows.alive.clone()
        for _ in range(self.block_steps):
            masked = x[:, start:end] == mask_id
            filled = ~masked.any(1)
            post = post + (filled & going)
            going = going & (post <= self.max_post_steps)
            if not bool(going.any()):
                return
            tokens, confidence = self._candidates(blocks, x, end, going, streams, True)
            counts = [self.num_to_transfer] * len(x)
            chosen, ties = transferred(confidence, masked, counts, self.threshold)
            editable = ~masked & ~rows.given[:, start:end]
            better = confidence > float(self.editing_threshold or 0.0)
            edited = editable & better & (tokens != x[:, start:end])
            written = (chosen | edited) & going[:, None]
            step = _step(x, start, tokens, confidence, written, ties, going, mask_id)
            x = step.after
            yield step
            going = going & ~(filled & ~edited.any(1))

    def _candidates(
        self,
        blocks: Blocks,
        x: Tensor,
        end: int,
        alive: Tensor,
        streams: Streams | None,
        plain: bool,
    ) -> tuple[Tensor, Tensor]:
        """Tokens Long [B, block] and their probability for every position of the block, masked or not.

        Args:
            plain: at temperature 0 top_k and top_p do nothing, as in the models' own loop.
        """
        model = blocks.engine.model
        logits = model.head(blocks.denoise(x, end, alive))
        if self.temperature == 0 or streams is None:
            spread = (logits if plain else filtered(logits, self.top_k, self.top_p)).softmax(-1)
            tokens = spread.argmax(-1)
        else:
            warm = logits if self.temperature == 1 else logits / self.temperature
            spread = filtered(warm, self.top_k, self.top_p).softmax(-1)
            tokens = draw(spread, streams, alive)
        return tokens, spread.gather(-1, tokens[..., None])[..., 0]

    def _ended(self, x: Tensor, prompt: int, end: int, rows: _Rows, mask_id: int) -> Tensor:
        """Bool [B]: rows that end after the block before column `end`."""
        answer = x[:, prompt:end]
        if not rows.stops or rows.end_id is None:
            return torch.zeros(len(x), dtype=torch.bool, device=x.device)
        ended = (answer == rows.end_id).any(1)
        if self.edits:
            return ended & ~(answer == mask_id).any(1) if self.eos_early_stop else ended & False
        return ended

    def output(self, model: Model, sequences: Tensor, starts: list[int], alone: bool) -> Tensor:
        """The answers, each up to its first end token, as `generate` returns them; of a batch the canvas, as the sampler."""
        if not alone:
            return sequences
        rows = [
            self.answer(model, row, start)
            for row, start in zip(sequences, starts, strict=True)
        ]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)

    def answer(self, model: Model, sequence: Tensor, start: int) -> Tensor:
        """Up to and including the first end token, and at most `length` tokens."""
        answer = sequence[start : start + self.length]
        ends = model.ids.eos
        found = (answer == ends[0]).nonzero() if ends else answer.new_empty(0)
        return answer[: int(found[0]) + 1] if len(found) else answer


def transferred(
    confidence: Tensor, masked: Tensor, counts: list[int], threshold: float
) -> tuple[Tensor, Tensor]:
    """The masked positions that a step writes: all above the threshold, or the `counts` best where those are fewer.

    Args:
        confidence: Float [B, n]. masked: Bool [B, n].

    Returns:
        Bool [B, n], and Long [B]: chosen positions with an equal rival.
    """
    scores = confidence.masked_fill(~masked, float("-inf"))
    high = scores > threshold
    chosen = torch.zeros_like(masked)
    ties = torch.zeros(len(masked), dtype=torch.long)
    for row, count in enumerate(counts):
        if int(high[row].sum()) >= count:
            chosen[row] = high[row]
            continue
        best = torch.topk(scores[row], min(count, int(masked[row].sum()))).indices
        chosen[row, best] = True
        rest = scores[row].masked_fill(chosen[row], float("-inf")).amax()
        ties[row] = int((chosen[row] & (scores[row] == rest) & (rest > float("-inf"))).sum())
    return chosen, ties


def draw(spread: Tensor, streams: Streams, rows: Tensor) -> Tensor:
    """One token for every position of the rows Bool [B] that take part, from Float [B, n, V]: Long [B, n], 0 elsewhere."""
    where = rows[:, None].expand(spread.shape[:2])
    tokens = torch.zeros(spread.shape[:2], dtype=torch.long, device=spread.device)
    tokens[where] = streams.one_of_each(spread[where], where)
    return tokens


def _complete(x: Tensor, prompt: int, end_id: int, mask_id: int) -> Tensor:
    """Bool [B]: rows with an end token, searched from the first column on, before which no answer token is masked."""
    ends = x == end_id
    first = ends.long().argmax(1)
    columns = torch.arange(x.shape[1], device=x.device)[None]
    open_before = ((x == mask_id) & (columns >= prompt) & (columns < first[:, None])).any(1)
    return ends.any(1) & ~open_before


def _step(
    x: Tensor,
    start: int,
    tokens: Tensor,
    confidence: Tensor,
    chosen: Tensor,
    ties: Tensor,
    alive: Tensor,
    mask_id: int,
) -> Step:
    """The step that writes the chosen positions Bool [B, n] of the block that begins at column `start`."""
    after = x.clone()
    here = slice(start, start + tokens.shape[1])
    after[:, here] = torch.where(chosen, tokens, x[:, here])
    masked = x == mask_id
    seen = placed(confidence.float(), x, start, float("nan")).masked_fill(~masked, float("nan"))
    candidate = placed(tokens, x, start, -1).masked_fill(~masked, -1)
    decided = (after != x) & (after != mask_id)
    return Step(x, after, masked, seen, candidate, decided, ties * alive.cpu(), alive)
