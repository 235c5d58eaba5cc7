"""A reuse rule in one generation: what it must suit, what it puts between engines and loops, what it adds to a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sinkscope.base.errors import InputError
from sinkscope.decoding.base import Decoding
from sinkscope.decoding.engine import Engine
from sinkscope.models.model import Model
from sinkscope.policies.policy import Policy
from sinkscope.reuse.rule import Reuse
from sinkscope.reuse.shadow import Shadowed
from sinkscope.reuse.text import as_reuse
from sinkscope.reuse.work import Reused, Work
from sinkscope.reuse.wrapper import Reusing

if TYPE_CHECKING:
    from sinkscope.trace.capture import Capture


@dataclass
class Acting:
    """A rule, and the engines that it acts on.

    Attributes:
        shadowed: exact forwards run beside approximate ones.
    """

    rule: Reuse
    shadowed: bool = False
    engines: list[Reusing] = field(default_factory=list)

    def apart(self, decoding: Decoding) -> bool:
        """Whether rows with streams of their own run one by one."""
        return not self.rule.exact and (self.rule.alone or decoding.own_pace)

    def wrap(self, engine: Engine, row_keys: list[int]) -> None:
        """Put the rule between an engine and its loop; with exact steps it stays away."""
        if not self.rule.exact:
            self.engines.append(Reusing(engine, self.rule, row_keys, self.shadowed))

    def outcome(self, by_row: Callable[[list[Tensor | None]], Tensor | None], steps: int) -> Reused:
        """What is said of a run of so many steps; by_row: puts what each group has, [b, …], in the order of the batch."""
        if not self.engines:
            return Reused(self.rule)
        works = [engine.work for engine in self.engines]
        done, exact = by_row([work.done for work in works]), by_row([work.exact for work in works])
        work = Work(*([int(n) for n in part.tolist()] for part in (done, exact) if part is not None))
        if not self.shadowed:
            return Reused(self.rule, work)
        errors = by_row([_every(engine.errors, steps, len(engine.work.done)) for engine in self.engines])
        return Reused(self.rule, work, None if errors is None else errors.T)


def _every(errors: list[Tensor], steps: int, rows: int) -> Tensor:
    """Float64 [b, steps]: the errors of a group's steps; NaN after it had ended."""
    every = torch.full((rows, steps), float("nan"), dtype=torch.float64)
    for step, error in enumerate(errors):
        every[:, step] = error
    return every


def acting(
    reuse: Reuse | Shadowed | str | None,
    model: Model,
    decoding: Decoding,
    policy: Policy | None,
    capture: Capture | None,
) -> Acting | None:
    """The rule, as the user gave it, which must suit what it is used with; None: there is none."""
    rule = as_reuse(reuse.rule if isinstance(reuse, Shadowed) else reuse)
    check_reuse(model, decoding, policy, capture, rule)
    return None if rule is None else Acting(rule, isinstance(reuse, Shadowed))


def check_reuse(
    model: Model, decoding: Decoding, policy: Policy | None, capture: Capture | None, reuse: Reuse | None
) -> None:
    """Raise InputError where a rule with approximate steps does not suit what it is used with."""
    if reuse is None or reuse.exact:
        return
    if policy is not None:
        raise InputError(
            f"reuse {reuse} and policy {policy} cannot act together: a policy asks for every key; leave one out"
        )
    check_loop(decoding, reuse)
    if model.variant is not None and not model.variant.alike:
        raise InputError(
            f"{model.source} does not let all tokens see one another alike ({model.variant}), which reuse {reuse} cannot follow"
        )
    if not model.spec.divisible:
        raise InputError(
            f"reuse {reuse}: the network of {model.family} models makes its own positions, so that single columns cannot go "
            "through it; leave out reuse"
        )
    config = model.network.config.get_text_config()
    if model.spec.causal and "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        raise InputError(f"{model.source} has sliding windows, in which reuse {reuse} cannot choose keys")
    if capture is not None and (capture.level == "maps" or capture.anatomy or model.spec.causal):
        what = "a causal model" if model.spec.causal else "maps and anatomy"
        raise InputError(f"reuse {reuse}: {what} cannot be recorded while steps are approximate")


def check_loop(decoding: Decoding, reuse: Reuse | None) -> None:
    """Raise InputError where a rule with approximate steps does not suit the loop."""
    if reuse is None or reuse.exact:
        return
    if not decoding.reusable or decoding.guided:
        what = "guidance" if decoding.guided else f"{type(decoding).__name__}'s loop"
        raise InputError(f"reuse {reuse} cannot act under {what}; leave it out, or use refresh 1")
    if decoding.causal and not reuse.causal:
        raise InputError(
            f"reuse {reuse} is for diffusion models: a causal model's cache never goes stale; use sparse:…"
        )
