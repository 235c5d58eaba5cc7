"""From a study to its cells, and what they will take: forward passes, storage, time."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from sinkscope.errors import CheckpointError, InputError
from sinkscope.study.cell import Cell, Kind, Weights, first_documents, identified, task_of
from sinkscope.study.spec import SCHEME, Grid, Samples, Study, StudyModel, TraceGrid, decoding_of

SIZES = {"gsm8k": 1319, "humaneval": 164}
"""Documents of the tasks that have an end, for plans without data."""

TRACED_FROM = 64
"""Traced prompts are chosen from the first so many documents, at even ranks of length."""

UNKNOWN_PROMPT = 64
"""Tokens of a prompt, where nothing is known about it yet."""


@dataclass(frozen=True)
class Facts:
    """What a plan knows about a model. `weights` is None when it is not on this machine."""

    family: str
    dtype: str
    weights: str | None
    layers: int = 32
    heads: int = 32
    parameters: int = 8_000_000_000

    @property
    def here(self) -> bool:
        """Whether the checkpoint is on this machine."""
        return self.weights is not None


def facts_of(model: StudyModel, device: str = "auto", fetch: bool = True) -> Facts:
    """Family, dtype and weights of a model; without `fetch` nothing is downloaded."""
    from sinkscope.models.load import FAMILIES, family_of, find, resolve_device, resolve_dtype

    try:
        checkpoint = find(model.source, model.revision) if fetch else _local(model)
    except CheckpointError:
        if fetch:
            raise
        checkpoint = None
    if checkpoint is None:
        known = {entry.source: family.name for family in FAMILIES.values() for entry in family.known}
        if model.source not in known:
            raise CheckpointError(
                f"{model.source} is not on this machine and no known checkpoint, so nothing can be planned for it; "
                "give a folder, or run once with a network"
            )
        return Facts(known[model.source], model.dtype, None)
    family = family_of(checkpoint).name
    dtype = str(resolve_dtype(model.dtype, resolve_device(device), checkpoint)).removeprefix("torch.")
    config = checkpoint.config

    def first(*names: str) -> int:
        return next((int(config[name]) for name in names if config.get(name)), 32)

    parameters = sum(_product(shape) for shape in checkpoint.shapes.values())
    layers, heads = first("num_hidden_layers", "n_layers"), first("num_attention_heads", "n_heads")
    return Facts(family, dtype, checkpoint.revision or checkpoint.digest, layers, heads, parameters)


def _local(model: StudyModel) -> Any:
    """The checkpoint when it is on this machine, else None."""
    from pathlib import Path

    from sinkscope.models.load import find

    if model.source.startswith("organism/") or Path(model.source).expanduser().is_dir():
        return find(model.source, model.revision)
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        cached = {entry.repo_id for entry in scan_cache_dir().repos}
    except CacheNotFound:
        cached = set()
    if model.source not in cached:
        return None
    return find(model.source, model.revision)


def _product(shape: Iterable[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


# ---- cells ---------------------------------------------------------------------------------------


def outline(
    study: Study, facts: Mapping[str, Facts], samples: int | None = None, sandbox: str = "bubblewrap"
) -> list[Cell]:
    """All cells of a study but the maps of exemplars, without identities.

    `samples`: what "auto" stands for; None: the least.
    """
    many = study.budget.least if samples is None else samples
    cells: list[Cell] = []
    kinds: list[tuple[Kind, Sequence[Grid]]] = [
        ("evaluate", study.evaluate), ("trace", study.trace), ("replay", study.replay)
    ]  # fmt: skip
    for kind, grids in kinds:
        for grid in grids:
            for model in study.models_of(grid):
                cells += _cells(study, kind, grid, model, facts[model.name].family, many, sandbox)
    if not cells:
        raise InputError(f"study {study.name} has no models; give one with --model")
    return cells


def _cells(
    study: Study, kind: Kind, grid: Grid, model: StudyModel, family: str, many: int, sandbox: str
) -> list[Cell]:
    task = grid.task_for(family)
    data = study.data.get(task.partition(":")[0])
    capture = ""
    if isinstance(grid, TraceGrid):
        from sinkscope.trace.capture import Capture

        capture = Capture(**grid.capture).to_json()
    base = Cell(
        kind=kind, model=model, family=family, task=task, decoding="", decoding_name="", policy="none",
        seeds=grid.seeds, documents=(), capture=capture, group=getattr(grid, "name", ""), data=data, sandbox=sandbox,
    )  # fmt: skip
    count = _count(grid.samples, task, many)
    places = tuple(range(count))
    if grid.batches:
        places = in_batches(study, task, family, count, grid.batches)
    if kind == "trace":
        places = _varied(base, count)
    found = []
    for name in grid.decodings:
        decoding = _decoding(study, base, name)
        seeds = grid.seeds if len(grid.seeds) == 1 or _draws(decoding) else grid.seeds[:1]
        for policy in expanded(grid.policies, grid.controls):
            found.append(
                replace(
                    base, decoding=decoding, decoding_name=name, policy=policy, documents=places, seeds=seeds
                )
            )
    return found


def expanded(policies: Sequence[str], controls: int) -> list[str]:
    """Policies in one form, controls once for each seed.

    >>> expanded(["none", "top:1", "random(top:1)"], 2)
    ['none', 'top:1', 'random(top:1)', 'random(top:1),seed=1']
    """
    from sinkscope.policies import MaskRandom, parse_policy
    from sinkscope.policies.policy import Policy

    found: list[str] = []
    for text in policies:
        policy = parse_policy(text)
        if policy is None:
            found.append("none")
            continue
        parts = list(policy.parts())
        random = any(isinstance(part, MaskRandom) for part in parts)
        for seed in range(controls if random else 1):
            made: Policy | None = None
            for part in parts:
                one = (
                    dataclasses.replace(part, seed=part.seed + seed) if isinstance(part, MaskRandom) else part
                )
                made = one if made is None else made & one
            found.append(str(made))
    return list(dict.fromkeys(found))


def _count(samples: Samples, task: str, auto: int) -> int:
    if samples == "auto":
        return auto
    base = task.partition(":")[0]
    if samples == "all":
        if base not in SIZES:
            raise InputError(f'{base} has no end, so samples = "all" cannot be done; give a number')
        return SIZES[base]
    return min(samples, SIZES.get(base, samples))


def _varied(cell: Cell, count: int) -> tuple[int, ...]:
    """Documents of varied length: even ranks by length among the first ones. Without data, simply the first."""
    try:
        task = task_of(cell)
        documents = first_documents(task, max(count, TRACED_FROM))
    except (InputError, ImportError):
        return tuple(range(count))
    order = sorted(range(len(documents)), key=lambda place: (len(documents[place].question), place))
    if count >= len(order):
        return tuple(sorted(order))
    if count == 1:
        return (order[len(order) // 2],)
    ranks = [round(i * (len(order) - 1) / (count - 1)) for i in range(count)]
    return tuple(sorted(order[rank] for rank in ranks))


@lru_cache(maxsize=64)
def _prompt_lengths(model: StudyModel, task: str, family: str, many: int) -> tuple[int, ...]:
    """Tokens of the prompts of the first documents, by a model's tokenizer; () when it is not on this machine."""
    from types import SimpleNamespace

    from sinkscope.models.load import family_of
    from sinkscope.models.tokenizer import read_tokenizer
    from sinkscope.tasks import registry
    from sinkscope.tasks.prompting import encode_prompt

    checkpoint = _local(model)
    if checkpoint is None:
        return ()
    kind = family_of(checkpoint)
    tokenizer = read_tokenizer(checkpoint.folder, kind.chat_template)
    ids = kind.special_ids(checkpoint, tokenizer)
    reader: Any = SimpleNamespace(tokenizer=tokenizer, source=model.source, ids=ids)
    chosen = registry.get(task, family)
    return tuple(
        len(encode_prompt(reader, chosen.prompt(document), chosen.scheme).ids)
        for document in first_documents(chosen, many)
    )


