"""What `sinkscope study` prints at its end: accuracies, a line for each model, warnings in groups, where the report is."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.base.text import aligned
from sinkscope.study import shown
from sinkscope.study.comparison import untested
from sinkscope.study.names import SINK, control, label, pooled, role
from sinkscope.study.plugged import PLUGINS
from sinkscope.tasks.task import ACCURACY, NATS
from sinkscope.verdicts import Reason
from sinkscope.verdicts.wording import NEEDS

if TYPE_CHECKING:
    from sinkscope.study.run import Outcome

WIDTH = 100
TABLES = (("results", "records", ACCURACY, "right answers, % (95 % interval)"),
          ("likelihood", "passages", NATS, "nats per token (what is lost)"))  # fmt: skip
TAKEN = (("attention removed", "hidden_share"), ("strongest sinks hit", "strongest_hit"))
FEW = 8
"""Under so many documents a model's line says only that they are too few."""
MOST_WARNINGS = 5


def outcome_lines(outcome: Outcome, out: Path, report: Path | None) -> list[str]:
    """Everything that is printed, without colours, in lines of at most about `WIDTH` characters where names are short."""
    frames = outcome.frames
    said = [line for table in TABLES for line in _wide(outcome, *table)]
    for table in (shown.REUSE, *(one for plugin in PLUGINS.values() for one in plugin.terminal)):
        said += shown.lines(table, frames.get(table.name))
    models = [model.name for model in outcome.study.models]
    for model in models:
        said += textwrap.wrap(model_line(frames, model), WIDTH, subsequent_indent="    ")
    warnings = list(dict.fromkeys(_warnings(frames, out)))
    more = [f"… and {len(warnings) - MOST_WARNINGS} more, in the report"] if len(warnings) > MOST_WARNINGS else []
    said += ["", *warnings[:MOST_WARNINGS], *more] if warnings else []
    computed = f"{outcome.computed} answers computed" if outcome.computed else "nothing was left to compute"
    made = f"report: {out}/report.html" if report else "no report; the same command without --no-report makes it"
    return [*said, "", f"{computed}; tables: {out}/tables", made]


def outcome_data(outcome: Outcome, out: Path, report: Path | None) -> dict[str, Any]:
    """The same for programs."""
    names = ("results", "likelihood", "reuse", "diagnosis", "needs", "claims", "not_graded")
    return {
        "study": outcome.study.name, "folder": out, "report": report, "answers_computed": outcome.computed,
        **{name: outcome.frames.get(name) for name in names},
    }  # fmt: skip


