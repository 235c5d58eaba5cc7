"""Which documents of a task a cell takes, by rules that are printed: never chosen by hand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sinkscope.base.errors import InputError
from sinkscope.base.text import listed
from sinkscope.study.facts import local_checkpoint
from sinkscope.tasks.reading import ReadTask
from sinkscope.tasks.registry import base_and_scheme
from sinkscope.tasks.task import digest

if TYPE_CHECKING:
    from sinkscope.study.spec import Grid, Study, StudyModel
    from sinkscope.tasks.task import Document, Task

SIZES = {"gsm8k": 1319, "humaneval": 164}
"""Documents of the tasks that have an end, for estimates without data."""

TRACED_FROM = 64
TRACED_RULE = f"even ranks by length of question among the first {TRACED_FROM}"

EXEMPLAR_RULE = "full maps are recorded of the traced documents whose questions are of middle length"

_GENERATED: dict[tuple[str, str], Sequence[Document]] = {}
_LENGTHS: dict[tuple[StudyModel, str, str, int], tuple[int, ...]] = {}


def first_documents(task: Task, count: int) -> Sequence[Document]:
    """The first documents of a task. Those of generated tasks follow from the version alone, and are made once in a process."""
    if not hasattr(task, "stream"):
        return task.documents(count)
    key = (task.name, str(task.settings()["version"]))
    if len(_GENERATED.get(key, ())) < count:
        _GENERATED[key] = task.documents(count)
    return _GENERATED[key][:count]


def numbered(task: Task, numbers: Sequence[int]) -> list[Document]:
    """The documents of the task with these numbers."""
    documents = first_documents(task, max(numbers) + 1)
    if len(documents) <= max(numbers):
        raise InputError(f"{task.name} has {len(documents)} documents here, and number {max(numbers)} is wanted")
    return [documents[number] for number in numbers]


def count_of(samples: int | str, task: Task, auto: int) -> int:
    """The number of documents that `samples` of a section stands for; `auto`: the number for "auto"."""
    if samples == "auto":
        return auto
    if samples == "all":
        if hasattr(task, "stream"):
            raise InputError(f'{task.name} has no end, so samples = "all" cannot be done; give a number')
        return SIZES[task.name] if task.name in SIZES else len(task.documents())
    return min(int(samples), SIZES.get(task.name, int(samples)))


def chosen(study: Study, grid: Grid, task: Task, count: int, varied: bool, exact: bool = True) -> tuple[int, ...]:
    """Numbers of the documents that a section takes.

    varied: of varied length. Without `exact`, for an estimate, nothing is read that is not on this machine.
    """
    if varied and exact:
        return of_varied_length(task, count)
    if grid.batches and not varied and not isinstance(task, ReadTask):
        return in_batches(study.models[0], task, count, grid.batches, exact)
    return tuple(range(count))


def of_varied_length(task: Task, count: int) -> tuple[int, ...]:
    """Numbers of documents: even ranks by length of the question among the first `TRACED_FROM`."""
    documents = first_documents(task, max(count, TRACED_FROM))
    order = sorted(range(len(documents)), key=lambda number: (len(documents[number].question), number))
    if count >= len(order):
        return tuple(sorted(order))
    if count == 1:
        return (order[len(order) // 2],)
    ranks = [round(i * (len(order) - 1) / (count - 1)) for i in range(count)]
    return tuple(sorted(order[rank] for rank in ranks))


def in_batches(model: StudyModel, task: Task, count: int, batch: int, exact: bool) -> tuple[int, ...]:
    """Places of documents in whole batches of equally long prompts.

    In the task's order each document joins the batch of its prompt's length; batches that are full are taken, in the order in
    which they fill, until there are `count` documents. Rare lengths come late or not at all: a small study is about the
    common ones. Without the model's tokenizer on this machine it is refused, or (not `exact`) the first documents are taken.
    """
    total = -(-count // batch) * batch
    if exact and not prompt_lengths(model, task, 1):
        raise InputError(
            f"the documents of this study are chosen by the lengths of {model.name}'s prompts, and {model.source} is not on this "
            "machine: put the folder there"
        )
    for searched in (4 * count, 16 * count):
        waiting: dict[int, list[int]] = defaultdict(list)
        taken: list[int] = []
        for number, length in enumerate(prompt_lengths(model, task, searched)):
            waiting[length].append(number)
            if len(waiting[length]) == batch:
                taken += waiting.pop(length)
            if len(taken) == total:
                return tuple(sorted(taken[:count]))
    return tuple(sorted(taken[:count])) if len(taken) >= count else tuple(range(count))


def prompt_lengths(model: StudyModel, task: Task, count: int) -> tuple[int, ...]:
    """Tokens of the prompts of the first documents, by a model's tokenizer; () when it is not on this machine."""
    from types import SimpleNamespace

    from sinkscope.models.load import family_of
    from sinkscope.models.tokenizer import read_tokenizer
    from sinkscope.tasks.prompting import encode_prompt

    key = (model, digest(task.settings()), str(getattr(task, "data", "")), count)
    if key in _LENGTHS:
        return _LENGTHS[key]
    checkpoint = local_checkpoint(model)
    if checkpoint is None:
        return ()
    spec = family_of(checkpoint)
    tokenizer = read_tokenizer(checkpoint.folder, spec.chat_template)
    # Encoding a prompt reads these of a model, and no weights.
    reader: Any = SimpleNamespace(tokenizer=tokenizer, source=model.source, ids=spec.special_ids(checkpoint, tokenizer))
    _LENGTHS[key] = tuple(
        len(encode_prompt(reader, task.prompt(document), task.scheme).ids) for document in first_documents(task, count)
    )
    return _LENGTHS[key]


def sentences(study: Study) -> list[str]:
    """Which documents the study evaluates, for people."""
    rules: dict[int, list[str]] = {}
    for grid in study.evaluate:
        rules.setdefault(grid.batches, []).extend(base_and_scheme(task)[0] for task in grid.tasks)
    said = []
    for batch, tasks in rules.items():
        first = "the first of the task"
        if batch:
            first += (
                f" that fill batches of {batch} equally long prompts (in tokens of {study.models[0].name}), which are answered "
                "together, and so faster. A small study is therefore about common lengths"
            )
        said.append(f"Documents of {listed(dict.fromkeys(tasks))}: {first}.")
    return [*said, "All models and policies get the same documents."] if said else []


def exemplars(task: Task, traced: Sequence[int], count: int, exact: bool) -> tuple[int, ...]:
    """Of the traced documents those that get full maps, see `EXEMPLAR_RULE`; without `exact` their questions are not read."""
    documents = numbered(task, traced) if exact else [None] * len(traced)
    lengths = {number: len(one.question) if one else 0 for number, one in zip(traced, documents, strict=True)}
    order = sorted(traced, key=lambda number: (lengths[number], number))
    first = max(0, (len(order) - count) // 2)
    return tuple(sorted(order[first : first + count]))
