"""An experiment: one model, task, decoding, policy and set of seeds, with extras such as rules of approximate steps.

Its identity is everything that can change a result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sinkscope.base.errors import InputError
from sinkscope.base.extras import Extras
from sinkscope.tasks.task import Task

if TYPE_CHECKING:
    from sinkscope.decoding import Decoding
    from sinkscope.models.model import Model
    from sinkscope.policies.policy import Policy

VERSION = "evaluation/1"
"""Part of every run's settings: count up when the same settings would give other records."""


@dataclass(frozen=True)
class ModelIdentity:
    """The model of an experiment, without its weights in memory.

    Attributes:
        source: what records call it. dtype: of its weights, such as "float32".
        weights: the hub's commit, or a digest of the weight files; None when the model is not on this machine.
    """

    source: str
    family: str
    dtype: str
    weights: str | None

    @classmethod
    def of(cls, model: Model) -> ModelIdentity:
        dtype = str(model.dtype).removeprefix("torch.")
        return cls(model.source, model.spec.counted_as, dtype, model.revision or model.digest)

    @property
    def numbers(self) -> dict[str, Any]:
        """What its results depend on: two names of one model have the same."""
        return {"family": self.family, "dtype": self.dtype, "weights": str(self.weights)}


@dataclass(frozen=True)
class Experiment:
    """What is asked of a model, and how. `evaluate`, the cells of a study and the lm-eval bridge pass it on as it is.

    Attributes:
        extras: what else acts in the generations, by name (`sinkscope.base.extras`), as `ss.generate` takes it.
        seeds: of the random streams; several only where they can make a difference.
    """

    model: ModelIdentity
    task: Task
    decoding: Decoding
    policy: Policy | None = None
    extras: Extras = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        seeds: Any = self.seeds
        numbers = (seeds,) if isinstance(seeds, int) else tuple(seeds)
        if not numbers or any(type(seed) is not int or seed < 0 for seed in numbers):
            raise InputError(f"seeds should be whole numbers from 0 on, such as 0 or [0, 1, 2], got {seeds!r}")
        if len(set(numbers)) < len(numbers):
            raise InputError(f"seeds {list(numbers)} name one twice; give different ones")
        if len(numbers) > 1 and not self.varies:
            raise InputError(
                f"{len(numbers)} seeds would give the same answers: this {self.decoding.kind} decoding draws nothing"
            )
        object.__setattr__(self, "seeds", numbers)

    @property
    def varies(self) -> bool:
        """True when another seed can give another answer."""
        random = self.policy is not None and any(rule.control is not None for rule in self.policy.parts())
        return random or self.decoding.draws or any(extra.draws for extra in self.extras.values())

    def check_extras(self, model: Model, reads: str = "") -> None:
        """Raise InputError where an extra does not suit model, decoding or policy; reads: what reads texts instead."""
        for name, extra in self.extras.items():
            if reads:
                raise InputError(f"{name} {extra} is for steps of a generation, and {reads}; leave it out")
            extra.check(self.decoding, model, self.policy)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What the records of a run carry and a folder is refused by, as JSON data."""
        return {
            "version": VERSION,
            "model": {"source": self.model.source, **self.model.numbers},
            "task": self.task.settings(),
            "decoding": self.decoding.as_dict(),
            "policy": None if self.policy is None else str(self.policy),
            **{name: extra.identity() for name, extra in self.extras.items()},
        }

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that can change a result, as JSON data; names are no part of it."""
        parts = {name: self.settings[name] for name in ("task", "decoding", *self.extras)}
        policy = "none" if self.policy is None else self.policy.identity()
        return {"model": self.model.numbers, **parts, "policy": policy, "seeds": list(self.seeds)}
