"""The numbers of "Attention Sinks in Diffusion Language Models" (arXiv 2510.15731), tables 1 and 2, to show beside ours.

Accuracy or pass@1 with the paper's ±, which is lm-eval's standard error with digits cut off. The paper does not state which
scores rank the sinks, whether they come from masked or unmasked attention, its prompts, or its seeds: our policies are
readings of its text, and agreement or not says as much about these choices as about the models.
"""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """A number of the paper's table."""

    value: float
    plus_minus: float


MODELS = {
    "Dream-7B": ("Dream-org/Dream-v0-Instruct-7B",),
    "LLaDA-8B": ("GSAI-ML/LLaDA-8B-Instruct",),
    "MMaDA-8B": ("Gen-Verse/MMaDA-8B-MixCoT",),
    "Llama-3.1-8B": ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B-Instruct"),
}
"""The paper's name → hub ids. It says "instruct versions"; the exact checkpoints are the families' official ones."""

POLICIES = (None, "top:1", "top:5", "top:10")
"""Rows of the table: unmasked, and the top 1, 5, 10 sinks of each head and layer."""

TABLE: dict[str, dict[str, tuple[tuple[float, float], ...]]] = {
    "gsm8k": {
        "Dream-7B": ((0.82, 0.01), (0.79, 0.01), (0.78, 0.01), (0.75, 0.01)),
        "LLaDA-8B": ((0.76, 0.01), (0.75, 0.01), (0.73, 0.01), (0.55, 0.01)),
        "MMaDA-8B": ((0.54, 0.01), (0.53, 0.01), (0.54, 0.01), (0.37, 0.01)),
        "Llama-3.1-8B": ((0.85, 0.01), (0.02, 0.00), (0.02, 0.00), (0.01, 0.03)),  # 0.03: so in the paper
    },
    "humaneval": {
        "Dream-7B": ((0.60, 0.03), (0.64, 0.03), (0.61, 0.03), (0.57, 0.03)),
        "LLaDA-8B": ((0.37, 0.03), (0.37, 0.03), (0.39, 0.03), (0.35, 0.03)),
        "MMaDA-8B": ((0.16, 0.02), (0.16, 0.03), (0.18, 0.03), (0.09, 0.02)),
        "Llama-3.1-8B": ((0.66, 0.04), (0.00, 0.00), (0.00, 0.00), (0.00, 0.00)),
    },
}

TOKENS: dict[str, tuple[tuple[str, float], ...]] = {
    "LLaDA-8B": (
        ("line break", 0.368), ("<|mdm_mask|>", 0.366), (".", 0.050), ("<|start_header_id|>", 0.008), ("white space", 0.008),
    ),
    "Dream-7B": (("<|mask|>", 0.321), ("line break", 0.090), (".", 0.046), (",", 0.044), ("<|endoftext|>", 0.040)),
    "MMaDA-8B": (
        ("line break", 0.180), ("<|mdm_mask|>", 0.166), ("<|end_header_id|>", 0.160), ("<|startoftext|>", 0.108),
        ("istant", 0.066),
    ),
}  # fmt: skip
"""Table 2: the five tokens that are sinks most often, with their share, in 30 generations of 128 tokens."""


def published_tokens(source: str) -> tuple[tuple[str, float], ...]:
    """Table 2 for a model, by its hub id; empty where the paper has none.

    >>> published_tokens("Dream-org/Dream-v0-Instruct-7B")[0]
    ('<|mask|>', 0.321)
    """
    name = next((name for name, ids in MODELS.items() if source in ids), "")
    return TOKENS.get(name, ())


def published(source: str, task: str, policy: str | None) -> Published | None:
    """The paper's number for a model (by its hub id), task and policy; None where it has none.

    >>> published("GSAI-ML/LLaDA-8B-Instruct", "gsm8k", "top:10")
    Published(value=0.55, plus_minus=0.01)
    """
    name = next((name for name, ids in MODELS.items() if source in ids), None)
    if name is None or task not in TABLE or policy not in POLICIES:
        return None
    return Published(*TABLE[task][name][POLICIES.index(policy)])
