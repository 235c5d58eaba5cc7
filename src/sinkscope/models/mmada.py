"""MMaDA: LLaDA's network with image tokens added to the vocabulary.

Checked against the official modelling code at float32 (tests/golden/mmada). Masks act on queries and keys alike, and a
padded query attends to everything uniformly; the official file's 2-D mask, which turns the model causal, is not imitated.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import FAMILIES, first_id
from sinkscope.models.llada import FAMILY as LLADA

TEXT_TOKENS = 126349
"""len() of the official text tokenizer: image code c has the id TEXT_TOKENS + c."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first %}{{ bos_token }}{% endif %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n' + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n' }}"
)
"""LLaDA's turns with a single newline after the header, as MMaDA's generate.py writes them."""


def image_offset(checkpoint: Checkpoint, tokenizer: Any) -> int:
    """Id of image code 0: behind the text tokenizer's last id."""
    if tokenizer is not None:
        return len(tokenizer)
    vocabulary = int(first_id(checkpoint.config.get("vocab_size")) or 0)
    return TEXT_TOKENS if vocabulary > TEXT_TOKENS else vocabulary - codebook_size(checkpoint)


def codebook_size(checkpoint: Checkpoint) -> int:
    """How many image codes there are."""
    return int(checkpoint.setting("codebook_size"))


FAMILY = FAMILIES.add(
    replace(
        LLADA,
        name="mmada",
        about="LLaDA continued with image tokens: text, image understanding, text to image",
        label="multimodal masked diffusion (as MMaDA)",
        model_types=("mmada",),
        padded="uniform",
        chat_template=CHAT_TEMPLATE,
    )
)
