"""What a study measured of each model, from its tables: the measures that verdicts are made of.

One `Measures` for each model and task (accuracies, or texts that were read), each model and set of traces, and each model and
set of pairs of traces.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from sinkscope.base.extras import EXTRAS
from sinkscope.sinks.compare import BEYOND, LESS
from sinkscope.statistics import mean_interval
from sinkscope.study.names import SINK, control, pooled, role
from sinkscope.study.paper import TABLE, is_published
from sinkscope.tasks.registry import base_and_scheme, guessed
from sinkscope.verdicts import Measure, Verdict
from sinkscope.verdicts.diagnosis import NEEDS_SINKS, diagnosis
from sinkscope.verdicts.mask_rules import reached
from sinkscope.verdicts.measures import Kind, Measures, PolicyRun, estimates_of
from sinkscope.verdicts.verdict import point

if TYPE_CHECKING:
    from sinkscope.study.cells import Cell

Frames = Mapping[str, pd.DataFrame]
POLICY = "top:1"
"""The policy of which pairs of traces are judged."""
MOST_APART = 2.0
"""A control did about as much damage as a policy when it did between half and twice as much; more may leave nothing to lose."""


class Studied(NamedTuple):
    """A model of the study: its family, the name of its causal twin ("": none), and whether it is one of the paper's."""

    family: str
    twin: str = ""
    published: bool = False


Models = Mapping[str, Studied]


def studied(cells: Iterable[Cell]) -> dict[str, Studied]:
    """The models of these cells by their names."""
    return {
        cell.model.name: Studied(cell.experiment.model.family, cell.model.twin, is_published(cell.model.source))
        for cell in cells
    }


def collect(frames: Frames, models: Models) -> list[Measures]:
    """Everything that was measured; models in the study's order. The paper speaks of two tasks, of traces and their pairs."""
    parts = (*_scored(frames, models), *_traced(frames), *_pairs(frames))
    order = list(models)
    measured = []
    for each in sorted(parts, key=lambda each: order.index(each.subject)):  # stable: kinds stay in their order
        model = models[each.subject]
        measured.append(replace(each, family=model.family, bears=model.published and each.bears))
    return side_by_side(measured, models)


def side_by_side(measured: Sequence[Measures], models: Models) -> list[Measures]:
    """Each with those of other models in the same setting, of causal ones its twin alone where it has one."""

    def beside(each: Measures, other: Measures) -> bool:
        twin = models[each.subject].twin
        same = (each.kind, each.about) == (other.kind, other.about) and each.subject != other.subject
        return same and (not twin or other.family != "causal" or other.subject == twin)

    return [replace(each, others=tuple(other for other in measured if beside(each, other))) for each in measured]


def diagnoses(measured: Iterable[Measures]) -> dict[str, list[Verdict]]:
    """Model → the diagnosis, from its first traces and its accuracies on its first task."""
    groups = by_model(measured)
    return {model: diagnosis(one for one in own if one.kind != Kind.TEXTS) for model, own in groups.items()}


def needs(measured: Iterable[Measures]) -> dict[str, Verdict]:
    """Model → whether it needs each head's strongest sink, or its strongest key where that was masked alone.

    On the first task that it can do; where there is none, on texts.
    """
    verdicts = {}
    for model, measured_of in by_model(measured).items():
        asked = [(one, policy) for one in measured_of for policy in (SINK, "top:1") if policy in one.runs]
        if asked:
            first, policy = min(asked, key=lambda each: (not each[0].able, each[0].kind == Kind.TEXTS))
            verdict = replace(NEEDS_SINKS, options={"policy": policy}).verdict(first)
            # How near its second control came: a sentence that says no more than the verdict has to know.
            verdicts[model] = verdict.beside_it((Measure.MATCHED, point(reached(first, policy))))
    return verdicts


def by_model(measured: Iterable[Measures]) -> dict[str, list[Measures]]:
    """Model → what was measured of it."""
    groups: dict[str, list[Measures]] = {}
    for measures in measured:
        groups.setdefault(measures.subject, []).append(measures)
    return groups


