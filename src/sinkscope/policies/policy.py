"""The base of every policy: frozen data with a text form that names all of it.

A policy decides which keys each head may use. A rule that looks at received attention derives from `ScoredRule` and implements
`choose`, a pure function from scores to a set of keys; one that does not derives from `FixedRule` and implements `columns` or
`band`. `runtime.py` runs them. A new policy is one file and one `POLICIES.add` (or `ss.register`, or an entry point).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import torch
from torch import Tensor

from sinkscope.attention.key_mask import Band
from sinkscope.attention.visibility import Visibility
from sinkscope.base.checks import declared, one_of
from sinkscope.base.errors import InputError
from sinkscope.base.registry import Registry
from sinkscope.base.textform import write

if TYPE_CHECKING:
    from sinkscope.policies.layer_view import LayerView
    from sinkscope.policies.mask_random import MaskRandom

Scope = Literal["head", "layer", "model"]


@dataclass(frozen=True)
class Policy:
    """Base of all policies. `str(policy)` is its text form, which `parse_policy` reads; `a & b` masks the union of both.

    >>> both = ss.MaskFirst(1) & ss.Window(16)
    >>> str(both), ss.parse_policy(str(both)) == both
    ('first:1 & window:16', True)
    """

    def __and__(self, other: Policy) -> Policy:
        if not isinstance(other, Policy):
            raise InputError(f"& combines policies, got {type(other).__name__}")
        return Both((*self.parts(), *other.parts()))

    def __str__(self) -> str:
        return self.identity()

    def parts(self) -> Iterator[Rule]:
        """The single rules it is combined from."""
        raise NotImplementedError

    def identity(self) -> str:
        """A text that differs whenever two policies differ: the name of the rule and every field that is not at its default."""
        return " & ".join(text_form(rule) for rule in self.parts())

    @property
    def original(self) -> Policy:
        """The same without chance: random rules replaced by what they imitate."""
        return Both(tuple(rule.original for rule in self.parts()))

    @property
    def control(self) -> MaskRandom | None:
        """The rule by which it is the random control of `original`; None unless exactly one of its rules is random."""
        random = [rule for rule in self.parts() if rule.original is not rule]
        return random[0] if len(random) == 1 else None  # type: ignore[return-value]

    def with_seed(self, seed: int) -> Policy:
        """The same policy with another draw of its random rules; itself where it has none."""
        return Both(tuple(rule.with_seed(seed) for rule in self.parts()))

    def key_share(self, keys: int) -> float | None:
        """The share of `keys` keys that it masks for every head; None where that is not fixed beforehand."""
        return None


@dataclass(frozen=True)
class Rule(Policy):
    """A policy of one kind, with the options that all kinds share.

    Attributes:
        effect: "hide": masked keys leave the softmax, the rest is renormalised. "silence": attention stays as it is, but the
            masked keys' values contribute nothing.
        layers: act in these layers only; None: all.
        steps: act in these forward passes only, counted from 0; None: all.
        regions: mask only keys of the prompt, or of the answer; None: both.
        heads: act in these query heads only; None: all.
        queries: the queries for which keys are masked. "all"; "scored": those whose predictions are read; "newest": the last
            one (causal models); "masked", "decided": those at mask tokens, and all others (diffusion models).
        prefill: whether it acts while the prompt is read into the cache (causal and block models). None: fixed rules do; a rule
            that decides from scores does not, because there are none yet. With True the prompt is read once without it, for
            the scores, and then again.
    """

    effect: Literal["hide", "silence"] = field(default="hide", kw_only=True)
    layers: tuple[int, ...] | None = field(default=None, kw_only=True)
    steps: tuple[int, ...] | None = field(default=None, kw_only=True)
    regions: Literal["prompt", "answer"] | None = field(default=None, kw_only=True)
    heads: tuple[int, ...] | None = field(default=None, kw_only=True)
    queries: Literal["all", "scored", "newest", "masked", "decided"] = field(default="all", kw_only=True)
    prefill: bool | None = field(default=None, kw_only=True)

    word: ClassVar[str] = ""
    """The first word of the text form, and the name under which the rule is registered."""

    by_column: ClassVar[bool] = False
    """Whether it names columns of the tensor as it is passed, so that padding would shift them."""

    takes_learned: ClassVar[bool] = False
    """Whether it takes away learned sinks, so that it is for models that have them."""

    def __post_init__(self) -> None:
        declared(self)

    def parts(self) -> Iterator[Rule]:
        yield self

    @property
    def original(self) -> Rule:
        return self

    def with_seed(self, seed: int) -> Rule:
        return self

    @property
    def empty(self) -> bool:
        """Whether it can never mask anything."""
        return self.most == 0 and not self.takes_learned

    @property
    def most(self) -> int | None:
        """Keys that it masks for a head at most, where that is known beforehand."""
        return None

    @property
    def waits(self) -> bool:
        """Whether it decides from the previous step, so that it does nothing in a first forward."""
        return False

    def check(self, layers: int, keys: int) -> None:
        """Raise InputError when the layers that it names do not exist, or fewer keys than it masks."""
        if self.layers and self.layers[-1] >= layers:
            raise InputError(f"{self} names layer {self.layers[-1]}, but the model has layers 0 to {layers - 1}")
        if self.most is not None and self.most > keys:
            raise InputError(f"{self} masks {self.most} keys, but the sequence has only {keys}; use a smaller number")

    def acts(self, layer: int, step: int, prefill: bool = False) -> bool:
        """Whether it acts in this layer and forward pass at all; prefill: the prompt is being read into the cache."""
        if prefill and self.prefill is False:
            return False
        return (self.layers is None or layer in self.layers) and (self.steps is None or step in self.steps)

    def band(self) -> Band | None:
        """A window outside of which all keys are masked; None: the rule masks `keys` instead."""
        return None

    def keys(self, view: LayerView) -> Tensor | None:
        """Bool [B|1, h|1, K]: the keys that it masks in one layer of one forward; None: none."""
        raise NotImplementedError

    def scores_in(self, view: LayerView) -> Tensor | None:
        """Float [B, h, K]: what it decides from; None: it looks at nothing, or there is nothing yet."""
        return None


@dataclass(frozen=True)
class Both(Policy):
    """`a & b`: the union of what several rules mask, in the same way and for the same queries; brackets make no difference."""

    rules: tuple[Rule, ...]

    def __post_init__(self) -> None:
        named = " and ".join(map(str, self.rules))
        if len({rule.effect for rule in self.rules}) > 1:
            raise InputError(f"{named} have different effects; combine policies that both hide or both silence")
        if len({(rule.queries, rule.prefill) for rule in self.rules}) > 1:
            raise InputError(f"{named} act on different queries; give both the same queries= and prefill=")
        if sum(rule.band() is not None for rule in self.rules) > 1:
            raise InputError("two windows cannot be combined; give the narrower one")

    def parts(self) -> Iterator[Rule]:
        yield from self.rules


@dataclass(frozen=True)
class FixedRule(Rule):
    """A rule that does not use scores: it acts in every forward pass, including the first.

    A subclass implements `columns(layer, visibility, device)`, which returns the keys to mask, Bool [B or 1, h or 1, K]; with a
    fourth argument `tokens` it also gets the token ids, Long [B, K], −1 where there is none.

    >>> isinstance(ss.MaskFirst(1), ss.FixedRule), isinstance(ss.MaskTop(1), ss.FixedRule)
    (True, False)
    >>> first = ss.generate(model, prompts, decoding, policy=ss.MaskFirst(1), capture=ss.Capture())
    >>> bool(first.trace.masked_keys().sel(key=0).all())    # in every step, layer and head
    True
    """

    def columns(self, layer: int, visibility: Visibility, device: torch.device) -> Tensor | None:
        """Bool [B|1, 1, K]: the keys to mask, or None."""
        return None

    def keys(self, view: LayerView) -> Tensor | None:
        """`columns`, as far as they are real keys of its region."""
        columns = self.columns(view.layer, view.visibility, view.device, **view.wanted(self.columns))
        if columns is None:
            return None
        # A captured step goes on reading it, though it may be made once and dropped elsewhere.
        view.runtime.held[view.number, view.layer] = columns
        return columns & view.maskable(self)


@dataclass(frozen=True)
class ScoredRule(Rule):
    """A rule that decides from received attention.

    A subclass implements `choose(scores, candidates)`: scores Float [B, h, K] and candidates Bool [B, h, K] give the keys to
    mask, Bool [B, h, K]. It may ask for more by name: `tokens`, Long [B, 1, K], the token ids (−1: none); `sinks`, a function
    from ε to Bool [B, h, K], the keys that are sinks.

    Attributes:
        scope: "head": one set per query head. "layer": one set per layer, from the mean over its heads. "model": one
            set, from the mean over layers and heads.
        scores: "raw": as if nothing were masked, with q and k of the same (masked) forward pass. "masked": as applied, where
            a masked key has received nothing.
        when: "previous": scores of step t − 1 act in step t, as in the paper. "same": this forward's own, layer by layer.
        by: what a key's score is. "newest": attention from the newest query; None means this in causal models. "received":
            attention from all queries so far, relative to uniform; None means this in all others, where it is the paper's.
            "sum": the same as a plain sum. "distant" (causal): the mean attention of distant queries (see `sink_rule`).

    >>> rule = ss.MaskTop(1, scope="layer", when="same", effect="silence")
    >>> isinstance(rule, ss.ScoredRule), str(rule)
    (True, 'top:1@layer,effect=silence,when=same')
    """

    scores: Literal["raw", "masked"] = field(default="raw", kw_only=True)
    when: Literal["previous", "same"] = field(default="previous", kw_only=True)
    by: Literal["newest", "received", "sum", "distant"] | None = field(default=None, kw_only=True)

    @property
    def scope(self) -> Scope:
        """A field of every rule of this kind, behind its own arguments."""
        raise InputError(
            f'{type(self).__name__} has no scope: give it a field, such as `scope: str = "head"`, and make it a frozen dataclass'
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("scope", self.scope, get_args(Scope))
        if self.when == "same" and self.scope == "model":
            raise InputError(
                "when='same' decides layer by layer, so scope 'model' cannot be known in time; use head or layer"
            )
        if self.by is not None and (self.scores == "masked" or self.when == "same"):
            raise InputError(f"by={self.by} counts queries of earlier steps too; leave out scores=masked and when=same")
        if self.when == "same" and self.scores == "masked":
            raise InputError("when='same' decides before anything is masked, so scores are always 'raw'")

    @property
    def waits(self) -> bool:
        return self.when == "previous"

    def choose(self, scores: Tensor, candidates: Tensor) -> Tensor:
        """The keys to mask; a pure function.

        Args:
            scores: Float [B, h, K], uniform = 1, NaN where a key has no score; h is 1 for scopes above head.
            candidates: Bool [B, h, K]: keys that may be masked.

        Returns:
            Bool [B, h, K].
        """
        raise NotImplementedError

    def scores_in(self, view: LayerView) -> Tensor | None:
        """Received attention of the previous step, or of this forward, at the rule's scope."""
        if self.waits:
            return view.previous_scores(view.score(self), self.scope)
        return view.own_scores(self.scope)

    def keys(self, view: LayerView) -> Tensor | None:
        """What `choose` says of the scores, once there are any."""
        if self.waits:
            return view.chosen_before(self)
        scores = view.own_scores(self.scope)
        return self.choose(scores, view.candidates(self, scores), **view.wanted(self.choose, scores, self))


