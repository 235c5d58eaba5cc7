"""The paper's figures and tables from the folder of a finished study: its exemplars, their maps, and its accuracies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from sinkscope.report.figures import FIGURES, MAPS, Saved, save_all
from sinkscope.report.study.source import read
from sinkscope.report.study.words import short
from sinkscope.trace.trace import Trace


def is_study(folder: Path) -> bool:
    """Whether a folder holds a study."""
    return (folder / "study.toml").is_file()


def save_study(folder: Path, out: Path, only: Sequence[str] = ()) -> Saved:
    """Every figure that the study allows, table 1 included, as SVG, PDF and CSV with a caption."""
    source = read(folder)
    accuracies = None if "results" not in source.frames else accuracies_of(source.frames["results"])
    files: dict[str, list[Path]] = {}
    left_out: dict[str, str] = {}
    wanted = list(only or FIGURES)
    unknown = [name for name in wanted if name not in FIGURES]
    for paths, names in (
        (source.exemplars, [*unknown, *(name for name in wanted if name in FIGURES and name not in MAPS)]),
        (source.maps, [name for name in wanted if name in MAPS]),
    ):
        traces = {short(model): Trace.open(path) for model, path in paths.items()}
        if names:
            made = save_all(traces, out, only=names, accuracies=accuracies)
            files |= made.files
            left_out |= made.left_out
    return Saved(files, left_out)


def accuracies_of(results: pd.DataFrame) -> pd.DataFrame:
    """What table 1 prints: task, policy, model, accuracy, stderr. With several decodings each names its own."""
    found = results[["task", "policy", "model", "accuracy", "stderr"]].copy()
    if results["decoding_name"].nunique() > 1:
        found["task"] = [
            f"{task}, {name}" for task, name in zip(results["task"], results["decoding_name"], strict=True)
        ]
    return found
