"""A model reads texts: the probability of their tokens, text by text, as records of an evaluation.

The base of tasks that are answered by likelihood (`text`, choices) is here; `likelihood.py` has the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sinkscope.base.errors import InputError
from sinkscope.base.masked import Masked
from sinkscope.decoding.base import Decoding
from sinkscope.decoding.reading import CausalReading, MaskedReading, Reading
from sinkscope.models.model import Model
from sinkscope.policies.policy import Policy
from sinkscope.tasks.prompting import start_token, tokenizer_of
from sinkscope.tasks.records import Generation
from sinkscope.tasks.task import Task

if TYPE_CHECKING:
    from sinkscope.tasks.answer import BatchSize, Item, Items
    from sinkscope.tasks.experiment import Experiment


class ReadTask(Task):
    """A task that is answered by the probability of given tokens, with a reading instead of a decoding."""

    def read(self, model: Model, experiment: Experiment, items: Items, batch_size: BatchSize) -> list[Generation]:
        """The records of some documents; the experiment's decoding is a reading."""
        raise NotImplementedError


def check_reading(model: Model, reading: Decoding) -> Reading:
    """The reading, which must be one and fit the model's family."""
    if not isinstance(reading, Reading):
        raise InputError(
            f"likelihoods are measured by a reading such as ss.MaskedReading(share=0.5), got {type(reading).__name__}"
        )
    if not reading.fits(model.family):
        fitting = CausalReading if model.spec.causal else MaskedReading
        raise InputError(
            f"{type(reading).__name__} is not for {model.family} models such as {model.source}; use {fitting.__name__}"
        )
    return reading


# ---- records -------------------------------------------------------------------------------------


def text_ids(model: Model, text: str) -> list[int]:
    """Token ids of a text behind the model's start token."""
    ids = list(tokenizer_of(model)(text, add_special_tokens=False, verbose=False).input_ids)
    start = start_token(model)
    return ids if start is None else [start, *ids]


def encode_pair(model: Model, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Token ids of a context and of its continuation, cut as lm-eval cuts them.

    Spaces at the end of the context belong to the continuation; both are encoded together. An empty context is the model's
    start token.
    """
    tokenizer = tokenizer_of(model)
    if not context:
        ids, start = list(tokenizer(continuation, add_special_tokens=False).input_ids), start_token(model)
        return ([start], ids) if start is not None and ids[0] != start else (ids[:1], ids[1:])
    bare = context.rstrip()
    whole, before = (list(tokenizer(text).input_ids) for text in (context + continuation, bare))
    return before, whole[len(before) :]


def record_of(
    item: Item,
    output: str,
    forwards: int,
    tokens: int,
    policy: Policy | None,
    account: Mapping[str, float],
    /,
    **more: Any,
) -> Generation:
    """The record of one document, of which so many tokens were read; account: what the policy did."""
    shares: dict[str, float | None] = {name: rounded(share) for name, share in account.items()}
    hidden = shares.pop(Masked.REMOVED)
    shares[Masked.KEYS] = None if policy is None else policy.key_share(tokens)
    return item.record(output, forwards, forwards, hidden, "", **more, prompt_tokens=tokens, **shares)


def rounded(value: float) -> float | None:
    """Five digits behind the point, because the last bits depend on the batch; None for NaN."""
    return None if math.isnan(value) else round(value, 5)