def _name_of(thing: object) -> str:
    if not (isinstance(thing, type) and issubclass(thing, Rule) and dataclasses.is_dataclass(thing)):
        raise InputError(
            f"a policy is registered as a frozen dataclass that derives from ScoredRule or FixedRule, got {thing!r}"
        )
    if not thing.word.isidentifier():
        raise InputError(f"{thing.__name__}.word should be the first word of its text form, got {thing.word!r}")
    return thing.word


POLICIES: Registry[type[Rule]] = Registry("policy", "sinkscope.policies", _name_of, __package__)


def text_form(rule: Rule) -> str:
    """The text form of a rule. A class that is not the registered one of its word is named in full, so that it shares no record
    with that one.
    """
    text, kind = write(rule, rule.word), type(rule)
    return text if POLICIES.get(rule.word) is kind else f"{text} of {kind.__module__}.{kind.__qualname__}"


def top(scores: Tensor, candidates: Tensor, count: int | Tensor) -> Tensor:
    """Bool [..., K]: the `count` candidates with the highest scores; equal scores go to the lower index."""
    open_scores = scores.masked_fill(~candidates, float("-inf"))
    if isinstance(count, int):  # cheaper than sorting everything
        count = min(count, scores.shape[-1])
        last = open_scores.topk(max(count, 1), -1).values[..., -1:]
    else:
        last = open_scores.sort(dim=-1, descending=True).values.gather(-1, (count - 1).clamp(min=0))
    # All above the last score that gets in, and of those equal to it the first ones.
    above, equal = open_scores > last, open_scores == last
    left = count - above.sum(-1, keepdim=True)
    return (above | (equal & (equal.cumsum(-1) <= left))) & candidates


