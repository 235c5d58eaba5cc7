"""`ss.evaluate`: a model's answers to a task, graded, under a scheme, a decoding and a policy, document by document.

    evaluation = ss.evaluate(model, "word_problems", policy=ss.MaskTop(5), limit=200, out="runs/top5")
    evaluation.accuracy, evaluation.interval

The folder is the result: run the same call again and only what is missing is done. See `records` for what is in it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.base.errors import InputError
from sinkscope.base.extras import read_extras
from sinkscope.tasks import registry, sandbox
from sinkscope.tasks.evaluation import Evaluation, collect
from sinkscope.tasks.experiment import Experiment, ModelIdentity
from sinkscope.tasks.generated import GeneratedTask
from sinkscope.tasks.records import RunFolder
from sinkscope.tasks.task import Task

if TYPE_CHECKING:
    from sinkscope.decoding import Decoding
    from sinkscope.models.model import Model
    from sinkscope.policies.policy import Policy
    from sinkscope.reuse.rule import Reuse
    from sinkscope.tasks.answer import BatchSize, Progress


def evaluate(
    model: Model | str | os.PathLike[str],
    task: str | Task,
    decoding: Decoding | None = None,
    policy: Policy | str | None = None,
    limit: int | None = None,
    batch_size: BatchSize = "auto",
    out: str | os.PathLike[str] | None = None,
    seeds: int | Sequence[int] = 0,
    data: str | os.PathLike[str] | None = None,
    sandbox: str = "auto",
    progress: Progress | None = None,
    reuse: Reuse | str | None = None,
    **options: Any,
) -> Evaluation:
    """Answer the documents of a task and grade the answers.

    Args:
        model: from `ss.load`, or what `ss.load` takes; the sandbox is then checked before the model is loaded.
        task: a name such as "gsm8k" (the scheme of the model's family), "gsm8k:paper-llada" (a named one), or a Task.
        decoding: None: the scheme's own for the family, with `options` such as length=64.
        policy: which keys the heads may not use; a policy, or its text form such as "top:5".
        limit: the number of documents, from the first; None: all (generated tasks are endless and need a limit).
        batch_size: answers at a time, or "auto". Records do not depend on it.
        out: the run's folder; the same call resumes where it was stopped. None: nothing is kept.
        seeds: one, or several for decodings that sample; comparisons need at least 3 of those.
        data: the task's JSON-lines file in the original format; None: the hub.
        sandbox: "auto" (the first rung that works here), "bubblewrap", "landlock", or by explicit choice "none".
        progress: called with answers there, right, and wanted.
        reuse: what of earlier forwards is used again, as in `ss.generate`; a rule or its text. None: every step is exact.
        options: of the scheme's decoding, where none is given; and further extras by name, as in `ss.generate`.

    >>> result = ss.evaluate(model, "word_problems", policy="top:1", limit=2)
    >>> len(result.records), 0 <= result.accuracy <= 1
    (2, True)
    """
    from sinkscope.models.load import family_of, find, load
    from sinkscope.models.model import Model
    from sinkscope.policies import as_policy

    policy, extras = as_policy(policy), read_extras({"reuse": reuse}, options)
    if decoding is not None and options:
        raise InputError(f"{', '.join(options)}: options are given to {type(decoding).__name__} itself, or without one")
    chosen = prepare(model.family if isinstance(model, Model) else family_of(find(model)).name, task, data, sandbox)
    # Only now: what was wrong with the task is told before minutes of reading weights.
    if not isinstance(model, Model):
        model = load(model)
    decoding = decoding_for(chosen, model.family, **options) if decoding is None else decoding
    experiment = Experiment(ModelIdentity.of(model), chosen, decoding, policy, extras, seeds)  # type: ignore[arg-type]
    return evaluated(model, experiment, out, limit, batch_size, progress)


def evaluated(
    model: Model,
    experiment: Experiment,
    out: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    batch_size: BatchSize = "auto",
    progress: Progress | None = None,
) -> Evaluation:
    """`evaluate` of an experiment that is put together already."""
    from sinkscope.tasks.answer import answer, items

    selected = items(experiment.task, limit, experiment.seeds)
    with tempfile.TemporaryDirectory(prefix="sinkscope-") as scratch:
        folder = Path(scratch, "run") if out is None else Path(out)
        with RunFolder.write(folder, experiment.settings) as run:
            answer(model, experiment, selected, run, batch_size, progress=progress)
        return collect(RunFolder.read(folder), {item.key for item in selected})


def prepare(family: str, task: str | Task, data: Any = None, sandbox_name: str = "auto", grade: bool = True) -> Task:
    """The task for a family, with everything that can fail before a model is loaded: its name, and the sandbox."""
    if isinstance(task, str):
        chosen = registry.get(task, family, data, sandbox_name)
    elif data is not None or sandbox_name != "auto":
        raise InputError("data and sandbox go with a task's name; give them to the Task that you made")
    else:
        chosen = task
    if chosen.runs_code and grade:
        sandbox.check(getattr(chosen, "sandbox", "auto"))
    return chosen


def decoding_options(task: Task, family: str) -> dict[str, Any]:
    """The scheme's decoding options; for a scheme made for another family, those of the family's default scheme."""
    scheme, generated = task.scheme, isinstance(task, GeneratedTask)
    fitting = (family,) if generated else ("", family)
    if scheme.family not in fitting and registry.base_and_scheme(task.name)[0] in registry.TASKS:
        # The schemes of a generated task are wordings that every family has; others belong to one family.
        wording = f":{scheme.name}" if generated else ""
        scheme = registry.get(task.name + wording, family).scheme
    return dict(scheme.decoding) if scheme.family in ("", family) else {}


def decoding_for(task: Task, family: str, **options: Any) -> Decoding:
    """The decoding that a task is put with to models of a family, with these options in place of the scheme's."""
    from sinkscope.decoding import decoding_from_options

    return decoding_from_options(family, decoding_options(task, family) | options, f"scheme {task.scheme.name}")
