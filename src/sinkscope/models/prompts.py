"""From what a user gives as prompts to one padded batch, under the chat template, which is rendered with bounds.

Templates come with checkpoints, so they are programs of strangers. transformers renders them in Jinja's sandbox, which keeps
them from files and objects but not from running for ever or filling the memory. Here a template is read first (no powers, no
large factors), and while it runs its lines and the growth of the process are counted.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from sinkscope.errors import CheckpointError, InputError
from sinkscope.files import one_line, reading
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
        """Real tokens of each row."""
        if self.real is None:
            return [self.ids.shape[1]] * len(self.ids)
        return [int(count) for count in self.real.sum(1)]

    @property
    def starts(self) -> list[int]:
        """The column behind each prompt."""
        return self.lengths if self.right else [self.ids.shape[1]] * len(self.ids)


def encode(model: Model, prompts: Any, attention_mask: Any = None) -> PromptBatch:
    """Text becomes chat turns, then ids; ids are taken as they are.

    Args:
        prompts: a text, a list of texts (the chat template is applied to each), whole numbers [B, P]; for families
            padded on the right also lists of different lengths.
        attention_mask: [B, P], 0 in padding; only with ids.
    """
    if isinstance(prompts, str):
        prompts = [prompts]
    if isinstance(prompts, (list, tuple)) and prompts and all(isinstance(one, str) for one in prompts):
        if attention_mask is not None:
            raise InputError("attention_mask goes with token ids; text prompts are padded for you")
        return pad(model, [encode_text(model, text) for text in prompts])
    if isinstance(prompts, (list, tuple)) and not prompts:
        raise InputError("there is no prompt; give a text, a list of texts, or token ids [batch, length]")
    if isinstance(prompts, (list, tuple)) and any(isinstance(one, str) for one in prompts):
        raise InputError("prompts mixes texts and other things; give texts only, or token ids only")
    if attention_mask is None and model.spec.padding != "left" and _ragged(prompts):
        return pad(model, [[int(number) for number in row] for row in prompts])
    try:
        ids = torch.as_tensor(prompts)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(
            "prompts should be a text, a list of texts, or token ids of shape [batch, length]; "
            f"got {type(prompts).__name__} that is no tensor (rows of different length need padding and attention_mask)"
        ) from error
    if ids.dim() == 2 and not ids.numel():
        raise InputError("the prompt is empty; give at least one token")
    ids, real = model.real_tokens(ids, attention_mask)
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


def encode_text(model: Model, text: str) -> list[int]:
    """Token ids of one user turn under the model's chat template (or of the plain text, where it has none)."""
    if model.tokenizer is None:
        raise InputError(
            f"{model.source} has no tokenizer files, so text prompts do not work; give token ids (--prompt-ids)"
        )
    if not text.strip():
        raise InputError("the prompt is empty; give some text")
    if model.tokenizer.chat_template:
        turns = [{"role": "user", "content": text}]
        text = render(model.tokenizer, turns, model.source, add_generation_prompt=True)
        with _tokenizing(model):
            return list(model.tokenizer(text, add_special_tokens=False).input_ids)
    with _tokenizing(model):
        return list(model.tokenizer(text).input_ids)


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
    longest, right = max(len(row) for row in rows), model.spec.padding != "left"
    filler = next((one for one in (model.ids.pad, *model.ids.eos) if one is not None), 0)
    ids, mask = [], []
    for row in rows:
        padding = longest - len(row)
        ids.append(row + [filler] * padding if right else [filler] * padding + row)
        mask.append([1] * len(row) + [0] * padding if right else [0] * padding + [1] * len(row))
    checked, real = model.real_tokens(torch.tensor(ids), torch.tensor(mask))
    return PromptBatch(checked, real, right)


