"""The whole inspection of a run: the survey's table, what follows from it, and what is void."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sinkscope.base.errors import InputError
from sinkscope.decoding import decoding_from_json
from sinkscope.generation.run import Run
from sinkscope.inspection.survey import TUNED, probe_names, survey, survey_table, void_flags
from sinkscope.inspection.tuned_lens import tuned_lens
from sinkscope.models.model import Model
from sinkscope.trace.trace import Trace
from sinkscope.verdicts import Verdict, wording
from sinkscope.verdicts.holdings import measures_of
from sinkscope.verdicts.questions import held

if TYPE_CHECKING:
    import pandas

FITTED = 8
"""Rows at least that a tuned lens is fitted on; with fewer than three times as many there is none."""


@dataclass(frozen=True, repr=False)
class Inspection:
    """What an inspection found.

    Attributes:
        table: section, measure, place, layer, value, low, high, n (see `survey_table`).
        holdings: the verdicts. void: measure → why it means nothing here.
    """

    model: str
    table: pandas.DataFrame
    holdings: list[Verdict]
    void: dict[str, str]

    def __repr__(self) -> str:
        held = "\n".join(f"  {verdict.question}  {wording.answer(verdict)}" for verdict in self.holdings)
        return f"What the sinks of {self.model} hold\n{held}"


def inspect_run(
    model: Model,
    run: Run,
    steps: int = 2,
    labels: Mapping[str, Sequence[Any]] | None = None,
    tuned: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Inspection:
    """Inspect a run of several prompts.

    Args:
        steps, labels: see `survey`.
        tuned: fit a tuned lens on the first tenth of the rows (8 at least) and read the others through it.
        progress: called with rows done and in all.
    """
    rows = run.states.shape[1]
    fitted = max(FITTED, rows // 10)
    lens = tuned_lens(model, rows_of(run, range(fitted))) if tuned and rows >= 3 * fitted else None
    parts = survey(model, run, None, steps, labels, lens, progress)
    for part in parts[: 0 if lens is None else fitted]:  # what a lens was fitted on it must not be judged by
        read = [name for name in part if name.section == TUNED]
        part.update({name: np.full_like(part[name], np.nan) for name in read})
    table, void = survey_table(parts), void_flags(model, run)
    verdicts = held(measures_of(table, void, model.source), probe_names())
    return Inspection(model.source, table, verdicts, void)


def rows_of(run: Run, rows: Sequence[int]) -> Run:
    """Some rows of a run, as a run."""
    chosen = list(rows)
    return replace(
        run,
        sequences=run.sequences[chosen],
        states=run.states[:, chosen],
        texts=[run.texts[row] for row in chosen],
        ties=run.ties[:, chosen],
        forwards=[run.forwards[row] for row in chosen],
        taken=[run.taken[row] for row in chosen],
        seed=[run.seed[row] for row in chosen] if isinstance(run.seed, list) else run.seed,
        real=None if run.real is None else run.real[chosen],
        trace=None,
    )


def run_of_trace(model: Model, trace: Trace) -> Run:
    """The run that a trace recorded, as far as inspection needs it.

    Raises:
        InputError: other weights, a policy, or a trace that lacks steps.
    """
    data, about = trace.dataset, trace.attributes
    if about.get("weights_digest") not in (None, "", model.digest):
        raise InputError(
            f"this trace was made with other weights than {model.source} has; inspect it with the model that made it"
        )
    if made_under := about.get("policy") or ("fresh" in data and "approximate steps"):
        raise InputError(f"this trace was made under {made_under}; inspection needs one of exact, plain steps")
    if json.loads(str(about["capture"])).get("every", 1) != 1:
        raise InputError("this trace has not every step; record one with every=1")
    decoding = decoding_from_json(str(about["decoding"]))
    labels = [int(step) for step in data["step"].values]
    tokens = data["tokens"].values.astype(np.int64)  # [B, steps, S]
    decided, candidate = data["decided"].values[:, -1], data["candidate"].values[:, -1]
    last = np.where(decided, candidate, tokens[:, -1])
    # A step that decided nothing ran no forward and has no record: its state is that of the next recorded one.
    total = labels[-1] + 1
    at = np.searchsorted(labels, np.arange(total))
    states = np.concatenate([tokens[:, at], last[:, None]], 1).swapaxes(0, 1)
    region = data["region"].values
    prompt = int((region[0] != "answer").sum())
    if decoding.causal:
        states = states[..., : prompt + total]
    real = torch.as_tensor(region[:, :prompt] != "padding")
    final = torch.as_tensor(states[-1])
    rows = len(final)
    return Run(
        sequences=final, states=torch.as_tensor(states), texts=[""] * rows, ties=torch.zeros(total, rows, dtype=torch.long),
        forwards=[total] * rows, taken=[total] * rows, decoding=decoding, policy=None,
        seed=json.loads(str(about.get("seed", "null"))), prompt=prompt, real=None if bool(real.all()) else real, trace=trace,
    )  # fmt: skip
