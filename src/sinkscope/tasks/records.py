"""The results of one evaluation on disk: append-only, one line for each document, safe against a kill at any
moment.

    folder/
      settings.json        what was run; another run is refused
      generations.jsonl    prompt and output, written before anything is graded
      grades.jsonl         verdicts; can be made again at any time from the generations
      lock                 held by the one process that writes

A line is written by one system call and synchronised before it counts. A line that a kill or a full disk cut
short is dropped when the folder is next opened for writing, so that its document is done again: nothing is
lost, nothing is there twice. Readers need no lock, and see every complete line while a run goes on.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from sinkscope.errors import InputError


class _Row(Protocol):
    """What a file holds: a frozen dataclass whose document and seed say which one it is."""

    @property
    def document(self) -> str: ...

    @property
    def seed(self) -> int: ...

    @property
    def index(self) -> int: ...


@dataclass(frozen=True)
class Generation:
    """One answer, before grading."""

    document: str  # its id
    index: int  # its place in the task
    seed: int
    prompt: str
    output: str
    steps: int  # of the generation loop
    forwards: int  # forward passes of the model; more than steps with guidance
    hidden: float | None = None  # share of attention that the policy hid, None without one
    more: Mapping[str, Any] = field(default_factory=dict)  # what a later version adds


@dataclass(frozen=True)
class Grade:
    """The verdict on one answer."""

    document: str
    index: int
    seed: int
    passed: bool
    extracted: str
    reason: str = ""
    sandbox: str = ""  # the rung that its program ran on; "" where none ran


RowType = TypeVar("RowType", bound=_Row)


class Log(Generic[RowType]):
    """A file of rows, one JSON object in a line, keyed by document and seed."""

    def __init__(self, path: Path, kind: type[RowType]) -> None:
        self.path = path
        self._kind = kind
        self._descriptor: int | None = None
        self._known: set[tuple[str, int]] = set()

    def open(self) -> None:
        """Open for writing: drop a line that was cut short, and remember what is there."""
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        raw = self.path.read_bytes()
        whole = raw.rfind(b"\n") + 1
        if whole < len(raw):
            os.ftruncate(self._descriptor, whole)
            os.fsync(self._descriptor)
        self._known = {(row.document, row.seed) for row in self}

    def close(self) -> None:
        """Stop writing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __contains__(self, key: tuple[str, int]) -> bool:
        """Whether (document, seed) is done."""
        return key in self._known

    def append(self, rows: Iterable[RowType]) -> None:
        """Write rows that are not there yet.

        When this returns they are on the disk; when it raises, none of them is.
        """
        if self._descriptor is None:
            raise RuntimeError(f"{self.path} is not open for writing")
        batch = list(rows)
        keys = [(row.document, row.seed) for row in batch]
        if len(set(keys)) < len(keys) or any(key in self._known for key in keys):
            double = next(key for key in keys if keys.count(key) > 1 or key in self._known)
            raise InputError(
                f"{self.path} has document {double[0]!r} with seed {double[1]} already: it was done twice"
            )
        data = b"".join(_line(row) for row in batch)
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
        self._known.update(keys)

    def replace(self, rows: Iterable[RowType]) -> None:
        """Put these rows in place of all that is there, at once.

        A reader sees the old file or the new one.
        """
        if self._descriptor is None:
            raise RuntimeError(f"{self.path} is not open for writing")
        _write_at_once(self.path, b"".join(_line(row) for row in rows))
        self.close()
        self.open()

    def __iter__(self) -> Iterator[RowType]:
        """All complete rows in the order of documents and seeds, whatever the order of writing."""
        if not self.path.exists():
            return iter(())
        names = {item.name for item in fields(self._kind)}  # type: ignore[arg-type]
        rows = []
        for number, line in enumerate(
            self.path.read_bytes().split(b"\n")[:-1], 1
        ):  # what follows the last newline is cut
            try:
                data = json.loads(line)
                rows.append(self._kind(**{name: value for name, value in data.items() if name in names}))
            except (ValueError, TypeError, AttributeError) as error:
                raise InputError(
                    f"{self.path}, line {number} is damaged ({error}): restore the file from a copy"
                ) from error
        return iter(sorted(rows, key=lambda row: (row.index, row.seed)))


class RunFolder:
    """One evaluation's folder.

    Use `with RunFolder.write(path, settings) as run`, or `RunFolder.read(path)`.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self.settings = settings
        self.generations: Log[Generation] = Log(path / "generations.jsonl", Generation)
        self.grades: Log[Grade] = Log(path / "grades.jsonl", Grade)
        self._lock: int | None = None

    @classmethod
    def read(cls, path: str | Path) -> RunFolder:
        """Open for reading, also while another process writes."""
        folder = Path(path)
        file = folder / "settings.json"
        if not file.is_file():
            raise InputError(f"{folder} is not the folder of a run (it has no settings.json)")
        return cls(folder, json.loads(file.read_text(encoding="utf-8")))

    @classmethod
    def write(cls, path: str | Path, settings: Mapping[str, Any]) -> RunFolder:
        """Open for writing.

        Make it, or go on where it was left. Refuses a folder of other settings, or one in use.
        """
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        wanted: dict[str, Any] = json.loads(json.dumps(settings))
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel lets go of it when its holder dies
        except OSError as error:
            os.close(lock)
            raise InputError(
                f"another process is writing to {folder}: wait for it, or choose another folder"
            ) from error
        try:
            file = folder / "settings.json"
            if not file.exists():
                _write_at_once(file, json.dumps(wanted, indent=1, sort_keys=True).encode() + b"\n")
            run = cls.read(folder)
            different = _different(run.settings, wanted)
            if different:
                raise InputError(
                    f"{folder} holds another run: {'; '.join(different[:3])}. Choose another folder, or the "
                    "same settings"
                )
            run.generations.open()
            run.grades.open()
            run._lock = lock
        except BaseException:
            os.close(lock)
            raise
        return run

    def close(self) -> None:
        """Stop writing and let others in."""
        self.generations.close()
        self.grades.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _line(row: Any) -> bytes:
    text = json.dumps(asdict(row), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.encode() + b"\n"


def _write_at_once(path: Path, data: bytes) -> None:
    """A file that is either not there or complete."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name too
    finally:
        os.close(folder)


def _different(old: Any, new: Any, name: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key in sorted({*old, *new})
            for line in _different(old.get(key), new.get(key), f"{name}.{key}" if name else key)
        ]
    return [] if old == new else [f"{name or 'settings'} is {old!r} there and {new!r} here"]
