"""Facts about a model that a study needs before it is loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sinkscope.base.errors import CheckpointError
from sinkscope.study.spec import Grid, Study, StudyModel, each_section
from sinkscope.tasks.experiment import ModelIdentity

if TYPE_CHECKING:
    from sinkscope.models.checkpoint import Checkpoint


@dataclass(frozen=True)
class Facts(ModelIdentity):
    """A model's identity, under its name in the study, and its size."""

    layers: int = 32
    heads: int = 32
    parameters: int = 8_000_000_000

    @property
    def here(self) -> bool:
        return self.weights is not None


def facts_of(model: StudyModel, device: str = "auto", fetch: bool = True) -> Facts:
    """The facts about a model; without `fetch` nothing is downloaded."""
    from sinkscope.models.family import in_mode
    from sinkscope.models.fetched import NAMES
    from sinkscope.models.load import FAMILIES, family_of, find, resolve_device, resolve_dtype, without_mode

    try:
        checkpoint = find(model.source, model.revision) if fetch else local_checkpoint(model)
    except CheckpointError:
        if fetch or model.source in NAMES:
            raise
        checkpoint = None
    source = without_mode(model.source)
    # Known checkpoints can be planned for without being here.
    if checkpoint is None:
        checkpoints = {entry.source: (family, entry) for family in FAMILIES.values() for entry in family.known}
        if source not in checkpoints:
            raise CheckpointError(
                f"{model.source} is not on this machine and no known checkpoint, so nothing can be planned for it; "
                "give a folder, or run once with a network"
            )
        family, entry = checkpoints[source]
        spec = in_mode(family, source != model.source, source)
        return Facts(model.name, spec.counted_as, model.dtype, None, *entry.size)
    dtype = str(resolve_dtype(model.dtype, resolve_device(device), checkpoint)).removeprefix("torch.")
    inner = checkpoint.config.get("text_config")  # of networks that read pictures too
    config = checkpoint.config | (inner if isinstance(inner, dict) else {})

    def first(*names: str) -> int:
        return next((int(config[name]) for name in names if config.get(name)), 32)

    size = first("num_hidden_layers", "n_layers"), first("num_attention_heads", "n_heads")
    parameters = sum(math.prod(shape) for shape in checkpoint.shapes.values())
    weights = checkpoint.revision or checkpoint.digest
    return Facts(model.name, family_of(checkpoint).counted_as, dtype, weights, *size, parameters)


def present(study: Study) -> tuple[Study, str]:
    """The study without its optional models that are not on this machine, and without sections of these alone; and a line that
    says so, "" where nothing is left out."""
    absent = {}
    for model in study.models:
        try:
            if model.optional and local_checkpoint(model) is None:
                absent[model.name] = f"{model.source} is not on this machine"
        except CheckpointError as error:
            absent[model.name] = str(error)
    if not absent:
        return study, ""

    def without(_: str, grid: Grid) -> Grid | None:
        left = tuple(name for name in grid.models if name not in absent)
        return None if grid.models and not left else replace(grid, models=left)

    models = tuple(model for model in study.models if model.name not in absent)
    line = f"left out: {', '.join(absent)} ({next(iter(absent.values()))})"
    return each_section(study, without, models=models), line


def local_checkpoint(model: StudyModel) -> Checkpoint | None:
    """The checkpoint when it is on this machine, else None."""
    from sinkscope.models.fetched import NAMES
    from sinkscope.models.load import find, is_organism, without_mode

    source = without_mode(model.source)
    # A name of a fetched model is found here, or says how to get it.
    if is_organism(source) or source in NAMES or Path(source).expanduser().is_dir():
        return find(model.source, model.revision)
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        cached = {entry.repo_id for entry in scan_cache_dir().repos}
    except CacheNotFound:
        cached = set()
    return find(model.source, model.revision) if source in cached else None
