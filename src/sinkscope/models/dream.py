"""Dream: a Qwen2 block with bidirectional attention; its raw logits at position j predict token j + 1.

Checked against the official modelling code at float32 (tests/golden/dream). The forward returns the raw logits; the shift
belongs to the generation loop (`decoding/dream.py`), as in the official code.
"""

from __future__ import annotations

from sinkscope.models.backbone import BackboneFamily
from sinkscope.models.family import FAMILIES

FAMILY = FAMILIES.add(
    BackboneFamily(
        name="dream",
        about="masked diffusion adapted from Qwen2.5; shifted logits, any position may be decided",
        label="masked diffusion, from an autoregressive model (as Dream)",
        model_types=("Dream",),
        shifted=True,
        backbone="Qwen2",
        ids={"mask": 151666, "eos": 151643, "bos": 151665},
        orders={"mask": "cto", "eos": "cto", "bos": "toc", "pad": "cte"},  # config.json says least of bos
    )
)
