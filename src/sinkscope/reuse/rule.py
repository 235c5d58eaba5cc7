"""The base of every reuse rule: frozen data with a text form that names all of it.

Between two full forwards ("refreshes") only some columns, the active ones, go through the layers; keys and values of the others
are kept. A rule says when a refresh is due, which columns are active, and which kept keys stay. `runtime.py` runs it. A new rule
is one file and one `REUSES.add` (or `ss.register`, or an entry point).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor

from sinkscope.base.checks import whole
from sinkscope.base.errors import InputError
from sinkscope.base.extras import Extra
from sinkscope.base.registry import Registry
from sinkscope.base.textform import write
from sinkscope.decoding.step import Wanted

if TYPE_CHECKING:
    from sinkscope.decoding.base import Decoding
    from sinkscope.models.model import Model
    from sinkscope.policies.policy import Policy
    from sinkscope.reuse.wrapper import Acting
    from sinkscope.trace.capture import Capture

Refresh = int | Literal["block"]
"""Steps from one full forward to the next; "block": only where a block begins (the prompt, where there are no blocks)."""


@dataclass(frozen=True)
class State:
    """What a rule may look at before a partial forward: all Bool [B, S].

    Attributes:
        masked: mask tokens. changed: columns whose token differs from that of the forward before.
        later: the block's first column and all behind it.
    """

    wanted: Wanted
    masked: Tensor
    changed: Tensor
    later: Tensor


@dataclass(frozen=True)
class Candidates:
    """What a rule may choose the kept keys of one layer from.

    Attributes:
        keys: Bool [B, S]: real keys that are not active.
        sinks: Float [B, S]: attention received from all queries so far, relative to uniform: the sink score.
        received: Float [B, S]: attention received from the active queries; of causal models the running sum over all queries.
        near: Float [B, S]: higher for keys nearer to the active columns.
        random: Float64 [B, S]: numbers keyed by seed, row, layer and refresh.
        total: Long [B]: how many keys a share is of: in a causal model all keys so far, those that were dropped included.
    """

    keys: Tensor
    sinks: Tensor
    received: Tensor
    near: Tensor
    random: Tensor
    total: Tensor


@dataclass(frozen=True)
class Reuse(Extra):
    """Base of all rules. `str(rule)` is its text form, which `parse_reuse` reads.

    Attributes:
        word: the first word of the text form, and the name under which the rule is registered.
        causal: whether it can run on causal models too.
        moves: whether the active columns are chosen anew in every step.
        selects: whether only some of the kept keys stay.
        alone: whether rows with random streams of their own must run one by one, because what one shows changes all.

    >>> isinstance(ss.PrefixReuse(8), ss.Reuse)
    True
    >>> fast = ss.generate(model, prompts, decoding, reuse=ss.PrefixReuse(8))
    >>> 0 < fast.extras["reuse"].work.saved < 1    # the share of the multiply-adds that was not done
    True
    """

    word: ClassVar[str] = ""
    causal: ClassVar[bool] = False
    moves: ClassVar[bool] = False
    selects: ClassVar[bool] = False
    alone: ClassVar[bool] = False

    @property
    def exact(self) -> bool:
        """Whether every step is a full forward, so that the plain loop runs bit for bit: with `refresh` 1."""
        return getattr(self, "refresh", "block") == 1

    @property
    def watches(self) -> str:
        """What is watched of the most attended keys, one of each layer: nothing (""); "key": each is active too, so that its
        drift can be seen; "union": each step finds them anew, so that changes of the set can be seen.
        """
        return ""

    @property
    def deepens(self) -> bool:
        """Whether a refresh may begin in the middle of the network (`drifted_from`), for which residual streams are kept."""
        return False

    @property
    def series(self) -> str:
        """What rules have in common that differ in size only: the name of their curve in a figure."""
        return self.word

    def choosing(self, by: str) -> Reuse | None:
        """The rule of the same cost that chooses its kept keys in another way; None where it does not choose any."""
        return None

    def due(self, age: int, begins: bool) -> bool:
        """Whether a full forward is due, `age` steps after the last one; begins: a block does. Usually then, or by `refresh`."""
        refresh: Any = getattr(self, "refresh", "block")
        return begins or bool(refresh != "block" and age >= refresh)

    def active(self, state: State) -> Tensor:
        """Bool [B, S]: the columns that go through the layers; those that are read must be among them."""
        return state.wanted.block

    @property
    def scores(self) -> frozenset[str]:
        """The fields of Candidates that `choose` ranks by; of a diffusion model the others are not computed, and empty."""
        return frozenset(("sinks", "received", "near", "random"))

    def choose(self, candidates: Candidates) -> Tensor:
        """Bool [B, S]: the kept keys of a layer that stay: as many in every layer."""
        return candidates.keys

    def drifted_from(self, likeness: Tensor) -> int | None:
        """The layer from which on all columns are computed in the next forward; None: it is a partial one, 0: a full one.

        Args:
            likeness: Float [layer, B], the cosine of each layer's most attended key with what was kept, or [1, B], the share of
                these keys that were the most attended ones in the last full forward. Layers but 0 are for rules that deepen.
        """
        return None

    def check(
        self,
        decoding: Decoding,
        model: Model | None = None,
        policy: Policy | None = None,
        capture: Capture | None = None,
    ) -> None:
        if self.exact:
            return
        if policy is not None:
            raise InputError(
                f"reuse {self} and policy {policy} cannot act together: a policy asks for every key; leave one out"
            )
        if not decoding.reusable or decoding.guided:
            what = "guidance" if decoding.guided else f"{type(decoding).__name__}'s loop"
            raise InputError(f"reuse {self} cannot act under {what}; leave it out, or use refresh 1")
        if decoding.causal and not self.causal:
            raise InputError(
                f"reuse {self} is for diffusion models: a causal model's cache never goes stale; use sparse:…"
            )
        if model is not None:
            self._check_model(model, capture)

    def _check_model(self, model: Model, capture: Capture | None) -> None:
        if model.variant is not None and not model.variant.alike:
            raise InputError(
                f"{model.source} does not let all tokens see one another alike ({model.variant}), "
                f"which reuse {self} cannot follow"
            )
        if not model.spec.divisible:
            raise InputError(
                f"reuse {self}: the network of {model.family} models makes its own positions, so that single columns cannot go "
                "through it; leave out reuse"
            )
        config = model.network.config.get_text_config()
        if model.spec.causal and "sliding_attention" in (getattr(config, "layer_types", None) or ()):
            raise InputError(f"{model.source} has sliding windows, in which reuse {self} cannot choose keys")
        if capture is not None and (capture.level == "maps" or capture.anatomy or model.spec.causal):
            what = "a causal model" if model.spec.causal else "maps and anatomy"
            raise InputError(f"reuse {self}: {what} cannot be recorded while steps are approximate")

    def begin(self, shadowed: bool = False) -> Acting:
        """shadowed: exact forwards run beside approximate ones (`Shadowed`)."""
        from sinkscope.reuse.wrapper import Acting

        return Acting(self, shadowed)

    def identity(self) -> str:
        """The word, and every field that is not at its default."""
        return write(self, self.word)

    def __str__(self) -> str:
        return self.identity()


def check_refresh(value: object) -> None:
    """Raise InputError unless the value is a number of steps or "block"."""
    if value != "block":
        try:
            whole("refresh", value, 1)
        except InputError as error:
            raise InputError(f"{error}, or 'block' for the first step of each block") from error


def _name_of(thing: object) -> str:
    if not (isinstance(thing, type) and issubclass(thing, Reuse) and dataclasses.is_dataclass(thing)):
        raise InputError(f"a reuse rule is registered as a frozen dataclass that derives from Reuse, got {thing!r}")
    if not thing.word.isidentifier() or not dataclasses.fields(thing):
        raise InputError(f"{thing.__name__} needs a word, the first of its text form, and at least one field")
    return thing.word


REUSES: Registry[type[Reuse]] = Registry("reuse rule", "sinkscope.reuse", _name_of, __package__)
