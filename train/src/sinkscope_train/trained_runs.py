"""Runs of a training sweep as their folders tell them: settings, loss, when sinks emerged, and what was done to each."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sinkscope import InputError
from sinkscope.base.files import read_json, write_atomically
from sinkscope_train.recipe import INTERVENTIONS

DONE, STATE = "training.json", "state.pt"
"""What a run writes last, and what it resumes from while it is not finished."""
ALWAYS_DIFFER = ("name", "layout", "objective", "size", "seed", "starts_from")
"""Settings of a recipe that are not interventions."""


@dataclass(frozen=True)
class TrainedRun:
    """A run of a sweep, as its folder tells it.

    Attributes:
        model: its name in the study. recipe: causal, scratch, adapted, …: the objective and where it starts from;
            "scratch, continued" started from weights, where scratch does not.
        settings: of the recipe, as JSON data. parameters: all weights, those of an intervention too.
        loss: at the end. sink_heads: share of heads with a sink on the held-out probe at the end of training.
        emerged: tokens read when that share first was half of its largest value; None: no head ever had one.
    """

    model: str
    recipe: str
    settings: Mapping[str, Any] = field(hash=False)
    parameters: int
    seed: int
    tokens: int
    loss: float | None
    sink_heads: float | None
    emerged: int | None


def is_finished(folder: Path) -> bool:
    """Whether a folder holds a whole run: its last file, and no state to resume from."""
    return (folder / DONE).is_file() and not (folder / STATE).exists()


def read_run(model: str, folder: Path) -> TrainedRun | None:
    """The run in a folder; None: there is none."""
    try:
        about = json.loads((folder / DONE).read_text(encoding="utf-8"))
        settings = about["recipe"]
        recipe = str(settings["name"])
        if about.get("start_digest") and not settings.get("starts_from"):
            recipe += ", continued"  # from weights that the recipe itself does not start from
        curve = folder / "emergence.json"
        points = json.loads(curve.read_text(encoding="utf-8"))["points"] if curve.exists() else []
        return TrainedRun(
            model, recipe, settings, int(about["parameters"]), int(settings["seed"]), int(about["tokens"]),
            about.get("loss"), *emergence(points),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError):
        return None


def trained_runs(folder: Path) -> dict[str, str]:
    """Name → folder of the finished runs of a training sweep, in the order of the sweep."""
    try:
        about = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
        names = [str(run["name"]) for run in about["runs"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder} is not the folder of a sweep: {error}") from error
    for name in names:
        if Path(name).name != name:
            raise InputError(f"{folder}/sweep.json names a run {name!r}, which is no folder in it")
    runs = {name: str(folder / name) for name in names if is_finished(folder / name)}
    if not runs:
        raise InputError(f"{folder} has no finished run; train them with: sinkscope train sweep FILE --out {folder}")
    return runs


def known_runs(models: Mapping[str, Path], kept: Path) -> list[TrainedRun]:
    """The runs among models, name → folder: from their folders, else as `kept`, a JSON file, has them; then it is written."""
    earlier: dict[str, TrainedRun] = {}
    if kept.exists():
        rows = read_json(kept, "delete it, and it is made again", kind=tuple[TrainedRun, ...])
        earlier = {run.model: run for run in rows}
    read = [read_run(name, folder) for name, folder in models.items() if folder.is_dir()]
    runs = earlier | {run.model: run for run in read if run is not None}
    if runs != earlier:
        text = json.dumps([dataclasses.asdict(run) for run in runs.values()], indent=1) + "\n"
        write_atomically(kept, text)
    return [runs[name] for name in models if name in runs]


def emergence(points: Sequence[Mapping[str, Any]]) -> tuple[float | None, int | None]:
    """Share of heads with a sink at the last point, and the tokens read when it first was half of its largest value.

    Diffusion models: with half of the targets masked.

    >>> level = lambda share: {"0": {"sink_heads": share}}
    >>> emergence([{"tokens": t, "levels": level(s)} for t, s in ((0, 0.0), (10, 0.3), (20, 0.5), (30, 0.4))])
    (0.4, 10)
    """
    shares = [
        (int(point["tokens"]), float(level["sink_heads"]))
        for point in points
        if (level := point["levels"].get("0.5") or point["levels"].get("0")) is not None
    ]
    if not shares:
        return None, None
    most = max(share for _, share in shares)
    first = next((tokens for tokens, share in shares if share >= most / 2), None) if most > 0 else None
    return shares[-1][1], first


def interventions(runs: Sequence[TrainedRun]) -> dict[str, str]:
    """Model → what was done to its training; "": nothing.

    INTERVENTIONS stand in the settings only if they were made; of other settings, what most runs of a recipe have is plain.
    """
    usual: dict[str, dict[str, str]] = {}
    for recipe in dict.fromkeys(run.recipe for run in runs):
        every = [run.settings for run in runs if run.recipe == recipe]
        usual[recipe] = {
            name: "null"
            if name in INTERVENTIONS
            else Counter(json.dumps(settings.get(name)) for settings in every).most_common(1)[0][0]
            for name in dict.fromkeys(name for settings in every for name in settings)
            if name not in ALWAYS_DIFFER
        }
    return {
        run.model: ", ".join(
            name if run.settings.get(name) is True else f"{name}={run.settings.get(name, 'default')}"
            for name, value in usual[run.recipe].items()
            if json.dumps(run.settings.get(name)) != value
        )
        for run in runs
    }
