"""Open-dCoder: Qwen2.5-Coder trained as a masked diffusion model; raw logits at position j predict token j + 1.

Its config.json is that of a plain Qwen2 model: nothing in it says that attention looks both ways. A Qwen2 checkpoint is taken
for one when its config names a mask token (no causal model has one), when its name holds "open-dcoder", or when the caller says
so: `ss.load(…, family="open_dcoder")`. Checked against the official code at float32 (tests/golden/open_dcoder).
"""

from __future__ import annotations

from sinkscope.models.backbone import BackboneFamily
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import FAMILIES


class OpenDcoder(BackboneFamily):
    """The Open-dCoder family (fredzzp/open-dcoder-0.5B)."""

    def claims(self, checkpoint: Checkpoint) -> bool:
        """A Qwen2 model that names a mask token, or is called open-dcoder."""
        if not super().claims(checkpoint):
            return False
        config, generation = checkpoint.config, checkpoint.generation_config
        masks = any(found.get("mask_token_id") is not None for found in (config, generation))
        called = "opendcoder" in checkpoint.source.lower().replace("-", "").replace("_", "")
        return masks or called


FAMILY = FAMILIES.add(
    OpenDcoder(
        name="open_dcoder",
        about="masked diffusion from Qwen2.5-Coder; Dream's schedule, with remasking (p2)",
        label="masked diffusion, from an autoregressive model (as Open-dCoder)",
        model_types=("qwen2",),
        shifted=True,
        backbone="Qwen2",
        texts={"mask": "[MASK]"},
    )
)
