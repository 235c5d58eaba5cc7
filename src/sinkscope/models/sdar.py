"""SDAR: Qwen3 continued as a block diffusion model; position j predicts token j, and attention stands in blocks.

Checked against the official modelling code at float32 (tests/golden/sdar), and its mixture of experts against a third-party copy
of the official file (tests/golden/sdar_moe). The official norm, a kernel of flash-attn, multiplies by its weight before it
casts back; transformers' casts first, which in bf16 may differ in the last bit.
"""

from __future__ import annotations

from typing import Any

from sinkscope.models.backbone import ROUTING, BackboneFamily, routing
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import FAMILIES

BLOCK = 4
"""The block size of the official models, for checkpoints whose files do not say."""


class Sdar(BackboneFamily):
    """The SDAR family (JetLM/SDAR-1.7B-Chat, -4B-Chat, -8B-Chat, -30B-A3B-Chat; Gen-Verse/TraDo)."""

    def backbone_of(self, checkpoint: Checkpoint) -> str:
        return "Qwen3Moe" if checkpoint.model_type == "sdar_moe" else "Qwen3"

    def settings(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Sizes and routing of the experts, where there are any."""
        return routing(checkpoint) if checkpoint.model_type == "sdar_moe" else {}

    def block(self, checkpoint: Checkpoint) -> int | None:
        """The block size that config.json names; the official forward demands a mask."""
        return checkpoint.size("block_size", BLOCK)


FAMILY = FAMILIES.add(
    Sdar(
        name="sdar",
        about="block diffusion from Qwen3; small blocks decoded left to right behind a KV cache",
        label="block diffusion, from an autoregressive model (as SDAR)",
        model_types=("sdar", "sdar_moe"),
        padding="apart",
        blocks=True,
        reads=ROUTING,
        ids={"mask": 151669, "eos": 151643},
        texts={"mask": "<MASK>"},
        orders={"eos": "gctop"},  # as in the official script
    )
)
