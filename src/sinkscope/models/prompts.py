"""From what a user gives as prompts to one padded batch, under the chat template; and from ids to text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sinkscope.base.errors import CheckpointError, InputError
from sinkscope.base.files import one_line, reading
from sinkscope.models.model import Model


@dataclass(frozen=True)
class PromptBatch:
    """Prompts as one tensor.

    Attributes:
        ids: Long [B, P] on the model's device, padded on the side where the family has it.
        real: Bool [B, P], or None when nothing is padded.
        right: padding stands on the right, and every prompt begins in column 0.
    """

    ids: Tensor
    real: Tensor | None
    right: bool = False

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row, without the padding at its end or beginning."""
        if self.real is None:
            return [self.ids.shape[1]] * len(self.ids)
        counts = self.real.sum(1) if self.right else self.ids.shape[1] - self.real.long().argmax(1)
        return [int(count) for count in counts]

    @property
    def starts(self) -> list[int]:
        """The column behind each prompt."""
        return self.lengths if self.right else [self.ids.shape[1]] * len(self.ids)


def encode(model: Model, prompts: Any, attention_mask: Any = None, raw: bool = False) -> PromptBatch:
    """Text becomes chat turns, then ids; ids are taken as they are.

    Args:
        prompts: a text, or messages ([{"role": …, "content": …}, …]), or a list of such (the chat template is applied to
            each); whole numbers [B, P], or lists of them of different lengths.
        attention_mask: [B, P], 0 in padding; only with ids.
        raw: texts are not put under the chat template.
    """
    if isinstance(prompts, str) or _is_conversation(prompts):
        prompts = [prompts]
    several = isinstance(prompts, (list, tuple))
    if several and not prompts:
        raise InputError("there is no prompt; give a text, a list of texts, or token ids [batch, length]")
    worded = [isinstance(prompt, str) or _is_conversation(prompt) for prompt in prompts] if several else []
    if any(worded):
        if not all(worded):
            raise InputError("prompts mixes texts and other things; give texts and messages only, or token ids only")
        if attention_mask is not None:
            raise InputError("attention_mask goes with token ids; text prompts are padded for you")
        return pad(model, [encode_text(model, prompt, raw) for prompt in prompts])
    if attention_mask is None and _ragged(prompts):
        return pad(model, [[int(number) for number in row] for row in prompts])
    try:
        ids = torch.as_tensor(prompts)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(
            "prompts should be a text, a list of texts, or token ids of shape [batch, length]; "
            f"got {type(prompts).__name__} that is no tensor (lists of whole numbers may differ in length; attention_mask goes "
            "with tensors)"
        ) from error
    if ids.dim() == 2 and not ids.numel():
        raise InputError("the prompt is empty; give at least one token")
    ids, real = model.real_tokens(ids, attention_mask)
    # Packed anew on the family's own side: an answer must not depend on how its batch was padded.
    right = model.spec.padding != "left"
    if right and real is not None and not bool(real[:, 0].all()):
        return pad(model, [row[here].tolist() for row, here in zip(ids, real, strict=True)])
    return PromptBatch(ids, real, right)


def _ragged(prompts: Any) -> bool:
    """Whether prompts are lists of whole numbers of different lengths."""
    if not isinstance(prompts, (list, tuple)) or not all(isinstance(row, (list, tuple)) for row in prompts):
        return False
    whole = all(isinstance(number, int) and not isinstance(number, bool) for row in prompts for number in row)
    return whole and all(prompts) and len({len(row) for row in prompts}) > 1


def _is_conversation(prompt: Any) -> bool:
    """Whether a prompt is a list of turns, right or not."""
    return isinstance(prompt, (list, tuple)) and bool(prompt) and all(isinstance(turn, dict) for turn in prompt)


def encode_text(model: Model, prompt: str | list[dict[str, str]], raw: bool = False) -> list[int]:
    """Token ids of a user turn, or of a conversation, under the model's chat template; of the plain text where it has none.

    raw: the text as it is, whatever the model has.
    """
    if model.tokenizer is None:
        raise InputError(
            f"{model.source} has no tokenizer files, so text prompts do not work; give token ids, such as [[12, 7]] "
            "(on the command line --prompt-ids FILE)"
        )
    turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    for turn in turns:
        if not all(isinstance(turn.get(name), str) for name in ("role", "content")):
            raise InputError(f"a message should have role and content, both texts, got {turn!r}"[:300])
    text = turns[-1]["content"]
    if not text.strip():
        raise InputError("the prompt is empty; give some text")
    templated = bool(model.tokenizer.chat_template) and not raw
    if templated:
        text = render(model.tokenizer, turns, model.source, add_generation_prompt=True)
    elif not isinstance(prompt, str):
        why = "--raw leaves it out" if raw else f"the tokenizer of {model.source} has none"
        raise InputError(f"messages are put under a chat template, and {why}; give texts")
    with _tokenizing(model):
        return list(model.tokenizer(text, add_special_tokens=not templated).input_ids)


@contextmanager
def _tokenizing(model: Model) -> Iterator[None]:
    """Some tokenizers that can be read break on a text."""
    try:
        yield
    except BaseException:
        with reading(f"the tokenizer of {model.source}", "download its files again", CheckpointError):
            raise


def pad(model: Model, rows: list[list[int]]) -> PromptBatch:
    """Rows of different length as one batch, padded on the side where the family has it."""
    side = "left" if model.spec.padding == "left" else "right"
    filler = next((one for one in (model.ids.pad, *model.ids.eos) if one is not None), 0)
    ids = pad_sequence([torch.tensor(row) for row in rows], True, filler, side)
    mask = pad_sequence([torch.ones(len(row)) for row in rows], True, 0, side)
    return PromptBatch(*model.real_tokens(ids, mask), side == "right")


def decode(model: Model, sequence: Tensor, prompt: int = 0) -> str:
    """The answer's text: everything after the prompt, special tokens left out; ids where there is no tokenizer."""
    answer = [int(number) for number in sequence[prompt:] if number >= 0]
    if model.tokenizer is None:
        return " ".join(map(str, answer))
    special = {model.ids.mask, model.ids.pad, model.ids.bos, model.ids.eot, *model.ids.eos}
    numbers = [number for number in answer if number not in special]
    with _tokenizing(model):
        text: str = model.tokenizer.decode(numbers, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


LONGEST_TEMPLATE, LONGEST_TEXT = 1 << 17, 1 << 24
"""Characters of a chat template (real ones have some thousand), and of what it makes of a conversation."""


def render(tokenizer: Any, messages: list[dict[str, str]], source: str, **options: Any) -> str:
    """The text of a conversation under the tokenizer's chat template, as transformers renders it: in Jinja's sandbox.

    A template comes with a checkpoint, so it is a program of a stranger. The sandbox keeps it from files and objects; one that
    is made to run for ever still does.

    Args:
        messages: turns with role and content. source: the model, for messages.
        options: of `apply_chat_template`, such as add_generation_prompt.
    """
    size = len(str(tokenizer.chat_template))
    if size > LONGEST_TEMPLATE:
        raise InputError(f"the chat template of {source} has {size} characters; at most {LONGEST_TEMPLATE} are read")
    try:
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    except Exception as error:  # Jinja and templates' own raise_exception raise anything; deep nesting a RecursionError
        raise InputError(
            f"the chat template of {source} cannot be applied to this conversation: {one_line(error)}"
        ) from error
    if len(text) > LONGEST_TEXT:
        raise InputError(
            f"the chat template of {source} makes {len(text)} characters of this conversation; at most {LONGEST_TEXT} are read"
        )
    return text
