"""results.json of an organism: its masking table, graded and compared, from the answers that `masking.py` kept.

Grades come from the tasks; accuracies, intervals and paired comparisons from `study/comparison.py`, as in any study. The three
draws of a control are one row. A table that lacks cells is made of what is there, and says what is not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lab import masking
from lab.cells import read, refuse_others
from lab.ship import KEPT
from sinkscope.errors import InputError
from sinkscope.files import write_atomically
from sinkscope.models.load import ORGANISMS as WEIGHTS
from sinkscope.models.load import find
from sinkscope.organisms.recipe import RECIPES
from sinkscope.policies import parse_policy
from sinkscope.policies.mask_random import MaskRandom
from sinkscope.study.comparison import compare_runs
from sinkscope.tasks import registry
from sinkscope.tasks.evaluate import VERSION
from sinkscope.tasks.evaluation import Evaluation, Record
from sinkscope.tasks.task import Document, Task, fingerprint

DIGITS = 4
SHARED = ("model", "scheme", "decoding", "dtype")
"""Columns that are the same in all rows of a task."""
SAME = ("family", "dtype", "count", "batch", "torch")
"""Columns that all cells of a table must share, beside the weights."""


def digest_of(folder: Path) -> str:
    """The digest of a checkpoint's weights, without loading them."""
    return find(folder).digest


def read_cells(path: Path, digest: str) -> list[dict[str, Any]]:
    """The cells of a masking file, each once, all of these weights and made alike."""
    if not path.is_file():
        raise InputError(f"there is no {path}: make it with `python -m lab.masking {path.parent}`")
    every = list(read(path))
    refuse_others(path, every, digest)
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for cell in every:
        found.setdefault((cell["task"], cell["policy"]), cell)
    if not found:
        raise InputError(f"{path} has no complete cell: run `python -m lab.masking {path.parent}`")
    cells = list(found.values())
    for name in SAME:
        values = sorted({str(cell[name]) for cell in cells})
        if len(values) > 1:
            raise InputError(
                f"the cells of {path} differ in {name} ({', '.join(values)}): keep those of one run"
            )
    return cells


def graded(cells: Iterable[dict[str, Any]], name: str) -> list[Evaluation]:
    """Every cell as an evaluation; equal answers to one question are graded once."""
    by_task: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        by_task.setdefault(cell["task"], []).append(cell)
    found = []
    for task_name, own in by_task.items():
        task = registry.get(task_name, own[0]["family"])
        for cell in own:
            if cell["task_settings"] != json.loads(json.dumps(task.settings())):
                raise InputError(
                    f"{name} {task_name} under {cell['policy']} was asked by other settings than the task has here "
                    f"({cell['task_settings'].get('version')} and {task.settings().get('version')}): answer again"
                )
        documents = task.documents(own[0]["count"])
        right = _right(task, documents, own)
        found += [_evaluation(cell, documents, right, name) for cell in own]
    return found


def _right(
    task: Task, documents: Sequence[Document], cells: list[dict[str, Any]]
) -> dict[tuple[int, str], bool]:
    """(place of the document, answer) → right."""
    asked = list(dict.fromkeys((place, text) for cell in cells for place, text in enumerate(cell["answers"])))
    pairs = [(documents[place], text) for place, text in asked]
    passed = [verdict.passed for verdict in task.grade_many(pairs)]
    return dict(zip(asked, passed, strict=True))


def _evaluation(
    cell: dict[str, Any], documents: Sequence[Document], right: dict[tuple[int, str], bool], name: str
) -> Evaluation:
    policy = None if cell["policy"] == "none" else cell["policy"]
    settings = {
        "version": VERSION,
        "model": {
            "source": f"organism/{name}", "family": cell["family"], "dtype": cell["dtype"], "weights": cell["digest"],
        },
        "task": cell["task_settings"],
        "decoding": cell["decoding"],
        "policy": policy,
    }  # fmt: skip
    records = [
        Record(
            document=document.id, index=place, seed=0, prompt="", output=text, extracted="", passed=right[place, text],
            reason="", steps=cell["forwards"][place], forwards=cell["forwards"][place], ties=cell["ties"][place],
            hidden_share=cell["hidden"][place], sinks_hit=cell["hit"][place],
            key_share=None, prompt_tokens=cell["prompt_tokens"][place],
            stream=place, fingerprint=fingerprint(document), settings=settings,
        )
        for place, (document, text) in enumerate(zip(documents, cell["answers"], strict=True))
    ]  # fmt: skip
    return Evaluation(tuple(records), settings)


