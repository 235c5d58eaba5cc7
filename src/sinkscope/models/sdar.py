"""SDAR: Qwen3 continued as a block diffusion model; position j predicts token j, and attention stands in blocks.

Checked against the official modelling code at float32 (tests/golden/sdar). The official norm, a kernel of flash-attn, multiplies
by its weight before it casts back; transformers' casts first, which in bf16 may differ in the last bit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sinkscope.models.backbone import BackboneFamily
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import FAMILIES, Known, SpecialIds, all_ids

BLOCK = 4
"""The block size of the official models, for checkpoints whose files do not say."""

EVALUATION = (
    "published scores: scoring raw, T=1, top_k 1, block 4, 4 steps, threshold 1 (static) or 0.95 (dynamic)"
)


class Sdar(BackboneFamily):
    """The SDAR family (JetLM/SDAR-1.7B-Chat, -4B-Chat, -8B-Chat)."""

    def block(self, checkpoint: Checkpoint) -> int | None:
        """The block size that config.json names; the official forward demands a mask."""
        return checkpoint.size("block_size", BLOCK)

    def special_ids(self, checkpoint: Checkpoint, tokenizer: Any) -> SpecialIds:
        """Ids from the checkpoint's files; the end ids are those of generation_config.json, as in the official script."""
        ids = super().special_ids(checkpoint, tokenizer)
        return replace(ids, eos=all_ids(checkpoint.generation_config.get("eos_token_id"), ids.eos))


FAMILY = FAMILIES.add(
    Sdar(
        name="sdar",
        about="block diffusion from Qwen3; small blocks decoded left to right behind a KV cache",
        known=(
            Known("JetLM/SDAR-1.7B-Chat", EVALUATION, (28, 16, 2_000_000_000)),
            Known("JetLM/SDAR-4B-Chat", EVALUATION, (36, 32, 4_400_000_000)),
            Known(
                "JetLM/SDAR-8B-Chat",
                f"{EVALUATION}; its causal twin is Qwen/Qwen3-8B",
                (36, 32, 8_200_000_000),
            ),
        ),
        model_types=("sdar",),
        padding="apart",
        blocks=True,
        backbone="Qwen3",
        mask_id=151669,
        eos_id=151643,
        mask_text="<MASK>",
    )
)
