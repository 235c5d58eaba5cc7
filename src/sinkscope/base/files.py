"""Files that are absent or complete, files that somebody else may have changed, and differences of JSON documents.

What is read back may have been cut by a kill, edited by hand, or made to break a reader. `read_json` and `fit` read all
of it: JSON of the types that a dataclass or TypedDict declares, else one line with the file, what is wrong and what to do.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryFile
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from sinkscope.base.errors import InputError, SinkscopeError, nearest

WORDS: dict[Any, str] = {
    int: "a whole number", float: "a finite number", str: "a text", bool: "true or false", NoneType: "null", tuple: "a list",
}  # fmt: skip
"""What the types of JSON values are called; all others are tables."""


def cache_folder() -> Path:
    """$SINKSCOPE_CACHE, else sinkscope's folder in the user's cache."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sinkscope"
    return Path(os.environ.get("SINKSCOPE_CACHE") or usual).expanduser()


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write a file so that a reader, a kill or a power cut finds either the old content or all of the new.

    The unfinished file is opened exclusively, so that a link planted in its place is refused and not followed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise InputError(f"cannot write {path} ({error.strerror}): {remedy(error)}") from error


def remedy(error: OSError) -> str:
    """What to do about a file or folder that cannot be written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "make room and run the same command again" if full else "give another place, or make this one writable"


def check_writable(path: Path) -> None:
    """Refuse, before anything is computed, a folder that cannot be made or written to: rights alone do not tell."""
    folder = next(known for known in (path, *path.absolute().parents) if known.exists())
    try:
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"{path} cannot be written ({folder}: {error.strerror}): {remedy(error)}") from error


class MisfitError(InputError):
    """A value that is not what was declared."""


@contextmanager
def reading(what: object, advice: str, error: type[SinkscopeError] = InputError) -> Iterator[None]:
    """Whatever a damaged file makes its reader raise becomes one line: the file, what is wrong with it, what to do."""
    try:
        yield
    except BaseException as problem:
        # A panic of a library in Rust is no Exception.
        foreign = isinstance(problem, Exception) or type(problem).__name__ == "PanicException"
        ours = isinstance(problem, SinkscopeError) and not isinstance(problem, MisfitError)
        if ours or not foreign or isinstance(problem, MemoryError):
            raise
        state = "cannot be read" if isinstance(problem, OSError) and problem.errno else "is damaged"
        raise error(f"{what} {state} ({one_line(problem)}): {advice}") from problem


def one_line(error: BaseException) -> str:
    """The first line of an error's message, short enough for one line of ours."""
    missing = " is missing" if isinstance(error, KeyError) else ""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    first = f"{lines[0]} {lines[1].strip()}" if lines[0].endswith(":") and len(lines) > 1 else lines[0]
    return first[:200] + missing


def read_json(path: Path, advice: str, error: type[SinkscopeError] = InputError, kind: Any = Mapping[str, Any]) -> Any:
    """The JSON document in a file as `fit` gives it: a table, unless another kind is named."""
    with reading(path, advice, error):
        return fit(kind, json.loads(plain_bytes(path).decode()))


def read_toml(path: Path) -> dict[str, Any]:
    """The TOML document in a file."""
    with reading(path, "it should be a TOML file"):
        return tomllib.loads(plain_bytes(path).decode())


def plain_bytes(path: Path) -> bytes:
    """The content of a file; a pipe in its place, which would be waited on for ever, is refused."""
    if path.exists() and not path.is_file():
        raise MisfitError("it is no plain file")
    return path.read_bytes()


def fit(kind: Any, value: Any, name: str = "it", strict: bool = False) -> Any:
    """JSON data as a type declares it: lists become tuples, tables the dataclass, less the fields that it does not have.

    Raises MisfitError, which names the field; `strict`: also for one that the dataclass does not have.
    Entries of a table that a TypedDict does not declare stay as they are; one that is `Annotated[…, kind]` is of that kind.

    >>> fit(Mapping[str, tuple[int, ...]], {"seeds": [1, 2]})
    {'seeds': (1, 2)}
    """
    origin, inside = get_origin(kind) or kind, get_args(kind)
    if origin in (Annotated, NotRequired):
        return fit(inside[-1], value, name, strict)
    is_one = dataclasses.is_dataclass(kind) and isinstance(value, origin)
    if kind is Any or is_one or (origin is Literal and isinstance(value, str) and value in inside):
        return value
    if origin in (Union, UnionType):
        # The first that fits is taken, so the order of a union's members decides.
        for choice in inside:
            with suppress(MisfitError):
                return fit(choice, value, name, strict)
    elif origin is tuple and isinstance(value, (list, tuple)):
        return tuple(fit(inside[0], item, f"{name}[{index}]", strict) for index, item in enumerate(value))
    elif dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        make: Any = kind
        unknown = [key for key in value if key not in _hints(make)]
        if strict and unknown:
            raise MisfitError(f"{name} has no {unknown[0]!r}; {nearest(unknown[0], _hints(make))}")
        return make(**_entries(kind, {key: value[key] for key in value if key not in unknown}, strict))
    elif is_typeddict(kind) and isinstance(value, Mapping):
        return _entries(kind, value, strict)
    elif origin is Mapping and isinstance(value, Mapping):
        return {key: fit(inside[1], item, str(key), strict) for key, item in value.items()}
    elif origin in WORDS and _is(origin, value):
        return value
    raise MisfitError(f"{name} should be {_words(kind)}, got {_short(value)}")


def _entries(kind: Any, table: Mapping[str, Any], strict: bool) -> dict[str, Any]:
    """The entries of a table, those that a class declares as it declares them."""
    hints = _hints(kind)
    if dataclasses.is_dataclass(kind):
        fields = dataclasses.fields(kind)
        needed = {item.name for item in fields if item.default is item.default_factory is dataclasses.MISSING}
    else:
        needed = {key for key, hint in hints.items() if kind.__total__ and get_origin(hint) is not NotRequired}
    missing = sorted(needed - set(table))
    if missing:
        raise MisfitError(f"{', '.join(missing)} is missing")
    return {key: fit(hints.get(key, Any), item, key, strict) for key, item in table.items()}


@lru_cache(maxsize=64)
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _is(kind: Any, value: Any) -> bool:
    """Whether a value is of a plain type; whole numbers have 64 bits, as in every table, and texts whole characters."""
    if isinstance(value, bool) or kind in (bool, NoneType):
        return type(value) is kind
    if isinstance(value, str):
        return kind is str and value == value.encode(errors="ignore").decode()
    if isinstance(value, int):
        return abs(value) < {int: 2**63, float: 2**1000}.get(kind, 0)
    return kind is float and isinstance(value, float) and math.isfinite(value)


def _words(kind: Any) -> str:
    origin, inside = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(map(_words, inside))
    return " or ".join(map(repr, inside)) if origin is Literal else WORDS.get(origin, "a table")


def differences(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """Sentences that name what differs between two JSON documents.

    >>> list(differences({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}}))
    ['b.c is 2 there and 3 here']
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from differences(old.get(key), new.get(key), f"{name}.{key}" if name else str(key))
    elif old != new:
        yield f"{name or 'everything'} is {_short(old)} there and {_short(new)} here"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
