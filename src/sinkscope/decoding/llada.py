"""LLaDA's loop (generate.py): blocks from left to right, masks decided by confidence inside them.

Selectable in a step are all masks up to the end of the current block: masks left in earlier blocks, or mask tokens in the
prompt, compete too. A candidate may be the mask token itself; then the position stays masked. There is no early stop at
end tokens. Confidence is in the logits' dtype (bf16 in production: equal confidences are common, so ties are counted).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from sinkscope.checks import at_least, one_of, whole
from sinkscope.decoding.base import DECODINGS, Decoding, Twin, in_vocabulary
from sinkscope.decoding.engine import Engine, asked, select
from sinkscope.decoding.parallel import check_parallel, confident, later_option
from sinkscope.decoding.step import Step
from sinkscope.decoding.streams import Streams
from sinkscope.errors import InputError
from sinkscope.models.llada import EOT
from sinkscope.models.model import Model
from sinkscope.reuse.rule import Wanted

REMASKING = ("low_confidence", "random")


@dataclass(frozen=True)
class BlockDecoding(Decoding):
    """The loop of LLaDA, which MMaDA shares: everything but what single checkpoints add to it.

    Attributes:
        length: new tokens; a multiple of block.
        steps: steps in all; a multiple of the number of blocks. Left out: one per new token.
        block: tokens per block; block = length is pure diffusion.
        temperature: 0 takes the arg max; above, Gumbel noise in float64.
        cfg: classifier-free guidance; above 0 every step runs the model with and without the prompt.
        remasking: what confidence means: the probability of the candidate, or a random number.
    """

    length: int = 128
    steps: int = None  # type: ignore[assignment]  # filled in below
    block: int = 32
    temperature: float = 0.0
    cfg: float = 0.0
    remasking: Literal["low_confidence", "random"] = "low_confidence"

    exact: ClassVar[bool] = False
    """Whether confidence is computed in float64 instead of the logits' dtype."""

    def __post_init__(self) -> None:
        whole("length", self.length, 1)
        object.__setattr__(self, "steps", self.length if self.steps is None else self.steps)
        _check_blocks(self.length, whole("steps", self.steps, 1), whole("block", self.block, 1))
        at_least("temperature", self.temperature, 0.0)
        at_least("cfg", self.cfg, 0.0)
        one_of("remasking", self.remasking, REMASKING)

    @property
    def draws(self) -> bool:
        """Above temperature 0, and with random remasking."""
        return self.temperature > 0 or self.remasking == "random"

    @property
    def steps_per_block(self) -> int:
        """Steps of one block."""
        return self.steps // (self.length // self.block)

    def begin(
        self, engine: Engine, ids: Tensor, streams: Streams | None, per_row: bool, twin: Twin | None = None
    ) -> tuple[Tensor, Iterator[Step]]:
        """Prompts followed by masks, and the loop."""
        state = torch.cat([ids, ids.new_full((len(ids), self.length), engine.mask_id)], 1)
        return state, self._steps(engine, state, ids.shape[1], streams, per_row)

    def _steps(
        self, engine: Engine, x: Tensor, prompt: int, streams: Streams | None, per_row: bool
    ) -> Iterator[Step]:
        given = x != engine.mask_id
        self.end_ids(engine.model)  # an option that names a missing id is refused before the first step
        alive = torch.ones(len(x), dtype=torch.bool, device=x.device)
        for block in range(self.length // self.block):
            end = prompt + (block + 1) * self.block
            # A block is all masks until its turn, so nothing has to be counted, which would leave a GPU idle.
            for count in transfer_counts(self.block, self.steps_per_block):
                if not self.draws and not count:
                    step = engine.idle_step(x, alive)
                else:
                    step = self._step(engine, x, given, end, [count] * len(x), streams, alive)
                x = step.after
                yield step
            going = self.still_alive(alive, x[:, end - 1], per_row)
            if going is not alive and not bool(going.any()):
                return
            alive = going

    def _step(
        self,
        engine: Engine,
        x: Tensor,
        given: Tensor,
        end: int | Tensor,
        counts: list[int],
        streams: Streams | None,
        alive: Tensor,
    ) -> Step:
        """One step; end: the first column, of all rows or of each [B, 1], that cannot be selected yet."""
        masked = x == engine.mask_id
        selectable = masked & (torch.arange(x.shape[1], device=x.device) < end)
        # To learn how many positions there are the host has to ask the GPU, which runs the forward meanwhile.
        others = masked & ~selectable if engine.everything else None
        places = asked(lambda: (_indices(selectable), None if others is None else _indices(others)), x.device)
        wanted = None
        if engine.reuse is not None and isinstance(end, int):
            columns = torch.arange(x.shape[1], device=x.device)
            inside = ((columns >= end - self.block) & (columns < end)).expand_as(x)
            wanted = Wanted(inside | selectable, selectable, end - self.block)
        hidden, twin = self._forward(engine, x, given, alive, wanted)
        here, rest = places()
        noise = None
        if self.temperature > 0 and streams is not None:
            noise = streams.uniform((*x.shape, engine.model.shape.vocabulary), torch.float64)
        chance = None
        if self.remasking == "random" and streams is not None:
            chance = streams.uniform((x.shape[0], x.shape[1]), torch.float32)

        def look(where: tuple[Tensor, ...]) -> Callable[[], tuple[Tensor, Tensor]]:
            """Gives candidates and confidence of the positions with these indices, now or after later forwards."""
            states = hidden[where]
            other, drawn, luck = (None if part is None else part[where] for part in (twin, noise, chance))

            def found() -> tuple[Tensor, Tensor]:
                logits = self._guide(engine.model, states, other)
                candidate, confidence = self.candidates(engine.model, logits, drawn)
                return candidate, confidence if luck is None else luck

            return found

        candidate, confidence = look(here)()
        tokens = torch.full_like(x, -1)
        tokens[here] = candidate
        scores = torch.full(x.shape, float("-inf"), dtype=confidence.dtype, device=x.device)
        scores[here] = confidence
        chosen, ties = self.pick(scores, counts)
        chosen, ties = chosen & alive[:, None], ties * alive
        after = torch.where(chosen, tokens, x)
        decided = chosen & (tokens != engine.mask_id)
        seen = scores.masked_fill(~selectable, float("nan"))
        if rest is None or not len(rest[0]):
            return Step(x, after, masked, seen, tokens, decided, ties, alive)
        looked = look(rest)
        if noise is not None:  # much memory: not kept until a recorder gets to it
            tokens[rest], seen[rest] = looked()
            return Step(x, after, masked, seen, tokens, decided, ties, alive)

        def everywhere() -> tuple[Tensor, Tensor]:
            all_tokens, all_seen = tokens.clone(), seen.clone()
            all_tokens[rest], all_seen[rest] = looked()
            return all_tokens, all_seen

        return Step(x, after, masked, seen, tokens, decided, ties, alive, everywhere=everywhere)

    def pick(self, scores: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
        """The positions that a step decides, Bool [B, S], and ties Long [B]; scores: Float [B, S], −inf outside; see `select`."""
        return select(scores, counts)

    def _forward(
        self, engine: Engine, x: Tensor, given: Tensor, alive: Tensor | None, wanted: Wanted | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Hidden states [B, S, width] of a state, and of its unconditional twin under guidance."""
        if self.guided:
            return engine.guided(x, torch.where(given, engine.mask_id, x), engine.real, alive)
        return engine.hidden(x, alive, wanted), None

    def _guide(self, model: Model, hidden: Tensor, twin: Tensor | None) -> Tensor:
        """Logits [N, V] of hidden states [N, width], guidance applied."""
        logits = model.head(hidden)
        if twin is None:
            return logits
        other = model.head(twin)
        return other + (self.cfg + 1) * (logits - other)

    def candidates(self, model: Model, logits: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """The token each position would take, and the probability the model gives it.

        Args:
            logits: Float [N, V]; changed in place where an option says so, as the official code does.
            noise: Float64 [N, V] in [0, 1), or None at temperature 0.

        Returns:
            Long [N] and Float [N].
        """
        if noise is None:
            candidate = logits.argmax(-1)
        else:
            candidate = (logits.double().exp() / (-noise.log()) ** self.temperature).argmax(-1)
        self.limit_confidence(model, logits, noise is not None)
        if self.remasking == "random":
            return candidate, torch.zeros(len(candidate), device=logits.device)
        probabilities = (logits.double() if self.exact else logits).softmax(-1)
        return candidate, probabilities.gather(-1, candidate[:, None])[:, 0]

    def limit_confidence(self, model: Model, logits: Tensor, noisy: bool) -> None:
        """Change logits [N, V] in place between the choice of candidates and their confidence; here nothing."""

    def end_ids(self, model: Model) -> tuple[int | None, int | None]:
        """The end-of-text and end-of-turn ids that the options act on."""
        return None, None

    def still_alive(self, alive: Tensor, last: Tensor, per_row: bool) -> Tensor:
        """Bool [B]: rows that go on after a block whose last tokens are `last` [B]; `alive` itself if none can end."""
        return alive

    def reachable(self, x: Tensor, prompt: int, step: int) -> Tensor:
        """Everything up to the end of the step's block."""
        end = prompt + (step // self.steps_per_block + 1) * self.block
        return torch.arange(x.shape[1], device=x.device)[None] < end

    def predictions(self, engine: Engine, x: Tensor, given: Tensor, masked: Tensor) -> Tensor:
        """As in the loop."""
        hidden, twin = self._forward(engine, x, given, None)
        return self._guide(engine.model, hidden[masked], None if twin is None else twin[masked])

    def best(self, model: Model, logits: Tensor) -> tuple[Tensor, Tensor]:
        """As in the loop at temperature 0; with random remasking the largest probability."""
        candidate, confidence = self.candidates(model, logits.clone(), None)
        if self.remasking == "random":
            confidence = logits.softmax(-1).amax(-1)
        return candidate, confidence.double()


@dataclass(frozen=True)
class ParallelDecoding(BlockDecoding):
    """The same loop, which may also decide as many masks in a step as the model is sure of (not official; see `parallel`).

    A block ends when it has no masks left. With a stream per row each row goes through its blocks at its own pace, as it does
    alone; with one stream the rows of a batch leave a block together.

    Attributes:
        threshold: every mask whose confidence reaches it is decided, and at least one.
        factor: the n most confident masks are decided, as long as (n + 1)(1 − confidence of the n-th) < factor; at least one.
    """

    threshold: float | None = later_option()
    factor: float | None = later_option()

    def __post_init__(self) -> None:
        super().__post_init__()
        random = "remasking is random" if self.remasking == "random" else None
        check_parallel(self.threshold, self.factor, self.length, self.steps, random)

    @property
    def own_pace(self) -> bool:
        """With a threshold or factor."""
        return self.threshold is not None or self.factor is not None

    @property
    def replayable(self) -> bool:  # type: ignore[override]
        """Unless the block of a step depends on the steps before."""
        return not self.own_pace

    def pick(self, scores: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
        """By count, or by confidence."""
        return confident(scores, self.threshold, self.factor) if self.own_pace else select(scores, counts)

    def _steps(
        self, engine: Engine, x: Tensor, prompt: int, streams: Streams | None, per_row: bool
    ) -> Iterator[Step]:
        return (self._paced if self.own_pace else super()._steps)(engine, x, prompt, streams, per_row)

    def _paced(
        self, engine: Engine, x: Tensor, prompt: int, streams: Streams | None, per_row: bool
    ) -> Iterator[Step]:
        """The loop by confidence; a block has at most one step for each of its tokens, should masks be written as tokens."""
        given = x != engine.mask_id
        self.end_ids(engine.model)
        columns = torch.arange(x.shape[1], device=x.device)
        alive = torch.ones(len(x), dtype=torch.bool, device=x.device)
        block, age = (torch.zeros(len(x), dtype=torch.long, device=x.device) for _ in range(2))
        last = self.length // self.block - 1
        while bool(alive.any()):
            start = prompt + block.clamp(max=last)[:, None] * self.block
            end = start + self.block
            together = bool((end == end[0]).all())
            step = self._step(
                engine, x, given, int(end[0]) if together else end, [1] * len(x), streams, alive
            )
            x = step.after
            yield step
            age += 1
            left = (x == engine.mask_id) & (columns >= start) & (columns < end)
            done = ~left.any(1) | (age >= self.block)
            done = done if per_row else done.all().expand_as(done)
            going = self.still_alive(alive, x.gather(1, end - 1)[:, 0], per_row)
            alive = torch.where(done, going & (block < last), alive)
            block, age = block + done.long(), age.masked_fill(done, 0)


@DECODINGS.add
@dataclass(frozen=True)
class LladaDecoding(ParallelDecoding):
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

    logits_eos_inf: bool = False
    confidence_eos_eot_inf: bool = False
    eot_id: int | None = None

    kind: ClassVar[str] = "llada"
    families: ClassVar[tuple[str, ...]] = ("llada", "llada_moe", "masked")
    reusable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eot_id is not None:
            whole("eot_id", self.eot_id, 0)

    def check_ids(self, vocabulary: int) -> None:
        """The end-of-turn id must be in the vocabulary."""
        in_vocabulary("eot_id", self.eot_id, vocabulary)

    def candidates(self, model: Model, logits: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Without the end token, where the options say so."""
        if self.logits_eos_inf:
            logits[:, self.end_ids(model)[0]] = float("-inf")
        return super().candidates(model, logits, noise)

    def limit_confidence(self, model: Model, logits: Tensor, noisy: bool) -> None:
        """Officially the end-of-text column is cleared in the noisy copy, which at temperature 0 is the logits themselves."""
        if self.confidence_eos_eot_inf:
            eos, eot = self.end_ids(model)
            if not noisy:
                logits[:, eos] = float("-inf")
            logits[:, eot] = float("-inf")

    def end_ids(self, model: Model) -> tuple[int | None, int | None]:
        """The ids that the switches act on; they must exist when a switch is on."""
        ids, vocabulary = model.ids, model.shape.vocabulary
        eos = ids.eos[0] if ids.eos else None
        eot = self.eot_id if self.eot_id is not None else ids.eot
        if eot is None and vocabulary > EOT:
            eot = EOT
        if self.logits_eos_inf and eos is None:
            raise InputError(
                "logits_eos_inf needs an end-of-text id, and this checkpoint names none in config.json"
            )
        if self.confidence_eos_eot_inf and (eos is None or eot is None):
            raise InputError(
                f"confidence_eos_eot_inf needs an end-of-turn id; the official {EOT} is not in this vocabulary of {vocabulary}: "
                "give eot_id"
            )
        return eos, eot


def _indices(marked: Tensor) -> tuple[Tensor, ...]:
    """Rows and columns of the marked positions of Bool [B, S]."""
    return marked.nonzero(as_tuple=True)


def transfer_counts(masks: int, steps: int) -> list[int]:
    """How many masks each step of a block decides: as even as possible, the first steps taking the remainder.

    >>> transfer_counts(8, 3)
    [3, 3, 2]
    """
    share, rest = divmod(masks, steps)
    return [share + (step < rest) for step in range(steps)]


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
