"""An evaluation: the graded answers of one run as records, with accuracy, intervals and a summary in words."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.base.errors import InputError
from sinkscope.base.extras import EXTRAS, Outcome
from sinkscope.base.files import fit, reading
from sinkscope.statistics import Interval, mean_interval, share_interval, standard_error
from sinkscope.tasks.battery import SKILLS, Stratum, stratum_of
from sinkscope.tasks.records import ANSWER_AGAIN, Generation, Grade, RunFolder, RunSettings
from sinkscope.tasks.registry import clusters
from sinkscope.tasks.task import ACCURACY, NATS, PLAIN, scheme_name

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, repr=False)
class Record:
    """One document's answer and grade, with everything that produced it.

    Attributes:
        extracted: the answer or program that was found in the output; reason: why a program failed, or how grading broke.
        ties: selections that could have gone to another position of equal confidence.
        hidden_share: share of attention that the policy took; sinks_hit: share of each step's own sinks (ε = 3) that it
            took. None without a policy, or where it never acted.
        key_share: keys that the policy takes from each head, as a share of the finished sequence's.
        extras: what extras of the experiment say of it (`Kind.recorded`).
        seed: the run's; stream: of this answer's own random stream (`ss.generate(…, seed=[stream])`).
        settings: model, task and scheme, decoding, policy: the same for all records of a run.
        sandbox: the rung that a program ran on; "" where none ran.
        broke: True where the task's own grading broke on the answer.
        nll: nats per token, for tasks that measure likelihood; nats: of every scored token. `passed` says nothing there.
    """

    document: str
    index: int
    seed: int
    prompt: str
    output: str
    extracted: str
    passed: bool
    reason: str
    steps: int
    forwards: int
    ties: int = 0
    hidden_share: float | None = None
    sinks_hit: float | None = None
    key_share: float | None = None
    prompt_tokens: int = 0
    stream: int = 0
    fingerprint: str = ""
    settings: Mapping[str, Any]
    sandbox: str = ""
    nll: float | None = None
    nats: tuple[float, ...] = ()
    extras: Mapping[str, Any] = field(default_factory=dict)
    strongest_hit: float | None = None
    sink_removed: float | None = None
    broke: bool = False

    def __repr__(self) -> str:
        graded = "right" if self.passed else "wrong"
        said = f"{graded}, {self.extracted[:24]!r}" if self.nll is None else f"{self.nll:.3f} nats per token"
        return f"<{self.document}: {said}>"


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        records: one for each document and seed, in order.
        settings: what was run, as JSON data; it identifies the run.

    >>> result = ss.evaluate(model, "word_problems", limit=1)
    >>> result.accuracy, result.records[0].passed
    (1.0, True)
    """

    records: tuple[Record, ...]
    settings: Mapping[str, Any]

    @property
    def measure(self) -> str:
        """ "accuracy", or "nll" for a task that measures likelihood."""
        return str(self.settings["task"].get("measure", ACCURACY))

    def scores(self) -> dict[str, float]:
        """Document → 1 or 0, or its nats per token; with several seeds the mean over them."""
        values: dict[str, list[float]] = defaultdict(list)
        for record in self.records:
            values[record.document].append(score_of(record))
        return {document: sum(each) / len(each) for document, each in values.items()}

    @property
    def n(self) -> int:
        """How many documents."""
        return len(self.scores())

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that were run."""
        return tuple(sorted({record.seed for record in self.records}))

    @property
    def accuracy(self) -> float:
        """The mean over documents."""
        if self.measure != ACCURACY:
            raise InputError(
                f"{self.settings['task'].get('task')} has no right answers, so there is no accuracy: use .nll"
            )
        return self.value

    @property
    def nll(self) -> float:
        """Nats per token: the mean over documents of the negative log-likelihood of their scored tokens."""
        if self.measure != NATS:
            raise InputError(f"{self.settings['task'].get('task')} is graded: use .accuracy")
        return self.value

    @property
    def value(self) -> float:
        """The accuracy, or nats per token, as `measure` says."""
        scores = self.scores()
        return sum(scores.values()) / len(scores)

    @property
    def stderr(self) -> float:
        """lm-eval's standard error of the mean."""
        return standard_error(list(self.scores().values()))

    @property
    def interval(self) -> Interval:
        """A 95 % interval: Wilson's of an accuracy (BLiMP's: over paradigms); Student's over documents of nats per token."""
        return interval_of(self.settings["task"].get("task", ""), self.scores(), self.measure)

    def mean(self, name: str) -> float | None:
        """The mean of a number of the records (hidden_share, sinks_hit, key_share, …); None when no record has it."""
        values = [value for record in self.records if (value := getattr(record, name)) is not None]
        return sum(values) / len(values) if values else None

    @property
    def extras(self) -> dict[str, Outcome]:
        """What each extra of the experiment did in all answers together."""
        rows = [record.extras for record in self.records]
        return {name: kind.summed(self.settings[name], rows) for name, kind in EXTRAS.items() if name in self.settings}

    def table(self) -> pd.DataFrame:
        """The records as a DataFrame, without their settings."""
        import pandas as pd

        names = [name for name in Record.__dataclass_fields__ if name not in ("settings", "nats", "broke")]
        frame = pd.DataFrame([_row(record, names) for record in self.records])
        strata = [stratum_of(record.document) for record in self.records]
        if strata and all(strata):
            frame.insert(1, "skill", [stratum.skill for stratum in strata if stratum])
            frame.insert(2, "difficulty", [stratum.level for stratum in strata if stratum])
        return frame

    def skills(self) -> pd.DataFrame:
        """The battery's accuracies: one row per skill and difficulty, with n and Wilson's 95 % interval."""
        import pandas as pd

        rows: dict[Stratum, list[float]] = defaultdict(list)
        for document, score in self.scores().items():
            stratum = stratum_of(document)
            if stratum is None:
                raise InputError(f"{self.settings['task'].get('task')} has no skills: evaluate the task battery")
            rows[stratum].append(score)
        order = sorted(rows.items(), key=lambda row: (SKILLS.index(row[0].skill), row[0].level))
        lines = [(*one, len(each), sum(each) / len(each), *share_interval(each)) for one, each in order]
        return pd.DataFrame(lines, columns=["skill", "difficulty", "n", "accuracy", "low", "high"])

    def __repr__(self) -> str:
        return "\n".join(f"{name:<10} {value}" for name, value in summary(self))


