"""Cells: the units of a study, each known by the hash of everything that can change its result.

A cell is one model, task, decoding, policy, reuse rule and set of seeds over a list of documents. It is plain data that travels
to workers; a worker loads what the cell names, computes the identity again, and refuses when it is another one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from sinkscope.errors import CheckpointError, InputError
from sinkscope.study import documents
from sinkscope.study.facts import Facts
from sinkscope.study.spec import SCHEME, Grid, InspectGrid, Study, StudyModel, TraceGrid
from sinkscope.tasks.task import Task, digest, fingerprint, scheme_name

if TYPE_CHECKING:
    from sinkscope.decoding import Decoding
    from sinkscope.policies.policy import Policy
    from sinkscope.reuse.rule import Reuse
    from sinkscope.tasks.answer import Item

SCIENCE = "study/2"
"""Part of every cell's identity: count up when the same cell would give other results."""

Kind = Literal["evaluate", "trace", "maps", "replay", "inspect"]


@dataclass(frozen=True)
class Cell:
    """One model × task × decoding × policy × reuse × seeds.

    Attributes:
        decoding: JSON; decoding_name: its name in the study.
        policy: its text form, which `parse_policy` reads; "none" without one.
        reuse: the text form of the rule of approximate steps; "none": every step is exact.
        documents: places in the task.
        capture: JSON of ss.Capture, or of what an inspection looks at; "" without.
        group: the name of the block of traces.
        sandbox: how programs are confined when answers are graded; part of the records, not of the identity.
        sinks: JSON of the ε and the rule by which the statistics of traces find sinks; "": those of ss.detect.
        keep: whether recordings stay once their statistics are made; not part of the identity.
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
    sandbox: str = "auto"
    reuse: str = "none"
    keep: bool = True
    sinks: str = ""
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
        reuse = "" if self.reuse == "none" else f"reuse {self.reuse}"
        parts = [self.kind, self.model.name, self.task, self.decoding_name, self.policy, reuse]
        return " · ".join(part for part in parts if part)

    @property
    def answers(self) -> int:
        """The number of answers it wants."""
        return len(self.documents) * len(self.seeds)

    def as_data(self) -> dict[str, Any]:
        """The content of cell.json: the identity, and names for people."""
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

    def columns(self) -> dict[str, Any]:
        """The columns that its rows in every table begin with: its settings."""
        model, task = self.identity["model"], self.identity["task"]
        return {
            "model": self.model.name, "family": model["family"], "dtype": model["dtype"], "weights": model["weights"],
            "task": task["task"], "task_version": task.get("version", ""), "scheme": scheme_name(task),
            "decoding_name": self.decoding_name, "decoding": self.decoding, "policy": self.policy,
            "seeds": json.dumps(list(self.seeds)), "cell": self.id, **({} if self.reuse == "none" else {"reuse": self.reuse}),
        }  # fmt: skip

    def parsed_decoding(self) -> Decoding:
        """The decoding as an object."""
        from sinkscope.decoding import decoding_from_json

        return decoding_from_json(self.decoding)

    def parsed_policy(self) -> Policy | None:
        """The policy as an object."""
        from sinkscope.policies import parse_policy

        return parse_policy(self.policy)

    def parsed_reuse(self) -> Reuse | None:
        """The reuse rule as an object."""
        from sinkscope.reuse import parse_reuse

        return parse_reuse(self.reuse)

    def parsed_task(self) -> Task:
        """The task as an object; no data is read yet, and no sandbox is needed."""
        from sinkscope.tasks.evaluate import prepare

        return prepare(self.family, self.task, self.data, self.sandbox, grade=False)

    def items(self, task: Task) -> list[Item]:
        """The answers it wants, in order."""
        from sinkscope.tasks.answer import Item

        return [
            Item(place, document, seed)
            for place, document in zip(
                self.documents, documents.documents_at(task, self.documents), strict=True
            )
            for seed in self.seeds
        ]

    def settings(self) -> dict[str, Any]:
        """The settings of its folders of records, as `sinkscope.tasks.evaluate.run_settings` words them."""
        from sinkscope.tasks.evaluate import VERSION

        settings = {
            "version": VERSION,
            "model": {"source": self.model.name, **self.identity["model"]},
            "task": self.identity["task"],
            "decoding": self.identity["decoding"],
            "policy": None if self.policy == "none" else self.policy,
            **({"reuse": self.identity["reuse"]} if "reuse" in self.identity else {}),
        }
        if self.kind != "evaluate":
            settings |= {"kind": self.kind, "capture": self.identity.get("capture")}
        return settings


def identified(cell: Cell, facts: Facts, task: Task | None = None) -> Cell:
    """The cell with its identity, from its task and documents here and the facts about its model."""
    task = task or cell.parsed_task()
    asked = documents.documents_at(task, cell.documents)
    policy = cell.parsed_policy()
    places = [[place, fingerprint(item)] for place, item in zip(cell.documents, asked, strict=True)]
    identity: dict[str, Any] = {
        "science": SCIENCE,
        "kind": cell.kind,
        "model": facts.identity(),
        "task": task.settings(),
        "documents": {"count": len(asked), "digest": digest(places)},
        "decoding": json.loads(cell.decoding),
        "policy": "none" if policy is None else policy.identity(),
        "seeds": list(cell.seeds),
    }
    rule = cell.parsed_reuse()
    if rule is not None:
        identity["reuse"] = rule.identity()
    if cell.capture:
        identity["capture"] = json.loads(cell.capture)
    if cell.sinks:
        identity["sinks"] = json.loads(cell.sinks)
    return replace(cell, identity=json.loads(json.dumps(identity)))


def identify(cells: Sequence[Cell], facts: Mapping[str, Facts]) -> list[Cell]:
    """The cells with their identities; equal cells are one."""
    tasks: dict[tuple[str, str, str | None], Task] = {}
    unique: dict[str, Cell] = {}
    for cell in cells:
        key = (cell.task, cell.family, cell.data)
        if key not in tasks:
            tasks[key] = cell.parsed_task()
        known = facts[cell.model.name]
        if not known.here:
            raise CheckpointError(f"{cell.model.source} is not on this machine")
        made = identified(cell, known, tasks[key])
        same = unique.setdefault(made.id, made)
        if made.keep and not same.keep:  # another block wants the recordings of the same cell
            unique[made.id] = replace(same, keep=True)
    return list(unique.values())


def outline(
    study: Study,
    facts: Mapping[str, Facts],
    samples: int | None = None,
    sandbox: str = "auto",
    exact: bool = True,
) -> list[Cell]:
    """All cells of a study but the maps of exemplars, without identities.

    `samples`: the number for "auto"; None: the least of the budget. Without `exact`, for an estimate, traced documents are not
    chosen by their length: that would read the data of a task, perhaps from the hub.
    """
    auto = study.budget.least if samples is None else samples
    kinds: list[tuple[Kind, Sequence[Grid]]] = [
        ("evaluate", study.evaluate), ("trace", study.trace), ("replay", study.replay),
        ("inspect", study.inspect),
    ]  # fmt: skip
    cells = [
        cell
        for kind, grids in kinds
        for grid in grids
        for model in study.models_of(grid)
        if grid.takes(facts[model.name].family)
        for cell in _cells(study, kind, grid, model, facts[model.name].family, auto, sandbox, exact)
    ]
    if not study.models:
        raise InputError(f"study {study.name} has no models; give one with --model")
    if not cells:
        families = sorted({facts[model.name].family for model in study.models})
        raise InputError(f"no block of study {study.name} takes models of the family {', '.join(families)}")
    return cells


def _cells(
    study: Study, kind: Kind, grid: Grid, model: StudyModel, family: str, auto: int, sandbox: str, exact: bool
) -> list[Cell]:
    """The cells of one block and model."""
    task = grid.task_for(family)
    base = Cell(
        kind=kind, model=model, family=family, task=task, decoding="", decoding_name="", policy="none",
        seeds=grid.seeds, documents=(), group=getattr(grid, "name", ""),
        data=study.data.get(task.partition(":")[0]), sandbox=sandbox,
    )  # fmt: skip
    if isinstance(grid, TraceGrid):
        from sinkscope.trace.capture import Capture

        own = (grid.epsilon, grid.rule) != (TraceGrid.epsilon, TraceGrid.rule)
        sinks = json.dumps({"epsilon": grid.epsilon, "rule": grid.rule}) if own else ""
        base = replace(base, capture=Capture(**grid.capture).to_json(), keep=grid.keep, sinks=sinks)
    if isinstance(grid, InspectGrid):
        base = replace(base, capture=json.dumps({"looks": grid.looks}))
    base = replace(base, documents=_places(study, grid, base, auto, exact))
    made = []
    for name in grid.decodings:
        decoding = _decoding(study, base, name)
        seeds = grid.seeds if decoding.draws else grid.seeds[:1]
        named = replace(base, decoding=decoding.to_json(), decoding_name=name, seeds=seeds)
        rules = expanded_reuse(grid.reuse, grid.controls, decoding)
        for policy in expanded(grid.policies, grid.controls):
            made += [replace(named, policy=policy, reuse=rule) for rule in rules]
    return made


def _places(study: Study, grid: Grid, cell: Cell, auto: int, exact: bool) -> tuple[int, ...]:
    """The documents of a block's cells: the same for all models, policies and decodings."""
    if grid.drawn:
        return grid.drawn
    task = cell.parsed_task()
    count = documents.count_of(grid.samples, task, auto)
    if cell.kind == "trace" and exact:
        return documents.varied(task, count)
    if grid.batches:
        return documents.in_batches(study.models[0], cell.task, cell.family, count, grid.batches)
    return tuple(range(count))


