"""What `sinkscope study` prints at its end: accuracies, a line for each model, warnings in groups, where the report is."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.base.text import aligned
from sinkscope.sinks.measures import Masked
from sinkscope.study import shown
from sinkscope.study.comparison import untested
from sinkscope.study.names import control, label, pooled
from sinkscope.study.plugged import PLUGINS
from sinkscope.tasks.task import ACCURACY, NATS
from sinkscope.verdicts import Measure, Reason, Status, Verdict, wording
from sinkscope.verdicts.wording import NEEDS

if TYPE_CHECKING:
    from sinkscope.study.run import Outcome

WIDTH = 100
TABLES = (("results", "records", ACCURACY, "right answers, % (95 % interval)"),
          ("likelihood", "passages", NATS, "nats per token (what is lost)"))  # fmt: skip
TAKEN = Masked.REMOVED, Masked.STRONGEST
NOTHING = Verdict(reason=Reason.NOT_MEASURED)
YES = {Status.SUPPORTED: "yes", Status.CONTRADICTED: "no"}
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
                top += [share.heading for share in TAKEN]
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
    values = [row.get(share) for share in TAKEN]
    return ["" if value is None or value != value else f"{value:.0%}" for value in values]


def model_line(frames: Any, model: str) -> str:
    """A model in one line, from its diagnosis; "" where there is none."""
    told = [frames[name] for name in ("diagnosis", "needs") if name in frames]
    verdicts = [Verdict.from_json(text) for table in told for text in table.loc[table["model"] == model, "verdict"]]
    asked = {verdict.question: verdict for verdict in verdicts}
    if not asked:
        return ""
    sinks, moving, needs = (asked.get(name, NOTHING) for name in ("sinks", "moving", NEEDS))
    shares = {
        Status.SUPPORTED: f"sinks in {sinks.estimate.value:.0%} of heads and steps",
        Status.CONTRADICTED: "no sinks",
    }
    moves = f", {moving.answer}" if moving.status == Status.SUPPORTED else ""
    return f"{_short(model)}: {shares.get(sinks.status, 'sinks undecided')}{moves}; needed: {_needed(needs)}"


def _needed(verdict: Verdict) -> str:
    """Whether it needs them, with the loss and those of its controls: as many random keys, and those nearest in attention."""
    lost, text = verdict.estimate.value, verdict.unit == "text"
    if math.isnan(lost) or verdict.reason == Reason.NOTHING_TO_LOSE:
        return f"undecided ({verdict.reason or Reason.NOT_MEASURED})"
    if verdict.n < FEW:
        return f"undecided (too few documents, {verdict.n})"
    said = f"{_percent(lost)} {'% of a token’s probability' if text else 'points'} lost"
    if verdict.control is not None:
        said += f", random keys {_percent(verdict.control.value)}"
    if (beyond := verdict.number(Measure.OVER_MASS)) is not None:
        # Shares of a probability multiply, points of accuracy add up.
        nearest = 1 - (1 - lost) / (1 - beyond.value) if text else lost - beyond.value
        said += f", nearest in attention {_percent(nearest)}"
    return f"{YES.get(verdict.status, 'undecided')} ({said})"


def _percent(share: float) -> str:
    """A share in percent, without the sign of a loss that rounds to nothing."""
    return f"{100 * round(share, 2) + 0.0:.0f}"


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
