"""Checks of single values that a person gave; each error names the value, what was expected and what to try."""

from __future__ import annotations

import ast
import dataclasses
import math
import sys
from collections.abc import Iterable
from typing import Any

from sinkscope.base.errors import InputError, nearest

LARGEST = sys.float_info.max


def whole(name: str, value: object, least: int) -> int:
    """The value, which must be a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} should be a whole number of at least {least}, got {value!r}")
    return value


def finite(name: str, value: object) -> float:
    """The value as a float, which must be finite."""
    return float(_number(name, value, -LARGEST, LARGEST, "be a finite number"))


def at_least(name: str, value: object, least: float) -> float:
    """The value, which must be a finite number of at least `least`."""
    return _number(name, value, least, LARGEST, f"be a number of at least {least:g}")


def share(name: str, value: object, hint: str = "") -> float:
    """The value, which must lie above 0 and at most at 1."""
    return _number(name, value, math.ulp(0.0), 1, "lie above 0 and at most at 1", hint)


def _number(name: str, value: Any, low: float, high: float, expected: str, hint: str = "") -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and low <= value <= high:
        return value  # type: ignore[no-any-return]
    long = isinstance(value, int) and value.bit_length() > 1024
    text = "one of more than 300 digits" if long else repr(value)
    raise InputError(f"{name} should {expected}, got {text}{hint}")


def one_of(name: str, value: Any, allowed: Iterable[str]) -> str:
    """The value, which must be one of the allowed words."""
    words = list(allowed)
    if value not in words:
        raise InputError(f"{name} {value!r} is not known; {nearest(str(value), words)}")
    return str(value)


def indices(name: str, value: object) -> tuple[int, ...] | None:
    """Indices from 0 on as a sorted tuple without repetitions; None stands for all."""
    if value is None:
        return None
    numbers = [value] if isinstance(value, int) else value
    if not isinstance(numbers, (list, tuple, range)) or not len(numbers):
        raise InputError(f"{name} should be a list of indices, or None for all, got {value!r}")
    for index in numbers:
        if isinstance(index, bool) or not isinstance(index, int) or index < 0:
            raise InputError(f"{name} should be indices from 0 on, got {index!r}")
    return tuple(sorted(set(numbers)))


def declared(thing: Any, prefix: str = "") -> None:
    """Check the fields of a frozen dataclass that are declared as one of some words, as indices (then sorted) or as yes or no.

    Args:
        prefix: stands before the names of fields in messages.
    """
    for item in dataclasses.fields(thing):
        kind, value, name = str(item.type), getattr(thing, item.name), prefix + item.name
        if kind == "tuple[int, ...] | None":
            object.__setattr__(thing, item.name, indices(name, value))
        elif value is None and kind.endswith("| None"):
            continue
        elif kind.startswith("Literal["):
            one_of(name, value, ast.literal_eval(kind[kind.index("[") : kind.index("]") + 1]))
        elif kind.startswith("bool") and not isinstance(value, bool):
            raise InputError(f"{name} should be True or False (as text yes or no), got {value!r}")
