"""MaskKind and MaskToken: mask keys by the token that stands there, whatever attention they get."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from sinkscope.attention.visibility import Visibility
from sinkscope.base.checks import one_of
from sinkscope.base.errors import InputError
from sinkscope.policies.policy import POLICIES, FixedRule

if TYPE_CHECKING:
    from sinkscope.models.vocabulary import TokenTables

KINDS = ("mask", "newline", "whitespace", "punctuation", "template", "end", "digit", "word")
"""As in a trace's composition; template: markers of roles and headers, begin of text, padding (their names are words)."""

RESERVED = "+,@&()=/"
"""Characters that a text form uses itself: inside a token's text they are written as escapes."""


@POLICIES.add
@dataclass(frozen=True)
class MaskKind(FixedRule):
    """Masks every key whose token is of a kind: mask, newline, whitespace, punctuation, template, end, digit or word.

    >>> str(MaskKind("punctuation"))
    'kind:punctuation'
    """

    kind: str

    word: ClassVar[str] = "kind"

    def __post_init__(self) -> None:
        one_of("kind of token", self.kind, KINDS)
        super().__post_init__()

    def columns(  # type: ignore[override]
        self, layer: int, visibility: Visibility, device: torch.device, tokens: Tensor, vocabulary: TokenTables
    ) -> Tensor | None:
        return _at(vocabulary.of_kind(self.kind), tokens)


@POLICIES.add
@dataclass(frozen=True)
class MaskToken(FixedRule):
    """Masks every key whose token is one of these: ids, or texts as the tokenizer decodes them.

    >>> str(MaskToken([13, "."])), str(MaskToken(","))
    ('token:13+"."', 'token:"\\\\u002c"')
    """

    tokens: tuple[int | str, ...] | list[int | str] | int | str

    word: ClassVar[str] = "token"

    def __post_init__(self) -> None:
        tokens = (self.tokens,) if isinstance(self.tokens, (int, str)) else tuple(self.tokens)
        if not tokens or any(not t if isinstance(t, str) else type(t) is not int or t < 0 for t in tokens):
            raise InputError(f"MaskToken takes token ids from 0 on, or texts, got {self.tokens!r}")
        object.__setattr__(self, "tokens", tokens)
        super().__post_init__()

    def columns(  # type: ignore[override]
        self, layer: int, visibility: Visibility, device: torch.device, tokens: Tensor, vocabulary: TokenTables
    ) -> Tensor | None:
        masked = torch.zeros_like(tokens, dtype=torch.bool)[:, None]
        for token in self.tokens:  # type: ignore[union-attr]
            named = (tokens == token)[:, None] if isinstance(token, int) else _at(vocabulary.spelled(token), tokens)
            masked = masked | named
        return masked

    @classmethod
    def read_argument(cls, text: str) -> Any:
        """`13+"."`: ids and quoted texts."""
        try:
            return [json.loads(part) for part in text.split("+")]
        except json.JSONDecodeError as error:
            raise InputError(
                f'tokens are written as ids or quoted texts, such as token:13 or token:".", got {text!r}'
            ) from error

    def written_argument(self) -> str:
        return "+".join(_quoted(one) for one in self.tokens)  # type: ignore[union-attr]


def _quoted(token: int | str) -> str:
    text = json.dumps(token)
    for letter in RESERVED:
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _at(table: Tensor, tokens: Tensor) -> Tensor:
    """Bool [B, 1, K]: what a table Bool [V] says of token ids Long [B, K]; −1 is no token."""
    return (table[tokens.clamp(min=0)] & (tokens >= 0))[:, None]
