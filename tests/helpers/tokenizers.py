"""A small byte-level tokenizer to put beside a copy of a golden checkpoint: every byte is a token, id = byte.

Special tokens have the ids of the golden checkpoints, so that text prompts, chat templates and special ids all work.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.helpers import golden

HEADERS = (
    "{% for message in messages %}{% if loop.first %}{{ bos_token }}{% endif %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)
CHATML = (
    "{% if messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

SPECIAL: dict[str, dict[str, int]] = {
    "llada": {
        "<|startoftext|>": 479, "<|endoftext|>": 480, "<|start_header_id|>": 502, "<|end_header_id|>": 503,
        "<|mdm_mask|>": 504, "<|eot_id|>": 506,
    },
    "dream": {
        "<|endoftext|>": 478,
        "<|im_start|>": 479,
        "<|im_end|>": 480,
        "<|beginoftext|>": 500,
        "<|mask|>": 501,
    },
    "llama": {
        "<|begin_of_text|>": 480, "<|end_of_text|>": 481, "<|start_header_id|>": 482, "<|end_header_id|>": 483,
        "<|pad|>": 484, "<|eot_id|>": 485,
    },
}  # fmt: skip
SPECIAL["mmada"] = SPECIAL["llada"]

ROLES: dict[str, dict[str, str]] = {
    "llada": {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"},
    "dream": {
        "bos_token": "<|beginoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "mask_token": "<|mask|>",
    },
    "llama": {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>", "pad_token": "<|pad|>"},
}  # fmt: skip
ROLES["mmada"] = ROLES["llada"]

TEMPLATES = {"llada": HEADERS, "mmada": HEADERS, "dream": CHATML, "llama": HEADERS}
SIZES = {"llada": 507, "mmada": 507, "dream": 502, "llama": 486}
"""len(tokenizer); MMaDA's image tokens begin right behind it."""


def write_byte_tokenizer(folder: Path, family: str) -> None:
    """Writes tokenizer.json and tokenizer_config.json for a golden family into a folder."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {letter: number for number, letter in enumerate(_byte_letters())}
    special = SPECIAL[family]
    by_id = {number: text for text, number in special.items()}
    for number in range(256, SIZES[family]):
        vocabulary[by_id.get(number, f"<|unused_{number}|>")] = number
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    backend.save(str(folder / "tokenizer.json"))
    settings = {
        **ROLES[family],
        "chat_template": TEMPLATES[family],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 256,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def golden_with_tokenizer(family: str, folder: Path) -> Path:
    """A copy of a golden checkpoint in `folder` (which must not exist), with a byte-level tokenizer beside it."""
    shutil.copytree(golden.checkpoint(family), folder)
    write_byte_tokenizer(folder, family)
    return folder


def _byte_letters() -> list[str]:
    """The letter that stands for each byte in byte-level vocabularies (the GPT-2 table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
