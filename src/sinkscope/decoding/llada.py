"""LLaDA's loop (generate.py): blocks from left to right, masks decided by confidence inside them.

Selectable in a step are all masks up to the end of the current block: masks left in earlier blocks, or mask tokens in the
prompt, compete too. A candidate may be the mask token itself; then the position stays masked. There is no early stop at
end tokens. Confidence is in the logits' dtype (bf16 in production: equal confidences are common, so ties are counted).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from sinkscope.base.errors import InputError
from sinkscope.decoding.base import DECODINGS, Decoding, later_option
from sinkscope.decoding.engine import Engine, MaskedStep
from sinkscope.decoding.parallel import OwnPace, check_parallel
from sinkscope.decoding.step import NO_MASK, Loop, Request, Step, Wanted, chance, even_plan, select
from sinkscope.models.llada import EOT
from sinkscope.models.model import Model


class LladaLoop(Loop["BlockDecoding"]):
    """The algorithm: every step predicts, scores, chooses and writes.

    Attributes:
        given: Bool [B, S]: what is no mask from the beginning. columns: Long [S]: their numbers.
        exact: confidence is computed in float64 instead of the logits' dtype.
        ends: the end-of-text and end-of-turn ids that options act on.
    """

    exact: ClassVar[bool] = False

    def __init__(self, options: BlockDecoding, engine: Engine) -> None:
        super().__init__(options, engine)
        self.ends = options.end_ids(self.model)  # an option that names a missing id is refused before the first step

    def begin(self, *group: Any) -> None:
        super().begin(*group)
        self.given = self.x != self.engine.mask_id
        self.columns = torch.arange(self.x.shape[1], device=self.x.device)

    def run(self) -> Iterator[Step]:
        """Block by block, so many masks in each step."""
        options = self.options
        for block in range(options.length // options.block):
            end = self.prompt + (block + 1) * options.block
            # A block is all masks until its turn, so that nothing has to be counted.
            for count in even_plan(options.block, options.steps_per_block):
                yield self.step(end, [count] * len(self.x))
            ended = self.ended(self.x[:, end - 1])
            if ended is not None:
                self.alive = self.alive & ~ended
                if not bool(self.alive.any()):
                    return

    def step(self, end: int | Tensor, counts: list[int]) -> Step:
        """One step, in which each row decides so many masks before the column `end`, of all rows or of each [B, 1]."""
        if not self.options.draws and not any(counts) and isinstance(end, int):
            return self.engine.idle_step(self.x, self.alive)
        selectable = (self.x == self.engine.mask_id) & (self.columns < end)
        masks = MaskedStep(self.engine, self.x, selectable)
        confidence = masks.look(self.score, *self.predict(selectable, end))
        step = masks.write(*self.choose(confidence, counts), self.alive)
        self.x = step.after
        return step

    def predict(self, selectable: Tensor, end: int | Tensor) -> list[Tensor | None]:
        """One forward, and the random numbers of the step.

        Returns:
            Float [B, S, width]: hidden states of the state, and of its unconditional twin under guidance. Float64 [B, S, V]:
            noise in [0, 1), above temperature 0. Float32 [B, S]: the confidence of random remasking.
        """
        options, streams, shape = self.options, self.streams, (self.x.shape[0], self.x.shape[1])

        def wanted(start: int) -> Wanted:
            inside = ((self.columns >= start) & (self.columns < start + options.block)).expand_as(self.x)
            return Wanted(inside | selectable, selectable, start)

        tells = partial(wanted, end - options.block) if isinstance(end, int) else None
        hidden, twin = self.forward(Request(self.x, self.alive, wanted=tells), self.given)
        noise = chances = None
        if options.temperature > 0 and streams is not None:
            noise = streams.uniform((*shape, self.model.shape.vocabulary), torch.float64)
        if options.remasking == "random" and streams is not None:
            chances = streams.uniform(shape, torch.float32)
        return [hidden, twin, noise, chances]

    def score(
        self, hidden: Tensor, twin: Tensor | None, noise: Tensor | None, chances: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Candidates Long [N] and confidence Float [N] of some positions, from what `predict` gives of them."""
        candidate, confidence = self.candidates(self.guided(hidden, twin), noise)
        return candidate, confidence if chances is None else chances

    def candidates(self, logits: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """The token each position would take, and the probability the model gives it.

        Args:
            logits: Float [N, V]; changed in place where an option says so, as the official code does.
            noise: Float64 [N, V] in [0, 1), or None at temperature 0.

        Returns:
            Long [N] and Float [N].
        """
        options, (eos, eot) = self.options, self.ends
        if options.logits_eos_inf:
            logits[:, eos] = float("-inf")
        if noise is None:
            candidate = logits.argmax(-1)
        else:
            candidate = (logits.double().exp() / (-noise.log()) ** options.temperature).argmax(-1)
        if options.confidence_eos_eot_inf:
            logits[:, eot] = float("-inf")
            if noise is None:  # officially cleared in the noisy copy, which at temperature 0 is the logits themselves
                logits[:, eos] = float("-inf")
        if options.remasking == "random":
            return candidate, torch.zeros(len(candidate), device=logits.device)
        return candidate, chance((logits.double() if self.exact else logits).softmax(-1), candidate)

    def choose(self, confidence: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
        """The positions that a step decides, Bool [B, S], and ties Long [B], by Float [B, S], −inf outside."""
        return select(confidence, counts)

    def ended(self, last: Tensor) -> Tensor | None:
        """Bool [B]: the rows that end with a block whose last tokens are Long [B]; None: none can."""
        return None

    def forward(self, request: Request, given: Tensor) -> tuple[Tensor, Tensor | None]:
        """Hidden states [B, S, width] of a state, and of its twin under guidance, in which nothing is given (Bool [B, S])."""
        if not self.options.guided:
            return self.engine.forward(request), None
        other = torch.where(given, self.engine.mask_id, request.ids)
        hidden, twin = self.engine.forward(replace(request, twin=(other, self.engine.real), wanted=None)).chunk(2)
        return hidden, twin

    def guided(self, hidden: Tensor, twin: Tensor | None) -> Tensor:
        """Logits [N, V] of hidden states [N, width], guidance applied."""
        logits = self.model.head(hidden)
        if twin is None:
            return logits
        other = self.model.head(twin)
        return other + (self.options.cfg + 1) * (logits - other)

    def predictions(self, x: Tensor, given: Tensor, masked: Tensor) -> Tensor:
        hidden, twin = self.forward(Request(x), given)
        return self.guided(hidden[masked], None if twin is None else twin[masked])

    def best(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """As in the loop at temperature 0; with random remasking the largest probability."""
        candidate, confidence = self.candidates(logits.clone(), None)
        if self.options.remasking == "random":
            confidence = logits.softmax(-1).amax(-1)
        return candidate, confidence.double()


class PacedLlada(OwnPace, LladaLoop):
    """The loop in which the model's confidence decides how many masks a step writes."""


@dataclass(frozen=True)
class BlockDecoding(Decoding):
    """The loop of LLaDA, which MMaDA shares: everything but what single checkpoints add to it.

    It may also decide as many masks in a step as the model is sure of (not official; see `parallel`). A block then ends when it
    has no masks left. With a stream per row each row goes through its blocks at its own pace, as it does alone; with one stream
    the rows of a batch leave a block together.

    Attributes:
        length: new tokens; a multiple of block.
        steps: steps in all; a multiple of the number of blocks. Left out: one per new token.
        block: tokens per block; block = length is pure diffusion.
        temperature: 0 takes the arg max; above, Gumbel noise in float64.
        cfg: classifier-free guidance; above 0 every step runs the model with and without the prompt.
        remasking: what confidence means: the probability of the candidate, or a random number.
        threshold: every mask whose confidence reaches it is decided, and at least one.
        factor: the n most confident masks are decided, as long as (n + 1)(1 − confidence of the n-th) < factor; at least one.
    """

    length: int = 128
    steps: int = None  # type: ignore[assignment]  # filled in below
    block: int = 32
    temperature: float = 0.0
    cfg: float = 0.0
    remasking: Literal["low_confidence", "random"] = "low_confidence"
    threshold: float | None = later_option()
    factor: float | None = later_option()

    brief: ClassVar[Mapping[str, Any]] = {"length": 64, "steps": 32, "block": 32}
    whole_blocks: ClassVar[bool] = True
    logits_eos_inf: ClassVar[bool] = False
    confidence_eos_eot_inf: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", self.length if self.steps is None else self.steps)
        super().__post_init__()
        if self.whole_blocks:
            _check_blocks(self.length, self.steps, self.block)
        random = "remasking is random" if self.remasking == "random" else None
        check_parallel(self.threshold, self.factor, self.length, self.steps, random)

    @property
    def own_pace(self) -> bool:
        return self.threshold is not None or self.factor is not None

    @property
    def replayable(self) -> bool:  # type: ignore[override]
        """Unless the block of a step depends on the steps before."""
        return not self.own_pace

    @property
    def steps_per_block(self) -> int:
        """Steps of one block."""
        return self.steps // (self.length // self.block)

    @property
    def loop(self) -> type[LladaLoop]:
        return PacedLlada if self.own_pace else LladaLoop

    def end_ids(self, model: Model) -> tuple[int | None, int | None]:
        """The end-of-text and end-of-turn ids that the options act on."""
        return None, None

    def reachable(self, x: Tensor, prompt: int, step: int) -> Tensor:
        end = prompt + (step // self.steps_per_block + 1) * self.block
        return torch.arange(x.shape[1], device=x.device)[None] < end


@DECODINGS.add
@dataclass(frozen=True)
class LladaDecoding(BlockDecoding):
    """LLaDA's generate.py.

    Attributes:
        logits_eos_inf: the end token is never a candidate.
        confidence_eos_eot_inf: end tokens are candidates with no confidence (at temperature 0 both end columns leave the
            softmax, above it only the end of turn, as in the official code).
        eot_id: the end-of-turn id; None: the tokenizer's, else the official one.

    >>> done = ss.generate(model, prompts, ss.LladaDecoding(length=16, block=8))
    >>> done.texts[0], len(done.states) - 1    # the text, and the number of steps
    ('He has 6*6=36 seeds.\\nThen 36', 16)
    """

    logits_eos_inf: bool = False  # type: ignore[misc]
    confidence_eos_eot_inf: bool = False  # type: ignore[misc]
    eot_id: int | None = None

    kind: ClassVar[str] = "llada"
    families: ClassVar[tuple[str, ...]] = ("llada", "llada_moe", "masked")
    reusable: ClassVar[bool] = True

    def end_ids(self, model: Model) -> tuple[int | None, int | None]:
        """The ids that the switches act on; they must exist when a switch is on."""
        ids, vocabulary = model.ids, model.shape.vocabulary
        eos = ids.eos[0] if ids.eos else None
        eot = self.eot_id if self.eot_id is not None else ids.eot
        if eot is None and vocabulary > EOT:
            eot = EOT
        if self.logits_eos_inf and eos is None:
            raise InputError("logits_eos_inf needs an end-of-text id, and this checkpoint names none in config.json")
        if self.confidence_eos_eot_inf and (eos is None or eot is None):
            raise InputError(
                f"confidence_eos_eot_inf needs an end-of-turn id; the official {EOT} is not in this vocabulary of {vocabulary}: "
                "give eot_id"
            )
        return eos, eot


class MmadaLoop(LladaLoop):
    """LLaDA's loop of February 2025, confidence in float64."""

    options: MmadaDecoding
    exact: ClassVar[bool] = True

    def ended(self, last: Tensor) -> Tensor | None:
        """Rows end where a block ends in stop_at: each by itself, or all when all agree."""
        if self.options.stop_at is None:
            return None
        ended = last == self.options.stop_at
        return ended if self.per_row else ended.all().expand_as(ended)


class PacedMmada(OwnPace, MmadaLoop):
    """The same at the pace of the model's confidence."""


@DECODINGS.add
@dataclass(frozen=True)
class MmadaDecoding(BlockDecoding):
    """MMaDA's text loop (generate, mmu_generate, mmu_generate_fast): LLaDA's of February 2025, confidence in float64.

    With guidance the official loop drops the padding mask; ours honours it, so that a padded row equals its run alone.

    Attributes:
        stop_at: a token id; after a block whose last token it is, generation ends and later blocks stay masked. With one
            random stream for the batch all rows must agree, as in the official code; with a stream per row each row stops
            by itself.

    >>> ss.generate("organism/multimodal", prompts, ss.MmadaDecoding(length=16, block=8)).states.shape
    torch.Size([17, 1, 53])
    """

    stop_at: int | None = None

    kind: ClassVar[str] = "mmada"
    families: ClassVar[tuple[str, ...]] = ("mmada",)
    reusable: ClassVar[bool] = True

    @property
    def loop(self) -> type[LladaLoop]:
        return PacedMmada if self.own_pace else MmadaLoop

    def alive(self, model: Model, x: Tensor, prompt: int, step: int, per_row: bool) -> Tensor:
        """Rows none of whose finished blocks ends in stop_at."""
        finished = step // self.steps_per_block * self.block
        lasts = x[:, prompt + self.block - 1 : prompt + finished : self.block]
        return (lasts != (NO_MASK if self.stop_at is None or not per_row else self.stop_at)).all(1)


def _check_blocks(length: int, steps: int, block: int) -> None:
    if length % block:
        fits = [size for size in range(1, length + 1) if length % size == 0]
        near = min(fits, key=lambda size: abs(size - block))
        raise InputError(
            f"length {length} is not a multiple of block {block}; try block={near}, or length={-(-length // block) * block}"
        )
    blocks = length // block
    if steps % blocks:
        raise InputError(
            f"steps {steps} is not a multiple of the {blocks} blocks (length {length} / block {block}); "
            f"try steps={max(1, round(steps / blocks)) * blocks}"
        )
