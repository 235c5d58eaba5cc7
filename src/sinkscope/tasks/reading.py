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
from sinkscope.decoding.reading import CausalReading, DenoisingReading, MaskedReading, Reading
from sinkscope.generation.run import ACCOUNT
from sinkscope.models.model import Model
from sinkscope.policies.policy import Policy
from sinkscope.tasks import likelihood
from sinkscope.tasks.prompting import start_token
from sinkscope.tasks.records import Generation
from sinkscope.tasks.task import Document, Task, fingerprint, seed_of

if TYPE_CHECKING:
    from sinkscope.tasks.answer import BatchSize, Item, Items

PART, PART_ON_GPU = 16, 512
"""Documents that are read before their records are written. Short ones of equal length run together: a GPU wants many."""


class ReadTask(Task):
    """A task that is answered by the probability of given tokens, with a reading instead of a decoding."""

    def read(
        self, model: Model, items: Items, reading: Reading, policy: Policy | None, batch_size: BatchSize
    ) -> list[Generation]:
        """The records of some documents."""
        raise NotImplementedError


@dataclass(frozen=True)
class ReadText:
    """One text.

    Attributes:
        nll: nats per token: the mean over its scored tokens (masked copies count alike, whatever their number of masks).
        values: of each scored token; columns: where it stands in the text, start token 0. Copies stand behind each other.
        tokens: how many of the text were read. forwards: forward passes.
        account: what the policy did, by the names of `Run`; None without one, or where it never acted.
    """

    nll: float
    values: tuple[float, ...]
    columns: tuple[int, ...]
    tokens: int
    forwards: int
    account: dict[str, float | None]


