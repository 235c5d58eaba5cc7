"""Planted answers and texts through everything that a study does with them: records, tables, measures. See verdict_simulation.py.

A truth of `simulated_studies` or `simulated_texts` says which documents are right under which policy, or how many nats each
text has. Here each of them becomes a record, which says of the mask what a run would (every record a little else); records are
compared by `compare_runs`, and its tables read by `collect`, which knows nothing of what was planted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pandas as pd

from lab.simulated_studies import Rng, Study
from sinkscope.base.masked import MASK
from sinkscope.decoding.causal import GreedyDecoding
from sinkscope.decoding.llada import LladaDecoding
from sinkscope.study.comparison import compare_runs
from sinkscope.study.measured import Studied, collect
from sinkscope.study.names import control
from sinkscope.tasks.evaluation import Evaluation, Record
from sinkscope.tasks.registry import GUESSED
from sinkscope.tasks.task import ACCURACY, NATS
from sinkscope.verdicts.measures import Kind, Measures, PolicyRun

DRAWS = 3
"""Of each control."""
SPREAD = 0.1
"""Standard deviation, between records, of what a mask hits and removes, as a share of it."""


def recorded(study: Study) -> Study:
    """The same truth, measured from its records."""

    def measured(n: int, rng: Rng) -> Measures:
        planted = study(n, rng)
        models = (planted, *planted.others)
        found = collect(tables(models, rng), {one.subject: Studied(one.family) for one in models})
        return next(one for one in found if one.subject == planted.subject)

    return measured


def tables(models: tuple[Measures, ...], rng: Rng) -> dict[str, pd.DataFrame]:
    """`results` and `records`, or `likelihood` and `passages`, as a study has them."""
    evaluations = [evaluation for model in models for evaluation in evaluations_of(model, rng)]
    names = ("likelihood", "passages") if models[0].kind == Kind.TEXTS else ("results", "records")
    rows = [
        run.table().assign(
            model=run.settings["model"]["source"], task=run.settings["task"]["task"], policy=run.settings["policy"] or "none"
        )
        for run in evaluations
    ]  # fmt: skip
    frames = compare_runs(evaluations), pd.concat(rows, ignore_index=True)
    return {name: frame.assign(decoding_name="short") for name, frame in zip(names, frames, strict=True)}


def evaluations_of(model: Measures, rng: Rng) -> Iterator[Evaluation]:
    """One for each policy, and for each draw of a control: right in so many of the draws as was planted."""
    texts = model.kind == Kind.TEXTS
    guessed = next((task for task, guess in GUESSED.items() if guess == model.guess), "word_problems")
    decoding = GreedyDecoding(length=64) if model.family == "causal" else LladaDecoding(length=64, steps=32)
    settings: dict[str, Any] = {
        "model": {"source": model.subject}, "decoding": json.loads(decoding.to_json()),
        "task": {"task": "text" if texts else guessed, "measure": NATS if texts else ACCURACY},
    }  # fmt: skip
    for policy, run in model.runs.items():
        draws = 1 if control(policy) is None else DRAWS
        for draw in range(draws):
            name = policy if draw == 0 else f"{policy},seed={draw}"
            whole = settings | {"policy": None if policy == "none" else name}
            records = tuple(
                record(i, document, score if texts else float(score * draws > draw + 0.5), run, texts, whole, rng)
                for i, (document, score) in enumerate(run.scores.items())
            )
            yield Evaluation(records, whole)


def record(
    index: int, document: str, score: float, run: PolicyRun, nats: bool, settings: dict[str, Any], rng: Rng
) -> Record:
    """An answer, or a text that was read."""
    masked: dict[str, Any] = dict.fromkeys(MASK)
    if settings["policy"]:
        shares = ((share, getattr(run, share.name.lower())) for share in MASK)
        masked = {name: float(share * rng.gamma(SPREAD**-2, SPREAD**2)) for name, share in shares}
    return Record(
        document=document, index=index, seed=0, prompt="", output="", extracted="", passed=not nats and score > 0.5,
        reason="", steps=1, forwards=1, settings=settings, nll=score if nats else None, **masked,
    )  # fmt: skip
