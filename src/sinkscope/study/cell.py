"""Cells: the units of a study, each known by the hash of everything that can change its result.

A cell is one model, task, decoding, policy and set of seeds over a list of documents. It is plain data that travels to
workers; a worker loads what the cell names, computes the identity again, and refuses when it is another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from sinkscope.errors import InputError
from sinkscope.study.spec import StudyModel
from sinkscope.tasks.task import Document, Task, digest, fingerprint

if TYPE_CHECKING:
    from sinkscope.decoding import Decoding
    from sinkscope.tasks.answer import Item

SCIENCE = "study/1"
"""Part of every cell's identity: count up when the same cell would give other results."""

Kind = Literal["evaluate", "trace", "maps", "replay"]


@dataclass(frozen=True)
class Cell:
    """One model × task × decoding × policy × seeds.

    Attributes:
        decoding: JSON; decoding_name: what the study calls it.
        policy: its text form, or "none".
        documents: places in the task; () when they are not known yet (a plan without data).
        capture: JSON of ss.Capture, "" without.
        group: the name of the block of traces.
        identity: everything that can change a result, as JSON data; empty before `identified`.
    """

    kind: Kind
    model: StudyModel
    family: str
    task: str
    decoding: str
    decoding_name: str
    policy: str
    seeds: tuple[int, ...]
    documents: tuple[int, ...]
    capture: str = ""
    group: str = ""
    data: str | None = None
    sandbox: str = "bubblewrap"
    identity: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """16 hex digits."""
        if not self.identity:
            raise InputError(f"{self.title} has no identity yet")
        return digest(dict(self.identity))

    @property
    def title(self) -> str:
        """A name for people."""
        parts = [self.kind, self.model.name, self.task, self.decoding_name, self.policy]
        return " · ".join(part for part in parts if part)

    @property
    def answers(self) -> int:
        """How many answers it wants."""
        return len(self.documents) * len(self.seeds)

    def as_data(self) -> dict[str, Any]:
        """What cell.json holds: the identity, and names for people."""
        return {
            "id": self.id,
            "title": self.title,
            "model": self.model.source,
            "task": self.task,
            "decoding_name": self.decoding_name,
            "group": self.group,
            "answers": self.answers,
            "identity": dict(self.identity),
        }

    def parsed_decoding(self) -> Decoding:
        """The decoding as an object."""
        from sinkscope.decoding import decoding_from_json

        return decoding_from_json(self.decoding)


@dataclass(frozen=True)
class Weights:
    """What identifies a model's numbers."""

    family: str
    dtype: str
    weights: str  # the hub's commit, or a digest of the weight files


def task_of(cell: Cell) -> Task:
    """The cell's task, its sandbox checked."""
    from sinkscope.tasks.evaluate import prepare

    return prepare(cell.family, cell.task, cell.data, cell.sandbox)


_GENERATED: dict[tuple[str, str], Sequence[Document]] = {}


def first_documents(task: Task, many: int) -> Sequence[Document]:
    """The first documents of a task. Those of generated tasks follow from the version alone, and are made once in a process."""
    if not hasattr(task, "stream"):
        return task.documents(many)
    key = (task.name, str(task.settings()["version"]))
    if len(_GENERATED.get(key, ())) < many:
        _GENERATED[key] = task.documents(many)
    return _GENERATED[key][:many]


def documents_of(task: Task, places: Sequence[int]) -> list[Document]:
    """The documents at these places of the task."""
    found = first_documents(task, max(places) + 1)
    if len(found) <= max(places):
        raise InputError(f"{task.name} has {len(found)} documents here, and number {max(places)} is wanted")
    return [found[place] for place in places]


def identified(cell: Cell, weights: Weights, task: Task | None = None) -> Cell:
    """The cell with its identity."""
    task = task or task_of(cell)
    documents = documents_of(task, cell.documents)
    identity: dict[str, Any] = {
        "science": SCIENCE,
        "kind": cell.kind,
        "model": {"family": weights.family, "dtype": weights.dtype, "weights": weights.weights},
        "task": task.settings(),
        "documents": {
            "count": len(documents),
            "digest": digest(
                [[place, fingerprint(one)] for place, one in zip(cell.documents, documents, strict=True)]
            ),
        },
        "decoding": json.loads(cell.decoding),
        "policy": cell.policy,
        "seeds": list(cell.seeds),
    }
    if cell.capture:
        identity["capture"] = json.loads(cell.capture)
    return replace(cell, identity=json.loads(json.dumps(identity)))


def items_of(cell: Cell, task: Task) -> list[Item]:
    """The answers that a cell wants, in order."""
    from sinkscope.tasks.answer import Item

    documents = documents_of(task, cell.documents)
    return [
        Item(place, document, seed)
        for place, document in zip(cell.documents, documents, strict=True)
        for seed in cell.seeds
    ]


def settings_of(cell: Cell) -> dict[str, Any]:
    """The settings of the cell's run folders, as `sinkscope.tasks.evaluate.run_settings` words them."""
    from sinkscope.tasks.evaluate import VERSION

    identity = cell.identity
    settings = {
        "version": VERSION,
        "model": {"source": cell.model.name, **identity["model"]},
        "task": identity["task"],
        "decoding": identity["decoding"],
        "policy": None if cell.policy == "none" else cell.policy,
    }
    if cell.kind != "evaluate":
        settings |= {"kind": cell.kind, "capture": identity.get("capture")}
    return settings


def differences(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """What differs between two identities, in words."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from differences(old.get(key), new.get(key), f"{name}.{key}" if name else str(key))
    elif old != new:
        yield f"{name or 'everything'} is {_short(old)} there and {_short(new)} here"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
