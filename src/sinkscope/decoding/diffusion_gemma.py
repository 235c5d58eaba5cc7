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

from sinkscope.base.checks import whole
from sinkscope.base.errors import InputError
from sinkscope.decoding.base import DECODINGS, Decoding, end_ids, later_option
from sinkscope.decoding.blocks import BlockLoop, draw, placed
from sinkscope.decoding.step import NO_MASK, Request, Step, chance, step_of
from sinkscope.models.model import Model

CANVAS = 256
"""The canvas of released models."""

STORED = ("steps", "t_min", "t_max", "stability_threshold", "confidence_threshold", "entropy_bound")
"""Options that generation_config.json may name."""


class CanvasLoop(BlockLoop["DiffusionGemmaDecoding"]):
    """The loop of `generate`: of every canvas, each step predicts, draws, accepts, and draws the rest anew.

    Attributes:
        ended: Bool [B]: rows with an end token.
        noise: Bool [B, n]: columns of the canvas that are random. likeliest: Long [B, n]: the arg max of the last step.
        soft: Float [B, n, V]: its logits at temperature; None: there was none.
        history: Long [h, B, n]: the arg max of earlier steps, −1 for none. stopped: Bool [B]: rows that need no more steps.
    """

    grows: ClassVar[bool] = True
    soft: Tensor | None

    def begin(self, *group: Any) -> None:
        super().begin(*group)
        if not self.engine.cached:
            raise InputError("a canvas reads the encoder's cache: cache=False does not go with this loop")
        self.ended = torch.zeros_like(self.alive)

    def first_state(self, ids: Tensor) -> Tensor:
        """The prompts with the first canvas, which is drawn also where one is given."""
        x, drawn, start = super().first_state(ids), self.drawn(self.alive), self.options.start
        if start is not None:
            canvases = torch.tensor(start, device=ids.device).view(-1, self.options.block)
            rows = self.engine.prompts.rows
            if 1 < len(canvases) <= max(rows):
                raise InputError(f"start holds {len(canvases)} canvases; give one for each row, or one for all")
            drawn = canvases[list(rows) if len(canvases) > 1 else [0] * len(rows)]
        x[:, self.prompt : self.prompt + self.options.block] = drawn
        return x

    def drawn(self, rows: Tensor) -> Tensor:
        """Random tokens Long [B, n]."""
        if self.streams is None:
            raise RuntimeError("a canvas always draws")
        return self.streams.integers((len(rows), self.options.block), self.model.shape.vocabulary, rows.tolist())

    def seen(self, request: Request) -> Mapping[str, Any]:
        """Of what the encoder reads nothing is noise."""
        noise = torch.zeros_like(self.x, dtype=torch.bool) if request.noise is None else request.noise
        return {"block": None, "noise": noise}

    def denoise(self) -> Iterator[Step]:
        """The encoder reads what is new; then step after step, until all rows have stopped."""
        options, start = self.options, self.here.start
        (self.read if start == self.prompt else self.store)(start)
        self.likeliest, self.soft, self.stopped = self.x[:, self.here], None, ~self.alive
        self.noise = torch.ones_like(self.likeliest, dtype=torch.bool)
        self.history = self.likeliest.new_full((options.stability_threshold or 0, *self.likeliest.shape), -1)
        for left in range(options.steps, 0, -1):
            # A row that runs by itself waits for the others once it has stopped.
            x, going = self.x, self.alive & ~self.stopped
            noise, drawing = placed(self.noise, x, start, False), going if self.alone else self.alive
            logits = self.model.head(self.look(going, soft=self.soft, noise=noise))
            warm = self.warmed(logits, left)
            spread = warm.softmax(-1, dtype=torch.float32)
            tokens = draw(spread, self.streams, drawing)
            accepted = self.accepted(_entropy(warm))
            self.turn(torch.where(accepted, tokens, self.drawn(drawing)), ~accepted, warm)
            decided = accepted | self.stopped[:, None]  # of a row's last step all are
            over = left == 1 or bool((self.stopped | ~self.alive).all())
            if over:
                self.finish()
                decided = torch.ones_like(decided)
            yield step_of(
                x, self.x, going, NO_MASK, masked=noise, candidate=placed(tokens, x, start, -1),
                confidence=placed(chance(spread, tokens), x, start, float("nan")),
                decided=placed(decided, x, start, False) & going[:, None],
            )  # fmt: skip
            if over:
                return

    def warmed(self, logits: Tensor, left: int) -> Tensor:
        """Logits Float32 [B, n, V] at the temperature of a step; left: steps that are left, this one included."""
        low, high = self.options.t_min, self.options.t_max
        if low is None or high is None:
            return logits
        now = torch.tensor(left, dtype=torch.int32, device=logits.device)
        return logits / (low + (high - low) * (now / self.options.steps))

    def accepted(self, entropy: Tensor) -> Tensor:
        """Bool [B, n]: the positions of lowest entropy, as far as the bound goes."""
        ordered, order = entropy.sort(-1)
        # The sum before each: the surest position has none before it, so every step accepts at least one.
        sure = ordered.cumsum(-1) - ordered <= self.options.entropy_bound
        return torch.zeros_like(sure).scatter(-1, order, sure)

    def turn(self, tokens: Tensor, noise: Tensor, warm: Tensor) -> None:
        """The canvas after a step, and which rows stop; those that had stopped keep what they had."""
        options, stopped, best = self.options, self.stopped, warm.argmax(-1)
        if options.stability_threshold is not None and options.confidence_threshold is not None:
            if self.soft is not None:  # before the first step there is nothing to keep
                tokens = torch.where(stopped[:, None], self.x[:, self.here], tokens)
                noise = torch.where(stopped[:, None], self.noise, noise)
                best = torch.where(stopped[:, None], self.likeliest, best)
                warm = torch.where(stopped[:, None, None], self.soft.to(warm.dtype), warm)
            # A history begins with −1, which is no token: nothing is stable before it is filled.
            stable = (self.history == best).all(-1).all(0)
            self.history = torch.cat([self.history, best[None]])[1:] if len(self.history) else self.history
            self.stopped = stopped | (stable & (_entropy(warm).mean(-1) < options.confidence_threshold))
        self.likeliest, self.noise = best, noise
        self.soft = warm.to(self.model.network.get_input_embeddings().weight.dtype)
        self.x = self.x.clone()
        self.x[:, self.here] = tokens

    def finish(self) -> None:
        """Write the arg max of a canvas that is done, padding behind its end, and the next canvas where rows go on."""
        best, size = self.likeliest, self.options.block
        pad = self.model.ids.pad if self.options.pad == "model" else self.options.pad
        ends = torch.tensor(end_ids(self.options.eos, self.model), dtype=torch.long, device=best.device)
        is_end = torch.isin(best, ends)
        if pad is not None and len(ends):
            count = is_end.long().cumsum(1)
            behind = (count > 0) & ~((count == 1) & is_end)
            best = best.masked_fill(behind | self.ended[:, None], pad)
        self.x[self.alive, self.here] = best[self.alive]
        self.ended = self.ended | is_end.any(1)
        self.alive = self.alive & ~(self.ended if self.alone else self.ended.all())
        if self.end < self.behind and bool(self.alive.any()):
            drawn = self.drawn(self.alive)
            self.x[:, self.end : self.end + size] = torch.where(self.alive[:, None], drawn, -1)


