"""The known checkpoints of each family, with the settings of their official evaluations, for `sinkscope models`.

Sources: the models' repositories and papers; scores are as published there, not measured by us.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """A released checkpoint and what its authors evaluated it with."""

    source: str
    family: str
    settings: str


@dataclass(frozen=True)
class FamilyNote:
    """A family in a sentence."""

    name: str
    model_types: str
    what: str


FAMILY_NOTES = (
    FamilyNote(
        "llada",
        "llada",
        "masked diffusion from scratch; blocks decoded left to right, low-confidence remasking",
    ),
    FamilyNote(
        "dream", "Dream", "masked diffusion adapted from Qwen2.5; shifted logits, any position may be decided"
    ),
    FamilyNote(
        "mmada", "mmada", "LLaDA continued with image tokens: text, image understanding, text to image"
    ),
    FamilyNote("causal", "any causal model of transformers", "next-token prediction with a KV cache"),
)

KNOWN = (
    Known(
        "GSAI-ML/LLaDA-8B-Instruct",
        "llada",
        "T=0, cfg 0, low_confidence. GSM8K 256 tokens, 256 steps, block 8 (78.6); HumanEval 512, 512, block 512, "
        "logits_eos_inf (49.4). The paper: block 32; GSM8K 256, HumanEval 512",
    ),
    Known(
        "GSAI-ML/LLaDA-8B-Base",
        "llada",
        "T=0. GSM8K 5-shot and HumanEval 0-shot, 1024 tokens, steps and block",
    ),
    Known(
        "GSAI-ML/LLaDA-1.5",
        "llada",
        "T=0, confidence_eos_eot_inf. GSM8K 256, block 16 (83.8); HumanEval 512, block 32 (52.4)",
    ),
    Known(
        "Dream-org/Dream-v0-Instruct-7B",
        "dream",
        "T=0.1, top_p 0.9, entropy, alg_temp 0. GSM8K 256 tokens and steps (81.0); HumanEval 768 (55.5)",
    ),
    Known(
        "Dream-org/Dream-v0-Base-7B",
        "dream",
        "entropy. GSM8K 8-shot 256, T=0 (77.2); HumanEval 512, T=0.2, top_p 0.95 (57.9)",
    ),
    Known("Gen-Verse/MMaDA-8B-MixCoT", "mmada", "T=0. GSM8K 5-shot, 256 tokens, 256 steps, block 64"),
    Known("Gen-Verse/MMaDA-8B-Base", "mmada", "demo: 128 tokens, steps and block, T=1"),
    Known("meta-llama/Llama-3.1-8B-Instruct", "causal", "greedy; the paper's reference model"),
)