def _wide(outcome: Outcome, name: str, answers: str, measure: str, about: str) -> Iterator[str]:
    """Policies downwards in the study's order, models to the right, as many as fit; beside a single one what was masked."""
    table = outcome.frames.get(name)
    if table is None:
        return
    asked = outcome.frames[answers].groupby("model")["policy"]
    order = {model: list(dict.fromkeys(map(pooled, policies))) for model, policies in asked}
    several = table.groupby("task")["decoding_name"].nunique() > 1
    for key, group in table.groupby(["task", "decoding_name"], sort=False):
        task, decoding = map(str, key)
        cells = {(row["model"], row["policy"]): row for row in group.to_dict("records")}
        keys = {cell: _key(cell[1], row["family"] == "causal") for cell, row in cells.items()}
        # Two policies of one model with the same label are told apart by their texts.
        times = Counter((model, head) for (model, _), head in keys.items())
        twice = {head for (_, head), count in times.items() if count > 1}
        keys = {cell: (cell[1], "") if head in twice else head for cell, head in keys.items()}
        counts = " or ".join(map(str, sorted(set(group["n"]))))
        yield f"{task}{f', {decoding}' if several[task] else ''}, {counts} documents: {about}"
        models = [one.name for one in outcome.study.models if one.name in set(group["model"])]
        fit = max(1, (WIDTH - max(len(key[0]) for key in keys.values())) // 16)
        for start in range(0, len(models), fit):
            beside = models[start : start + fit]
            heads = dict.fromkeys(keys[one, name] for one in beside for name in order[one] if (one, name) in keys)
            at = {(cell[0], keys[cell]): _cell(row, measure) for cell, row in cells.items()}
            body = [[head, *(at.get((model, (head, like)), "") for model in beside)] for head, like in heads]
            top = ["", *map(_short, beside)]
            if len(models) == 1:
                by_head = {keys[cell]: row for cell, row in cells.items()}
                top += [heading for heading, _ in TAKEN]
                body = [[*line, *_taken(by_head[head])] for line, head in zip(body, heads, strict=True)]
            yield from (*aligned([top, *body]), "")


def _short(model: str) -> str:
    """Without its owner, or the folders that it is in."""
    return model.rstrip("/").rpartition("/")[2]


def _key(policy: str, causal: bool) -> tuple[str, str]:
    """The head of a policy's line; what a control stands beside is part of the key."""
    kind = control(policy)
    return label(policy, causal), label(kind.like, causal) if kind else ""


def _cell(row: dict[Any, Any], measure: str) -> str:
    if measure == NATS:
        lost = row["difference"]
        return f"{row[NATS]:.2f}" + (f" ({round(lost, 2) + 0.0:+.2f})" if lost == lost else "")
    return f"{100 * row[ACCURACY]:.0f} ({100 * row['low']:.0f}–{100 * row['high']:.0f})"


def _taken(row: dict[Any, Any]) -> list[str]:
    """What a policy masked."""
    values = [row.get(name) for _, name in TAKEN]
    return ["" if value is None or value != value else f"{value:.0%}" for value in values]


def model_line(frames: Any, model: str) -> str:
    """A model in one line, from its diagnosis; "" where there is none."""
    told = [frames[name] for name in ("diagnosis", "needs") if name in frames]
    asked: dict[str, dict[str, Any]] = {
        str(row["question"]): row for table in told for row in table[table["model"] == model].to_dict("records")
    }
    if not asked:
        return ""
    sinks, moving, needs = (asked.get(name, {}) for name in ("sinks", "moving", NEEDS))
    share = f"sinks in {sinks['value']:.0%} of heads and steps" if sinks.get("answer") == "present" else "no sinks"
    share = share if sinks.get("status", "undecided") != "undecided" else "sinks undecided"
    moves = f", {moving['answer']}" if moving.get("status") == "supported" else ""
    return f"{_short(model)}: {share}{moves}; needed: {_needed(frames, needs)}"


def _needed(frames: Any, row: dict[str, Any]) -> str:
    """Whether it needs them, with the loss and those of its controls: as many random keys, and those nearest in attention."""
    if not row or row["value"] != row["value"] or row["reason"] == Reason.NOTHING_TO_LOSE.value:
        return f"undecided ({row.get('reason') or 'not measured'})"
    if row["n"] < FEW:
        return f"undecided (too few documents, {row['n']})"
    text = row["unit"] == "text"
    lost = f"{_percent(row['value'])} {'% of a token’s probability' if text else 'points'} lost"
    if row["control"] == row["control"] and row["control"] is not None:
        lost += f", random keys {_percent(row['control'])}"
    if (beside := _of_equal_attention(frames, row, text)) is not None:
        lost += f", nearest in attention {_percent(beside)}"
    return f"{({'supported': 'yes', 'contradicted': 'no'}).get(row['status'], 'undecided')} ({lost})"


def _percent(share: float) -> str:
    """A share in percent, without the sign of a loss that rounds to nothing."""
    return f"{100 * round(share, 2) + 0.0:.0f}"


def _of_equal_attention(frames: Any, row: dict[str, Any], text: bool) -> float | None:
    """What the mass-matched control of the strongest sink costs, in the verdict's unit; None where it was not run."""
    table = frames.get("likelihood" if text else "results")
    if table is None:
        return None
    task, _, decoding = str(row["about"]).partition(", ")
    wanted = f"random({SINK}),match=mass"
    losses = [
        float(run["difference"])
        for run in table[(table["model"] == row["model"]) & (table["task"] == task)].to_dict("records")
        if decoding in ("", run["decoding_name"]) and role(run["policy"], run["family"] == "causal") == wanted
    ]
    if len(losses) != 1 or not math.isfinite(losses[0]):
        return None
    return -math.expm1(-losses[0]) if text else -losses[0]


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
        keys = ["model", "policy", "match", "answer", "evidence"]
        for model, policy, match, answer, evidence in (
            frames["skill_losses"][keys].drop_duplicates().itertuples(index=False)
        ):
            yield f"battery, {model}, {policy} beside its {match}-matched control, skill by skill: {answer} ({evidence})"
