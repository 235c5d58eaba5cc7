"""Checks of single values that a person gave; each error names the value, what was expected and what to try."""

from __future__ import annotations

import math
from collections.abc import Iterable

from sinkscope.errors import InputError, nearest


def whole(name: str, value: object, least: int) -> int:
    """The value, which must be a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} should be a whole number of at least {least}, got {value!r}")
    return value


def finite(name: str, value: object) -> float:
    """The value as a float, which must be finite."""
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise InputError(f"{name} should be a finite number, got {value!r}")
        return float(value)
    except OverflowError as error:  # an integer too large for a float
        raise InputError(f"{name} should be a finite number, got one of more than 300 digits") from error


def at_least(name: str, value: object, least: float) -> float:
    """The value, which must be a finite number of at least `least`."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < least:  # type: ignore[operator]
        raise InputError(f"{name} should be a number of at least {least:g}, got {value!r}")
    return value  # type: ignore[return-value]


def share(name: str, value: object, hint: str = "") -> float:
    """The value, which must lie above 0 and at most at 1."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 < value <= 1:  # type: ignore[operator]
        raise InputError(f"{name} should lie above 0 and at most at 1, got {value!r}{hint}")
    return value  # type: ignore[return-value]


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """The value must be one of the allowed words."""
    if value not in allowed:
        raise InputError(f"{name} {value!r} is not known; {nearest(str(value), allowed)}")


def known(what: str, value: str, names: Iterable[str]) -> str:
    """The value, which must be one of the known names of `what`."""
    words = list(names)
    if value not in words:
        raise InputError(f"unknown {what} {value!r}: {nearest(value, words)}")
    return value


def indices(name: str, value: object) -> tuple[int, ...] | None:
    """Indices from 0 on as a sorted tuple without repetitions; None stands for all."""
    if value is None:
        return None
    given = [value] if isinstance(value, int) else value
    if not isinstance(given, (list, tuple, range)) or not len(given):
        raise InputError(f"{name} should be a list of indices, or None for all, got {value!r}")
    for index in given:
        if isinstance(index, bool) or not isinstance(index, int) or index < 0:
            raise InputError(f"{name} should be indices from 0 on, got {index!r}")
    return tuple(sorted(set(given)))
