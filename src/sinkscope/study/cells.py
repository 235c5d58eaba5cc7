"""Cells: the units of a study, each known by the hash of everything that can change its result.

A cell is an experiment with documents and what is done with them. It travels to workers as it is; a worker loads its model,
computes the identity again, and refuses when it is another one. JSON is made of it where it is stored, and never read back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

from sinkscope.base.errors import CheckpointError, InputError
from sinkscope.base.extras import EXTRAS, Extra
from sinkscope.study import documents
from sinkscope.study.facts import Facts
from sinkscope.study.spec import DIFFUSION, SCHEME, Grid, InspectGrid, Study, StudyModel, TraceGrid
from sinkscope.tasks import registry
from sinkscope.tasks.experiment import Experiment
from sinkscope.tasks.registry import is_file
from sinkscope.tasks.task import Task, digest, fingerprint, scheme_name

if TYPE_CHECKING:
    from sinkscope.decoding import Decoding
    from sinkscope.policies.policy import Policy
    from sinkscope.tasks.answer import Item
    from sinkscope.trace.capture import Capture

SCIENCE = "study/2"
"""Part of every cell's identity: count up when the same cell would give other results."""

Kind = Literal["evaluate", "trace", "maps", "replay", "inspect"]


@dataclass(frozen=True)
class Cell:
    """An experiment on some documents.

    Attributes:
        model: what a worker loads. task, decoding_name: what the study calls them.
        documents: their numbers in the task.
        capture: what is recorded of each generation. looks: how many of its steps an inspection looks at.
        sinks: by what the statistics of traces find sinks, where not as usual. group: the name of the section of traces.
        keep: whether recordings stay once their statistics are made. floor: of the accuracy without a policy, under which it is
            not computed. Neither is part of the identity.
        questions: digest of the documents' texts; "" before `identify` has read them.
    """

    kind: Kind
    experiment: Experiment
    model: StudyModel
    task: str
    decoding_name: str
    documents: tuple[int, ...]
    capture: Capture | None = None
    looks: int = 0
    sinks: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""
    keep: bool = True
    floor: float = 0.0
    questions: str = ""

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """Everything that can change a result, as JSON data."""
        if not self.questions:
            raise InputError(f"{self.title} has no identity yet")
        identity: dict[str, Any] = {
            "science": SCIENCE,
            "kind": self.kind,
            **self.experiment.identity,
            "documents": {"count": len(self.documents), "digest": self.questions},
        }
        if self.capture is not None or self.looks:
            identity["capture"] = {"looks": self.looks} if self.capture is None else asdict(self.capture)
        if self.sinks:
            identity["sinks"] = self.sinks
        stored: dict[str, Any] = json.loads(json.dumps(identity))  # as a file has it
        return stored

    @cached_property
    def id(self) -> str:
        """16 hex digits."""
        return digest(dict(self.identity))

    @property
    def policy(self) -> str:
        """The text of its policy; "none" without one."""
        return str(self.experiment.policy or "none")

    @property
    def exact(self) -> bool:
        """Whether no extra acts in its generations."""
        return not self.experiment.extras

    @property
    def title(self) -> str:
        """A name for people."""
        extras = [f"{name} {extra}" for name, extra in self.experiment.extras.items()]
        parts = [self.kind, self.model.name, self.task, self.decoding_name, self.policy, *extras]
        return " · ".join(part for part in parts if part)

    @property
    def said(self) -> str:
        """Its title on a screen: where the decoding is the task's own, its stored name, "scheme", says nothing."""
        return self.title.replace(f" · {SCHEME} · ", " · ")

    @property
    def answers(self) -> int:
        return len(self.documents) * len(self.experiment.seeds)

    def as_data(self) -> dict[str, Any]:
        """The content of cell.json: the identity, and names for people."""
        names = {name: getattr(self, name) for name in ("id", "title", "task", "decoding_name", "group", "answers")}
        return {**names, "model": self.model.source, "identity": dict(self.identity)}

    def columns(self) -> dict[str, Any]:
        """The columns that its rows in every table begin with: its settings."""
        model, task = self.experiment.model, self.experiment.settings["task"]
        return {
            "model": self.model.name, "family": model.family, "dtype": model.dtype, "weights": model.weights,
            "task": task["task"], "task_version": task.get("version", ""), "scheme": scheme_name(task),
            "decoding_name": self.decoding_name, "decoding": self.experiment.decoding.to_json(), "policy": self.policy,
            "seeds": json.dumps(list(self.experiment.seeds)), "cell": self.id,
            **{name: str(extra) for name, extra in self.experiment.extras.items()},
        }  # fmt: skip

    def items(self) -> list[Item]:
        """The answers it wants, in order."""
        from sinkscope.tasks.answer import Item

        asked = zip(self.documents, documents.numbered(self.experiment.task, self.documents), strict=True)
        return [Item(number, document, seed) for number, document in asked for seed in self.experiment.seeds]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of its folders of records."""
        if self.kind == "evaluate":
            return self.experiment.settings
        return {**self.experiment.settings, "kind": self.kind, "capture": self.identity.get("capture")}


def identify(cells: Sequence[Cell]) -> list[Cell]:
    """The cells with their documents read, so that they have identities; equal cells are one."""
    read: dict[tuple[int, tuple[int, ...]], str] = {}
    unique: dict[str, Cell] = {}
    for cell in cells:
        if cell.experiment.model.weights is None:
            raise CheckpointError(f"{cell.model.source} is not on this machine")
        asked = id(cell.experiment.task), cell.documents
        if asked not in read:
            read[asked] = questions(cell)
        whole = replace(cell, questions=read[asked])
        same = unique.setdefault(whole.id, whole)
        if whole.keep and not same.keep:  # another section wants the recordings of the same cell
            unique[whole.id] = replace(same, keep=True)
    return list(unique.values())


def questions(cell: Cell) -> str:
    """A digest of the texts of its documents."""
    asked = documents.numbered(cell.experiment.task, cell.documents)
    return digest([[n, fingerprint(one)] for n, one in zip(cell.documents, asked, strict=True)])


# ---- the cells of a study --------------------------------------------------------------------------


def outline(
    study: Study, facts: Mapping[str, Facts], samples: int | None = None, sandbox: str = "auto", exact: bool = True
) -> list[Cell]:
    """All cells of a study, without identities.

    `samples`: the number for "auto"; None: the least of the budget. Without `exact`, for an estimate, traced documents are not
    chosen by their length: that would read the data of a task, perhaps from the hub.
    """
    from sinkscope.tasks.evaluate import prepare

    if not study.models:
        raise InputError(f"study {study.name} has no models; give one with --model")

    @cache
    def task_of(name: str, family: str) -> Task:
        data = study.data.get(registry.base_and_scheme(name)[0])
        task = prepare(family, name, data, sandbox, grade=False)
        if data is not None or is_file(name):
            task.documents()  # a file that is damaged is said before anything is computed
        return task

    auto = study.budget.least if samples is None else samples
    cells: list[Cell] = []
    for kind, grid in study.sections:
        for model in study.models_of(grid):
            family = facts[model.name].family
            if not grid.takes(family):
                continue
            task = task_of(name := grid.task_for(family), family)
            count = documents.count_of(grid.samples, task, auto)
            numbers = documents.chosen(study, grid, task, count, kind == "trace", exact)
            for called in grid.decodings:
                decoding = _decoding(study, kind, called, task, model, family)
                shared = Cell(kind, Experiment(facts[model.name], task, decoding), model, name, called, numbers)
                section = _section(grid, shared)
                cells += section
                if isinstance(grid, TraceGrid) and grid.maps:
                    few = documents.exemplars(task, numbers, grid.maps, exact)
                    cells += [_mapped(cell, few, grid.maps_every) for cell in section if cell.exact]
    if not cells:
        families = sorted({facts[model.name].family for model in study.models})
        raise InputError(f"no section of study {study.name} takes models of the family {', '.join(families)}")
    return cells


def _section(grid: Grid, cell: Cell) -> list[Cell]:
    """The cells of a section for one model and decoding, which begin as `cell`: all policies get the same documents."""
    from sinkscope.policies import parse_policy
    from sinkscope.trace.capture import Capture

    if isinstance(grid, TraceGrid):
        capture = Capture(**grid.capture)
        cell = replace(cell, capture=capture, sinks=grid.sinks, group=grid.name, keep=grid.keep)
    elif isinstance(grid, InspectGrid):
        cell = replace(cell, looks=grid.looks)
    drawn = replace(cell.experiment, seeds=grid.seeds if cell.experiment.decoding.draws else grid.seeds[:1])
    return [
        replace(cell, floor=grid.floor, experiment=replace(drawn, policy=policy, extras=extras))
        for policy in draws(map(parse_policy, grid.policies), grid.controls)
        for extras in combined(grid.extras, grid.controls, cell.experiment.decoding)
    ]


def _mapped(cell: Cell, numbers: tuple[int, ...], every: int) -> Cell:
    """The full maps of some documents of a traced cell."""
    experiment = replace(cell.experiment, seeds=cell.experiment.seeds[:1])
    capture: Any = replace(cell.capture, level="maps", every=every)  # type: ignore[type-var]
    return replace(cell, kind="maps", experiment=experiment, capture=capture, documents=numbers)


def _decoding(study: Study, kind: Kind, name: str, task: Task, model: StudyModel, family: str) -> Decoding:
    """A decoding of the study; refused where the task cannot be put with it."""
    from sinkscope.decoding import decoding_from_options
    from sinkscope.tasks.evaluate import decoding_for
    from sinkscope.tasks.reading import ReadTask

    read = isinstance(task, ReadTask)
    if name != SCHEME:
        families = study.decodings[name]
        options = families.get(family, families.get(DIFFUSION))
        if options is None:
            raise InputError(
                f"decoding {name!r} of study {study.name} says nothing about {family} models, which {model.name} is; "
                f"add {family} = {{ … }} to it"
            )
        decoding = decoding_from_options(family, options, f"decoding {name!r}")
    elif read and kind != "evaluate":  # a text is continued
        if not task.prompt(documents.first_documents(task, 1)[0]).text().strip():
            raise InputError(
                f"{task.name} has no texts to go on from, so it cannot be in [[{kind}]]; take another task there"
            )
        decoding = brief(family)
    else:
        decoding = decoding_for(task, family)
    if decoding.generates == (read and kind == "evaluate"):
        raise InputError(
            f"{task.name} is {'read' if read else 'answered'}, which decoding {name!r} ({decoding}) does not do; leave decodings "
            "out of its section"
        )
    return decoding


def brief(family: str) -> Decoding:
    """The decoding of short answers of a family."""
    from sinkscope.decoding.base import decoding_from_options, kinds

    return decoding_from_options(family, kinds(family)[0].brief)


def draws(things: Iterable[Policy | Extra | None], controls: int) -> list[Any]:
    """Policies or extras, random ones once for each seed; None: nothing acts.

    >>> [str(draw) for draw in draws([None, ss.parse_policy("random(top:1)")], 2)]
    ['None', 'random(top:1)', 'random(top:1),seed=1']
    """
    from sinkscope.policies import Policy, parse_policy

    drawn: dict[str, Any] = {}
    for thing in things:
        random: Any = thing.control if isinstance(thing, Policy) else thing
        first = int(getattr(random, "seed", 0))
        for draw in (thing and thing.with_seed(first + n) for n in range(controls)):
            if isinstance(draw, Policy) and str(draw) != draw.identity() and parse_policy(str(draw)) != draw:
                raise InputError(f"policy {str(thing)!r} has the text form {str(draw)!r}, which is another policy")
            drawn[str(draw)] = draw
    return list(drawn.values())


def combined(extras: Mapping[str, Sequence[str]], controls: int, decoding: Decoding) -> list[dict[str, Extra]]:
    """Every combination of extras, from their text forms by kind.

    Raises InputError for one that cannot act under the decoding.
    """
    choices = []
    for name, texts in extras.items():
        read = [EXTRAS.find(name).read(text) for text in texts]
        for extra in read:
            if extra is not None:
                extra.check(decoding)
        choices.append([(name, draw) for draw in draws(read, controls)])
    return [{name: extra for name, extra in chosen if extra is not None} for chosen in product(*choices)]
