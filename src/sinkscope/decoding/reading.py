"""Texts that are given: read in one forward to record its attention, or read for the model's probability of their tokens.

ids = model.tokenizer("The capital of France is").input_ids
ss.generate(model, [ids], ss.GivenText(), capture=True).trace

Readings stand beside the decodings, because a study treats both alike: options with a name and a JSON form, part of a result's
identity. `sinkscope.tasks.likelihood` does the reading.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from sinkscope.base.checks import share, whole
from sinkscope.base.errors import InputError
from sinkscope.decoding.base import CHECKS, DECODINGS, Decoding, default_decoding
from sinkscope.decoding.causal import newest
from sinkscope.decoding.step import NO_MASK, Loop, Request, Step, step_of
from sinkscope.models.family import FAMILIES
from sinkscope.models.model import Model

CAUSAL = "causal"


class OneStep(Loop["GivenText"]):
    """The text, and its one step."""

    def first_state(self, ids: Tensor) -> Tensor:
        return ids

    def run(self) -> Iterator[Step]:
        self.engine.forward(self.request())
        yield step_of(self.x, self.x, self.alive, NO_MASK)

    def request(self) -> Request:
        """The one forward."""
        causal, columns = self.model.spec.causal, self.x.shape[1]
        return newest(self.x, columns, 0, self.model.new_cache()) if causal else Request(self.x)


class OneStepInBlocks(OneStep):
    """The same where attention stands in blocks."""

    options: GivenBlocks

    def request(self) -> Request:
        columns, block = self.x.shape[1], self.options.block
        return Request(self.x, queries=slice(0, columns), active=(columns - 1) % block + 1, block=block)


@DECODINGS.add
@dataclass(frozen=True)
class GivenText(Decoding):
    """One step, in which the model reads the whole text: the prefill of a causal model, a forward without masks of the others.

    >>> ids = [[5, 9, 2, 30, 41]]
    >>> run = ss.generate("organism/causal", ids, ss.GivenText(), capture=ss.Capture())
    >>> len(run), run.sequences.tolist() == ids, dict(run.trace.dataset["received"].sizes)["step"]
    (1, True, 1)
    """

    kind: ClassVar[str] = "given"
    families: ClassVar[tuple[str, ...]] = ("causal", "llada", "dream", "mmada")
    replayable: ClassVar[bool] = False
    generates: ClassVar[bool] = False
    max_steps: ClassVar[int] = 1
    loop: ClassVar[type[OneStep]] = OneStep

    @classmethod
    def fits(cls, family: str) -> bool:
        """All families whose attention does not stand in blocks."""
        return family in FAMILIES and not FAMILIES[family].blocks


@DECODINGS.add
@dataclass(frozen=True)
class GivenBlocks(GivenText):
    """The same where attention stands in blocks; the last of them counts as the active one.

    Attributes:
        block: tokens in a block.
    """

    block: int = 32

    kind: ClassVar[str] = "given-blocks"
    families: ClassVar[tuple[str, ...]] = ("llada2", "sdar", "fast_dllm_v2")
    cached: ClassVar[bool | None] = False
    loop: ClassVar[type[OneStep]] = OneStepInBlocks

    @classmethod
    def fits(cls, family: str) -> bool:
        """All families whose attention stands in blocks."""
        return family in FAMILIES and FAMILIES[family].blocks


def given_text(model: Model) -> Decoding:
    """What reads a given text with a model."""
    if not model.spec.blocks:
        return GivenText()
    return GivenBlocks(int(getattr(default_decoding(model.family), "block", 32)))


@dataclass(frozen=True)
class Reading(Decoding):
    """Base of all readings.

    Attributes:
        length: tokens of a text that are read, its start token included; a shorter text is refused.
        scored: the last so many of them are scored, what stands before is given; None: all but the start token.
    """

    length: int = 256
    scored: int | None = None

    replayable: ClassVar[bool] = False
    generates: ClassVar[bool] = False
    new_tokens: ClassVar[int] = 0
    checks: ClassVar[Mapping[str, Any]] = {**CHECKS, "length": partial(whole, least=2)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scored is not None and self.scored >= self.length:
            raise InputError(
                f"scored is {self.scored} of {self.length} tokens: at least one token must stand before the scored ones"
            )

    @property
    def targets(self) -> int:
        """How many tokens are scored."""
        return self.length - 1 if self.scored is None else self.scored

    @property
    def given(self) -> int:
        """How many tokens stand before the scored ones."""
        return self.length - self.targets

    @property
    def loop(self) -> type[Loop[Any]]:
        raise InputError(
            f"{type(self).__name__} reads a text and generates none; use it with ss.evaluate(model, 'text')"
        )


@DECODINGS.add
@dataclass(frozen=True)
class CausalReading(Reading):
    """A causal model reads from left to right: in one pass, or token by token if a policy uses the previous step's scores.

    Attributes:
        length: longer texts are cut. scored: the last tokens, whose −log p is measured, in nats.

    >>> reading = ss.CausalReading(length=32, scored=8)
    >>> ss.evaluate("organism/causal", "text", reading, limit=1).nll > 6.5    # nats per token: it does not know English
    True
    """

    scored: int | None = 128

    kind: ClassVar[str] = "causal-reading"
    families: ClassVar[tuple[str, ...]] = (CAUSAL,)

    @property
    def max_steps(self) -> int:
        """One for each scored token, under a policy that looks at the previous step."""
        return self.targets


@dataclass(frozen=True)
class _DiffusionReading(Reading):
    """A reading for every family that replaces masks."""

    families: ClassVar[tuple[str, ...]] = ("llada", "dream", "mmada")

    @classmethod
    def fits(cls, family: str) -> bool:
        """All families but the causal one, those of other packages too."""
        return family != CAUSAL


@DECODINGS.add
@dataclass(frozen=True)
class MaskedReading(_DiffusionReading):
    """A diffusion model sees a text with random tokens masked, and its probability of those is measured.

    The masks of a text depend on nothing but the text's id, so all policies and models see the same ones; those of a smaller
    share are among those of a larger one. A policy that uses the previous step's scores reads the same masked text twice: the
    first time nothing is hidden, and its scores decide what is hidden the second time.

    Attributes:
        share: the share of the scored tokens that is masked, at least one of them; None: every number of masked tokens from 1
            to all equally often, whose mean is the bound that diffusion models are trained on (nats per token, an upper
            bound of the negative log-likelihood).
        masks: how many masked copies of a text are averaged; for the bound, numbers of masked tokens are spread evenly over
            them.

    >>> half = ss.evaluate(model, "text", ss.MaskedReading(share=0.5, masks=2, length=32), limit=1)
    >>> half.nll > 6.5    # nats per masked token: it does not know English
    True
    """

    share: float | None = None
    masks: int = 8

    kind: ClassVar[str] = "masked-reading"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share is not None:
            share("share", self.share)

    @property
    def max_steps(self) -> int:
        """Two for each mask, under a policy that looks at the previous step."""
        return 2 * self.masks


@DECODINGS.add
@dataclass(frozen=True)
class DenoisingReading(_DiffusionReading):
    """A diffusion model fills a masked end in its own order, and is given the true tokens.

    In each step the family's loop says which positions it would decide; the probability of the true tokens there is taken,
    and the true tokens are written. One position a step (the default) gives an exact likelihood: that of the model with this
    order. Policies therefore have a previous step, as in generation.

    Attributes:
        steps: by default one for each scored token.

    >>> ss.evaluate(model, "text", ss.DenoisingReading(length=32, scored=4), limit=1).records[0].steps
    4
    """

    scored: int | None = 64
    steps: int = None  # type: ignore[assignment]  # filled in below

    kind: ClassVar[str] = "denoising-reading"

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", self.targets if self.steps is None else self.steps)
        super().__post_init__()
        if self.steps > self.targets:
            raise InputError(f"steps is {self.steps}, but only {self.targets} tokens are scored")
