"""Masking tables, GPU side: what organisms answer under every policy of the table, kept as text to be graded elsewhere.

    python -m lab.masking OUT --models causal,scratch,adapted,multimodal --count 500 --processes 12 --seconds 480

Needs torch, transformers, tokenizers, safetensors and numpy alone. Several processes share one GPU, because a small model
leaves most of it idle. Each cell is appended to OUT/NAME.jsonl.gz as soon as it is answered, the most important cells first,
so whatever ends the run loses only the cells under way; the same command does what is missing. `cards.py` grades. Cells that the
time did not reach are no failure; a cell that was begun and not answered is, and the exit status is then 1.

All documents of a cell run as one left-padded batch: one forward per step instead of one for every length of prompt. A padded
row equals its run alone up to rounding (tests/lab/test_masking.py).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lab.cells import VERSION, append, read, refuse_others, trimmed
from sinkscope import checks
from sinkscope.errors import InputError, nearest, plainly
from sinkscope.models.load import ORGANISMS as WEIGHTS
from sinkscope.organisms.recipe import RECIPES
from sinkscope.policies import parse_policy
from sinkscope.policies.mask_random import MATCHES, MaskRandom
from sinkscope.policies.mask_top import MaskTop
from sinkscope.policies.policy import EFFECTS, Scope

if TYPE_CHECKING:
    from sinkscope.models.model import Model
    from sinkscope.tasks.task import Task

TASKS = ("word_problems", "small_code")
TOPS = (1, 5, 10)
SCOPES: tuple[Scope, ...] = ("head", "model", "layer")
CONTROL_SEEDS = (0, 1, 2)


def policies(
    tops: Sequence[int] = TOPS, scopes: Sequence[Scope] = SCOPES, seeds: Sequence[int] = CONTROL_SEEDS
) -> list[str]:
    """The rows of a masking table, the most important first; each policy is followed by its controls.

    >>> policies()[:4]
    ['none', 'top:1', 'random(top:1)', 'random(top:1),seed=1']
    """
    found = ["none"]
    for effect in EFFECTS:
        for k in tops:
            for scope in scopes:
                rule = MaskTop(k, scope, effect=effect)  # type: ignore[arg-type]
                found.append(str(rule))
                for match in MATCHES:
                    found += [str(MaskRandom(rule, match, seed)) for seed in seeds]  # type: ignore[arg-type]
    return found


@dataclass(frozen=True)
class Job:
    """One cell: answers of one model to one task under one policy."""

    task: str
    policy: str


@dataclass(frozen=True)
class Settings:
    """The settings of a run, for every process.

    Attributes:
        folders: name → checkpoint folder.
        jobs: name → its cells, in order. done: never in `jobs`.
        batch: rows that run together; the random numbers of a control are keyed by a document's number alone.
        until: `time.monotonic()` after which no cell is begun.
    """

    out: Path
    folders: dict[str, str]
    jobs: dict[str, list[Job]]
    count: int
    batch: int
    device: str
    until: float


@dataclass(frozen=True)
class Asked:
    """The first documents of a task as prompts for one model."""

    task: Task
    prompts: list[list[int]]


def ask(model: Model, task: str, count: int) -> Asked:
    """The first `count` held-out documents of a task, encoded once for all policies."""
    from sinkscope.tasks import registry
    from sinkscope.tasks.prompting import encode_prompt

    chosen = registry.get(task, model.family)
    documents = chosen.documents(count)
    return Asked(
        chosen, [list(encode_prompt(model, chosen.prompt(one), chosen.scheme).ids) for one in documents]
    )


def answer(model: Model, asked: Asked, policy: str, batch: int) -> dict[str, Any]:
    """A cell as JSON data: for every document its answer, and what the policy took while it was written.

    `hidden` and `hit` are null where the policy never acted; `forwards` are passes of the row's own; `unfinished` counts
    answers with a mask left in them.
    """
    import torch

    from sinkscope.generation.generate import generate
    from sinkscope.models.prompts import pad
    from sinkscope.tasks.evaluate import decoding_for

    decoding, rule = decoding_for(asked.task, model.family), parse_policy(policy)
    count = len(asked.prompts)
    found: dict[str, list[Any]] = {"answers": [], "hidden": [], "hit": [], "forwards": [], "ties": []}
    began, unfinished = time.monotonic(), 0
    for first in range(0, count, batch):
        rows = pad(model, asked.prompts[first : first + batch])
        # A row's random numbers are keyed by 1000003 · seed + row; a batch's own seed keeps them apart from other batches'.
        run = generate(model, rows.ids, decoding, rule, seed=first, attention_mask=rows.real)
        found["answers"] += run.texts
        found["hidden"] += _rounded(run.hidden_share, len(run.texts))
        found["hit"] += _rounded(run.sinks_hit, len(run.texts))
        found["forwards"] += run.forwards
        found["ties"] += run.ties.sum(0).tolist()
        if model.ids.mask is not None:
            unfinished += int((run.sequences[:, run.prompt :] == model.ids.mask).any(1).sum())
    return {
        "version": VERSION,
        "task": asked.task.name,
        "task_settings": asked.task.settings(),
        "policy": policy,
        "decoding": decoding.as_dict(),
        "count": count,
        "batch": batch,
        "prompt_tokens": [len(ids) for ids in asked.prompts],
        "unfinished": unfinished,
        "digest": model.digest,
        "family": model.family,
        "dtype": str(model.dtype).removeprefix("torch."),
        "machine": machine(model.device),
        "torch": str(torch.__version__),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "seconds": round(time.monotonic() - began, 2),
        **found,
    }


def _rounded(values: Any, rows: int) -> list[float | None]:
    if values is None:
        return [None] * rows
    return [None if value != value else round(value, 5) for value in values.tolist()]


def machine(device: Any) -> str:
    """The machine, in words."""
    import torch

    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'' if threads == 1 else 's'}"


# ---- processes -----------------------------------------------------------------------------------


def work(settings: Settings, place: int, taken: Any, failed: Any) -> None:
    """One process: cells of its own model in order, then of whichever model has most left.

    Args:
        taken: shared array, how many cells of each model were begun; its lock guards it. failed: the same for failures.
    """
    from sinkscope.models.load import load

    names = list(settings.jobs)
    models: dict[str, Model] = {}
    asked: dict[tuple[str, str], Asked] = {}
    name = names[place % len(names)]
    while time.monotonic() < settings.until:
        with taken.get_lock():
            left = {one: len(settings.jobs[one]) - taken[names.index(one)] for one in names}
            if not left[name]:
                name = max(names, key=lambda one: left[one])
                if not left[name]:
                    return
            number = taken[names.index(name)]
            taken[names.index(name)] = number + 1
        job = settings.jobs[name][number]
        try:
            if name not in models:
                models[name] = load(settings.folders[name], device=settings.device)
            if (name, job.task) not in asked:
                asked[name, job.task] = ask(models[name], job.task, settings.count)
            cell = answer(models[name], asked[name, job.task], job.policy, settings.batch)
            append(settings.out / f"{name}.jsonl.gz", {"model": name, **cell})
        except Exception:  # one cell that cannot be answered must not take the others with it
            with failed.get_lock():
                failed[names.index(name)] += 1
            print(f"{name} {job.task} {job.policy} failed:\n{traceback.format_exc()}", flush=True)


class Outcome(NamedTuple):
    """Cells that a run left undone, as "model task policy".

    Attributes:
        missing: all that are not there. failed: those of them that were begun.
        ended: exit statuses of processes that did not end by themselves (negative: the signal).
    """

    missing: list[str]
    failed: list[str]
    ended: list[int]


def run(
    out: Path,
    models: Sequence[str],
    tasks: Sequence[str] = TASKS,
    rows: Sequence[str] | None = None,
    count: int = 500,
    processes: int = 12,
    seconds: float = 480.0,
    root: Path = WEIGHTS,
    batch: int | None = None,
    device: str = "auto",
) -> Outcome:
    """Answers what is missing in `out`, as far as the time goes.

    Args:
        rows: policies in their text form; None: the whole table.
        root: a folder that holds NAME/ for every model.
    """
    from sinkscope.models.load import find, resolve_device

    began = time.monotonic()
    for option, value in (
        ("count", count),
        ("processes", processes),
        ("batch", count if batch is None else batch),
    ):
        checks.whole(option, value, 1)
    for task in tasks:
        if task not in TASKS:
            raise InputError(f"unknown task {task!r}: {nearest(task, TASKS)}")
    for policy in rows or ():
        parse_policy(policy)
    if device != "auto":
        resolve_device(device)
    for name in models:
        if not (root / name / "config.json").exists():
            known = [path.name for path in root.iterdir() if path.is_dir()] if root.is_dir() else []
            raise InputError(f"there is no checkpoint {root / name}: {nearest(name, known)}")
        path = out / f"{name}.jsonl.gz"
        refuse_others(path, list(read(path)), find(root / name).digest)
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: name a folder for the answers")
    out.mkdir(parents=True, exist_ok=True)
    wanted = [Job(task, policy) for task in tasks for policy in (policies() if rows is None else rows)]
    jobs = {}
    for name in models:
        done = _jobs_of(trimmed(out / f"{name}.jsonl.gz"), count)
        jobs[name] = [job for job in wanted if job not in done]
    total = sum(map(len, jobs.values()))
    print(f"{total} cells to answer, {len(wanted) * len(models) - total} are there", flush=True)
    settings = Settings(
        out,
        {name: str(root / name) for name in models},
        jobs,
        count,
        batch or count,
        device,
        began + seconds,
    )
    begun, ended = _share_out(settings, min(processes, total), began) if total else ({}, [])
    missing, failed = [], []
    for name in models:
        there = _jobs_of(read(out / f"{name}.jsonl.gz"), count)
        missing += [f"{name} {job.task} {job.policy}" for job in wanted if job not in there]
        failed += [
            f"{name} {job.task} {job.policy}" for job in jobs[name][: begun.get(name, 0)] if job not in there
        ]
    return Outcome(missing, failed, ended)


def _jobs_of(cells: Iterable[dict[str, Any]], count: int) -> set[Job]:
    """The cells that were answered for this many documents."""
    return {Job(cell["task"], cell["policy"]) for cell in cells if cell["count"] == count}


def _share_out(settings: Settings, processes: int, began: float) -> tuple[dict[str, int], list[int]]:
    """Runs the processes and says every few seconds how far they are; a single one needs no process of its own.

    Returns:
        Name → how many of its cells were begun, and the exit statuses of processes that did not end by themselves.
    """
    context = multiprocessing.get_context("spawn")  # a forked process cannot use the parent's GPU
    taken, failed = context.Array("i", len(settings.jobs)), context.Array("i", len(settings.jobs))
    if processes == 1:
        work(settings, 0, taken, failed)
        return dict(zip(settings.jobs, taken[:], strict=True)), []
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # many processes: a core each
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    running = [
        context.Process(target=work, args=(settings, place, taken, failed), daemon=True)
        for place in range(processes)
    ]
    for process in running:
        process.start()
    total, told = sum(map(len, settings.jobs.values())), began
    while any(process.is_alive() for process in running):
        time.sleep(0.2)
        now = time.monotonic()
        if now - told >= 10:
            told, begun = now, sum(taken[:])
            pace = f", {(now - began) / begun:.2f} s a cell" if begun else ""
            print(
                f"{now - began:.0f} s: {begun} of {total} cells begun{pace}, {sum(failed[:])} failed, "
                f"{max(0.0, settings.until - now):.0f} s left",
                flush=True,
            )
    for process in running:
        process.join()
    ended = [process.exitcode for process in running if process.exitcode]
    return dict(zip(settings.jobs, taken[:], strict=True)), ended


def main(words: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Answers of organisms under every policy of the masking table."
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", default=",".join(RECIPES))
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--policies", help="separated by ;, instead of the whole table")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=480.0, help="no cell is begun after this long")
    parser.add_argument("--root", type=Path, default=WEIGHTS, help="folder that holds NAME/ for every model")
    parser.add_argument("--batch", type=int, help="rows that run together; default: all")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(words)
    with plainly():
        outcome = run(
            given.out,
            given.models.split(","),
            given.tasks.split(","),
            None if given.policies is None else [one.strip() for one in given.policies.split(";")],
            given.count,
            given.processes,
            given.seconds,
            given.root,
            given.batch,
            given.device,
        )
    for line in outcome.missing:
        print(f"{'failed' if line in outcome.failed else 'missing'}: {line}")
    left = len(outcome.missing)
    print(
        f"{_cells(left)} {'is' if left == 1 else 'are'} missing" if left else "all cells are there",
        flush=True,
    )
    if outcome.failed or outcome.ended:
        died = f"; processes ended with status {', '.join(map(str, outcome.ended))}" if outcome.ended else ""
        sys.exit(f"error: {_cells(len(outcome.failed))} failed{died}; the lines above say why")


def _cells(number: int) -> str:
    return f"{number} cell{'' if number == 1 else 's'}"


if __name__ == "__main__":
    main()