@DECODINGS.add
@dataclass(frozen=True)
class DiffusionGemmaDecoding(Decoding):
    """DiffusionGemma's generate.

    The defaults are the library's. Where options are given by name, without this class, those that are left out are the
    checkpoint's (generation_config.json), as officially.

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
    start: Sequence[int] | tuple[int, ...] | None = later_option()
    pad: int | Literal["model"] | None = later_option("model")

    kind: ClassVar[str] = "diffusion_gemma"
    families: ClassVar[tuple[str, ...]] = ("diffusion_gemma",)
    brief: ClassVar[Mapping[str, Any]] = {"length": 64}
    replayable: ClassVar[bool] = False
    cached: ClassVar[bool | None] = True
    rounded: ClassVar[bool] = False
    mask_tokens: ClassVar[bool] = False
    draws: ClassVar[bool] = True
    edits: ClassVar[bool] = True
    """An accepted token may return to noise, or become another."""
    loop: ClassVar[type[CanvasLoop]] = CanvasLoop

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.entropy_bound == 0:
            raise InputError("entropy_bound should be above 0, or no token would ever be sure enough")
        for pair in (("t_min", "t_max"), ("stability_threshold", "confidence_threshold")):
            if None in [getattr(self, name) for name in pair]:  # as officially: the other one counts for nothing
                for name in pair:
                    object.__setattr__(self, name, None)
        if self.t_min is not None and self.t_max is not None and self.t_max <= self.t_min:
            raise InputError(f"t_max should be above t_min, got {self.t_max} and {self.t_min}")
        if self.start is not None:
            given: Sequence[Any] = self.start
            rows = [row if isinstance(row, (list, tuple)) else [row] for row in given]
            object.__setattr__(self, "start", tuple(whole("start", number, 0) for row in rows for number in row))
        if self.pad not in ("model", None):
            whole("pad", self.pad, 0)

    @classmethod
    def stored_options(cls, model: Model) -> dict[str, Any]:
        stored = model.checkpoint.generation_config
        sampler = stored.get("sampler_config")
        stored = stored | (sampler if isinstance(sampler, dict) else {}) | {"steps": stored.get("max_denoising_steps")}
        return {name: stored[name] for name in STORED if stored.get(name) is not None}

    def suited(self, model: Model) -> Decoding:
        """With the canvas of the checkpoint."""
        known = int(model.network.config.canvas_length)
        if self.canvas not in (None, known):
            raise InputError(f"the canvas of {model.source} has {known} columns, not {self.canvas}; leave out canvas")
        if self.start is not None and (not self.start or len(self.start) % known):
            raise InputError(f"start should be a canvas of {known} ids, or one for each row, got {len(self.start)}")
        return replace(self, canvas=known)

    @property
    def block(self) -> int:
        """Columns of a canvas."""
        return self.canvas or CANVAS

    @property
    def blocks(self) -> int:
        """Canvases."""
        return -(-self.length // self.block)

    @property
    def new_tokens(self) -> int:
        return self.blocks * self.block

    @property
    def max_steps(self) -> int:
        return self.steps * self.blocks

    @property
    def reads(self) -> int:
        """The encoder, before every canvas."""
        return self.blocks

    def answer_ends(self, model: Model) -> tuple[int, ...]:
        return end_ids(self.eos, model)


def _entropy(logits: Tensor) -> Tensor:
    """Nats of Float [B, n, V], as the official sampler computes them: [B, n]."""
    spread: Any = torch.distributions.Categorical(logits=logits)
    entropy: Tensor = spread.entropy()
    return entropy
