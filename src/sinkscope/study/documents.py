"""Which documents of a task a cell takes, by rules that are printed: never chosen by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import median_low
from typing import TYPE_CHECKING, Any

from sinkscope.errors import InputError
from sinkscope.study.facts import local_checkpoint

if TYPE_CHECKING:
    from sinkscope.study.spec import StudyModel
    from sinkscope.tasks.task import Document, Task

SIZES = {"gsm8k": 1319, "humaneval": 164}
"""Documents of the tasks that have an end, for estimates without data."""

TRACED_FROM = 64
"""Traced documents are chosen from the first 64, at even ranks of length."""

EXEMPLAR_RULE = (
    "full maps are recorded of the traced documents whose number of sinks per head and step is nearest to the median over the "
    "traced documents of the same model and policy (ties: the lower number of the document)"
)

_GENERATED: dict[tuple[str, str], Sequence[Document]] = {}


def first_documents(task: Task, count: int) -> Sequence[Document]:
    """The first documents of a task. Those of generated tasks follow from the version alone, and are made once in a process."""
    if not hasattr(task, "stream"):
        return task.documents(count)
    key = (task.name, str(task.settings()["version"]))
    if len(_GENERATED.get(key, ())) < count:
        _GENERATED[key] = task.documents(count)
    return _GENERATED[key][:count]


def documents_at(task: Task, places: Sequence[int]) -> list[Document]:
    """The documents at these places of the task."""
    documents = first_documents(task, max(places) + 1)
    if len(documents) <= max(places):
        raise InputError(
            f"{task.name} has {len(documents)} documents here, and number {max(places)} is wanted"
        )
    return [documents[place] for place in places]


def count_of(samples: int | str, task: Task, auto: int) -> int:
    """The number of documents that `samples` of a block stands for; `auto`: the number for "auto"."""
    if samples == "auto":
        return auto
    if samples == "all":
        if hasattr(task, "stream"):
            raise InputError(f'{task.name} has no end, so samples = "all" cannot be done; give a number')
        return SIZES[task.name] if task.name in SIZES else len(task.documents())
    return min(int(samples), SIZES.get(task.name, int(samples)))


def varied(task: Task, count: int) -> tuple[int, ...]:
    """Places of documents of varied length: even ranks by length of the question among the first `TRACED_FROM`."""
    documents = first_documents(task, max(count, TRACED_FROM))
    order = sorted(range(len(documents)), key=lambda place: (len(documents[place].question), place))
    if count >= len(order):
        return tuple(sorted(order))
    if count == 1:
        return (order[len(order) // 2],)
    ranks = [round(i * (len(order) - 1) / (count - 1)) for i in range(count)]
    return tuple(sorted(order[rank] for rank in ranks))


def in_batches(model: StudyModel, task: str, family: str, count: int, batch: int) -> tuple[int, ...]:
    """Places of documents in whole batches of equally long prompts.

    In the task's order each document joins the batch of its prompt's length; batches that are full are taken, in the order in
    which they fill, until there are `count` documents. Rare lengths come late or not at all: a small study is about the
    common ones. Without the model's tokenizer on this machine: the first documents.
    """
    wanted = -(-count // batch) * batch
    for searched in (4 * count, 16 * count):
        waiting: dict[int, list[int]] = {}
        taken: list[int] = []
        for place, length in enumerate(prompt_lengths(model, task, family, searched)):
            group = waiting.setdefault(length, [])
            group.append(place)
            if len(group) == batch:
                taken += waiting.pop(length)
            if len(taken) == wanted:
                return tuple(sorted(taken[:count]))
    return tuple(sorted(taken[:count])) if len(taken) >= count else tuple(range(count))


@lru_cache(maxsize=64)
def prompt_lengths(
    model: StudyModel, task: str, family: str, count: int, data: str | None = None
) -> tuple[int, ...]:
    """Tokens of the prompts of the first documents, by a model's tokenizer; () when it is not on this machine."""
    from types import SimpleNamespace

    from sinkscope.models.load import family_of
    from sinkscope.models.tokenizer import read_tokenizer
    from sinkscope.tasks import registry
    from sinkscope.tasks.prompting import encode_prompt

    checkpoint = local_checkpoint(model)
    if checkpoint is None:
        return ()
    spec = family_of(checkpoint)
    tokenizer = read_tokenizer(checkpoint.folder, spec.chat_template)
    # Encoding a prompt reads these of a model, and no weights.
    reader: Any = SimpleNamespace(
        tokenizer=tokenizer, source=model.source, ids=spec.special_ids(checkpoint, tokenizer)
    )
    chosen = registry.get(task, family, data)
    return tuple(
        len(encode_prompt(reader, chosen.prompt(document), chosen.scheme).ids)
        for document in first_documents(chosen, count)
    )


def exemplars(sinks: Mapping[int, float], count: int) -> tuple[int, ...]:
    """The places of `count` documents whose number of sinks is nearest to the median; see `EXEMPLAR_RULE`.

    >>> exemplars({3: 1.0, 5: 2.0, 9: 4.0}, 1)
    (5,)
    """
    if not sinks:
        return ()
    middle = median_low(sinks.values())
    order = sorted(sinks, key=lambda place: (abs(sinks[place] - middle), place))
    return tuple(sorted(order[:count]))