def expanded(policies: Sequence[str], controls: int) -> list[str]:
    """Policies in their text form, random ones once for each seed.

    >>> expanded(["none", "random(top:1)"], 2)
    ['none', 'random(top:1)', 'random(top:1),seed=1']
    """
    from sinkscope.policies import parse_policy

    texts: list[str] = []
    for text in policies:
        policy = parse_policy(text)
        if policy is None:
            texts.append("none")
            continue
        first = policy.control.seed if policy.control is not None else 0
        random = policy.with_seed(first) != policy.with_seed(first + 1)
        draws = [policy.with_seed(first + draw) for draw in range(controls)] if random else [policy]
        for draw in draws:
            if parse_policy(str(draw)) != draw:
                raise InputError(f"policy {text!r} has the text form {str(draw)!r}, which is another policy")
            texts.append(str(draw))
    return list(dict.fromkeys(texts))


def expanded_reuse(rules: Sequence[str], controls: int, decoding: Decoding | None = None) -> list[str]:
    """Reuse rules in their text form, published settings as what they are, random ones once for each seed.

    Raises InputError for a rule that cannot act under the decoding.

    >>> expanded_reuse(["none", "dkv-cache", "sparse:8,by=random"], 2)
    ['none', 'prefix:8,fresh=masks', 'sparse:8,by=random', 'sparse:8,by=random,seed=1']
    """
    from sinkscope.generation.generate import check_rule
    from sinkscope.reuse import parse_reuse

    texts: list[str] = []
    for text in rules:
        rule = parse_reuse(text)
        if decoding is not None:
            check_rule(decoding, rule)
        first = int(getattr(rule, "seed", 0))
        draws = controls if rule is not None and rule.draws else 1
        texts += ["none"] if rule is None else [str(rule.with_seed(first + draw)) for draw in range(draws)]
    return list(dict.fromkeys(texts))