def decode(model: Model, sequence: Tensor, prompt: int = 0) -> str:
    """The answer's text: everything after the prompt, special tokens left out; ids where there is no tokenizer."""
    answer = [int(number) for number in sequence[prompt:] if number >= 0]
    if model.tokenizer is None:
        return " ".join(map(str, answer))
    special = {model.ids.mask, model.ids.pad, model.ids.bos, model.ids.eot, *model.ids.eos}
    kept = [number for number in answer if number not in special]
    with _tokenizing(model):
        text: str = model.tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


# ---- chat templates ------------------------------------------------------------------------------

MOST_LINES = 200_000
"""Lines of compiled template that one conversation may run through; real ones take some hundred for every turn."""
MOST_GROWTH = 1 << 30
"""Bytes by which the process may grow meanwhile."""
LARGEST_FACTOR = 10_000
"""Largest number in a product: a text times a number is that many copies of it."""
LONGEST = 1 << 20
"""Characters of a template."""


class _TooMuchError(Exception):
    """A template went past a bound."""


def render(tokenizer: Any, messages: list[dict[str, str]], source: str, **options: Any) -> str:
    """The text of a conversation under the tokenizer's chat template.

    Args:
        messages: turns with role and content. source: the model, for messages.
        options: of `apply_chat_template`, such as add_generation_prompt.
    """
    _check(str(tokenizer.chat_template), source)
    before, watch = sys.gettrace(), _Bounds()
    try:
        sys.settrace(watch)
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    except _TooMuchError as error:
        raise InputError(f"the chat template of {source} {error}; it is broken, or made to do so") from error
    except Exception as error:  # Jinja and templates' own raise_exception raise anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"the chat template of {source} cannot be applied to this conversation: {reason[:200]}"
        ) from error
    finally:
        sys.settrace(before)
    return text


class _Bounds:
    """A trace function that counts the lines of templates, and looks at the memory every so often."""

    def __init__(self) -> None:
        self.lines = 0
        self.start = _memory()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        # Jinja gives its compiled templates this name; nothing else is followed line by line.
        if event == "call" and frame.f_code.co_filename != "<template>":
            return None
        self.lines += 1
        if self.lines > MOST_LINES:
            raise _TooMuchError(f"ran through {MOST_LINES} lines without an end")
        if _memory() - self.start > MOST_GROWTH:
            raise _TooMuchError(f"took more than {MOST_GROWTH >> 20} MiB of memory")
        return self


def _memory() -> int:
    """Bytes that the process holds; 0 where the system does not say (then only lines are bounded)."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * 4096
    except OSError:
        return 0


@lru_cache(maxsize=16)
def _check(template: str, source: str) -> None:
    """Refuse what one operation could fill the memory with, before the template is compiled and its constants are folded."""
    from jinja2 import Environment, TemplateSyntaxError, nodes

    if len(template) > LONGEST:
        raise InputError(
            f"the chat template of {source} has {len(template)} characters; {LONGEST} are allowed"
        )
    try:
        parsed = Environment(extensions=["jinja2.ext.loopcontrols"], autoescape=False).parse(_plain(template))  # noqa: S701
        powers, products = (list(parsed.find_all(kind)) for kind in (nodes.Pow, nodes.Mul))
    except (
        TemplateSyntaxError,
        RecursionError,
    ) as error:  # what is nested deeply is parsed, and then walked, deeply
        raise InputError(
            f"the chat template of {source} is not a readable template: {one_line(error)}"
        ) from error
    if powers:
        raise InputError(
            f"the chat template of {source} takes powers, which no conversation needs; it is refused"
        )
    for product in products:
        sides = (product.left, product.right)
        small = [
            isinstance(side, nodes.Const) and isinstance(side.value, int) and side.value <= LARGEST_FACTOR
            for side in sides
        ]
        if not any(small):
            raise InputError(
                f"the chat template of {source} multiplies by numbers that are not small; it is refused"
            )


def _plain(template: str) -> str:
    """The template without transformers' own tag, which plain Jinja does not know."""
    return re.sub(r"\{%[-+]?(?: (?:end)?generation |(?:end)?generation)[-+]?%\}", "", template)
