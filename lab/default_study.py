"""The default study, run by run: what it found is kept in default-study.json, and told in default-study-verdicts.md.

    sinkscope study organisms --out study
    python -m lab.default_study study --name "with more evidence"     # add it as the newest run, or renew the run of this name
    python -m lab.default_study                                       # write the table again

The newest run has the accuracies that README shows; a test compares them. The table has one row for each claim, model and task
or set of traces, with the verdict of every run; where it differs from the run before, `reasons` in the JSON says why.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sinkscope.report.study.claims import judge
from sinkscope.report.study.evidence import collect
from sinkscope.report.study.rules import OPEN
from sinkscope.report.study.source import read
from sinkscope.report.study.words import short

PATH = Path(__file__).with_name("default-study.json")
TABLE = Path(__file__).with_name("default-study-verdicts.md")

Row = tuple[str, str, str]
"""Claim, model, task or set of traces."""


def of_study(folder: Path, name: str, about: str) -> dict[str, Any]:
    """A finished study as a run of default-study.json."""
    source = read(folder)
    results = source.frames["results"]
    verdicts = [
        {
            "claim": claim, "model": short(model), "about": one.about or "–", "status": one.status,
            "evidence": one.evidence, "rests": one.rests,
        }
        for claim, by_model in judge(collect(source)).items()
        for model, judgements in by_model.items()
        for one in judgements
    ]  # fmt: skip
    accuracies: dict[str, dict[str, dict[str, float]]] = {}
    for row in results.sort_values(["task", "model"], kind="stable").to_dict("records"):
        by_task = accuracies.setdefault(str(row["task"]), {})
        by_task.setdefault(str(row["model"]), {})[str(row["policy"])] = float(row["accuracy"])
    return {
        "name": name, "about": about, "documents": int(results["n"].max()), "accuracies": accuracies, "verdicts": verdicts,
    }  # fmt: skip


def load() -> dict[str, Any]:
    """Runs, oldest first, and reasons."""
    found: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return found


def save(kept: dict[str, Any]) -> None:
    """Write what `load` reads, one line for each verdict, reason and model."""
    text = json.dumps(kept, indent=1, ensure_ascii=False)
    # Line ends stand between values only: within strings JSON escapes them.
    text = re.sub(r"\{[^{}]*\}", lambda inner: re.sub(r"\n\s*", " ", inner[0]), text)
    PATH.write_text(f"{text}\n", encoding="utf-8")


def added(kept: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    """With a run as the newest, in place of one of the same name."""
    return {**kept, "runs": [*(one for one in kept["runs"] if one["name"] != run["name"]), run]}


def rows(kept: dict[str, Any]) -> dict[Row, list[dict[str, Any] | None]]:
    """Row → its verdict in each run, None where a run has none; in the order of the newest run.

    A claim that was not measured has no task ("–"); it shares the row of the task in which another run measured it.
    """
    runs = kept["runs"]
    newest_first = [(at, one) for at, run in reversed(list(enumerate(runs))) for one in run["verdicts"]]
    tasks: dict[tuple[str, str], str] = {}
    for _, one in newest_first:
        if one["about"] != "–":
            tasks.setdefault((one["claim"], one["model"]), one["about"])
    found: dict[Row, list[dict[str, Any] | None]] = {}
    for at, one in newest_first:
        claim, model, about = one["claim"], one["model"], one["about"]
        row = (claim, model, tasks.get((claim, model), about) if about == "–" else about)
        found.setdefault(row, [None] * len(runs))[at] = one
    return found


def changes(kept: dict[str, Any]) -> Iterator[tuple[Row, str, str, str]]:
    """Every change from one run to the next: row, name of the later run, status before, status after."""
    for row, verdicts in rows(kept).items():
        for before, after, run in zip(verdicts, verdicts[1:], kept["runs"][1:], strict=False):
            told = ["–" if one is None else one["status"] for one in (before, after)]
            if told[0] != told[1]:
                yield row, run["name"], told[0], told[1]


def reasons(kept: dict[str, Any]) -> dict[tuple[Row, str], str]:
    """(Row, name of the run) → why its verdict changed; an entry without a model or task is about all of them."""
    found = {}
    for row, run, _, _ in changes(kept):
        for one in kept["reasons"]:
            wanted = {"run": run, "claim": row[0], "model": row[1], "about": row[2]}
            if all(one.get(key, value) in (value, "") for key, value in wanted.items()):
                found[row, run] = str(one["why"])
                break
    return found


def table(kept: dict[str, Any]) -> str:
    """default-study-verdicts.md."""
    runs, why = kept["runs"], reasons(kept)
    names = [run["name"] for run in runs]
    lines = [
        "# The default study, verdict by verdict",
        "",
        "Written by `python -m lab.default_study` from `default-study.json`. `sinkscope study organisms`, run by run:",
        "",
        *(f"- **{run['name']}**: {run['about']}" for run in runs),
        "",
        _line("verdicts", *names),
        f"|---|{'---|' * len(runs)}",
    ]
    tallies = [Counter(one["status"] for one in run["verdicts"]) for run in runs]
    for status in ("supported", "contradicted", OPEN):
        lines.append(_line(status, *(str(tally[status]) for tally in tallies)))
    lines += [
        _line("**decided**", *(str(tally.total() - tally[OPEN]) for tally in tallies)),
        _line("decided, each claim counted once for every model", *map(_claims, runs)),
        "",
        _line(
            "claim",
            "model",
            "task or traces",
            *names,
            *(f"numbers {name}" for name in names),
            "why it changed",
        ),
        f"|{'---|' * (4 + 2 * len(runs))}",
    ]
    for row, verdicts in rows(kept).items():
        statuses = ["–" if one is None else str(one["status"]) for one in verdicts]
        numbers = [_numbers(one) for one in verdicts]
        told = "; ".join(f"{name}: {why[row, name]}" for name in names if (row, name) in why)
        lines.append(_line(*row, *statuses, *numbers, told))
    return "\n".join(lines) + "\n"


def _claims(run: dict[str, Any]) -> str:
    """ "38 of 56": claims of which at least one task decides and none says the opposite, counted by claim and model."""
    found: dict[tuple[str, str], set[str]] = {}
    for one in run["verdicts"]:
        found.setdefault((one["claim"], one["model"]), set()).add(one["status"])
    return f"{sum(len(statuses - {OPEN}) == 1 for statuses in found.values())} of {len(found)}"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _numbers(one: dict[str, Any] | None) -> str:
    if one is None:
        return "–"
    rests = f" ({one['rests']})" if one.get("rests") else ""
    return f"{one['evidence']}{rests}".replace("|", "\\|")


def main(words: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, nargs="?", help="folder of a finished default study")
    parser.add_argument("--name", default="newest", help="the run's name in the table")
    parser.add_argument("--about", default="", help="a sentence on the run: date, machine, what is new")
    options = parser.parse_args(words)
    kept = load()
    if options.study is not None:
        kept = added(kept, of_study(options.study, options.name, options.about))
        save(kept)
    TABLE.write_text(table(kept), encoding="utf-8")
    why = reasons(kept)
    for row, run, before, after in changes(kept):
        if (row, run) not in why:
            print(f"no reason yet: {run}: {', '.join(row)}: {before} → {after}")


if __name__ == "__main__":
    main()
