"""The first screen: one sentence for each model, its step × position map, and what masking its sinks costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from sinkscope.report.figures.look import short
from sinkscope.report.study import charts
from sinkscope.report.study.cells import Row
from sinkscope.report.study.scores import LABELS, MEASURES, SERIES, by_model, is_causal
from sinkscope.report.study.source import StudySource
from sinkscope.study.names import SINK, label, role
from sinkscope.study.shown import estimate
from sinkscope.tasks.task import ACCURACY
from sinkscope.verdicts import wording

NOTHING = "Nothing was measured that says something about it."


def overview(source: StudySource) -> dict[str, Any]:
    """What the template of the first screen shows."""
    said = {model: wording.of_model(verdicts) for model, verdicts in source.diagnoses.items()}
    rests = {model: wording.counted(verdicts) for model, verdicts in source.diagnoses.items()}
    alike = len(set(rests.values())) == 1  # then it is said once
    models = [
        {
            "name": model, "sentence": said.get(model, NOTHING), "map": source.heat_maps.get(model),
            "rests": "" if alike else rests.get(model, ""),
        }
        for model in source.models
    ]  # fmt: skip
    over = next(iter(rests.values())) if alike else ""
    return {"models": models, "charts": list(costs(source)), "few": few(source), "over": over}


def few(source: StudySource) -> int | None:
    """How many documents or texts there are, where these are too few for any verdict; None where they are enough."""
    counts = [int(n) for table in MEASURES if table in source.frames for n in source.frames[table]["n"]]
    return max(counts) if counts and max(counts) < wording.LEAST else None


def costs(source: StudySource) -> Iterator[dict[str, Any]]:
    """Charts of scores without and with the strongest keys masked, and with random ones: every model in its first setting."""
    left = list(source.models)
    for table, measure in MEASURES.items():
        for rows in source.groups(table, "task", "decoding_name"):
            scores = {
                model: {str(row["policy"]): row for _, row in own}
                for model, own in by_model(rows).items()
                if model in left
            }
            chosen = {model: policy for model, own in scores.items() if (policy := strongest(own))}
            if chosen:
                left = [model for model in left if model not in chosen]
                chart = _cost(measure, scores, chosen, str(rows[0][1]["task"]))
                many = max(int(row["n"]) for _, row in rows)
                unit = "documents" if table == "results" else "texts"
                yield {
                    "task": rows[0][1]["task"], "n": many, "unit": unit, "measure": LABELS[measure], "chart": chart,
                }  # fmt: skip


def strongest(rows: Mapping[str, Row]) -> str:
    """The policy whose cost is shown: of the strongest sink, or key, or else the first that has a control; "" without any."""
    sinks = [policy for policy, row in rows.items() if role(policy, is_causal(row)) == SINK]
    controlled = [policy for policy, row in rows.items() if isinstance(row["control"], str)]
    return next((policy for policy in (*sinks, "top:1", *controlled) if policy in rows), "")


def _cost(measure: str, scores: Mapping[str, Mapping[str, Row]], chosen: Mapping[str, str], task: str) -> Markup:
    """A line for each model. chosen: model → the policy that is shown."""
    names = dict.fromkeys(label(policy, is_causal(scores[model][policy])) for model, policy in chosen.items())
    masked = f"{' or '.join(names)} masked"
    looks = {name: SERIES[name] for name in ("none", "policy", "count")}
    looks["policy"] = replace(looks["policy"], label=masked)
    lines = []
    for model, policy in chosen.items():
        runs = {"none": "none", "policy": policy, "count": str(scores[model][policy]["control"])}
        lines.append({n: estimate(scores[model][run], measure) for n, run in runs.items() if run in scores[model]})
    series = charts.on_lines(lines, looks)
    title = f"{task}: {LABELS[measure]} with nothing masked, with the {masked} in each head, and with as many random keys masked"
    return charts.rows(
        list(map(short, chosen)), series, title=title, row=30, **charts.SHARE if measure == ACCURACY else {}
    )
