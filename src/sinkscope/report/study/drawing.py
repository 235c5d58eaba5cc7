"""The figures of a finished study, drawn in several processes: those of `sinkscope study` and of `sinkscope figures STUDY`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from pathlib import Path
from typing import Any

from sinkscope.errors import SinkscopeError
from sinkscope.report.figures import FIGURES, MAPS, TOGETHER, Saved, check_free, check_names, save_all
from sinkscope.report.figures.frontier import plot_frontier
from sinkscope.report.figures.holdings import plot_holdings
from sinkscope.report.figures.interventions import SHOWN, plot_interventions
from sinkscope.report.figures.ladder import plot_ladder
from sinkscope.report.study.holdings import figure_stem, title
from sinkscope.report.study.source import LEFT_OUT, read
from sinkscope.report.study.words import short

MOST_PROCESSES = 4
FIGURES_FOR_A_PROCESS = 10
"""Fewer pictures than this are drawn before a process of their own is ready to."""


def is_study(folder: Path) -> bool:
    """True for the folder of a study."""
    return (folder / "study.toml").is_file()


def save_study(
    folder: Path, out: Path, only: Sequence[str] = (), *, workers: int | None = None, force: bool = True
) -> Saved:
    """Saves every figure that a finished study allows, table 1 included, and left_out.json: why others were not drawn.

    Args:
        only: names of figures; default all.
        workers: processes; default one for about ten pictures, at most one per core and four.
        force: replace files that exist already; False raises InputError before anything is drawn.
    """
    source = read(folder)
    names = list(only or FIGURES)
    check_names(names)
    if not force:
        check_free(out, names)
    recorded = {True: source.maps, False: source.exemplars}
    paths = {maps: {short(model): str(path) for model, path in own.items()} for maps, own in recorded.items()}
    # Figures of many pictures first, so that no process ends long after the others.
    order = sorted(names, key=lambda name: (name in TOGETHER or name == "table_1", name not in MAPS))
    jobs: list[tuple[str, dict[str, str], Any]] = [
        (name, {}, source.accuracies) if name == "table_1" else (name, paths[name in MAPS], None)
        for name in order
    ]
    pictures = sum(1 if name in TOGETHER else max(1, len(traces)) for name, traces, _ in jobs)
    few = min(os.cpu_count() or 1, MOST_PROCESSES, pictures // FIGURES_FOR_A_PROCESS)
    processes = few if workers is None else workers
    saved = _in_processes(jobs, out, processes) if processes > 1 else [_draw(*job, out) for job in jobs]
    drawn = {name: files for part in saved for name, files in part.files.items()}
    left_out = {name: why for part in saved for name, why in part.left_out.items()}
    if not only and "inspection" in source.frames:
        for (model, task), rows in source.frames["inspection"].groupby(["model", "task"], sort=False):
            figure = plot_holdings(rows, f"What the sinks of {title(source, str(model), str(task))} hold")
            suffix = figure_stem(source, str(model), str(task)).removeprefix("holdings_")
            drawn.setdefault("holdings", []).extend(figure.save(out, suffix))
    if not only and "reuse" in source.frames:
        drawn["frontier"] = plot_frontier(source.frames["reuse"]).save(out)
    if not only and "ladder" in source.frames:
        drawn["ladder"] = plot_ladder(source.frames["ladder"], source.frames.get("ladder_sinks")).save(out)
    changes = source.frames.get("ladder_interventions")
    if not only and changes is not None and changes["measure"].isin(SHOWN).any():
        drawn["interventions"] = plot_interventions(changes).save(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / LEFT_OUT).write_text(json.dumps(left_out, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    every = (*names, "holdings", "frontier", "ladder", "interventions")
    return Saved({name: drawn[name] for name in every if name in drawn}, left_out)


def _in_processes(
    jobs: Sequence[tuple[str, dict[str, str], Any]],
    out: Path,
    many: int,
    draw: Callable[..., Saved] | None = None,
) -> list[Saved]:
    """Draws with a pool; what a lost process leaves undone is drawn once more in a new pool."""
    from loky import ProcessPoolExecutor  # starts processes that do not run the caller's script again

    done: dict[str, Saved] = {}
    for _ in range(2):
        left = [job for job in jobs if job[0] not in done]
        with ProcessPoolExecutor(many, env={"OMP_NUM_THREADS": "1"}) as pool:
            futures = {job[0]: pool.submit(draw or _draw, *job, out) for job in left}
            for name, future in futures.items():
                try:
                    done[name] = future.result()
                except BrokenProcessPool:
                    continue
        if len(done) == len(jobs):
            return [done[name] for name, *_ in jobs]
    lost = next(name for name, *_ in jobs if name not in done)
    raise SinkscopeError(f"the process that draws {lost} was lost twice; run the same command again")


def _draw(name: str, traces: Mapping[str, str], accuracies: Any, out: Path) -> Saved:
    opened = {label: _opened(path) for label, path in traces.items()}
    return save_all(opened, out, only=[name], accuracies=accuracies)


@lru_cache(maxsize=16)
def _opened(path: str) -> Any:
    """A trace, opened once in each process."""
    from sinkscope.trace.trace import Trace

    return Trace.open(path)
