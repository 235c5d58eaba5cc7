"""`evidence.zip` of the organisms, from finished studies and from the answers of a masking run.

    python -m lab.evidence --where "two CPU cores" --studies DIR DIR --masking DIR --keep

A study gives graded answers, statistics of traces and pairs of traces (`study.evidence.of_folder`); a masking run
(`lab.masking`) gives answers, which are graded here. The shares of sinks that a masking run hit are left out: those of
2026-11-16 were counted by an earlier rule. A study of the same cells on fewer documents gives them (`together`).
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
from sinkscope.study.evidence import Answers, Evidence, Traces

POLICIES = (
    "none", "top:1", "random(top:1)", "random(top:1),match=mass", "top:1,effect=silence", "top:5", "random(top:5)",
    "top:10", "random(top:10)", "top:1@model", "random(top:1@model)",
)  # fmt: skip
"""What the claims read."""

MASKING = "masking runs of this project (lab/masking.py in its repository)"
"""The name of `lab.masking` for people who have the package alone."""


def of_masking(folder: Path, name: str, policies: Sequence[str] = POLICIES) -> Evidence:
    """The evidence of a masking run on one organism."""
    weights = find(ORGANISMS / name).digest
    cells = [cell for cell in read_cells(folder / f"{name}.jsonl.gz", weights) if cell["policy"] in policies]
    first = cells[0]
    made = f"{first['date']}, {first['machine']}, {MASKING}, {first['dtype']}"
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
    return Evidence(weights, tuple(answers))


def together(parts: Sequence[Evidence]) -> Evidence:
    """The evidence of several runs on one model, each cell from the run with the most documents.

    The share of sinks that a policy hit is that of the same run, or of the largest one that knows it, which is then named.
    """
    answers: dict[str, list[Answers]] = {}
    for cell in (cell for part in parts for cell in part.answers):
        answers.setdefault(cell.key, []).append(cell)
    traces: dict[str, Traces] = {}
    for name, one in ((name, one) for part in parts for name, one in part.traces.items()):
        if name not in traces or len(one.documents) > len(traces[name].documents):
            traces[name] = one
    pairs = max((part.pairs for part in parts), key=len)
    return Evidence(parts[0].weights, tuple(map(_largest, answers.values())), traces, pairs)


def _largest(cells: Sequence[Answers]) -> Answers:
    """The cell with the most documents, and the hits of the largest that knows them."""
    order = sorted(cells, key=lambda cell: -len(cell.passed))
    best, known = order[0], next((cell for cell in order if cell.hits is not None), None)
    if best.hits is not None or known is None:
        return best
    return replace(best, hits=known.hits, hits_made=f"{known.made}, {len(known.passed)} documents")


def main(words: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Evidence that ships with the organisms.")
    parser.add_argument("--where", default="unknown machine")
    parser.add_argument("--studies", nargs="*", type=Path, default=[])
    parser.add_argument("--masking", type=Path)
    parser.add_argument(
        "--keep", action="store_true", help="add to what ships already, instead of replacing it"
    )
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
        known = evidence.load(path, found[0].weights) if given.keep else None
        found += [known] if known else []
        evidence.save(together(found), path)
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    with plainly():
        main()
