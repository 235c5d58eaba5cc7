"""What every policy is: frozen data with a text form.

A policy decides which keys each head may use. Those that look at received attention implement `choose`, a pure function from
scores to a set of keys; those that do not implement `fixed`. How and when they act is in `runtime.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from sinkscope.attention.key_mask import Band
from sinkscope.attention.visibility import Visibility
from sinkscope.errors import InputError, nearest

SCOPES = ("head", "layer", "model")
SCORES = ("raw", "masked")
WHEN = ("previous", "same")
EFFECTS = ("hide", "silence")
REGIONS = ("prompt", "answer")


Scope = Literal["head", "layer", "model"]


@dataclass(frozen=True)
class Policy:
    """Base of all policies. `str(policy)` is its text form, which `parse_policy` reads; `a & b` takes away what either does."""

    def __and__(self, other: Policy) -> Policy:
        from sinkscope.policies.both import Both

        return Both(self, other)

    def parts(self) -> Iterator[Rule]:
        """The single rules it is combined from."""
        raise NotImplementedError

    def check(self, layers: int, keys: int) -> None:
        """Raises InputError when it cannot act on a model of so many layers and sequences of so many keys."""
        for part in self.parts():
            part.check_rule(layers, keys)

    @property
    def empty(self) -> bool:
        """Whether it can never take anything away, so that the plain path runs bit for bit."""
        return all(part.empty_rule for part in self.parts())


@dataclass(frozen=True)
class Rule(Policy):
    """A policy of one kind, with the options that all kinds share.

    Attributes:
        effect: "hide": taken keys leave the softmax, the rest is renormalised. "silence": attention stays as it is, but the
            taken keys' values contribute nothing.
        layers: act in these layers only; None: all.
        steps: act in these forward passes only, counted from 0; None: all.
        regions: take only keys of the prompt, or of the answer; None: both.
    """

    effect: Literal["hide", "silence"] = field(default="hide", kw_only=True)
    layers: tuple[int, ...] | None = field(default=None, kw_only=True)
    steps: tuple[int, ...] | None = field(default=None, kw_only=True)
    regions: Literal["prompt", "answer"] | None = field(default=None, kw_only=True)

    word: ClassVar[str] = ""
    """The first word of the text form."""

    def __post_init__(self) -> None:
        one_of("effect", self.effect, EFFECTS)
        object.__setattr__(self, "layers", indices("layers", self.layers))
        object.__setattr__(self, "steps", indices("steps", self.steps))
        if self.regions is not None:
            one_of("regions", self.regions, REGIONS)

    def parts(self) -> Iterator[Rule]:
        """Itself."""
        yield self

    @property
    def empty_rule(self) -> bool:
        """Whether this rule can never take anything away."""
        return False

    @property
    def most(self) -> int | None:
        """Keys that it takes from a head at most, where that is known beforehand."""
        return None

    @property
    def sure(self) -> bool:
        """Whether it takes something wherever it has scores to decide from."""
        return False

    def check_rule(self, layers: int, keys: int) -> None:
        """The layers it names must exist."""
        if self.layers and self.layers[-1] >= layers:
            raise InputError(
                f"{self} names layer {self.layers[-1]}, but the model has layers 0 to {layers - 1}"
            )

    def acts(self, layer: int, step: int) -> bool:
        """Whether it acts in this layer and forward pass at all."""
        return (self.layers is None or layer in self.layers) and (self.steps is None or step in self.steps)

    def argument(self) -> str:
        """What stands behind the colon in the text form."""
        return ""

    def options(self) -> dict[str, Any]:
        """Options that differ from their defaults, for the text form."""
        found: dict[str, Any] = {}
        if self.effect != "hide":
            found["effect"] = self.effect
        for name in ("layers", "steps"):
            value = getattr(self, name)
            if value is not None:
                found[name] = "+".join(map(str, value))
        if self.regions is not None:
            found["regions"] = self.regions
        return found

    def __str__(self) -> str:
        scope = getattr(self, "scope", "head")
        tail = "".join(f",{name}={value}" for name, value in self.options().items())
        return f"{self.word}:{self.argument()}" + (f"@{scope}" if scope != "head" else "") + tail


@dataclass(frozen=True)
class FixedRule(Rule):
    """A rule that does not look at the scores: it acts in every forward, the first included."""

    def columns(self, layer: int, visibility: Visibility, device: torch.device) -> Tensor | None:
        """Bool [B|1, 1, K]: the columns to take, or None."""
        return None

    def band(self) -> Band | None:
        """A window to take all keys outside of, or None."""
        return None


@dataclass(frozen=True)
class ScoredRule(Rule):
    """A rule that decides from received attention.

    Attributes:
        scope: "head": each query head its own set. "layer": one set per layer, from the mean over its heads. "model": one
            set, from the mean over layers and heads.
        scores: "raw": attention over all keys with the q and k of the same (masked) forward. "masked": what acted, in which
            a hidden key has received nothing.
        when: "previous": scores of step t − 1 act in step t, as in the paper. "same": this forward's own, layer by layer.
    """

    scores: Literal["raw", "masked"] = field(default="raw", kw_only=True)
    when: Literal["previous", "same"] = field(default="previous", kw_only=True)

    @property
    def scope(self) -> Scope:
        """A field of every rule of this kind, behind its own arguments."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("scope", self.scope, SCOPES)
        one_of("scores", self.scores, SCORES)
        one_of("when", self.when, WHEN)
        if self.when == "same" and self.scope == "model":
            raise InputError(
                "when='same' decides layer by layer, so scope 'model' cannot be known in time; use head or layer"
            )
        if self.when == "same" and self.scores == "masked":
            raise InputError("when='same' decides before anything is masked, so scores are always 'raw'")

    def choose(self, scores: Tensor, candidates: Tensor) -> Tensor:
        """The keys to take away; a pure function.

        Args:
            scores: Float [B, h, K], uniform = 1, NaN where a key has no score; h is 1 for scopes above head.
            candidates: Bool [B, h, K]: keys that may be taken.

        Returns:
            Bool [B, h, K].
        """
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """Options that differ from their defaults."""
        found = super().options()
        if self.scores != "raw":
            found["scores"] = self.scores
        if self.when != "previous":
            found["when"] = self.when
        return found


