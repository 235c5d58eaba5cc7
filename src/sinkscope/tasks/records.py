"""The results of one evaluation on disk: append-only, one line for each document, safe against a kill at any moment.

    folder/
      settings.json        what was run; another run is refused
      generations.jsonl    prompt and output, written before anything is graded
      grades.jsonl         verdicts; can be made again at any time from the generations
      lock                 held by the one process that writes (see sinkscope.base.locks)

A line is written by one system call and synchronised before it counts. A line that a kill or a full disk cut
short is dropped when the folder is next opened for writing, so that its document is done again: nothing is
lost, nothing is there twice. Readers need no lock, and see every complete line while a run goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NotRequired, TypedDict, TypeVar

from sinkscope.base.checks import whole
from sinkscope.base.errors import InputError
from sinkscope.base.files import (
    MisfitError,
    differences,
    fit,
    one_line,
    plain_bytes,
    read_json,
    reading,
    write_atomically,
)
from sinkscope.base.locks import LockHeldError, locked
from sinkscope.tasks.task import Mark

ANSWER_AGAIN = "restore the line from a copy, or remove it, and the command that wrote it answers its document again"
GRADE_AGAIN = (
    "grades follow from the answers, which are safe: remove the file, and `sinkscope evaluate --grade` makes it again"
)


Key = tuple[str, int]


class Measured(TypedDict, total=False):
    """What is known of an answer besides its text (`evaluation.Record`, `study.worker`); extras and later versions add more."""

    fingerprint: str
    stream: int
    prompt_tokens: int
    ties: int
    sinks_hit: float | None
    key_share: float | None
    hidden_share: float | None
    nll: float | None
    nats: tuple[float, ...]
    kl: float | None
    confidence_change: float | None
    flipped: float | None
    changed: float | None
    tokens_equal: float | None
    steps_exact: float
    first_step: float | None
    seconds: float
    seconds_exact: float
    timed_with: str
    void: Mapping[str, str]


@dataclass(frozen=True)
class Row:
    """What every line says: which answer it is about."""

    document: str  # its id
    index: int  # its number in the task
    seed: int

    @property
    def key(self) -> Key:
        return (self.document, self.seed)


@dataclass(frozen=True)
class Generation(Row):
    """One answer, before grading."""

    prompt: str
    output: str
    steps: int  # of the generation loop
    forwards: int  # forward passes of the model; more than steps with guidance
    hidden: float | None = None  # share of attention that the policy hid, None without one
    more: Annotated[Mapping[str, Any], Measured] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whole("index", self.index, 0)


@dataclass(frozen=True)
class Grade(Mark, Row):
    """The mark of one answer."""


class _ModelSettings(TypedDict):
    source: str
    family: str
    dtype: str
    weights: str


class _SchemeSettings(TypedDict, total=False):
    name: str


class _DecodingSettings(TypedDict):
    kind: str


class TaskSettings(TypedDict):
    """The task in settings.json; one's own may say more, or less."""

    task: str
    version: NotRequired[str]
    scheme: NotRequired[_SchemeSettings | None]
    measure: NotRequired[Literal["accuracy", "nll"]]
    data: NotRequired[str]


class RunSettings(TypedDict):
    """What settings.json of an evaluation holds; each part has options of its own besides."""

    model: _ModelSettings
    task: TaskSettings
    decoding: _DecodingSettings
    policy: str | None


RowType = TypeVar("RowType", Generation, Grade)