def _decoding(study: Study, cell: Cell, name: str) -> Decoding:
    from sinkscope.decoding import decoding_from_options
    from sinkscope.tasks.evaluate import decoding_for

    if name == SCHEME:
        return decoding_for(cell.parsed_task(), cell.family)
    families = study.decodings[name]
    if cell.family not in families:
        raise InputError(
            f"decoding {name!r} of study {study.name} says nothing about {cell.family} models, which {cell.model.name} is; "
            f"add {cell.family} = {{ … }} to it"
        )
    return decoding_from_options(cell.family, families[cell.family], f"decoding {name!r}")


def map_cells(study: Study, cells: Sequence[Cell], sinks: Mapping[str, Mapping[int, float]]) -> list[Cell]:
    """The cells of the second pass, the full maps of exemplars, without identities.

    `sinks`: id of a traced cell → place of a document → its sinks per head and step.
    """
    from sinkscope.trace.capture import Capture

    made = []
    for grid in study.trace:
        for cell in cells:
            if cell.kind != "trace" or cell.group != grid.name or not grid.maps or cell.reuse != "none":
                continue
            options = {**json.loads(cell.capture), "level": "maps", "every": grid.maps_every}
            second = replace(
                cell, kind="maps", seeds=cell.seeds[:1], capture=Capture(**options).to_json(), identity={}
            )
            made.append(replace(second, documents=documents.exemplars(sinks[cell.id], grid.maps)))
    return made
