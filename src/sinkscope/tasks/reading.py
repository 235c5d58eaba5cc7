"""A model reads texts: the probability of their tokens, text by text, as records of an evaluation.

The base of tasks that are answered by likelihood (`text`, choices) is here; `likelihood.py` has the numbers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from sinkscope.base.errors import InputError
from sinkscope.base.masked import Masked
from sinkscope.decoding.base import Decoding
from sinkscope.decoding.reading import CausalReading, DenoisingReading, MaskedReading, Reading
from sinkscope.models.model import Model
from sinkscope.policies.policy import Policy
from sinkscope.tasks import likelihood
from sinkscope.tasks.prompting import start_token, tokenizer_of
from sinkscope.tasks.records import Generation
from sinkscope.tasks.task import Task, in_parts, seed_of

if TYPE_CHECKING:
    from sinkscope.tasks.answer import BatchSize, Item, Items
    from sinkscope.tasks.experiment import Experiment


class ReadTask(Task):
    """A task that is answered by the probability of given tokens, with a reading instead of a decoding."""

    def read(self, model: Model, experiment: Experiment, items: Items, batch_size: BatchSize) -> list[Generation]:
        """The records of some documents; the experiment's decoding is a reading."""
        raise NotImplementedError


@dataclass(frozen=True)
class ReadText:
    """One text.

    Attributes:
        nll: nats per token: the mean over its scored tokens (masked copies count alike, whatever their number of masks).
        values: of each scored token; columns: where it stands in the text, start token 0. Copies stand behind each other.
        tokens: how many of the text were read. forwards: forward passes.
        account: what the policy did, by the names of `Run`; NaN without one, or where it never acted.
    """

    nll: float
    values: tuple[float, ...]
    columns: tuple[int, ...]
    tokens: int
    forwards: int
    account: Mapping[str, float]


def read_texts(
    model: Model,
    texts: Mapping[str, Sequence[int]],
    reading: Decoding,
    policy: Policy | None,
    keys: Mapping[str, int],
    batch_size: BatchSize = "auto",
) -> dict[str, ReadText]:
    """What a model gives for some texts.

    Args:
        texts: name → token ids, start token included; longer ones than the reading's length are cut, shorter ones read whole.
        keys: name → the seed of its random controls.
    """
    from sinkscope.tasks.answer import rows_at_once

    reading = check_reading(model, reading)
    by_length: dict[int, list[str]] = defaultdict(list)
    for name, tokens in texts.items():
        if len(tokens) < 2:
            raise InputError(f"the text {name} has no token behind its start: give a longer one")
        by_length[min(len(tokens), reading.length)].append(name)
    read: dict[str, ReadText] = {}
    # Texts of one length go together: without padding each is read as it would be alone.
    for length, names in by_length.items():
        given = length - min(reading.targets, length - 1)
        copies = reading.masks if isinstance(reading, MaskedReading) else 1
        together = rows_at_once(model, length, batch_size)
        for batch in in_parts(names, max(1, together // copies)):
            ids = torch.tensor([list(texts[name][:length]) for name in batch], device=model.device)
            seeds = [keys[name] for name in batch]
            where = torch.zeros(len(batch), copies, length, dtype=torch.bool)
            where[:, :, given:] = True
            if isinstance(reading, MaskedReading):
                masks = [likelihood.text_masks(name, length - given, copies, reading.share) for name in batch]
                where[:, :, given:] = torch.stack(masks)
                seeds = [seed_of(f"{seed}/{copy}") for seed in seeds for copy in range(copies)]
                nats = likelihood.masked_copies(model, ids, where, given, policy, seeds, together)
            elif isinstance(reading, DenoisingReading):
                steps = min(reading.steps, length - given)
                nats = likelihood.denoised(model, ids, given, steps, policy, seeds)
            else:
                nats = likelihood.causal(model, ids, given, policy, seeds)
            read |= zip(batch, _texts(nats, where), strict=True)
    return read


def _texts(nats: likelihood.Nats, where: torch.Tensor) -> Iterator[ReadText]:
    """What was read of each text; where: Bool [text, copy, column]: the scored tokens, whose values are in this order."""
    copies = where.shape[1]
    values = iter(torch.split(nats.values.flatten(), where.sum(2).flatten().tolist()))
    for number, columns in enumerate(where):
        each = [next(values).tolist() for _ in range(copies)]
        yield ReadText(
            math.fsum(math.fsum(copy) / len(copy) for copy in each) / copies,
            tuple(value for copy in each for value in copy),
            tuple(columns.nonzero()[:, 1].tolist()),
            where.shape[2],
            nats.forwards * copies,
            nats.acted(slice(number * copies, (number + 1) * copies)),
        )


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
