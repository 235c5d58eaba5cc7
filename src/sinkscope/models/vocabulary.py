"""Tables over a model's vocabulary: which tokens are of a kind, or spelled in a way. For policies that look at tokens."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sinkscope.base.errors import InputError
from sinkscope.models.family import SpecialIds


class TokenTables:
    """What is known of the tokens of a model.

    Args:
        size: ids that the model knows. tokenizer: None where the checkpoint has none; then only mask and end are known.
    """

    def __init__(self, size: int, tokenizer: Any, ids: SpecialIds, device: torch.device) -> None:
        self.size, self.tokenizer, self.ids, self.device = size, tokenizer, ids, device
        self._tables: dict[tuple[str, str], Tensor] = {}

    def of_kind(self, kind: str) -> Tensor:
        """Bool [V]: the tokens of a kind, as a trace's composition names them; "template" is its "control"."""
        if self.tokenizer is None and kind not in ("mask", "end"):
            raise InputError(
                f"this checkpoint has no tokenizer, so which tokens are {kind} is not known; only mask and end are, by their ids"
            )
        stored = "control" if kind == "template" else kind
        return self._table("kind", stored, [number for number, name in self._kinds.items() if name == stored])

    def spelled(self, text: str) -> Tensor:
        """Bool [V]: the tokens with exactly this text."""
        numbers = [number for number, spelling in self._texts.items() if spelling == text]
        if not numbers:
            raise InputError(
                f"no token of this model has the text {text!r}; give a single token as the tokenizer decodes it, such as "
                f"{' ' + text!r}, or its id"
            )
        return self._table("text", text, numbers)

    def _table(self, what: str, name: str, numbers: list[int]) -> Tensor:
        if (what, name) not in self._tables:
            table = torch.zeros(self.size, dtype=torch.bool)
            table[numbers] = True
            self._tables[what, name] = table.to(self.device)
        return self._tables[what, name]

    @cached_property
    def _texts(self) -> dict[int, str]:
        if self.tokenizer is None:
            raise InputError(
                "this checkpoint has no tokenizer, so the texts of tokens are not known; name tokens by id"
            )
        from sinkscope.sinks.categories import vocabulary_texts

        return vocabulary_texts(self.tokenizer, range(min(self.size, len(self.tokenizer))))

    @cached_property
    def _kinds(self) -> dict[int, str]:
        from sinkscope.sinks.categories import token_categories

        ids = self.ids
        special = {"mask": ids.mask, "eos": list(ids.eos), "bos": ids.bos, "pad": ids.pad}
        texts = {} if self.tokenizer is None else self._texts
        return token_categories(range(self.size), texts, special)
