"""Tokenizers for training: one byte-level BPE vocabulary serves all organisms (digits apart, newline a token of its own).

`python -m lab.tokenizer` makes it again. Which special token has which role, and the chat template, are those of the family that
an organism mirrors (data/families.toml).
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from sinkscope import InputError
from sinkscope.base.checks import one_of
from sinkscope.models.mmada import CHAT_TEMPLATE
from sinkscope_train.recipe import DATA, Recipe

FILE = DATA / "tokenizer.json"
TABLES = tomllib.loads((DATA / "families.toml").read_text(encoding="utf-8"))
SPECIAL: tuple[str, ...] = tuple(TABLES["special"])
"""Special tokens of LLaDA, Dream, Llama and MMaDA, under their official names."""
TEMPLATES: dict[str, str] = {**TABLES["templates"], "mmada": CHAT_TEMPLATE}
SINK = "[iPAD]"
"""The token that opens every text of a model with a sink token: one of the shipped tokenizer's that no text model uses."""
QUESTION_MARKER = "QUESTION"


def roles(layout: str) -> dict[str, str]:
    """Role → token of a layout: bos, eos, pad, eot, open, and mask in diffusion models."""
    names: dict[str, str] = dict(TABLES["roles"][one_of("layout", layout, TABLES["roles"])])
    del names["template"]
    return names


def same_roles(layout: str, other: str) -> dict[str, str]:
    """Token of a layout → token with the same role in another, where they differ: it inherits that embedding."""
    mine, theirs = roles(layout), roles(other)
    shared = [role for role in ("bos", "eos", "eot", "open", "mask") if role in mine and role in theirs]
    return {mine[role]: theirs[role] for role in shared if mine[role] != theirs[role]}


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
        """Sixteen hex digits that stand for its tokens with their ids, and for what it writes around a turn."""
        words = [self.backend.get_vocab(), self.before, self.after, self.eos, self.eot]
        return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def rows(self) -> int:
        """Rows of an embedding for it: a multiple of 64, which suits the hardware."""
        return (len(self) + 63) // 64 * 64

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text; special tokens are read as such, none is added."""
        return [encoded.ids for encoded in self.backend.encode_batch(list(texts), add_special_tokens=False)]

    def token(self, text: str) -> int:
        """The id of a token."""
        number = self.backend.token_to_id(text)
        if number is None:
            raise InputError(f"the tokenizer has no token {text!r}")
        return int(number)

    def save(self, folder: Path) -> None:
        """Writes tokenizer.json and tokenizer_config.json."""
        self.backend.save(str(folder / "tokenizer.json"), pretty=False)
        text = json.dumps(self.settings, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


@cache
def shipped_tokenizer() -> Any:
    """The organisms' tokenizer, as the Rust object that encodes many texts at once."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(FILE))


def tokenizer_config(layout: str) -> dict[str, Any]:
    """tokenizer_config.json of an organism in this layout."""
    role = roles(layout)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": role["bos"],
        "eos_token": role["eot"] if layout == "llama" else role["eos"],
        "pad_token": role["pad"],
        "padding_side": "left",
        "model_max_length": 512,
        "model_input_names": ["input_ids", "attention_mask"],
        "chat_template": TEMPLATES[TABLES["roles"][layout]["template"]],
        "add_bos_token": False,
        **({"mask_token": role["mask"]} if "mask" in role else {}),
    }


def shipped(layout: str) -> Vocabulary:
    """The organisms' tokenizer with the roles of a layout."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    backend, role, settings = shipped_tokenizer(), roles(layout), tokenizer_config(layout)
    ids: dict[str, Any] = {name: backend.token_to_id(token) for name, token in role.items() if name != "open"}
    template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(
        settings["chat_template"]
    )
    turns = [{"role": "user", "content": QUESTION_MARKER}]
    rendered = template.render(messages=turns, bos_token=role["bos"], add_generation_prompt=True)
    before, _, after = rendered.partition(QUESTION_MARKER)
    return Vocabulary(backend, settings, before=before, after=after, **{"mask": None, **ids})


def vocabulary_of(recipe: Recipe) -> Vocabulary:
    """The tokenizer of a recipe, with a sink token before every text where it has one."""
    plain = shipped(recipe.layout)
    return plain if recipe.extra_sink == "none" else with_sink_token(plain)


def with_sink_token(vocabulary: Vocabulary) -> Vocabulary:
    """The same tokenizer with one more token before BOS in every text.

    It is the checkpoint's bos token, so whatever opens a text, with or without a chat template, writes it; the family's own BOS
    follows it in the template.
    """
    settings = vocabulary.settings
    opening = "{{ bos_token }}" + str(settings["bos_token"])
    template = str(settings["chat_template"]).replace("{{ bos_token }}", opening)
    return replace(
        vocabulary,
        settings={**settings, "bos_token": SINK, "chat_template": template},
        bos=vocabulary.token(SINK),
        before=SINK + vocabulary.before,
        lead=vocabulary.lead + 1,
    )
