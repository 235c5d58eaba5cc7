"""One tokenizer for all organisms: byte-level BPE, digits apart, newline a token of its own.

The vocabulary is the same for every organism; which special tokens have which role, and the chat template, are those of the
family that it mirrors. `python -m lab.tokenizer` makes `tokenizer.json` again from the generators alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError, nearest
from sinkscope.models.mmada import CHAT_TEMPLATE as MMADA_TEMPLATE

FILE = Path(__file__).parent / "data" / "tokenizer.json"
SPECIAL = (
    "<|startoftext|>",
    "<|endoftext|>",
    "<|mdm_mask|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|beginoftext|>",
    "<|mask|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|finetune_right_pad_id|>",
    "<|soi|>",
    "<|eoi|>",
    "<|t2i|>",
    "<|mmu|>",
    "[iPAD]",
)
"""Special tokens of LLaDA, Dream, Llama and MMaDA, under their official names."""

HEADER_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first %}{{ bos_token }}{% endif %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)
"""LLaDA's template, and Llama's without its default system text."""

CHATML_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)
"""Dream's turns. Unlike the official template it opens with BOS, as every organism does, and has no default system text,
which would take a sixth of a 64-token prompt."""


@dataclass(frozen=True)
class Roles:
    """Which token has which role in a family's layout.

    Attributes:
        eos: fills an answer up to its length in diffusion models; ends a text everywhere.
        eot: ends a turn.
        mask: None for causal models.
        open, close: the tokens around a role name (ChatML has no second one); a model that starts from one of another family
            inherits their embeddings.
    """

    bos: str
    eos: str
    pad: str
    eot: str
    mask: str | None
    open: str
    close: str | None
    template: str

    def same_role(self, other: Roles) -> dict[str, str]:
        """Token of this family → token with the same role in the other, where they differ."""
        pairs = {"bos": "", "eos": "", "eot": "", "open": "", "mask": ""}
        found = {getattr(self, role): getattr(other, role) for role in pairs}
        return {mine: theirs for mine, theirs in found.items() if mine and theirs and mine != theirs}


ROLES = {
    "llama": Roles(
        bos="<|begin_of_text|>",
        eos="<|end_of_text|>",
        pad="<|finetune_right_pad_id|>",
        eot="<|eot_id|>",
        mask=None,
        open="<|start_header_id|>",
        close="<|end_header_id|>",
        template=HEADER_TEMPLATE,
    ),
    "llada": Roles(
        bos="<|startoftext|>",
        eos="<|endoftext|>",
        pad="<|endoftext|>",
        eot="<|eot_id|>",
        mask="<|mdm_mask|>",
        open="<|start_header_id|>",
        close="<|end_header_id|>",
        template=HEADER_TEMPLATE,
    ),
    "dream": Roles(
        bos="<|beginoftext|>",
        eos="<|endoftext|>",
        pad="<|endoftext|>",
        eot="<|im_end|>",
        mask="<|mask|>",
        open="<|im_start|>",
        close=None,
        template=CHATML_TEMPLATE,
    ),
    "mmada": Roles(
        bos="<|startoftext|>",
        eos="<|endoftext|>",
        pad="<|endoftext|>",
        eot="<|eot_id|>",
        mask="<|mdm_mask|>",
        open="<|start_header_id|>",
        close="<|end_header_id|>",
        template=MMADA_TEMPLATE,
    ),
}
"""Layout → roles."""


def roles(layout: str) -> Roles:
    """The roles of a layout, or an error that names the layouts."""
    if layout not in ROLES:
        raise InputError(f"unknown layout {layout!r}: {nearest(layout, ROLES)}")
    return ROLES[layout]


def tokenizer_config(layout: str) -> dict[str, Any]:
    """tokenizer_config.json of an organism in this layout."""
    role = roles(layout)
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": role.bos,
        "eos_token": role.eos if layout != "llama" else role.eot,
        "pad_token": role.pad,
        "padding_side": "left",
        "model_max_length": 512,
        "model_input_names": ["input_ids", "attention_mask"],
        "chat_template": role.template,
        "add_bos_token": False,
    }
    if role.mask is not None:
        settings["mask_token"] = role.mask
    return settings


@cache
def shipped() -> Any:
    """The shipped tokenizer, as the Rust object that encodes many texts at once."""
    from tokenizers import Tokenizer

    if not FILE.exists():
        raise InputError(f"there is no {FILE.name} in the package; make it with `python -m lab.tokenizer`")
    return Tokenizer.from_file(str(FILE))
