"""`evidence.zip` of the organisms, from finished studies and from the answers of a masking run.

    python -m lab.evidence --where "two CPU cores" --studies DIR DIR --masking DIR

A study gives graded answers, statistics of traces and pairs of traces (`study.evidence.of_folder`); a masking run
(`lab.masking`) gives answers, which are graded here. The shares of sinks that a masking run hit are left out: those of
2026-11-16 were counted by an earlier rule.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lab.results import graded, read_cells
from sinkscope.errors import plainly
from sinkscope.models.load import ORGANISMS, find
from sinkscope.study import evidence
from sinkscope.study.evidence import Answers, Evidence

POLICIES = (
    "none", "top:1", "random(top:1)", "random(top:1),match=mass", "top:1,effect=silence", "top:5", "random(top:5)",
    "top:10", "random(top:10)", "top:1@model", "random(top:1@model)",
)  # fmt: skip
"""What the claims read."""


def of_masking(folder: Path, name: str, policies: Sequence[str] = POLICIES) -> Evidence:
    """The evidence of a masking run on one organism."""
    weights = find(ORGANISMS / name).digest
    cells = [cell for cell in read_cells(folder / f"{name}.jsonl.gz", weights) if cell["policy"] in policies]
    first = cells[0]
    made = f"{first['date']}, {first['machine']}, lab.masking, {first['dtype']}"
    answers = []
    for cell, result in zip(cells, graded(cells, name), strict=True):
        answers.append(
            Answers(
                evidence.key(weights, cell["task_settings"], cell["decoding"], cell["policy"], [0]), made, cell["task"],
                evidence.canonical(cell["decoding"]), cell["policy"],
                {row.document: row.passed for row in result.records},
                {row.document: evidence.answer_digest(row.output) for row in result.records},
            )
        )  # fmt: skip
    return Evidence(weights, made, tuple(answers))


def together(parts: Sequence[Evidence]) -> Evidence:
    """The evidence of several runs on one model; where two have the same cell, the first counts."""
    answers = {cell.key: cell for part in reversed(parts) for cell in part.answers}
    traces = {name: value for part in reversed(parts) for name, value in part.traces.items()}
    pairs = next((part.pairs for part in parts if part.pairs), ())
    made = next((part.made for part in parts if part.traces), parts[0].made)
    return replace(parts[0], made=made, answers=tuple(answers.values()), traces=traces, pairs=pairs)


def main(words: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Evidence that ships with the organisms.")
    parser.add_argument("--where", default="unknown machine")
    parser.add_argument("--studies", nargs="*", type=Path, default=[])
    parser.add_argument("--masking", type=Path)
    parser.add_argument("--out", type=Path, default=ORGANISMS)
    given = parser.parse_args(words)
    parts: dict[str, list[Evidence]] = {}
    for folder in given.studies:
        for model, one in evidence.of_folder(folder, given.where).items():
            parts.setdefault(model.removeprefix("organism/"), []).append(one)
    for name in (
        sorted(path.name.partition(".")[0] for path in given.masking.glob("*.jsonl.gz"))
        if given.masking
        else ()
    ):
        parts.setdefault(name, []).append(of_masking(given.masking, name))
    for name, found in parts.items():
        path = given.out / name / evidence.NAME
        evidence.save(together(found), path)
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    with plainly():
        main()
