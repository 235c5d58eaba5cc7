"""`evidence.zip` of the organisms, from finished studies.

    python -m lab.evidence --where "NVIDIA H200" --studies DIR DIR --keep

A study gives graded answers, of the policies that the claims read, statistics of traces and pairs of traces
(`study.evidence.of_folder`).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sinkscope.errors import plainly
from sinkscope.models.load import ORGANISMS
from sinkscope.study import evidence
from sinkscope.study.evidence import Answers, Evidence, Traces

POLICIES = (
    "none", "top:1", "random(top:1)", "random(top:1),match=mass", "top:1,effect=silence", "top:5", "random(top:5)",
    "top:10", "random(top:10)", "top:1@model", "random(top:1@model)",
)  # fmt: skip
"""What the claims read."""


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
    parser.add_argument(
        "--keep", action="store_true", help="add to what ships already, instead of replacing it"
    )
    parser.add_argument("--out", type=Path, default=ORGANISMS)
    given = parser.parse_args(words)
    parts: dict[str, list[Evidence]] = {}
    for folder in given.studies:
        for model, one in evidence.of_folder(folder, given.where).items():
            read = tuple(cell for cell in one.answers if cell.policy in POLICIES)
            parts.setdefault(model.removeprefix("organism/"), []).append(replace(one, answers=read))
    for name, found in parts.items():
        path = given.out / name / evidence.NAME
        known = evidence.load(path, found[0].weights) if given.keep else None
        found += [known] if known else []
        evidence.save(together(found), path)
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    with plainly():
        main()