class Log(Generic[RowType]):
    """A file of rows, one JSON object in a line, keyed by document and seed. The file is read once, when it is first needed.

    Args:
        advice: what to do about a line that is damaged.
    """

    def __init__(self, path: Path, kind: type[RowType], advice: str) -> None:
        self.path = path
        self._kind: type[RowType] = kind
        self._advice = advice
        self._descriptor: int | None = None

    def open(self) -> None:
        """Open for writing: drop a line that was cut short, and remember what is there. A link is refused, not followed."""
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
            self._descriptor = os.open(self.path, flags, 0o644)
        except OSError as error:
            raise InputError(f"{self.path} cannot be opened for writing ({error.strerror})") from error
        self._rows = self._read()
        raw = self.path.read_bytes()
        whole = raw.rfind(b"\n") + 1
        if whole < len(raw):
            os.ftruncate(self._descriptor, whole)
            os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __contains__(self, key: Key) -> bool:
        """True when (document, seed) is done."""
        return key in self._rows

    def append(self, rows: Iterable[RowType]) -> None:
        """Write rows that are not there yet. When this returns they are on the disk; when it raises, none of them is."""
        if self._descriptor is None:
            raise RuntimeError(f"{self.path} is not open for writing")
        batch, written_rows = list(rows), self._rows
        keys = [row.key for row in batch]
        if len(set(keys)) < len(keys) or any(key in written_rows for key in keys):
            double = next(key for key in keys if keys.count(key) > 1 or key in written_rows)
            raise InputError(f"{self.path} has document {double[0]!r} with seed {double[1]} already: it was done twice")
        data = _lines(batch)
        before = os.fstat(self._descriptor).st_size
        try:
            written = os.write(self._descriptor, data)
            if written < len(data):  # a full disk takes what fits, and only the next write says so
                raise OSError(f"only {written} of {len(data)} bytes could be written")
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, before)
            raise InputError(
                f"cannot write to {self.path} ({error}): make room and run the same command again"
            ) from error
        written_rows.update(zip(keys, batch, strict=True))

    def replace(self, rows: Iterable[RowType]) -> None:
        """Put these rows in place of all that is there, at once. A reader sees the old file or the new one."""
        if self._descriptor is None:
            raise RuntimeError(f"{self.path} is not open for writing")
        write_atomically(self.path, _lines(rows))
        self.close()
        self.open()

    def __iter__(self) -> Iterator[RowType]:
        """All complete rows in the order of documents and seeds, whatever the order of writing."""
        return iter(sorted(self._rows.values(), key=lambda row: (row.index, row.seed)))

    @cached_property
    def _rows(self) -> dict[Key, RowType]:
        return self._read()

    def _read(self) -> dict[Key, RowType]:
        """The complete rows of the file; what follows the last newline was cut short."""
        if not self.path.exists():
            return {}
        rows: dict[Key, RowType] = {}
        damaged: dict[int, str] = {}
        with reading(self.path, self._advice):
            lines = plain_bytes(self.path).split(b"\n")[:-1]
        for number, line in enumerate(lines, 1):
            try:
                row = fit(self._kind, json.loads(line.decode()))
                if rows.setdefault(row.key, row) != row:
                    raise MisfitError(f"it contradicts another line about {row.document}, seed {row.seed}")
            except (ValueError, RecursionError) as error:
                damaged[number] = one_line(error)
        for number, why in damaged.items():
            others = f", and so are {len(damaged) - 1} other lines" if len(damaged) > 1 else ""
            raise InputError(
                f"{self.path}, line {number} is damaged ({why}){others}; {len(rows)} records in it are whole: {self._advice}"
            )
        return rows


class RunFolder(AbstractContextManager["RunFolder"]):
    """One evaluation's folder. Use `with RunFolder.write(path, settings) as run`, or `RunFolder.read(path)`."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self.settings = settings
        self.generations: Log[Generation] = Log(path / "generations.jsonl", Generation, ANSWER_AGAIN)
        self.grades: Log[Grade] = Log(path / "grades.jsonl", Grade, GRADE_AGAIN)
        self._held = ExitStack()

    @classmethod
    def read(cls, path: str | Path) -> RunFolder:
        """Open for reading, also while another process writes."""
        folder = Path(path)
        file = folder / "settings.json"
        if not file.is_file():
            raise InputError(f"{folder} is not the folder of a run (it has no settings.json)")
        return cls(folder, read_json(file, "restore it from a copy; the records beside it are as they were"))

    @classmethod
    def write(cls, path: str | Path, settings: Mapping[str, Any], wait: float = 0.0) -> RunFolder:
        """Open for writing: a new folder, or one to go on with.

        Refuses a folder of other settings, and one that another process does not give free within `wait` seconds.
        """
        folder = Path(path)
        _refuse_foreign(folder)
        expected: dict[str, Any] = json.loads(json.dumps(settings))
        with ExitStack() as held:  # also when interrupted: a lock that stays would refuse the next run
            try:
                held.enter_context(locked(folder / "lock", wait))
            except LockHeldError as error:
                raise InputError(
                    f"another process is writing to {folder}: wait for it, or choose another folder ({error})"
                ) from error
            file = folder / "settings.json"
            if not file.exists():
                write_atomically(file, json.dumps(expected, indent=1, sort_keys=True) + "\n")
            run = cls.read(folder)
            different = list(differences(run.settings, expected))
            if different:
                raise InputError(
                    f"{folder} holds another run: {'; '.join(different[:3])}. Choose another folder, or the "
                    "same settings"
                )
            for log in (run.generations, run.grades):
                held.callback(log.close)
                log.open()
            run._held = held.pop_all()
        return run

    def close(self) -> None:
        self._held.close()

    def __exit__(self, *error: object) -> None:
        self.close()


def _refuse_foreign(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: give a folder")
    if folder.is_dir() and not (folder / "settings.json").exists():
        strange = [path.name for path in folder.iterdir() if not path.name.startswith((".", "lock"))]
        if strange:
            raise InputError(
                f"{folder} is no folder of a run and holds {', '.join(sorted(strange)[:3])}: give another one"
            )


def _lines(rows: Iterable[Any]) -> bytes:
    texts = (json.dumps(asdict(row), ensure_ascii=True, allow_nan=False, separators=(",", ":")) for row in rows)
    return b"".join(text.encode() + b"\n" for text in texts)
