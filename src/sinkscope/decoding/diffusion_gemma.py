"""DiffusionGemma's loop: a canvas of random tokens, of which every step keeps those it is surest of and draws the others anew.

There are no mask tokens. In a state "masked" are the columns of the canvas that hold noise: random tokens that no step has
accepted. A step decides the columns whose sampled tokens it accepts, in the order of their entropy; all columns are judged anew
in the next step, so that a token may return to noise. What the canvas becomes is the arg max of its last step, and all of it is
decided then. The encoder reads the prompt, and every finished canvas, into the KV cache; those forwards come between steps.

Kept from the official loop: length is rounded up to whole canvases; rows that have stopped, or ended, go on drawing; in later
canvases of a row that has ended everything becomes padding. With a stream for every row each stops by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from sinkscope.base.checks import at_least, one_of, whole
from sinkscope.base.errors import InputError
from sinkscope.decoding.base import DECODINGS, Decoding, checked_ends, end_ids, until
from sinkscope.decoding.blocks import Blocks, draw, placed
from sinkscope.decoding.engine import Engine
from sinkscope.decoding.parallel import later_option
from sinkscope.decoding.step import Step, Twin
from sinkscope.decoding.streams import Streams
from sinkscope.models.model import Model

CANVAS = 256
"""The canvas of released models."""

STORED = ("steps", "t_min", "t_max", "stability_threshold", "confidence_threshold", "entropy_bound")
"""Options whose defaults generation_config.json may name."""


@dataclass(frozen=True)
class _Canvas:
    """What a canvas of n columns is after some steps.

    Attributes:
        tokens: Long [B, n]: the input of the next step. noise: Bool [B, n]: those that are random.
        best: Long [B, n]: the arg max of the last step. soft: Float [B, n, V]: its logits at temperature; None: there was none.
        history: Long [h, B, n]: the arg max of earlier steps, −1 for none.
        stopped: Bool [B]: rows that need no more steps.
    """

    tokens: Tensor
    noise: Tensor
    best: Tensor
    soft: Tensor | None
    history: Tensor
    stopped: Tensor


@DECODINGS.add
@dataclass(frozen=True)
class DiffusionGemmaDecoding(Decoding):
    """DiffusionGemma's generate.

    Officially generation_config.json says what holds where a caller gives nothing: here it replaces options that stand at their
    defaults (steps, entropy bound, temperatures, thresholds), unless `defaults` is "library".

    Attributes:
        length: new tokens, rounded up to whole canvases. steps: of a canvas at most.
        entropy_bound: a step accepts tokens in the order of their entropy (nats), while that of the surer ones adds up to this.
        t_min, t_max: temperatures of the last step (almost) and of the first; one of them None: no temperature.
        stability_threshold, confidence_threshold: a row stops when its arg max is that of so many steps before, and its mean
            entropy is below the second; one of them None: it does not stop early.
        eos: ids behind which a row ends; "model": the model's own, None: none.
        canvas: columns; None: as the checkpoint says.
        start: tokens of the first canvas, of all rows, or of each row, one behind the other; None: random ones.
        pad: what follows an end token; "model": the model's pad token, None: what the canvas has there.
        defaults: "library": options at their defaults hold, whatever generation_config.json says.

    >>> ss.DiffusionGemmaDecoding(length=300, steps=16).new_tokens
    512
    """

    length: int = 256
    steps: int = 48
    entropy_bound: float = 0.1
    t_min: float | None = 0.4
    t_max: float | None = 0.8
    stability_threshold: int | None = 1
    confidence_threshold: float | None = 0.005
    eos: str | int | tuple[int, ...] | None = "model"
    canvas: int | None = later_option()
    start: tuple[int, ...] | None = later_option()
    pad: int | Literal["model"] | None = later_option("model")
    defaults: Literal["model", "library"] = later_option("model")

    kind: ClassVar[str] = "diffusion_gemma"
    families: ClassVar[tuple[str, ...]] = ("diffusion_gemma",)
    brief: ClassVar[Mapping[str, Any]] = {"length": 64}
    replayable: ClassVar[bool] = False
    cached: ClassVar[bool | None] = True
    mask_tokens: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("length", "steps"):
            whole(name, getattr(self, name), 1)
        if at_least("entropy_bound", self.entropy_bound, 0.0) == 0:
            raise InputError("entropy_bound should be above 0, or no token would ever be sure enough")
        for pair in (("t_min", "t_max"), ("stability_threshold", "confidence_threshold")):
            if None in (
                getattr(self, name) for name in pair
            ):  # as officially: without one the other counts for nothing
                for name in pair:
                    object.__setattr__(self, name, None)
        if self.t_min is not None and at_least("t_max", self.t_max, 0.0) <= at_least("t_min", self.t_min, 0.0):
            raise InputError(f"t_max should be above t_min, got {self.t_max} and {self.t_min}")
        if self.stability_threshold is not None:
            whole("stability_threshold", self.stability_threshold, 0)
            at_least("confidence_threshold", self.confidence_threshold, 0.0)
        if self.canvas is not None:
            whole("canvas", self.canvas, 1)
        object.__setattr__(self, "eos", checked_ends(self.eos))
        if self.start is not None:
            given: Sequence[Any] = self.start
            rows = [row if isinstance(row, (list, tuple)) else [row] for row in given]
            object.__setattr__(self, "start", tuple(whole("start", number, 0) for row in rows for number in row))
        if self.pad not in ("model", None):
            whole("pad", self.pad, 0)
        one_of("defaults", self.defaults, ("model", "library"))

    def suited(self, model: Model) -> Decoding:
        """With the canvas of the checkpoint, and what its generation_config.json says."""
        known = int(model.network.config.canvas_length)
        if self.canvas not in (None, known):
            raise InputError(f"the canvas of {model.source} has {known} columns, not {self.canvas}; leave out canvas")
        if self.start is not None and (not self.start or len(self.start) % known):
            raise InputError(f"start should be a canvas of {known} ids, or one for each row, got {len(self.start)}")
        stored = model.checkpoint.generation_config if self.defaults == "model" else {}
        sampler = stored.get("sampler_config")
        stored = stored | (sampler if isinstance(sampler, dict) else {}) | {"steps": stored.get("max_denoising_steps")}
        settings = {
            name: stored[name]
            for name in STORED
            if stored.get(name) is not None and getattr(self, name) == getattr(type(self), name)
        }
        return replace(self, canvas=known, **settings)

    @property
    def block(self) -> int:
        """Columns of a canvas."""
        return self.canvas or CANVAS

    @property
    def new_tokens(self) -> int:
        """Whole canvases."""
        return -(-self.length // self.block) * self.block

    @property
    def draws(self) -> bool:
        """Always."""
        return True

    @property
    def edits(self) -> bool:
        """An accepted token may return to noise, or become another."""
        return True

    @property
    def max_steps(self) -> int:
        """Of all canvases."""
        return self.steps * (self.new_tokens // self.block)

    @property
    def passes(self) -> int:
        """Steps, and the encoder before every canvas."""
        return self.max_steps + self.new_tokens // self.block

    def begin(
        self, engine: Engine, ids: Tensor, streams: Streams | None, per_row: bool, twin: Twin | None = None
    ) -> tuple[Tensor, Iterator[Step]]:
        """The prompts with the first canvas, and the loop."""
        if not engine.cached:
            raise InputError("a canvas reads the encoder's cache: cache=False does not go with this loop")
        if streams is None:
            raise RuntimeError("a canvas always draws")
        prompt = ids.shape[1]
        x = ids.new_full((len(ids), prompt + self.new_tokens), -1)
        x[:, :prompt] = ids
        alive = torch.ones(len(x), dtype=torch.bool, device=x.device)
        first = self._drawn(engine.model, streams, alive)
        if self.start is not None:  # the random one was drawn all the same
            first = self._given(engine.prompts.rows, first)
        x[:, prompt : prompt + self.block] = first
        return x, self._steps(engine, x, prompt, streams, alive)

    def _given(self, rows: tuple[int, ...], like: Tensor) -> Tensor:
        """The first canvas Long [B, n] of these rows of the batch, from the options."""
        canvases = torch.tensor(self.start, device=like.device).view(-1, self.block)
        if len(canvases) == 1:
            return canvases.expand_as(like)
        if max(rows) >= len(canvases):
            raise InputError(f"start holds {len(canvases)} canvases; give one for each row, or one for all")
        return canvases[list(rows)]

    def _drawn(self, model: Model, streams: Streams, rows: Tensor) -> Tensor:
        """Random tokens Long [B, n]."""
        return streams.integers((len(rows), self.block), model.shape.vocabulary, rows.tolist())

    def _steps(self, engine: Engine, x: Tensor, prompt: int, streams: Streams, alive: Tensor) -> Iterator[Step]:
        model, alone = engine.model, engine.prompts.alone
        nothing = torch.zeros_like(x, dtype=torch.bool)
        blocks = Blocks(
            engine,
            self.block,
            seen=lambda request: {"block": None, "noise": nothing if request.noise is None else request.noise},
        )
        ends = torch.tensor(end_ids(self.eos, model), dtype=torch.long, device=x.device)
        ended = torch.zeros_like(alive)  # rows with an end token
        for start in range(prompt, x.shape[1], self.block):
            end = start + self.block
            if start == prompt:
                blocks.prefill(x, start)
            else:
                blocks.store(x, start, alive)
            canvas = self._fresh(x[:, start:end], alive)
            for left in range(self.steps, 0, -1):
                # A row that runs by itself waits for the others once it has stopped.
                going = alive & ~canvas.stopped
                noise = placed(canvas.noise, x, start, False)
                hidden = blocks.denoise(x, end, going, soft=canvas.soft, noise=noise)
                logits = model.head(hidden)
                turned, accepted, tokens, sure = self._turned(
                    canvas, logits, left, model, streams, going if alone else alive
                )
                over = left == 1 or bool((turned.stopped | ~alive).all())
                after = x.clone()
                after[:, start:end] = turned.tokens
                decided = accepted | turned.stopped[:, None]  # of a row's last step all are
                if over:
                    after, ended = self._finished(after, turned.best, start, ended, ends, model, alive)
                    decided = torch.ones_like(decided)
                    alive_next = alive & ~ended if alone else alive & ~ended.all()
                    if end < x.shape[1] and bool(alive_next.any()):
                        fresh = self._drawn(model, streams, alive_next)
                        after[:, end : end + self.block] = torch.where(alive_next[:, None], fresh, -1)
                yield Step(
                    x, after, noise,
                    placed(sure, x, start, float("nan")), placed(tokens, x, start, -1),
                    placed(decided, x, start, False) & going[:, None],
                    torch.zeros(len(x), dtype=torch.long), going,
                )  # fmt: skip
                x, canvas = after, turned
                if over:
                    break
            alive = alive_next
            if not bool(alive.any()):
                return

    def _fresh(self, tokens: Tensor, rows: Tensor) -> _Canvas:
        """A canvas before its first step."""
        history = tokens.new_full((self.stability_threshold or 0, *tokens.shape), -1)
        return _Canvas(tokens, torch.ones_like(tokens, dtype=torch.bool), tokens, None, history, ~rows)

    def _turned(
        self, canvas: _Canvas, logits: Tensor, left: int, model: Model, streams: Streams, rows: Tensor
    ) -> tuple[_Canvas, Tensor, Tensor, Tensor]:
        """The canvas after a step; Bool [B, n]: what it accepted; the sampled tokens Long [B, n] and their probability.

        Args:
            logits: Float32 [B, n, V]. left: steps that are left, this one included. rows: Bool [B]: those that draw.
        """
        now = torch.tensor(left, dtype=torch.int32, device=logits.device)
        warm = logits
        if self.t_min is not None and self.t_max is not None:
            warm = logits / (self.t_min + (self.t_max - self.t_min) * (now / self.steps))
        spread = warm.softmax(-1, dtype=torch.float32)
        tokens = draw(spread, streams, rows)
        best = warm.argmax(-1)
        entropy = _entropy(warm)
        ordered, order = entropy.sort(-1)
        # The sum before each: the surest position has none before it, so every step accepts at least one.
        sure = ordered.cumsum(-1) - ordered <= self.entropy_bound
        accepted = torch.zeros_like(sure).scatter(-1, order, sure)
        random = self._drawn(model, streams, rows)
        after = torch.where(accepted, tokens, random)
        noise, stopped, history = ~accepted, canvas.stopped, canvas.history
        if self.stability_threshold is not None and self.confidence_threshold is not None:
            # Rows that stopped keep what they had; before the first step there is nothing to keep.
            if canvas.soft is not None:
                after = torch.where(stopped[:, None], canvas.tokens, after)
                noise = torch.where(stopped[:, None], canvas.noise, noise)
                best = torch.where(stopped[:, None], canvas.best, best)
                warm = torch.where(stopped[:, None, None], canvas.soft.to(warm.dtype), warm)
                entropy = _entropy(warm)
            # A history begins with −1, which is no token: nothing is stable before it is filled.
            stable = (history == best).all(-1).all(0)
            history = torch.cat([history, best[None]])[1:] if len(history) else history
            stopped = stopped | (stable & (entropy.mean(-1) < self.confidence_threshold))
        soft = warm.to(model.network.get_input_embeddings().weight.dtype)
        turned = _Canvas(after, noise, best, soft, history, stopped)
        return turned, accepted, tokens, spread.gather(-1, tokens[..., None])[..., 0]

    def _finished(
        self, x: Tensor, best: Tensor, start: int, ended: Tensor, ends: Tensor, model: Model, rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The state with a canvas that is done, and Bool [B]: rows that have ended; padding behind their end."""
        is_end = torch.isin(best, ends)
        pad = model.ids.pad if self.pad == "model" else self.pad
        if pad is not None and len(ends):
            count = is_end.long().cumsum(1)
            behind = (count > 0) & ~((count == 1) & is_end)
            best = best.masked_fill(behind | ended[:, None], pad)
        here = x[:, start : start + best.shape[1]]
        here[rows] = best[rows]
        return x, ended | is_end.any(1)

    def answer(self, model: Model, sequence: Tensor, start: int) -> Tensor:
        """Up to and including the first end token."""
        return until(super().answer(model, sequence, start), end_ids(self.eos, model))


def _entropy(logits: Tensor) -> Tensor:
    """Nats of Float [B, n, V], as the official sampler computes them: [B, n]."""
    spread: Any = torch.distributions.Categorical(logits=logits)
    entropy: Tensor = spread.entropy()
    return entropy