def summary(evaluation: Evaluation) -> list[tuple[str, str]]:
    """The lines that are printed about an evaluation: name, value."""
    settings, records = evaluation.settings, evaluation.records
    model, task, decoding = settings["model"], settings["task"], settings["decoding"]
    options = ", ".join(f"{name}={value}" for name, value in decoding.items() if name != "kind")
    scheme = scheme_name(task)
    named = "" if scheme in ("", PLAIN.name) else f":{scheme}"
    seeds = f" × {len(evaluation.seeds)} seeds" if len(evaluation.seeds) > 1 else ""
    about = f"{model['family']}, {model['dtype']}, weights {model['weights'][:12]}"
    lines = [
        ("model", f"{model['source']} ({about})"),
        ("task", f"{task.get('task', '?')}{named} ({task.get('version', 'no version')})"),
        ("decoding", f"{decoding['kind']}: {options}"),
        ("policy", settings["policy"] or "none"),
        *((name, str(outcome)) for name, outcome in evaluation.extras.items()),
        _measured(evaluation),
        ("documents", f"{evaluation.n}{seeds}"),
        ("skills", _by_skill(evaluation)),
    ]
    if settings["policy"]:
        parts = {
            "of the attention removed": evaluation.mean("hidden_share"),
            "of the sinks masked": evaluation.mean("sinks_hit"),
            "of heads lost their strongest sink": evaluation.mean("strongest_hit"),
            "of the attention on sinks removed": evaluation.mean("sink_removed"),
            "of the keys masked": evaluation.mean("key_share"),
        }
        shares = ", ".join(f"{value:.2%} {words}" for words, value in parts.items() if value is not None)
        lines.append(("masked", shares or "nothing: it never acted"))
    lines.append(("sandbox", confined_by(record.sandbox for record in records)))
    broken = [record for record in records if record.broke]
    if broken:
        example = f"{broken[0].document}, {broken[0].reason}"
        lines.append(("grading", f"broke on {len(broken)} answers, counted as wrong: {example}"))
    ties, forwards = sum(record.ties for record in records), sum(record.forwards for record in records)
    lines.append(("forwards", f"{forwards}, {ties} ties (tokens written while another was as confident)"))
    return [(name, value) for name, value in lines if value]


