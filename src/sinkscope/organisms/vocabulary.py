"""Tokenizers for training: the organisms' own, and that of a causal checkpoint that is adapted.

One byte-level BPE vocabulary serves all organisms (digits apart, newline a token of its own; `python -m lab.tokenizer` makes it
again). Which special token has which role, and the chat template, are those of the family that an organism mirrors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from sinkscope.checks import known
from sinkscope.errors import InputError
from sinkscope.models.mmada import CHAT_TEMPLATE as MMADA_TEMPLATE

FILE = Path(__file__).parent / "data" / "tokenizer.json"
SPECIAL = (
    "<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<|beginoftext|>", "<|mask|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|end_of_text|>",
    "<|finetune_right_pad_id|>", "<|soi|>", "<|eoi|>", "<|t2i|>", "<|mmu|>", "[iPAD]",
)  # fmt: skip
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
SINK = "[iPAD]"
"""The token that opens every text of a model with a sink token: one of the shipped tokenizer's that no text model uses."""
QUESTION_MARKER = "QUESTION"
ADDED_MASK = "<|mask|>"
"""Added to tokenizers that have no mask token."""


@dataclass(frozen=True)
class Roles:
    """The tokens that have a role in a family's layout, and its chat template.

    Attributes:
        eos: fills an answer up to its length in diffusion models; ends a text everywhere.
        eot: ends a turn.
        mask: None for causal models.
        open: opens a turn.
    """

    bos: str
    eos: str
    pad: str
    eot: str
    mask: str | None
    open: str
    template: str

    def same_role(self, other: Roles) -> dict[str, str]:
        """Token of this family → token with the same role in the other, where they differ: it inherits that embedding."""
        pairs = {getattr(self, role): getattr(other, role) for role in ("bos", "eos", "eot", "open", "mask")}
        return {mine: theirs for mine, theirs in pairs.items() if mine and theirs and mine != theirs}


_HEADERS = ("<|eot_id|>", "<|mdm_mask|>", "<|start_header_id|>")
ROLES = {
    "llama": Roles(
        "<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>", "<|eot_id|>", None, "<|start_header_id|>",
        HEADER_TEMPLATE,
    ),
    "llada": Roles("<|startoftext|>", "<|endoftext|>", "<|endoftext|>", *_HEADERS, HEADER_TEMPLATE),
    "mmada": Roles("<|startoftext|>", "<|endoftext|>", "<|endoftext|>", *_HEADERS, MMADA_TEMPLATE),
    "dream": Roles(
        "<|beginoftext|>", "<|endoftext|>", "<|endoftext|>", "<|im_end|>", "<|mask|>", "<|im_start|>", CHATML_TEMPLATE
    ),
}  # fmt: skip
ROLES["sdar"] = ROLES["dream"]
"""Layout → roles."""


