"""Extras: what an experiment can have besides model, task, decoding and policy, such as a rule of approximate steps.

Each kind of extra lives in a folder of its own, which nothing else knows: the folder's module `kind` registers a `Kind` here, its
module `study.plugin` says what a study shows of it (`sinkscope.study.plugged`). `registry.FOLDERS` names our folders; another
distribution announces its kind by an entry point of the group `sinkscope.extras`.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from sinkscope.base.errors import InputError
from sinkscope.base.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from sinkscope.decoding.base import Decoding
    from sinkscope.decoding.engine import Engine
    from sinkscope.models.model import Model
    from sinkscope.policies.policy import Policy
    from sinkscope.trace.capture import Capture


class Outcome(Protocol):
    """What an extra did in a run, or in all answers of an evaluation. Its text is how a person reads it.

    Attributes:
        exact: whether the run is what it would be without the extra.
    """

    @property
    def exact(self) -> bool: ...

    def facts(self) -> dict[str, Any]:
        """Of the whole run, for JSON."""

    def row(self, row: int) -> dict[str, Any]:
        """Of one row, for its record: see `Kind.recorded`."""


class Acting(Protocol):
    """An extra in one generation."""

    def apart(self, decoding: Decoding) -> bool:
        """Whether rows with streams of their own run one by one."""

    def wrap(self, engine: Engine, row_keys: list[int]) -> None:
        """Stand between an engine and its loop. row_keys: a number for each row, for random choices."""

    def outcome(self, by_row: Callable[[list[Tensor | None]], Tensor | None], steps: int) -> Outcome:
        """What is said of a run of so many steps; by_row: puts what each group has, [b, …], in the order of the batch."""


class Extra(ABC):
    """Frozen data with a text form, which `Kind.read` reads."""

    @property
    def draws(self) -> bool:
        """Whether it chooses at random, keyed by each row's seed."""
        return False

    def with_seed(self, seed: int) -> Self:
        """The same with other random choices; itself where it makes none."""
        return dataclasses.replace(self, seed=seed) if self.draws else self  # type: ignore[type-var]

    @abstractmethod
    def identity(self) -> str:
        """A text that differs whenever two of them differ: part of the identity of results."""

    @abstractmethod
    def check(
        self,
        decoding: Decoding,
        model: Model | None = None,
        policy: Policy | None = None,
        capture: Capture | None = None,
    ) -> None:
        """Raise InputError where it does not suit what it is used with; what is None is not there, or not looked at yet."""

    @abstractmethod
    def begin(self) -> Acting:
        """For one generation, after `check`."""


class Kind(ABC):
    """A kind of extra. What it imports is imported when it is asked: that there is such a kind is known without PyTorch.

    Attributes:
        name: the argument of `ss.generate` and `ss.evaluate`, the key of settings and of study files, the column of tables.
        recorded: a TypedDict: what it adds to records (`Outcome.row`).
    """

    name: ClassVar[str]
    recorded: ClassVar[Any]

    @abstractmethod
    def read(self, given: Any) -> Extra | None:
        """The extra that was given as one, or as its text; None for "none"."""

    @abstractmethod
    def add(self, thing: type) -> bool:
        """Register a class of such extras; False: it is none."""

    @abstractmethod
    def summed(self, text: str, rows: Sequence[Mapping[str, Any]]) -> Outcome:
        """What the records of answers under the extra with this text say together."""


def _name_of(thing: object) -> str:
    if not isinstance(thing, Kind):
        raise InputError(f"an entry point of sinkscope.extras should be a Kind, got {thing!r}")
    return thing.name


EXTRAS: Registry[Kind] = Registry("kind of extra", "sinkscope.extras", _name_of, module="kind")


Extras = Mapping[str, Any]
"""Kind → `Extra`. Any: they are also arguments of `ss.generate`, of which each kind has a type of its own."""


def read_extras(given: Mapping[str, Any], options: dict[str, Any] | None = None) -> dict[str, Any]:
    """Kind → the extra that was given; those that are None, or "none", are left out.

    Args:
        options: further arguments of a call, out of which those that are called like a kind are taken.
    """
    given = {**given, **{name: options.pop(name) for name in EXTRAS if name in options}} if options else given
    read = {name: EXTRAS.find(name).read(value) for name, value in given.items() if value is not None}
    return {name: extra for name, extra in read.items() if extra is not None}
