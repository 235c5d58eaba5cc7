"""A tokenizer as training needs it: many texts at once, the pieces around a turn, the special ids.

Our own tokenizer and a foreign one (for adapting an existing causal checkpoint) are used alike: the pieces come from the
chat template itself, rendered around a marker.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sinkscope.errors import InputError
from sinkscope.organisms import tokenizer as own

MARKER = "QUESTION"
FOREIGN_MASK = "<|mask|>"
"""Added to tokenizers that have no mask token."""


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer and what training must know of it.

    Attributes:
        backend: the Rust tokenizer, for encoding.
        settings: tokenizer_config.json.
        before, after: text around the question of one user turn, up to where the answer begins.
    """

    backend: Any
    settings: dict[str, Any]
    bos: int
    eos: int
    pad: int
    eot: int
    mask: int | None
    before: str
    after: str

    def __len__(self) -> int:
        return int(self.backend.get_vocab_size())

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits that stand for its tokens and their ids; special roles and templates do not count."""
        words = json.dumps(self.backend.get_vocab(), sort_keys=True)
        return hashlib.sha256(words.encode()).hexdigest()[:16]

    @cached_property
    def rows(self) -> int:
        """Rows of an embedding for it: a multiple of 64, which suits the hardware."""
        return (len(self) + 63) // 64 * 64

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text; special tokens are read as such, none is added."""
        return [found.ids for found in self.backend.encode_batch(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        known = len(self)
        return str(self.backend.decode([one for one in ids if 0 <= one < known], skip_special_tokens=True))

    def token(self, text: str) -> int:
        """The id of one token."""
        found = self.backend.token_to_id(text)
        if found is None:
            raise InputError(f"the tokenizer has no token {text!r}")
        return int(found)

    def prompt(self, question: str) -> str:
        """A question as the chat template writes it, up to where the answer begins."""
        return self.before + question.strip() + self.after

    def save(self, folder: Path) -> None:
        """tokenizer.json and tokenizer_config.json."""
        self.backend.save(str(folder / "tokenizer.json"), pretty=False)
        text = json.dumps(self.settings, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def shipped(layout: str) -> Vocabulary:
    """The organisms' tokenizer with the roles of a layout."""
    backend, role, settings = own.shipped(), own.roles(layout), own.tokenizer_config(layout)

    def number(token: str) -> int:
        return int(backend.token_to_id(token))

    before, after = _around(role.template, role.bos)
    mask = None if role.mask is None else number(role.mask)
    return Vocabulary(
        backend,
        settings,
        number(role.bos),
        number(role.eos),
        number(role.pad),
        number(role.eot),
        mask,
        before,
        after,
    )


def foreign(model: Any) -> Vocabulary:
    """The tokenizer of a loaded causal model, with a mask token added when it has none."""
    found = model.tokenizer
    if found is None or found.chat_template is None:
        raise InputError(
            f"{model.source} has no tokenizer with a chat template; training starts from such checkpoints"
        )
    backend = found.backend_tokenizer
    bos, eos = model.ids.bos, (model.ids.eos or (None,))[0]
    eot = model.ids.eot if model.ids.eot is not None else found.convert_tokens_to_ids("<|im_end|>")
    if eos is None:
        raise InputError(f"{model.source} names no end token, which answers are filled with")
    bos = eos if bos is None else bos
    eot = eos if not isinstance(eot, int) or eot == found.unk_token_id else eot
    mask_token = found.mask_token or FOREIGN_MASK
    if backend.token_to_id(mask_token) is None:
        from tokenizers import AddedToken

        backend.add_special_tokens([AddedToken(mask_token, special=True, normalized=False)])
    bos_text = backend.id_to_token(bos)
    before, after = _around(_template(found, backend), bos_text)
    if not before.startswith(bos_text):
        before = bos_text + before
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos_text,
        "eos_token": backend.id_to_token(eos),
        "pad_token": backend.id_to_token(eos),
        "mask_token": mask_token,
        "padding_side": "left",
        "chat_template": "{{ "
        + json.dumps(before)
        + " }}{{ messages[-1]['content'] | trim }}{{ "
        + json.dumps(after)
        + " }}",
    }
    return Vocabulary(
        backend, settings, bos, eos, eos, eot, int(backend.token_to_id(mask_token)), before, after
    )


def _template(found: Any, backend: Any) -> str:
    """ChatML or header turns where the tokenizer has their tokens: its own template may add a long default system text."""
    if backend.token_to_id("<|im_start|>") is not None and backend.token_to_id("<|im_end|>") is not None:
        return own.CHATML_TEMPLATE
    if (
        backend.token_to_id("<|start_header_id|>") is not None
        and backend.token_to_id("<|eot_id|>") is not None
    ):
        return own.HEADER_TEMPLATE
    return str(found.chat_template)


def _around(template: str, bos: str) -> tuple[str, str]:
    """What a chat template writes before and after the question of a single user turn."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    rendered = environment.from_string(template).render(
        messages=[{"role": "user", "content": MARKER}],
        bos_token=bos,
        eos_token="",
        add_generation_prompt=True,
    )
    before, found, after = rendered.partition(MARKER)
    if not found:
        raise InputError("the chat template does not show the user's text; training needs one that does")
    return before, after
