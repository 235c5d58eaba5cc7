"""RND1: Qwen3-30B-A3B converted to masked diffusion; raw logits at position j predict token j + 1.

Checked against the official modelling code at float32 (tests/golden/rnd1). The official config class overwrites every size by
those of the 30B model; ours are those of config.json.
"""

from __future__ import annotations

from typing import Any

from sinkscope.models.backbone import ROUTING, BackboneFamily, routing
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import FAMILIES


class Rnd1(BackboneFamily):
    """The RND1 family (radicalnumerics/RND1-Base-0910)."""

    def settings(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Sizes and routing of the experts, whose weights the released model normalises."""
        return routing(checkpoint, normalised=True)


FAMILY = FAMILIES.add(
    Rnd1(
        name="rnd1",
        about="masked diffusion from Qwen3-30B-A3B, a mixture of experts; the least certain positions stay masked",
        label="masked diffusion, mixture of experts, from an autoregressive model (as RND1)",
        model_types=("rnd1",),
        shifted=True,
        backbone="Qwen3Moe",
        reads=ROUTING,
        ids={"mask": 151669, "eos": 151645},
    )
)