def check_policy(
    policy: object, layers: int, keys: int, kind: str | None = None, heads: int | None = None, learned: bool = True
) -> Policy | None:
    """The policy, checked against a model and a length; None when there is none or it can never act.

    Args:
        kind: of the attention, "causal", "block" or "masked", which says what queries and prompts there are; None: not known.
        heads: query heads of a layer; None: not known. learned: whether the model has learned sinks.
    """
    if policy is None:
        return None
    if not isinstance(policy, Policy):
        raise InputError(
            f"policy should be a policy such as ss.MaskTop(5), or its text, got {type(policy).__name__}; see ss.parse_policy"
        )
    for rule in policy.parts():
        rule.check(layers, keys)
        if heads is not None and rule.heads is not None and rule.heads[-1] >= heads:
            raise InputError(f"{rule} names head {rule.heads[-1]}, but the model has heads 0 to {heads - 1}")
        if rule.takes_learned and not learned:
            raise InputError(f"{rule} takes away learned sinks, and this model has none; use first:1 or top:1")
        wrong = None if kind is None else _unsuited(rule, kind)
        if wrong:
            raise InputError(f"{rule} does not suit this model: {wrong}")
    # What can never act runs as no policy at all, so that it equals a plain run bit for bit.
    return None if all(rule.empty for rule in policy.parts()) else policy


def _unsuited(rule: Rule, kind: str) -> str:
    """Why a rule makes no sense for this kind of attention; "" when it does."""
    queries, prefill = rule.queries, rule.prefill
    by = getattr(rule.original, "by", None)
    if kind == "causal":
        if queries in ("masked", "decided"):
            return f"a causal model has no mask tokens, so queries={queries} names none; use all, scored or newest"
        return ""
    if queries == "newest":
        return "queries=newest is for causal models; use all, scored, masked or decided"
    if by in ("newest", "distant"):
        return f"by={by} is for causal models, where queries see different keys; use received or sum"
    if prefill is not None and kind == "masked":
        return "it reads the whole sequence anew in every step, so there is no prefill to act in or to leave out"
    if prefill and rule.waits:
        return (
            "a block loop reads its prompt before there are scores; use prefill=yes with a fixed rule, such as first:1"
        )
    return ""