def in_batches(study: Study, task: str, family: str, count: int, batch: int) -> tuple[int, ...]:
    """Documents in whole batches of equally long prompts.

    In the task's order each document joins the batch of its prompt's length; batches that are full are taken, in the order in
    which they fill, until there are `count` documents. Lengths are by the tokenizer of the study's first model, so that all
    models get the same documents. Rare lengths come late or not at all: a small study is about the common ones.
    """
    model, whole = study.models[0], -(-count // batch)
    many = 16 * count
    lengths = _prompt_lengths(model, task, family, many)
    waiting: dict[int, list[int]] = {}
    taken: list[int] = []
    for place, length in enumerate(lengths):
        group = waiting.setdefault(length, [])
        group.append(place)
        if len(group) == batch:
            taken += waiting.pop(length)
        if len(taken) == whole * batch:
            break
    return tuple(sorted(taken[:count])) if len(taken) >= count else tuple(range(count))


def _decoding(study: Study, cell: Cell, name: str) -> str:
    from sinkscope.tasks import registry
    from sinkscope.tasks.evaluate import decoding_for

    if name == SCHEME:
        return decoding_for(registry.get(cell.task, cell.family), cell.family).to_json()
    families = study.decodings[name]
    if cell.family not in families:
        raise InputError(
            f"decoding {name!r} of study {study.name} says nothing about {cell.family} models, which {cell.model.name} is; "
            f"add {cell.family} = {{ … }} to it"
        )
    text: str = decoding_of(cell.family, families[cell.family], name).to_json()
    return text


def _draws(decoding: str) -> bool:
    from sinkscope.decoding import decoding_from_json

    return decoding_from_json(decoding).draws


def identify(cells: Sequence[Cell], facts: Mapping[str, Facts]) -> list[Cell]:
    """The cells with their identities; equal cells are one."""
    tasks: dict[tuple[str, str, str | None], Any] = {}
    found: dict[str, Cell] = {}
    for cell in cells:
        key = (cell.task, cell.family, cell.data)
        if key not in tasks:
            tasks[key] = task_of(cell)
        known = facts[cell.model.name]
        if known.weights is None:
            raise CheckpointError(f"{cell.model.source} is not on this machine")
        made = identified(cell, Weights(known.family, known.dtype, known.weights), tasks[key])
        found.setdefault(made.id, made)
    return list(found.values())


# ---- what it takes -------------------------------------------------------------------------------


def forwards(cell: Cell) -> int:
    """Forward passes of a cell, at most."""
    from sinkscope.tasks.answer import forwards_of

    each = forwards_of(cell.parsed_decoding())
    return cell.answers * each * (3 if cell.kind == "replay" else 1)


def storage(cell: Cell, facts: Facts) -> int:
    """Bytes that a cell leaves on disk, roughly: 2 kB per record, and the arrays of a trace in half precision."""
    records = 2048 * cell.answers
    if not cell.capture:
        return records
    capture = json.loads(cell.capture)
    decoding = cell.parsed_decoding()
    length = int(getattr(decoding, "length", 0))
    steps = -(-(forwards(cell) // max(1, cell.answers)) // int(capture["every"]))
    keys = UNKNOWN_PROMPT + length
    heads = 1 if capture["level"] == "layers" else facts.heads
    per_key = (
        1
        + (3 if capture["by_query"] else 0)
        + (2 if cell.policy != "none" else 0)
        + (2 if capture["anatomy"] else 0)
    )
    each = 2 * steps * facts.layers * heads * keys * per_key + 24 * steps * keys
    if capture["level"] == "maps":
        each += 2 * steps * facts.layers * facts.heads * keys * keys
    return records + each * cell.answers


@dataclass(frozen=True)
class Speed:
    """Seconds for one forward pass of one answer, as measured with all workers busy: without and with a policy, recorded."""

    plain: float
    masked: float
    traced: float

    def of(self, cell: Cell) -> float:
        """Seconds for one forward pass of a cell."""
        if cell.kind in ("trace", "maps"):
            return self.traced
        return self.plain if cell.policy == "none" else self.masked


def seconds(cells: Iterable[Cell], speeds: Mapping[str, Speed], workers: int) -> float:
    """Wall seconds for cells, spread over workers."""
    return sum(forwards(cell) * speeds[cell.model.name].of(cell) for cell in cells) / max(1, workers)


def choose_samples(
    study: Study, facts: Mapping[str, Facts], speeds: Mapping[str, Speed], workers: int
) -> int:
    """The documents per cell that "auto" stands for: as many as the budget's seconds allow, within its bounds.

    Rounded down to a multiple of 8, so that two measurements of nearly the same speed agree more often.
    """
    least = study.budget.least
    one, two = (seconds(outline(study, facts, many), speeds, workers) for many in (least, 2 * least))
    each = (two - one) / least
    fixed = one - each * least
    many = int((study.budget.seconds - fixed) / each) if each > 0 else study.budget.most
    return max(study.budget.least, min(study.budget.most, many - many % 8))


def with_samples(study: Study, samples: int) -> Study:
    """The study with "auto" replaced by a number."""

    def fixed(grid: Any) -> Any:
        return replace(grid, samples=samples) if grid.samples == "auto" else grid

    return replace(
        study,
        evaluate=tuple(map(fixed, study.evaluate)),
        trace=tuple(map(fixed, study.trace)),
        replay=tuple(map(fixed, study.replay)),
    )


def has_auto(study: Study) -> bool:
    """Whether anything is left to a measurement."""
    return any(grid.samples == "auto" for grid in study.grids)
