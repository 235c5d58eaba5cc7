"""From a task's prompt to a model's token ids, and from its answer back to text, as a scheme wants them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sinkscope.base.errors import InputError
from sinkscope.models.model import Model
from sinkscope.models.prompts import decode, render
from sinkscope.tasks.task import Prompt, Scheme

SEPARATOR = "<|endoftext|>"


@dataclass(frozen=True)
class Encoded:
    """A prompt as text, markers of the chat template included, and as token ids."""

    text: str
    ids: tuple[int, ...]


def tokenizer_of(model: Model) -> Any:
    if model.tokenizer is None:
        raise InputError(f"{model.source} has no tokenizer files, and tasks are text; put them beside its config.json")
    return model.tokenizer


def encode_prompt(model: Model, prompt: Prompt, scheme: Scheme) -> Encoded:
    """A prompt under the model's chat template, or as plain text where the scheme says so.

    Several turns need a template; a single one goes in as it stands where the tokenizer has none, as in `ss.generate`.
    """
    tokenizer = tokenizer_of(model)
    if not prompt.chat or not tokenizer.chat_template:
        if prompt.chat and len(prompt.turns) > 1:
            raise InputError(
                f"scheme {scheme.name} puts its examples as turns of a chat, but the tokenizer of {model.source} has no chat "
                "template; choose a scheme for base models, such as causal-base"
            )
        text = prompt.text()
        ids = list(tokenizer(text).input_ids)
        start = start_token(model) if scheme.bos else None
        if start is not None and ids[:1] != [start]:
            ids.insert(0, start)
    else:
        messages, end = prompt.messages(), "add_generation_prompt"
        if prompt.prefix:  # the assistant's turn stays open behind it; templates that trim a turn trim it too
            messages.append({"role": "assistant", "content": prompt.prefix})
            end = "continue_final_message"
        text = render(tokenizer, messages, model.source, **{end: True})
        ids = list(tokenizer(text, add_special_tokens=False).input_ids)
    if scheme.prompt_tokens is not None:
        ids = ids[-scheme.prompt_tokens :]
    if not ids:
        raise InputError(f"scheme {scheme.name} gives an empty prompt; is the document's question empty?")
    return Encoded(text, tuple(ids))


def start_token(model: Model) -> int | None:
    """The id that stands before a text in training: bos; where that opens a turn of a chat, or is missing, `<|endoftext|>`.

    `sinkscope train adapt` puts the same token before documents. None: the model has neither, nor an end token.
    """
    tokenizer, ids = model.tokenizer, model.ids
    template = getattr(tokenizer, "chat_template", None) or ""
    bos = getattr(tokenizer, "bos_token", None)
    if ids.bos is not None and not (bos and bos in template):
        return ids.bos
    vocabulary = {} if tokenizer is None else tokenizer.get_vocab()
    if SEPARATOR in vocabulary:
        return int(vocabulary[SEPARATOR])
    return ids.bos if ids.bos is not None else next(iter(ids.eos), None)


def decode_answer(model: Model, answer: Sequence[int], scheme: Scheme) -> str:
    """The text of an answer's ids; with its special tokens where the scheme cuts at them."""
    if not scheme.keep_special:
        return decode(model, torch.tensor(list(answer)), 0)
    options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
    text: str = model.tokenizer.decode(list(answer), **options)
    return text
