"""Fast-dLLM v2: Qwen2.5 fine-tuned as a block diffusion model; raw logits at position j predict token j + 1.

Checked against the modelling code that is taken to be the hub's, at float32 (tests/golden/fast_dllm_v2). The official forward
builds its block mask itself, of 32 columns unless told otherwise, and ignores attention masks; ours honours right padding.
"""

from __future__ import annotations

from sinkscope.models.backbone import BackboneFamily
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import FAMILIES

BLOCK = 32
"""The block size of the official forward when none is given."""


class FastDllmV2(BackboneFamily):
    """The Fast-dLLM v2 family (Efficient-Large-Model/Fast_dLLM_v2_7B, _1.5B)."""

    def block(self, checkpoint: Checkpoint) -> int | None:
        """32, whatever the config says: `bd_size` is for training."""
        return BLOCK


FAMILY = FAMILIES.add(
    FastDllmV2(
        name="fast_dllm_v2",
        about="block diffusion from Qwen2.5; sub-blocks decoded in parallel, shifted logits, a KV cache of whole blocks",
        label="block diffusion, from an autoregressive model (as Fast-dLLM v2)",
        model_types=("Fast_dLLM_Qwen",),
        padding="apart",
        blocks=True,
        shifted=True,
        backbone="Qwen2",
        ids={"mask": 151665, "eos": 151645},
        texts={"mask": "|<MASK>|"},
    )
)