def top(scores: Tensor, candidates: Tensor, count: int | Tensor) -> Tensor:
    """Bool [..., K]: the `count` candidates with the highest scores; equal scores go to the lower index."""
    order = scores.masked_fill(~candidates, float("-inf")).sort(dim=-1, descending=True, stable=True).indices
    if isinstance(count, int):
        first = torch.zeros_like(scores, dtype=torch.bool)
        return first.scatter_(-1, order[..., :count], True) & candidates
    rank = torch.empty_like(order).scatter_(
        -1, order, torch.arange(scores.shape[-1], device=scores.device).expand_as(order)
    )
    return (rank < count) & candidates


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """The value must be one of the allowed words."""
    if value not in allowed:
        raise InputError(f"{name} {value!r} is not known; {nearest(str(value), allowed)}")


def indices(name: str, value: object) -> tuple[int, ...] | None:
    """Indices as a sorted tuple; None for all."""
    if value is None:
        return None
    many = [value] if isinstance(value, int) else value
    if not isinstance(many, (list, tuple, range)) or not len(many):
        raise InputError(f"{name} should be a list of indices, or None for all, got {value!r}")
    for one in many:
        if isinstance(one, bool) or not isinstance(one, int) or one < 0:
            raise InputError(f"{name} should be indices from 0 on, got {one!r}")
    return tuple(sorted(set(many)))


def whole(name: str, value: object, least: int) -> int:
    """A whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} should be a whole number of at least {least}, got {value!r}")
    return value


def finite(name: str, value: object) -> float:
    """A finite number."""
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise InputError(f"{name} should be a finite number, got {value!r}")
        return float(value)
    except OverflowError as error:  # a whole number beyond every float
        raise InputError(f"{name} should be a finite number, got one of more than 300 digits") from error


def number(value: float) -> str:
    """A number for the text form: exact, and without a needless .0."""
    return str(int(value)) if value == int(value) else repr(value)


def check_policy(policy: object, layers: int, keys: int) -> Policy | None:
    """The policy, checked against a model and a length; None when there is none or it can never act."""
    if policy is None:
        return None
    if not isinstance(policy, Policy):
        raise InputError(
            f"policy should be a policy such as ss.MaskTop(5), got {type(policy).__name__}; see ss.parse_policy"
        )
    policy.check(layers, keys)
    return None if policy.empty else policy