def rows_of(evaluations: list[Evaluation]) -> list[dict[str, Any]]:
    """The rows of the table, by task, in the order of `masking.policies`; numbers that do not apply are left out."""
    order = {name: place for place, name in enumerate(masking.policies())}
    seeds: dict[tuple[str, str], list[int]] = {}
    decodings = {one.settings["task"]["task"]: json.dumps(one.settings["decoding"]) for one in evaluations}
    for one in evaluations:
        rule = parse_policy(one.settings["policy"] or "none")
        if isinstance(rule, MaskRandom):
            name = str(MaskRandom(rule.like, rule.match, 0))
            seeds.setdefault((one.settings["task"]["task"], name), []).append(rule.seed)
    found = []
    for row in compare_runs(evaluations).frame().to_dict("records"):
        rule = parse_policy(row["policy"])
        about: dict[str, Any] = {
            "decoding": decodings[row["task"]], "dtype": evaluations[0].settings["model"]["dtype"],
        }  # fmt: skip
        if rule is not None:
            acting = rule.like if isinstance(rule, MaskRandom) else rule
            about |= {"scope": getattr(acting, "scope", None), "effect": getattr(acting, "effect", None)}
        if isinstance(rule, MaskRandom):
            about["seeds"] = sorted(seeds[row["task"], row["policy"]])
        kept = {name: row[name] for name in KEPT if name in row and not _nothing(row[name])}
        found.append({name: _short(value) for name, value in (kept | about).items()})
    tasks = list(masking.TASKS)
    return sorted(
        found, key=lambda row: (tasks.index(row["task"]), order.get(row["policy"], len(order)), row["policy"])
    )


def missing_cells(cells: Iterable[dict[str, Any]]) -> dict[str, list[str]]:
    """Task → the policies of the whole table that were not answered; tasks without a gap are left out."""
    there = {(cell["task"], cell["policy"]) for cell in cells}
    gaps = {
        task: [name for name in masking.policies() if (task, name) not in there] for task in masking.TASKS
    }
    return {task: names for task, names in gaps.items() if names}


def table(path: Path, name: str, digest: str, where: str | None, date: str | None) -> dict[str, Any]:
    """results.json as data."""
    cells = read_cells(path, digest)
    rows = rows_of(graded(cells, name))
    return {
        "made_by": "masking table",
        "date": date or max(cell["date"] for cell in cells),
        "where": where or ", ".join(sorted({cell["machine"] for cell in cells})),
        "digest": digest,
        "dtype": cells[0]["dtype"],
        "torch": cells[0]["torch"],
        "documents": cells[0]["count"],
        "batch": cells[0]["batch"],
        "padded": "each cell ran in left-padded batches of this many rows; single answers can differ between batch shapes",
        "control_seeds": list(masking.CONTROL_SEEDS),
        "tests": "Holm's correction is over all tests of this file",
        "unfinished_answers": sum(cell["unfinished"] for cell in cells),
        "missing": missing_cells(cells),
        "shared": {row["task"]: {name: row[name] for name in SHARED} for row in rows},
        "rows": [{name: value for name, value in row.items() if name not in SHARED} for row in rows],
    }


def write_results(
    folder: Path, where: str | None = None, date: str | None = None, root: Path = WEIGHTS
) -> list[Path]:
    """results.json beside every organism that the folder has a masking file of."""
    names = [name for name in RECIPES if (folder / f"{name}.jsonl.gz").is_file()]
    if not names:
        raise InputError(
            f"{folder} has no NAME.jsonl.gz of {', '.join(RECIPES)}: make them with "
            f"`python -m lab.masking {folder}`"
        )
    written = []
    for name in names:
        made = table(folder / f"{name}.jsonl.gz", name, digest_of(root / name), where, date)
        write_atomically(root / name / "results.json", lines(made))
        written.append(root / name / "results.json")
        print(
            f"{written[-1]}: {len(made['rows'])} rows, {sum(map(len, made['missing'].values()))} cells missing"
        )
    return written


def lines(data: dict[str, Any]) -> str:
    """JSON with one line for each row: small, and a change of one row is a change of one line."""
    head = [
        f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
        for key, value in data.items()
        if key != "rows"
    ]
    rows = ",\n".join(
        json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":")) for row in data["rows"]
    )
    return "{\n" + ",\n".join(head) + f',\n"rows": [\n{rows}\n]\n}}\n'


def _nothing(value: Any) -> bool:
    return value is None or value != value


def _short(value: Any) -> Any:
    return round(value, DIGITS) if isinstance(value, float) else value