def roles(layout: str) -> Roles:
    """The roles of a layout."""
    return ROLES[known("layout", layout, ROLES)]


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer, its special ids, and the text around a turn.

    Attributes:
        backend: the Rust tokenizer, for encoding.
        settings: tokenizer_config.json.
        before, after: text around the question of one user turn, up to where the answer begins.
        lead: tokens at the start of every row that are never targets: BOS, and a sink token before it.
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
    lead: int = 1

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
        return [encoded.ids for encoded in self.backend.encode_batch(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        inside = [number for number in ids if 0 <= number < len(self)]
        return str(self.backend.decode(inside, skip_special_tokens=True))

    def token(self, text: str) -> int:
        """The id of a token."""
        number = self.backend.token_to_id(text)
        if number is None:
            raise InputError(f"the tokenizer has no token {text!r}")
        return int(number)

    def prompt(self, question: str) -> str:
        """A question as the chat template writes it, up to where the answer begins."""
        return self.before + question.strip() + self.after

    def save(self, folder: Path) -> None:
        """Writes tokenizer.json and tokenizer_config.json."""
        self.backend.save(str(folder / "tokenizer.json"), pretty=False)
        text = json.dumps(self.settings, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


@cache
def shipped_tokenizer() -> Any:
    """The organisms' tokenizer, as the Rust object that encodes many texts at once."""
    from tokenizers import Tokenizer

    if not FILE.exists():
        raise InputError(f"there is no {FILE.name} in the package; make it with `python -m lab.tokenizer`")
    return Tokenizer.from_file(str(FILE))


def tokenizer_config(layout: str) -> dict[str, Any]:
    """tokenizer_config.json of an organism in this layout."""
    role = roles(layout)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": role.bos,
        "eos_token": role.eos if layout != "llama" else role.eot,
        "pad_token": role.pad,
        "padding_side": "left",
        "model_max_length": 512,
        "model_input_names": ["input_ids", "attention_mask"],
        "chat_template": role.template,
        "add_bos_token": False,
        **({} if role.mask is None else {"mask_token": role.mask}),
    }


def shipped(layout: str) -> Vocabulary:
    """The organisms' tokenizer with the roles of a layout."""
    backend, role = shipped_tokenizer(), roles(layout)
    bos, eos, pad, eot = (int(backend.token_to_id(text)) for text in (role.bos, role.eos, role.pad, role.eot))
    mask = None if role.mask is None else int(backend.token_to_id(role.mask))
    return Vocabulary(
        backend, tokenizer_config(layout), bos, eos, pad, eot, mask, *_around(role.template, role.bos)
    )


def with_sink_token(vocabulary: Vocabulary) -> Vocabulary:
    """The same tokenizer with one more token before BOS in every text.

    It is the checkpoint's bos token, so whatever opens a text, with or without a chat template, writes it; the family's own BOS
    follows it in the template.
    """
    settings = dict(vocabulary.settings)
    own = str(settings["bos_token"])
    template = str(settings["chat_template"])
    settings |= {
        "bos_token": SINK,
        "chat_template": template.replace("{{ bos_token }}", "{{ bos_token }}" + own),
    }
    return replace(
        vocabulary,
        settings=settings,
        bos=vocabulary.token(SINK),
        before=SINK + vocabulary.before,
        lead=vocabulary.lead + 1,
    )


def foreign(model: Any) -> Vocabulary:
    """The tokenizer of a loaded causal model, with a mask token added when it has none."""
    tokenizer = model.tokenizer
    if tokenizer is None or tokenizer.chat_template is None:
        raise InputError(
            f"{model.source} has no tokenizer with a chat template; training starts from such checkpoints"
        )
    backend = tokenizer.backend_tokenizer
    bos, eos = model.ids.bos, (model.ids.eos or (None,))[0]
    eot = model.ids.eot if model.ids.eot is not None else tokenizer.convert_tokens_to_ids("<|im_end|>")
    if eos is None:
        raise InputError(f"{model.source} names no end token, which answers are filled with")
    bos = eos if bos is None else bos
    eot = eos if not isinstance(eot, int) or eot == tokenizer.unk_token_id else eot
    mask_token = tokenizer.mask_token or ADDED_MASK
    if backend.token_to_id(mask_token) is None:
        from tokenizers import AddedToken

        backend.add_special_tokens([AddedToken(mask_token, special=True, normalized=False)])
    bos_text = backend.id_to_token(bos)
    before, after = _around(_template(tokenizer, backend), bos_text)
    if not before.startswith(bos_text):
        before = bos_text + before
    turn = (
        f"{{{{ {json.dumps(before)} }}}}{{{{ messages[-1]['content'] | trim }}}}{{{{ {json.dumps(after)} }}}}"
    )
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos_text,
        "eos_token": backend.id_to_token(eos),
        "pad_token": backend.id_to_token(eos),
        "mask_token": mask_token,
        "padding_side": "left",
        "chat_template": turn,
    }
    mask = int(backend.token_to_id(mask_token))
    return Vocabulary(backend, settings, bos, eos, eos, eot, mask, before, after)


def _template(tokenizer: Any, backend: Any) -> str:
    """ChatML or header turns where the tokenizer has their tokens: its own template may add a long default system text."""
    for template, tokens in (
        (CHATML_TEMPLATE, ("<|im_start|>", "<|im_end|>")),
        (HEADER_TEMPLATE, ("<|start_header_id|>", "<|eot_id|>")),
    ):
        if all(backend.token_to_id(token) is not None for token in tokens):
            return template
    return str(tokenizer.chat_template)


def _around(template: str, bos: str) -> tuple[str, str]:
    """The text that a chat template writes before and after the question of a single user turn."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    rendered = environment.from_string(template).render(
        messages=[{"role": "user", "content": QUESTION_MARKER}],
        bos_token=bos,
        eos_token="",
        add_generation_prompt=True,
    )
    before, question, after = rendered.partition(QUESTION_MARKER)
    if not question:
        raise InputError("the chat template does not show the user's text; training needs one that does")
    return before, after
