"""Kinds of tokens: mask, newline, other whitespace, punctuation, role or control, end of text, digit, word.

Works on token texts as vocabularies spell them: byte-level BPE (GPT-2, Llama 3, Qwen, LLaDA, Dream: `Ġ` is a space, `Ċ` a
newline) and SentencePiece (`▁`, `<0x0A>`). Special ids come from the trace; without any texts only those are known and the
rest is "unknown".
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import xarray as xr

from sinkscope.base.checks import one_of
from sinkscope.base.errors import InputError
from sinkscope.sinks.dataset import PADDING, Array, SampleState, special_ids

CATEGORIES = ("mask", "newline", "whitespace", "punctuation", "control", "end", "digit", "word", "unknown")
"""newline: a line break and no letter or digit; punctuation: symbols too; control: roles, headers, begin of text, padding;
end: end of text; digit: digits and no letter."""

_MASKS = re.compile(r"^(<\|?(mdm_)?mask(_token)?\|?>|\[mask\])$", re.IGNORECASE)
_ENDS = re.compile(r"^(<\|?(end_?of_?text|eos|end_of_sentence)\|?>|</s>|\[eos\])$", re.IGNORECASE)
_CONTROL = re.compile(
    r"^(<\|.*\|>|<\uff5c.*\uff5c>|</?(s|pad|unk|bos|cls|sep|system|user|assistant|think)>|\[(pad|unk|cls|sep|bos|ipad)\])$",
    re.IGNORECASE,
)
_NAMELESS = re.compile(r"^⟨\d+⟩$")
_BYTE = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")
_HEADER_OPENS = ("<|start_header_id|>", "<|im_start|>")
_HEADER_CLOSES = ("<|end_header_id|>",)


@lru_cache(maxsize=1)
def _byte_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level BPE vocabulary stands for (GPT-2's printable alphabet)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(rest)}


def readable(token: str) -> str:
    """The text behind a vocabulary entry: `Ġthe` → ` the`, `ĊĊ` → two newlines, `▁the` → ` the`, `<0x0A>` → newline."""
    byte = _BYTE.match(token)
    if byte:
        return bytes([int(byte.group(1), 16)]).decode("utf-8", errors="replace")
    if "▁" in token:
        return token.replace("▁", " ")
    alphabet = _byte_alphabet()
    if token and all(c in alphabet for c in token):
        return bytes(alphabet[c] for c in token).decode("utf-8", errors="replace")
    return token


def category_of(token: str) -> str:
    """The category of a token as the vocabulary spells it (special tokens by their names)."""
    return text_category(token if _special(token) else readable(token))


def text_category(text: str) -> str:
    """The category of a token's plain text (special tokens by their names)."""
    special = _special(text)
    if special:
        return special
    # A piece of a longer UTF-8 character reads as U+FFFD; it is part of a word, not a symbol.
    kinds = {"L" if c == "\ufffd" else unicodedata.category(c)[0] for c in text if not c.isspace()}
    letters = bool(kinds & {"L", "M", "C"})
    if not letters and "N" not in kinds and any(c in "\n\r\v\f\x85\u2028\u2029" for c in text):
        return "newline"
    if text and not kinds:
        return "whitespace"
    if letters or not kinds:
        return "word"
    return "digit" if "N" in kinds else "punctuation"


def _special(token: str) -> str:
    for pattern, name in ((_MASKS, "mask"), (_ENDS, "end"), (_CONTROL, "control"), (_NAMELESS, "unknown")):
        if pattern.match(token):
            return name
    return ""


def token_texts(data: xr.Dataset, tokenizer: Any = None, ids: Iterable[int] | None = None) -> dict[int, str]:
    """The plain text of the ids: from the tokenizer, else from the trace's own `token_texts`, else {}."""
    if tokenizer is None:
        stored = data.attrs.get("token_texts") or {}
        spellings = json.loads(stored) if isinstance(stored, str) else stored
        texts = {int(i): str(text) for i, text in spellings.items()}
        # Vocabularies spell spaces and newlines with letters; plain texts hold them as they are.
        spelled = not any(c.isspace() for text in texts.values() for c in text)
        return {i: _plain(text) for i, text in texts.items()} if spelled else texts
    return vocabulary_texts(tokenizer, () if ids is None else ids)


