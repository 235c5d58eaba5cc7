"""How a training is carried out, as data; and its settings as options of a command, with the line that repeats a run."""

from __future__ import annotations

import dataclasses
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkscope.base import checks
from sinkscope_train.recipe import DATA, Adaptation, Recipe

HELP: dict[str, dict[str, str]] = tomllib.loads((DATA / "options.toml").read_text(encoding="utf-8"))
"""Command → option → its help; commands of recipes share theirs."""


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """Options of a training run that do not change what is learned.

    Attributes:
        out: folder of the checkpoint, the log and the state.
        report_every, check_every, save_every: steps between loss reports, checks and saved states (0: only at the end).
        compile: None: on a GPU only.
        probe: measure sinks at log-spaced steps, for emergence.json.
        stop_after: leave after this step with the state saved, as a kill would; for tests.
    """

    out: Path
    device: str = "auto"
    report_every: int = 50
    check_every: int = 1000
    save_every: int = 1000
    compile: bool | None = None
    probe: bool = True
    quiet: bool = False
    stop_after: int | None = None

    def __post_init__(self) -> None:
        for name in ("check_every", "save_every"):
            checks.whole(name, getattr(self, name), 0)


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(LoopOptions):
    """A recipe and how it is carried out; apart from the recipe, only `init` changes what is learned.

    Attributes:
        init: what to start from instead of what the recipe says: a folder, or a model's name.
        documents: the folder of documents that another run made, which several runs may share.
        check_count: held-out questions per task in an accuracy check; the last one has `final_count` (0: there is none).
        graphs: on one GPU, replay a step as one CUDA graph.
        line: the command that repeats the run, for command.txt.
    """

    recipe: Recipe
    init: str | Path | None = None
    documents: Path | None = None
    check_count: int = 64
    final_count: int = 256
    graphs: bool = False
    line: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("final_count", self.final_count, 0)


@dataclass(frozen=True, kw_only=True)
class AdaptOptions(LoopOptions):
    """An adaptation, its text, and how it is carried out.

    Attributes:
        text: see `text.read_documents`.
        rows_at_a_time: rows in one forward; a step adds up the gradients of all. Smaller needs less memory.
        check_rows: held-out rows in a check.
    """

    adaptation: Adaptation
    text: str
    rows_at_a_time: int = 16
    check_rows: int = 64
    check_every: int = 200
    save_every: int = 200


def kinds_of(command: str, *classes: type) -> dict[str, type]:
    """Option of a command → int, float, bool, Path or str, as the dataclasses that it sets declare it."""
    kinds: dict[str, type] = {"int": int, "float": float, "bool": bool, "Path": Path}
    declared = {field.name: str(field.type) for one in classes for field in dataclasses.fields(one)}
    return {name: kinds.get(declared[name].split(" ")[0], str) for name in HELP[command]}


OF_A_RUN = kinds_of("recipe", TrainingOptions, Recipe)
"""What the command of a recipe takes, besides its folder and device."""


def split(kind: type, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options as a person gives them, without those that are None: fields of a dataclass, and the others."""
    names = {field.name for field in dataclasses.fields(kind)}
    options = {name: value for name, value in given.items() if value is not None}
    inside = {name: value for name, value in options.items() if name in names}
    return inside, {name: value for name, value in options.items() if name not in names}


def as_line(recipe: str, **options: Any) -> str:
    """The command that repeats a run, in one line; options that are None, and quiet, are left out.

    >>> as_line("scratch", out="runs/a b", steps=20, gate=True, device="auto")
    "sinkscope train scratch --out 'runs/a b' --steps 20 --gate"
    """
    words = ["sinkscope", "train", recipe]
    for name, value in options.items():
        flag = name.replace("_", "-")
        if value is None or (name, value) == ("device", "auto") or name == "quiet":
            continue
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(value)]
    return shlex.join(words)