def confined_by(rungs: Iterable[str]) -> str:
    """The rungs of the sandbox that programs ran on; "" where none ran.

    >>> confined_by(["", "none"])
    'none, which confines nothing'
    """
    names = sorted(set(rungs) - {""})
    return ", ".join(names) + (", which confines nothing" if "none" in names else "")


def _row(record: Record, names: list[str]) -> dict[str, Any]:
    """These fields of a record, with what extras say in the place of `extras`."""
    row: dict[str, Any] = {}
    for name in names:
        row |= record.extras if name == "extras" else {name: getattr(record, name)}
    return row


def _by_skill(evaluation: Evaluation) -> str:
    """The accuracy of each skill of the battery, easiest difficulty first; "" for other tasks."""
    if not all(map(stratum_of, evaluation.scores())):
        return ""
    groups = evaluation.skills().groupby("skill", sort=False)
    return "; ".join(
        f"{skill} " + " ".join(f"{row.accuracy:.2f}@{row.difficulty}" for row in rows.itertuples())
        for skill, rows in groups
    )


def _measured(evaluation: Evaluation) -> tuple[str, str]:
    low, high = evaluation.interval
    between = f"± {evaluation.stderr:.4f}, 95 % interval {low:.4f} to {high:.4f}"
    if math.isnan(evaluation.stderr):
        between = "of one document, which has no interval"
    if evaluation.measure == NATS:
        nll = evaluation.nll
        perplexity = math.exp(nll) if nll < 700 else math.inf
        return "nll", f"{nll:.4f} nats per token {between}; perplexity {perplexity:.2f}"
    return "accuracy", f"{evaluation.accuracy:.4f} {between}"


def collect(run: RunFolder, keys: set[tuple[str, int]] | None = None) -> Evaluation:
    """The evaluation that a folder holds, or the part of it with these (document, seed); reads only."""
    grades = {grade.key: grade for grade in run.grades}
    rows = [row for row in run.generations if keys is None or row.key in keys]
    if not rows:
        raise InputError(f"{run.path} has no answers yet: run `sinkscope evaluate` with it as --out")
    missing = [row.document for row in rows if row.key not in grades]
    if missing:
        raise InputError(
            f"{run.path} has {len(missing)} answers without a grade, such as {missing[0]}: run `sinkscope evaluate --grade "
            f"{run.path}`"
        )
    settings = settings_of(run)
    records = (record_of(row, grades[row.key], settings) for row in rows)
    return Evaluation(tuple(records), settings)


def settings_of(run: RunFolder) -> dict[str, Any]:
    """The settings of an evaluation's folder, which name its model, task, decoding and policy."""
    with reading(run.path / "settings.json", "restore it from a copy; the records beside it are as they were"):
        settings: dict[str, Any] = fit(RunSettings, run.settings)
        return settings


def open_evaluation(path: str | os.PathLike[str]) -> Evaluation:
    """The evaluation in a folder, also while it is being written."""
    return collect(RunFolder.read(Path(path)))


def record_of(row: Generation, grade: Grade, settings: Mapping[str, Any]) -> Record:
    """An answer with its grade, and the settings of its run."""
    facts = {**row.more, **vars(grade), **vars(row), "hidden_share": row.hidden, "settings": settings}
    facts["nats"] = tuple(facts.get("nats", ()))
    facts["extras"] = {}
    for kind in (kind for name, kind in EXTRAS.items() if name in settings):
        with reading(f"the record of {row.document}, seed {row.seed}", ANSWER_AGAIN):
            recorded = fit(kind.recorded, row.more)
        facts["extras"] |= {name: recorded.get(name) for name in kind.recorded.__annotations__}
    return Record(**{name: facts[name] for name in Record.__dataclass_fields__ if name in facts})


def interval_of(task: str, scores: Mapping[str, float], measure: str) -> Interval:
    """The 95 % interval of the mean of scores by document, as `Evaluation.interval` has it."""
    if measure == NATS:
        return Interval(*map(float, mean_interval(list(scores.values()))[1:]))
    return share_interval(list(scores.values()), clusters(task, scores))


def score_of(record: Record) -> float:
    """What a record counts for: 1 or 0, or its nats per token."""
    return float(record.passed) if record.nll is None else record.nll
