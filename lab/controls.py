"""Measurements of a control: accuracy with and without its sinks, and its sinks. Nothing of it is shipped.

    python -m lab.controls FOLDER --count 500

writes FOLDER/control.json. Word problems only: they are graded without a sandbox, so that everything happens on the GPU machine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.masking import CONTROL_SEEDS, answer, ask
from sinkscope import checks
from sinkscope.errors import InputError, plainly
from sinkscope.models.load import load
from sinkscope.organisms.layout import write_json
from sinkscope.policies.mask_random import MaskRandom
from sinkscope.policies.mask_top import MaskTop
from sinkscope.statistics import compare, effect_over_control, wilson

TASK = "word_problems"
RULES = (MaskTop(1, "head"), MaskTop(1, "model"))


def measure(folder: Path, count: int, device: str = "auto", batch: int | None = None) -> dict[str, Any]:
    """Everything that the table of controls says about a trained folder."""
    checks.whole("count", count, 1)
    checks.whole("batch", count if batch is None else batch, 1)
    about, sinks = (
        _read(folder / "training.json"),
        _probed(folder),
    )  # first: without them, the rest is for nothing
    model = load(folder, device=device)
    asked = ask(model, TASK, count)
    documents = asked.task.documents(count)
    cells: dict[str, dict[str, Any]] = {}

    def right(policy: str) -> list[float]:
        cell = cells[policy] = answer(model, asked, policy, batch or count)
        pairs = zip(documents, cell.pop("answers"), strict=True)
        return [float(asked.task.grade(document, text).passed) for document, text in pairs]

    plain = right("none")
    rows = [_row(plain)]
    for rule in RULES:
        masked = right(str(rule))
        controls = [right(str(MaskRandom(rule, seed=seed))) for seed in CONTROL_SEEDS]
        against, effect = compare(masked, plain), effect_over_control(masked, controls)
        rows.append(
            {
                **_row(masked, str(rule), cells[str(rule)]),
                "difference": round(against.difference, 4),
                "difference_interval": [round(bound, 4) for bound in against.interval],
                "effect": round(effect.effect, 4),
                "effect_interval": [round(bound, 4) for bound in effect.interval],
                "control": round(effect.control, 4),
                "control_spread": round(effect.control_spread, 4),
                "control_seeds": effect.seeds,
                "control_hidden": _mean(
                    [_mean(_cell(cells, rule, seed)["hidden"]) for seed in CONTROL_SEEDS]
                ),
            }
        )
    first = cells["none"]
    kept = (
        "recipe",
        "parameters",
        "steps",
        "tokens",
        "loss",
        "seconds",
        "hardware",
        "starts_from",
        "start_digest",
    )
    return {
        **{key: about[key] for key in kept},
        **{key: first[key] for key in ("digest", "dtype", "machine", "date", "decoding", "count")},
        "task": TASK,
        "rows": rows,
        "sinks": sinks,
    }


def _cell(cells: dict[str, dict[str, Any]], rule: MaskTop, seed: int) -> dict[str, Any]:
    return cells[str(MaskRandom(rule, seed=seed))]


def _row(scores: list[float], policy: str = "none", cell: dict[str, Any] | None = None) -> dict[str, Any]:
    low, high = wilson(sum(scores), len(scores))
    found: dict[str, Any] = {
        "policy": policy,
        "n": len(scores),
        "accuracy": round(float(np.mean(scores)), 4),
        "interval": [round(low, 4), round(high, 4)],
    }
    if cell is not None:
        found |= {"hidden": _mean(cell["hidden"]), "hit": _mean(cell["hit"])}
    return found


def _mean(values: list[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return round(float(np.mean(known)), 4) if known else None


def _probed(folder: Path) -> dict[str, Any]:
    """The last point of the emergence curve, without its numbers by layer."""
    last = _read(folder / "emergence.json")["points"][-1]
    levels = {
        time: {name: value for name, value in level.items() if name != "by_layer"}
        for time, level in last["levels"].items()
    }
    return {"step": last["step"], "levels": levels}


def _read(path: Path) -> Any:
    if not path.is_file():
        raise InputError(
            f"there is no {path}: give a folder that `python -m sinkscope.organisms.command` trained into"
        )
    return json.loads(path.read_text(encoding="utf-8"))


def main(words: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure a control that was trained into a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--batch", type=int, help="rows that run together; default: all")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(words)
    with plainly():
        found = measure(given.folder, given.count, given.device, given.batch)
    write_json(given.folder / "control.json", found)
    for row in found["rows"]:
        print(f"{given.folder.name} {row['policy']}: {row['accuracy']:.3f} {row['interval']}", flush=True)


if __name__ == "__main__":
    main()
