"""What `sinkscope study` prints at its end: accuracies, a sentence for each model, warnings in groups, where the report is."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.base.extras import EXTRAS
from sinkscope.base.masked import Masked
from sinkscope.base.text import aligned
from sinkscope.report.study.source import diagnoses
from sinkscope.study import shown
from sinkscope.study.comparison import untested
from sinkscope.study.names import control, label, pooled
from sinkscope.study.plugged import PLUGINS
from sinkscope.tasks.task import ACCURACY, NATS
from sinkscope.verdicts import Verdict, wording

if TYPE_CHECKING:
    from sinkscope.study.run import Outcome

WIDTH, LINES = 100, 30
TABLES = (("results", "records", ACCURACY, "right answers, % (95 % interval)"),
          ("likelihood", "passages", NATS, "nats per token (what is lost)"))  # fmt: skip
TAKEN = Masked.REMOVED, Masked.STRONGEST
FEWEST_WARNINGS = 2


def outcome_lines(outcome: Outcome, out: Path, report: Path | None) -> list[str]:
    """Everything that is printed, without colours, in lines of at most about `WIDTH` characters where names are short.

    Of warnings as many as fill `LINES`, the size of a terminal.
    """
    frames = outcome.frames
    said = [line for table in TABLES for line in _wide(outcome, *table)]
    for table in (one for plugin in PLUGINS.values() for one in plugin.terminal):
        said += shown.lines(table, frames.get(table.name))
    told = diagnoses(frames)
    for model in (one.name for one in outcome.study.models if one.name in told):
        sentence = f"{_short(model)}: {wording.of_model(told[model], brief=True)}"
        said += textwrap.wrap(sentence, WIDTH, subsequent_indent="  ")
    warnings = list(dict.fromkeys(_warnings(frames, out)))
    room = max(FEWEST_WARNINGS, LINES - len(said) - 5)
    more = [f"… and {len(warnings) - room} more, in the report"] if len(warnings) > room else []
    said += ["", *warnings[:room], *more] if warnings else []
    computed = f"{outcome.computed} answers computed" if outcome.computed else "nothing was left to compute"
    made = f"report: {out}/report.html" if report else "no report; the same command without --no-report makes it"
    return [*said, "", f"{computed}; tables: {out}/tables", made]


def outcome_data(outcome: Outcome, out: Path, report: Path | None) -> dict[str, Any]:
    """The same for programs."""
    names = ("results", "likelihood", *EXTRAS, "diagnosis", "needs", "claims", "not_graded")
    return {
        "study": outcome.study.name, "folder": out, "report": report, "answers_computed": outcome.computed,
        **{name: outcome.frames.get(name) for name in names},
    }  # fmt: skip


def _wide(outcome: Outcome, name: str, answers: str, measure: str, about: str) -> Iterator[str]:
    """Policies downwards in the study's order, models to the right, as many as fit; beside a single one what was masked."""
    table = outcome.frames.get(name)
    if table is None:
        return
    asked = outcome.frames[answers]
    order = list(dict.fromkeys(zip(asked["model"], map(pooled, asked["policy"]), strict=True)))
    several = table.groupby("task")["decoding_name"].nunique() > 1
    for key, group in table.groupby(["task", "decoding_name"], sort=False):
        task, decoding = map(str, key)
        rows = sorted(group.to_dict("records"), key=lambda row: order.index((row["model"], row["policy"])))
        # Two policies of one model with the same label are told apart by their texts.
        times = Counter((row["model"], _key(row)) for row in rows)
        twice = {head for (_, head), count in times.items() if count > 1}
        lines: dict[tuple[str, str], dict[str, dict[Any, Any]]] = {}
        for row in rows:
            head = (row["policy"], "") if _key(row) in twice else _key(row)
            lines.setdefault(head, {})[row["model"]] = row
        counts = " or ".join(map(str, sorted(set(group["n"]))))
        yield f"{task}{f', {decoding}' if several[task] else ''}, {counts} documents: {about}"
        models = [one.name for one in outcome.study.models if one.name in set(group["model"])]
        fit = max(1, (WIDTH - max(len(head) for head, _ in lines)) // 16)
        for start in range(0, len(models), fit):
            beside = models[start : start + fit]
            top = ["", *map(_short, beside)]
            body = [
                [head, *(_cell(line[one], measure) if one in line else "" for one in beside)]
                for (head, _), line in lines.items()
                if line.keys() & set(beside)
            ]
            if len(models) == 1:
                top += [share.heading for share in TAKEN]
                for cells, line in zip(body, lines.values(), strict=True):
                    cells += [wording.number(line[models[0]].get(share), ".0%") for share in TAKEN]
            yield from (*aligned([top, *body]), "")


def _short(model: str) -> str:
    """Without its owner, or the folders that it is in."""
    return model.rstrip("/").rpartition("/")[2]


def _key(row: dict[Any, Any]) -> tuple[str, str]:
    """The head of a policy's line; what a control stands beside is part of the key."""
    causal, kind = row["family"] == "causal", control(row["policy"])
    return label(row["policy"], causal), label(kind.like, causal) if kind else ""


def _cell(row: dict[Any, Any], measure: str) -> str:
    if measure == NATS:
        lost = row["difference"]
        return f"{row[NATS]:.2f}" + (f" ({round(lost, 2) + 0.0:+.2f})" if lost == lost else "")
    return f"{100 * row[ACCURACY]:.0f} ({100 * row['low']:.0f}–{100 * row['high']:.0f})"


def _warnings(frames: Any, out: Path) -> Iterator[str]:
    results = frames.get("results")
    if results is not None and results["detectable"].notna().any():
        worst = results["detectable"].max()
        yield f"with {results['n'].min()} documents, only differences of about {100 * worst:.0f} points or more can be shown"
    for row in frames["left_out"].to_dict("records") if "left_out" in frames else ():
        base, floor = (f"{100 * row[name]:.0f} %" for name in ("accuracy", "floor"))
        yield f"{_short(row['model'])}, {row['task']}: {base} right without a mask (floor {floor}), so masks were left out"
    for name in ("results", "likelihood"):
        yield from untested(frames[name]) if name in frames else ()
    for (task, why), rows in frames["not_graded"].groupby(["task", "why"]) if "not_graded" in frames else ():
        yield f"{rows['answers'].sum()} answers are not graded here: {task}, {why}; sinkscope evaluate --grade {out}"
    if "skill_losses" in frames:
        keys = ["model", "policy", "match", "verdict"]
        for model, policy, match, told in frames["skill_losses"][keys].drop_duplicates().itertuples(index=False):
            said = "{} ({})".format(*(say(Verdict.from_json(told)) for say in (wording.answer, wording.evidence)))
            yield f"battery, {model}, {policy} beside its {match}-matched control, skill by skill: {said}"