def vocabulary_texts(tokenizer: Any, ids: Iterable[int]) -> dict[int, str]:
    """The plain text of the ids, from a tokenizer."""
    wanted = sorted({int(i) for i in ids})
    if hasattr(tokenizer, "convert_ids_to_tokens"):
        tokens = tokenizer.convert_ids_to_tokens(wanted)
        return {i: _plain(str(text)) for i, text in zip(wanted, tokens, strict=True) if text is not None}
    if hasattr(tokenizer, "decode"):
        return {i: str(tokenizer.decode([i])) for i in wanted}
    raise InputError(
        f"got {type(tokenizer).__name__} as tokenizer, expected one with convert_ids_to_tokens or decode, "
        "or pass categories={id: category}"
    )


def _plain(token: str) -> str:
    return token if _special(token) else readable(token)


def token_categories(
    ids: Iterable[int],
    texts: Mapping[int, str],
    special: Mapping[str, Any],
    categories: Mapping[int, str] | None = None,
) -> dict[int, str]:
    """The category of each id. Order: `categories` as given, special ids of the trace, the text, "unknown"."""
    given = dict(categories or {})
    for name in set(given.values()):
        one_of("token category", name, CATEGORIES)
    ends = set(special.get("eos") or [])
    out = {}
    for token in {int(i) for i in ids}:
        if token in given:
            out[token] = given[token]
        elif token == special.get("mask"):
            out[token] = "mask"
        elif token in ends:
            out[token] = "end"
        elif token == special.get("bos") or token == special.get("pad"):
            out[token] = "control"
        else:
            out[token] = text_category(texts[token]) if token in texts else "unknown"
    return out


def category_codes(
    data: xr.Dataset, state: SampleState, tokenizer: Any = None, categories: Mapping[int, str] | None = None
) -> Array:
    """int8 [T, K], index into CATEGORIES, −1 where there is no key.

    Tokens between the markers of a chat header (`<|start_header_id|>assistant<|end_header_id|>`, `<|im_start|>user⏎`) are
    "control" too: the `istant` of the paper's table 2 is a role name, not a word. A position that the trace calls masked is
    "mask" whatever its id (images have their own mask id).
    """
    ids = np.unique(state.tokens[state.real]) if state.real.any() else np.zeros(0, dtype=np.int64)
    texts = token_texts(data, tokenizer, ids)
    named = token_categories(ids, texts, special_ids(data), categories)
    lookup = np.array([CATEGORIES.index(named[int(i)]) for i in ids], dtype=np.int8)
    codes = np.full(state.tokens.shape, -1, dtype=np.int8)
    if len(ids):
        codes[state.real] = lookup[np.searchsorted(ids, state.tokens[state.real])]
    codes[_header_words(state, texts, named) & state.real] = CATEGORIES.index("control")
    codes[state.masked & state.real] = CATEGORIES.index("mask")
    return codes


def _header_words(state: SampleState, texts: Mapping[int, str], named: Mapping[int, str]) -> Array:
    """bool [K]: role names inside chat headers of the first input. Only the prompt holds headers."""
    inside = np.zeros(state.tokens.shape[1], dtype=bool)
    open_ = 0
    for key in np.flatnonzero(state.region != PADDING):
        token = int(state.tokens[0, key])
        text = texts.get(token, "")
        if text in _HEADER_OPENS:
            open_ = 1
        elif text in _HEADER_CLOSES or named.get(token) == "newline" or open_ > 8:
            open_ = 0
        elif open_:
            inside[key] = True
            open_ += 1
    return np.asarray(inside & (state.region == "prompt"))
