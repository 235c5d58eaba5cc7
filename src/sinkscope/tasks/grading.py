"""Grading what is on disk: no model needed, and as often as one likes.

    grade_folders("results/run")        # one evaluation
    grade_folders("study")              # every evaluation below, such as the cells of a study

Generations are saved before they are graded, so that a crash of a grader, a better rule or a machine without
a sandbox costs no GPU time: generate there, grade here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sinkscope.base.errors import InputError, nearest
from sinkscope.base.files import fit, reading
from sinkscope.tasks import registry, sandbox
from sinkscope.tasks.generated import GeneratedTask
from sinkscope.tasks.records import Generation, Grade, RunFolder, TaskSettings
from sinkscope.tasks.task import Document, Mark, Task, fingerprint, in_parts, scheme_name

PART = 32
LONGEST_ANSWER = 1_000_000
"""Characters; grading reads no more."""


def can_grade(task: Task) -> bool:
    """True when answers can be graded here: a task that runs code needs a rung of the sandbox that holds."""
    return not task.runs_code or sandbox.available(getattr(task, "sandbox", "auto")) is not None


def run_folders(path: str | os.PathLike[str]) -> list[Path]:
    """The folder itself where it is an evaluation's, else all evaluations below it; traces and replays have no grades."""
    folders = [
        file.parent
        for file in sorted(Path(path).glob("**/settings.json"))
        if (file.parent / "generations.jsonl").is_file() and "kind" not in RunFolder.read(file.parent).settings
    ]
    if not folders:
        raise InputError(f"{path} holds no answers of an evaluation: give the folder of a run or of a study")
    return folders


def task_of(settings: Mapping[str, Any], data: str | Path | None = None, sandbox: str = "auto") -> Task:
    """The task that a run's settings name, with its scheme."""
    with reading("the task in settings.json of the run", "restore the file from a copy"):
        recorded = fit(TaskSettings, settings.get("task"))
        name, scheme = recorded["task"], (recorded.get("scheme") or {}).get("name")
    if "data" in recorded:  # a file of one's own, whose name alone was recorded
        if data is None:
            raise InputError(f"the run's task is a file of your own, {name}.jsonl: give it with --data")
        return registry.get(f"{data}:{scheme}", None, None, sandbox)
    if name.partition(":")[0] not in registry.names():
        raise InputError(f"the run's task {name!r} is not known here: {nearest(name, registry.names())}")
    return registry.get(f"{name}:{scheme}" if scheme else name, None, data, sandbox)


def grade_folders(
    path: str | os.PathLike[str],
    again: bool = False,
    data: str | Path | None = None,
    sandbox: str = "auto",
    progress: Callable[[int, int, int], None] | None = None,
) -> dict[Path, list[Grade]]:
    """Grade the answers of an evaluation, or of all evaluations in a study; folder → its grades.

    Args:
        again: also what has a grade already. data, sandbox: as for `registry.get`.
        progress: called with answers that are graded, right among them, and in all.
    """
    folders = {folder: task_of(RunFolder.read(folder).settings, data, sandbox) for folder in run_folders(path)}
    total = sum(len(list(RunFolder.read(folder).generations)) for folder in folders)
    done: dict[Path, list[Grade]] = {}
    answers = right = 0  # in the folders before

    def tell(here: int, passed: int, _: int) -> None:
        if progress is not None:
            progress(answers + here, right + passed, total)

    for folder, task in folders.items():
        with RunFolder.write(folder, RunFolder.read(folder).settings) as run:
            done[folder] = grade_run(run, task, again, progress=tell)
        answers += len(done[folder])
        right += sum(grade.passed for grade in done[folder])
    return done


def grade_run(
    run: RunFolder, task: Task, again: bool = False, progress: Callable[[int, int, int], None] | None = None
) -> list[Grade]:
    """Grade the generations of a run that have no grade yet, or with `again` all of them, and return all grades.

    `run` must be open for writing. With `again` the old grades stay until all new ones are there. `progress`
    is told how many are graded, how many of those are right, and how many there are.
    """
    made_with = run.settings.get("task")
    if made_with is not None and made_with != task.settings():
        names = [f"{said.get('task')}:{scheme_name(said)}" for said in (made_with, task.settings())]
        raise InputError(
            f"{run.path} was made with another task or scheme ({names[0]}) than {names[1]}: grade it with that one"
        )
    if task.runs_code:
        sandbox.check(getattr(task, "sandbox", "auto"))
    generations = list(run.generations)
    documents = _documents(task, generations)
    grades = [] if again else list(run.grades)
    done = {grade.key for grade in grades}
    todo = [row for row in generations if row.key not in done]
    # Graded anew, nothing is written before all are there, so one that is stopped leaves the old grades.
    for batch in grade_in_parts(None if again else run, task, documents, todo):
        grades += batch
        if progress is not None:
            progress(len(grades), sum(grade.passed for grade in grades), len(generations))
    if again:
        run.grades.replace(grades)
    return sorted(grades, key=lambda grade: (grade.index, grade.seed))


def grade_in_parts(
    run: RunFolder | None, task: Task, documents: Mapping[str, Document], rows: Sequence[Generation]
) -> Iterator[list[Grade]]:
    """The grades of some answers, written to the run in parts, so that a kill costs little; `documents`: by id.

    An answer that is too long, or that the task's grading breaks on, fails alone, and its grade says why.
    """
    too_long = Mark(False, "", f"the answer is longer than {LONGEST_ANSWER} characters")
    for batch in in_parts(rows, PART):
        short = [row for row in batch if len(row.output) <= LONGEST_ANSWER]
        marks = _marks(task, [(documents[row.document], row.output) for row in short])
        marked = dict(zip((row.key for row in short), marks, strict=True))
        grades = [Grade(row.document, row.index, row.seed, **asdict(marked.get(row.key, too_long))) for row in batch]
        if run is not None:
            run.grades.append(grades)
        yield grades


def _marks(task: Task, pairs: Sequence[tuple[Document, str]]) -> Sequence[Mark]:
    """The marks of some answers; where grading them together breaks, one by one, to find whose fault it is."""
    try:
        return task.grade_many(pairs)
    except (InputError, OSError):  # the machine or the settings, not an answer
        raise
    except Exception as error:
        if len(pairs) == 1:
            why = f"grading broke on the answer ({type(error).__name__}: {error})"[:300]
            return [Mark(False, "", why, broke=True)]
    return [_marks(task, [pair])[0] for pair in pairs]


def check_documents(rows: Iterable[Generation], documents: Mapping[str, Document], where: object) -> None:
    """Refuses answers that were given to other questions under the same ids (another data file)."""
    for row in rows:
        stored = row.more.get("fingerprint")
        if stored is not None and stored != fingerprint(documents[row.document]):
            raise InputError(
                f"{where} answers another question under the id {row.document} than the data here: give the data that it "
                "was generated from"
            )


def _documents(task: Task, generations: list[Generation]) -> dict[str, Document]:
    """The task's documents that were answered, by id."""
    if not generations:
        return {}
    # Generated documents are made by id: the number that a damaged record gives its own must not decide how many are made.
    items = (
        task.find({row.document for row in generations})
        if isinstance(task, GeneratedTask)
        else task.documents(max(row.index for row in generations) + 1)
    )
    documents = {item.id: item for item in items}
    missing = [row.document for row in generations if row.document not in documents]
    if missing:
        raise InputError(
            f"{len(missing)} answers are to documents that {task.name} does not have here, such as "
            f"{missing[0]}: give the data that they were generated from"
        )
    check_documents(generations, documents, "the run")
    return documents
