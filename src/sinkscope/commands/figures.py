"""`sinkscope figures`: the paper's figures and tables from a trace, a folder of traces, or the folder of a study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sinkscope.commands.output import say, show_json, working
from sinkscope.commands.view import stem
from sinkscope.errors import InputError
from sinkscope.trace.trace import Trace

if TYPE_CHECKING:
    import pandas as pd


def figures(
    source: Path, out: Path, only: str, accuracies: Path | None, force: bool = False, json: bool = False
) -> None:
    """Draws what the traces allow, and says what could not be drawn and why."""
    from sinkscope.report.figures import save_all
    from sinkscope.report.study.drawing import is_study, save_study

    chosen = [word for word in only.replace(" ", "").split(",") if word]
    if is_study(source) and accuracies is None:
        with working("drawing"):
            saved = save_study(source, out, chosen, force=force)
    else:
        traces = {name: Trace.open(path) for name, path in find_traces(source).items()}
        table = None if accuracies is None else read_accuracies(accuracies)
        with working("drawing"):
            saved = save_all(traces, out, only=chosen, accuracies=table, force=force)
    if json:
        show_json({"folder": out, "files": saved.files, "left_out": saved.left_out})
        return
    lines = [f"{name}: {', '.join(path.name for path in files)}" for name, files in saved.files.items()]
    lines += [f"{name} left out: {reason}" for name, reason in saved.left_out.items()]
    say(*lines, f"in {out}")


def find_traces(source: Path) -> dict[str, Path]:
    """Name in the figures → path: one trace, or every `.zarr.zip` under a folder."""
    if source.name.endswith((".zip", ".partial", ".zarr")):
        return {stem(source): source}
    if not source.is_dir():
        raise InputError(f"{source} is neither a trace (.zarr.zip) nor a folder with traces")
    paths = sorted(source.rglob("*.zarr.zip"))
    if not paths:
        raise InputError(f"{source} holds no trace (.zarr.zip); make one with sinkscope trace")
    if len({stem(path) for path in paths}) == len(paths):
        return {stem(path): path for path in paths}
    return {str(path.relative_to(source).parent / stem(path)): path for path in paths}


def read_accuracies(path: Path) -> pd.DataFrame:
    """A table for table 1: CSV with the columns task, policy, model, accuracy, and perhaps stderr."""
    import pandas as pd

    try:
        return pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as CSV ({type(error).__name__}); check the path") from error