def read_texts(
    model: Model,
    texts: Mapping[str, Sequence[int]],
    reading: Reading,
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

    check_reading(model, reading)
    by_length: dict[int, list[str]] = defaultdict(list)
    for name, tokens in texts.items():
        if len(tokens) < 2:
            raise InputError(f"the text {name} has no token behind its start: give a longer one")
        by_length[min(len(tokens), reading.length)].append(name)
    found: dict[str, ReadText] = {}
    for length, names in by_length.items():
        copies = reading.masks if isinstance(reading, MaskedReading) else 1
        rows = max(1, rows_at_once(model, length, batch_size) // copies)
        for start in range(0, len(names), rows):
            part = names[start : start + rows]
            ids = torch.tensor([list(texts[name][:length]) for name in part], device=model.device)
            given = length - min(reading.targets, length - 1)
            own = [keys[name] for name in part]
            if isinstance(reading, MaskedReading):
                found |= _masked(model, ids, given, part, reading, policy, own, batch_size)
            elif isinstance(reading, DenoisingReading):
                steps = min(reading.steps, length - given)
                nats = likelihood.denoised(model, ids, given, steps, policy, own)
                found |= _plain(nats, part, given, length)
            else:
                found |= _plain(likelihood.causal(model, ids, given, policy, own), part, given, length)
    return found


def check_reading(model: Model, reading: object) -> None:
    """A reading must be one, and fit the model's family."""
    if not isinstance(reading, Reading):
        raise InputError(
            f"likelihoods are measured by a reading such as ss.MaskedReading(share=0.5), got {type(reading).__name__}"
        )
    if not reading.fits(model.family):
        fitting = CausalReading if model.spec.causal else MaskedReading
        raise InputError(
            f"{type(reading).__name__} is not for {model.family} models such as {model.source}; use {fitting.__name__}"
        )


def _plain(nats: likelihood.Nats, names: Sequence[str], given: int, length: int) -> dict[str, ReadText]:
    found = {}
    for row, (name, values) in enumerate(zip(names, nats.values, strict=True)):
        acted = {share: _known(getattr(nats, share), [row]) for share in ACCOUNT}
        columns = tuple(range(given, length))
        nll, each = float(values.mean()), tuple(values.tolist())
        found[name] = ReadText(nll, each, columns, length, nats.forwards, acted)
    return found


def _masked(
    model: Model,
    ids: torch.Tensor,
    given: int,
    names: Sequence[str],
    reading: MaskedReading,
    policy: Policy | None,
    keys: Sequence[int],
    batch_size: BatchSize,
) -> dict[str, ReadText]:
    """Every text in several masked copies, which run beside each other."""
    from sinkscope.tasks.answer import rows_at_once

    length = ids.shape[1]
    copies = [
        (place, copy, where)
        for place, name in enumerate(names)
        for copy, where in enumerate(
            likelihood.text_masks(name, length - given, reading.masks, reading.share)
        )
    ]
    rows = rows_at_once(model, length, batch_size)
    values: dict[tuple[int, int], list[float]] = {}
    numbers: dict[str, list[torch.Tensor]] = {name: [] for name in ACCOUNT}
    forwards = 0
    for start in range(0, len(copies), rows):
        part = copies[start : start + rows]
        where = torch.zeros(len(part), length, dtype=torch.bool, device=ids.device)
        where[:, given:] = torch.stack([masks for _, _, masks in part]).to(ids.device)
        own = [seed_of(f"{keys[place]}/{copy}") for place, copy, _ in part]
        nats = likelihood.masked(model, ids[[place for place, _, _ in part]], where, given, policy, own)
        forwards = nats.forwards
        for (place, copy, _), one in zip(part, torch.split(nats.values, where.sum(1).tolist()), strict=True):
            values[place, copy] = one.tolist()
        for name, parts in numbers.items():
            share = getattr(nats, name)
            parts += [] if share is None else [share]
    shares = {name: torch.cat(parts) if parts else None for name, parts in numbers.items()}
    found = {}
    for place, name in enumerate(names):
        mine = [number for number, (owner, _, _) in enumerate(copies) if owner == place]
        each = [values[place, copy] for copy in range(reading.masks)]
        found[name] = ReadText(
            math.fsum(math.fsum(one) / len(one) for one in each) / len(each),
            tuple(value for one in each for value in one),
            tuple(given + int(column) for number in mine for column in copies[number][2].nonzero()[:, 0]),
            length,
            forwards * reading.masks,
            {name: _known(share, mine) for name, share in shares.items()},
        )
    return found


def _known(values: torch.Tensor | None, rows: Sequence[int]) -> float | None:
    """The mean of a policy's number over some rows; None when it never acted."""
    if values is None or bool(values[list(rows)].isnan().all()):
        return None
    return float(values[list(rows)].double().nanmean())


# ---- records -------------------------------------------------------------------------------------


def text_ids(model: Model, text: str) -> list[int]:
    """Token ids of a text behind the model's start token."""
    ids, start = (
        list(_tokenizer(model)(text, add_special_tokens=False, verbose=False).input_ids),
        start_token(model),
    )
    return ids if start is None else [start, *ids]


def _tokenizer(model: Model) -> Any:
    if model.tokenizer is None:
        raise InputError(f"{model.source} has no tokenizer files, and texts are read with them")
    return model.tokenizer


def encode_pair(model: Model, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Token ids of a context and of its continuation, cut as lm-eval cuts them.

    Spaces at the end of the context belong to the continuation; both are encoded together. An empty context is the model's
    start token.
    """
    tokenizer = _tokenizer(model)
    if not context:
        ids, start = list(tokenizer(continuation, add_special_tokens=False).input_ids), start_token(model)
        return ([start], ids) if start is not None and ids[0] != start else (ids[:1], ids[1:])
    bare = context.rstrip()
    whole, before = (list(tokenizer(text).input_ids) for text in (context + continuation, bare))
    return before, whole[len(before) :]


def record_of(item: Item, output: str, forwards: int, hidden: float | None, **more: Any) -> Generation:
    """The record of one document; numbers are rounded, because their last bits depend on the batch."""
    return Generation(
        document=item.document.id,
        index=item.index,
        seed=item.seed,
        prompt="",
        output=output,
        steps=forwards,
        forwards=forwards,
        hidden=rounded(hidden),
        more={"fingerprint": fingerprint(item.document), "stream": item.stream, **more},
    )


def rounded(value: float | None) -> float | None:
    """Five digits behind the point; None for NaN."""
    return None if value is None or math.isnan(value) else round(value, 5)


def in_parts(items: Sequence[Item], device: torch.device) -> Iterator[Sequence[Item]]:
    """The items, some at a time."""
    size = PART_ON_GPU if device.type == "cuda" else PART
    yield from (items[start : start + size] for start in range(0, len(items), size))


def texts_of(model: Model, documents: Sequence[Document]) -> dict[str, list[int]]:
    """Document → token ids of its question."""
    return {document.id: text_ids(model, document.question) for document in documents}
