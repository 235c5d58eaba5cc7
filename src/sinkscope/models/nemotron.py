"""Nemotron-Labs-Diffusion: Ministral 3 trained as a causal and as a diffusion model at once; one checkpoint, two modes.

As a diffusion model (`nemotron`) the active block sees everything, and what stands before it was read causally; position j
predicts token j. As a causal model (`nemotron_causal`, the same weights) position j predicts token j + 1. `ss.load` gives the
diffusion model; `model.mode(causal=True)` is the causal one, and causal decodings take it by themselves.

Checked against the official code at float32 (tests/golden/nemotron_diffusion; of third-party copies of the hub's files). Where
the official forward looks both ways it ignores attention masks; ours hides padding. Positions count from column 0, padding
included.
"""

from __future__ import annotations

from dataclasses import replace

from sinkscope.models.backbone import BackboneFamily
from sinkscope.models.family import FAMILIES


class Nemotron(BackboneFamily):
    """The Nemotron-Labs-Diffusion family (nvidia/Nemotron-Labs-Diffusion-3B, -8B, -14B)."""

    def renamed(self, name: str) -> str:
        if name.startswith("lm_head."):
            return name.replace("lm_head", "diffusion_head")
        return name.replace("model.", "encoder.", 1)


FAMILY = FAMILIES.add(
    Nemotron(
        name="nemotron",
        about="block diffusion and causal in one checkpoint: blocks decoded in parallel behind a causal KV cache",
        label="block diffusion and autoregressive (as Nemotron-Labs-Diffusion)",
        model_types=("nemotron_labs_diffusion",),
        padding="apart",
        blocks=True,
        counts_padding=True,
        backbone="Ministral3",
        # "block_diff" is a training mode with another attention; "autoregressive" only changes which mode is the default.
        only={"dlm_paradigm": (None, "bidirectional", "autoregressive"), "sliding_window": (None,)},
        reads=("mlp_bias",),  # the official file has no biases, whatever config.json says
        ids={"mask": 100, "eos": 11},
        modes=("nemotron", "nemotron_causal"),
    )
)

CAUSAL = FAMILIES.add(
    replace(
        FAMILY,
        name="nemotron_causal",
        about="Nemotron-Labs-Diffusion as a causal model: the same weights, one token per step",
        label="autoregressive (mode of a block diffusion model)",
        padding="left",
        blocks=False,
        causal=True,
    )
)
