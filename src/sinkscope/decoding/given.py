"""A text that is given is read in one forward and not gone on with, so that its attention can be recorded.

ids = model.tokenizer("The capital of France is").input_ids
ss.generate(model, [ids], ss.GivenText(), capture=True).trace
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from sinkscope.base.checks import whole
from sinkscope.decoding.base import DECODINGS, Decoding, default_decoding
from sinkscope.decoding.causal import next_logits
from sinkscope.decoding.step import Request, Step, Twin
from sinkscope.models.family import FAMILIES

if TYPE_CHECKING:
    from sinkscope.decoding.engine import Engine
    from sinkscope.decoding.streams import Streams
    from sinkscope.models.model import Model


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

    @classmethod
    def fits(cls, family: str) -> bool:
        """All families whose attention does not stand in blocks."""
        return family in FAMILIES and not FAMILIES[family].blocks

    @property
    def max_steps(self) -> int:
        """One."""
        return 1

    def begin(
        self, engine: Engine, ids: Tensor, streams: Streams | None, per_row: bool, twin: Twin | None = None
    ) -> tuple[Tensor, Iterator[Step]]:
        """The text, and its one step."""
        return ids, self._read(engine, ids)

    def _read(self, engine: Engine, ids: Tensor) -> Iterator[Step]:
        self.forward(engine, ids)
        nothing = torch.zeros_like(ids, dtype=torch.bool)
        ties = torch.zeros(len(ids), dtype=torch.long, device=ids.device)
        unsure = torch.full(ids.shape, float("nan"), device=ids.device)
        empty, alive = torch.full_like(ids, -1), torch.ones_like(ties, dtype=torch.bool)
        yield Step(ids, ids, nothing, unsure, empty, nothing, ties, alive)

    def forward(self, engine: Engine, ids: Tensor) -> None:
        """The one forward of Long [B, S]."""
        if engine.model.spec.causal:
            next_logits(engine, ids, ids.shape[1], 0, engine.model.new_cache())
        else:
            engine.forward(Request(ids))


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

    def __post_init__(self) -> None:
        whole("block", self.block, 1)

    @classmethod
    def fits(cls, family: str) -> bool:
        """All families whose attention stands in blocks."""
        return family in FAMILIES and FAMILIES[family].blocks

    def forward(self, engine: Engine, ids: Tensor) -> None:
        """The one forward of Long [B, S]."""
        active = (ids.shape[1] - 1) % self.block + 1
        engine.forward(Request(ids, queries=slice(0, ids.shape[1]), active=active, block=self.block))


def given_text(model: Model) -> Decoding:
    """What reads a given text with a model."""
    if not model.spec.blocks:
        return GivenText()
    return GivenBlocks(int(getattr(default_decoding(model.family), "block", 32)))