def _scored(frames: Frames, models: Models) -> Iterator[Measures]:
    """Answers, then texts that were read. Seeds, and draws of a control, are averaged by document."""
    sources = (("records", "results", "passed", Kind.ACCURACIES), ("passages", "likelihood", "nll", Kind.TEXTS))
    setting = ["model", "task", "decoding_name"]
    for answers, summed, score, kind in sources:
        if answers not in frames:
            continue
        frame, rows_of = frames[answers], frames[summed].to_dict("records") if summed in frames else []
        masks = {(*(str(row[name]) for name in setting), pooled(str(row["policy"]))): row for row in rows_of}
        decodings = frame.groupby("task")["decoding_name"].nunique()
        for key, group in frame.groupby(setting, sort=False):
            model, task, decoding = map(str, key)
            runs = {}
            for policy, rows in group.groupby(group["policy"].map(pooled), sort=False):
                means = rows[score].astype(float).groupby(rows["document"]).mean()
                scores = {str(document): float(mean) for document, mean in means.items()}
                runs[str(policy)] = PolicyRun.of(scores, masks.get((model, task, decoding, str(policy)), {}))
            for policy in tuple(runs):  # also under its role, the first of each
                if part_played := role(policy, models[model].family == "causal"):
                    runs.setdefault(part_played, runs[policy])
            about = f"{task}, {decoding}" if kind == Kind.TEXTS or decodings[task] > 1 else task
            base = base_and_scheme(task)[0]
            guess = guessed(task, group["document"].astype(str))
            yield Measures(model, kind=kind, about=about, runs=runs, guess=guess, bears=base in TABLE)


def _traced(frames: Frames) -> Iterator[Measures]:
    frame = frames.get("sinks")
    if frame is None:
        return
    exact = frame[frame["policy"] == "none"]
    for name in frame.columns.intersection(list(EXTRAS)):  # approximate steps are no evidence on the model
        exact = exact[exact[name].isna()]
    elsewhere = frames.get("thresholds")
    for _, group in exact.groupby(["model", "cell"], sort=False):
        first: dict[Any, Any] = group.iloc[0].to_dict()
        estimates = estimates_of(group)
        prompts = estimates[Measure.PROMPTS.named()].value if Measure.PROMPTS.named() in estimates else math.nan
        yield Measures(
            str(first["model"]), kind=Kind.TRACES, about=f"{first['traces']}, {first['task']}", estimates=estimates,
            prompts=int(prompts) if math.isfinite(prompts) else 0, elsewhere=_elsewhere(elsewhere, first), bears=True,
        )  # fmt: skip


def _elsewhere(frame: pd.DataFrame | None, cell: Mapping[str, Any]) -> dict[tuple[float, str], Any]:
    """(ε, rule) → the estimates of a cell's traces by it."""
    if frame is None or frame.empty:
        return {}
    rows = frame[(frame["model"] == cell["model"]) & (frame["cell"] == cell["cell"])]
    settings = rows.groupby(["epsilon", "rule"], sort=False)
    return {(float(epsilon), str(rule)): estimates_of(part) for (epsilon, rule), part in settings}


def _pairs(frames: Frames) -> Iterator[Measures]:
    """Changes under top:1 by document, beyond those under two controls: the nearest that did less damage, and more.

    How much fragile tokens lose need not be in proportion to the damage, so one control says nothing about a mask that did more
    or less of it. Between two controls the change is interpolated; damage is the loss of confidence over all tokens. With
    controls on one side alone the change is as it was measured.
    """
    frame = frames.get("pairs")
    if frame is None or "measure" not in frame:
        return
    damage = Measure.CONFIDENCE_CHANGE.named()
    for key, group in frame.groupby(["model", "decoding_name"], sort=False):
        model, decoding = map(str, key)
        tables = {
            str(policy): rows.pivot_table(index="document", columns="measure", values="value")
            for policy, rows in group.groupby("policy", sort=False)
        }
        masked = tables.pop(POLICY, None)
        if masked is None or masked.empty:
            continue
        ratios = {
            float(table[damage].mean() / masked[damage].mean()): name
            for name, table in tables.items()
            if control(name) is not None and damage in table and damage in masked
        }
        near = [ratio for ratio in ratios if 1 / MOST_APART <= ratio <= MOST_APART]
        less, more = max((r for r in near if r <= 1), default=0.0), min((r for r in near if r > 1), default=0.0)
        estimates = {str(each): mean_interval(np.asarray(masked[each], dtype=np.float64)) for each in masked}
        names = [ratios[less], ratios[more]] if less and more else []
        if names:
            share = (1 - less) / (more - less)
            weaker, stronger = (tables[name] for name in names)
            between = (1 - share) * weaker + share * stronger
            for measure in (Measure.CONFIDENCE_OF, Measure.DELAY_OF):
                for of, beside in zip((LESS, *BEYOND), (between, weaker, stronger), strict=True):
                    if (name := measure.named(LESS)) in masked and name in beside:
                        beyond = (masked[name] - beside[name]).dropna()
                        estimates.pop(measure.named(of), None)
                        if len(beyond):  # of a study that is not finished there may be no common documents
                            estimates[measure.named(of)] = mean_interval(beyond.to_numpy(dtype=np.float64))
            damages = dict(zip(BEYOND, (less, more), strict=True))
            estimates |= {Measure.DAMAGE.named(of): point(ratio) for of, ratio in damages.items()}
        about = f"{POLICY} beside {' and '.join(names) or 'none'}, {decoding}"
        yield Measures(model, kind=Kind.PAIRS, about=about, prompts=len(masked), estimates=estimates, bears=True)
