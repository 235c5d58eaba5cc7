"""The likelihood of a continuation: exact for causal models, a Monte Carlo bound for diffusion models.

The bound is that of masked diffusion training (LLaDA, arXiv 2502.09992, eq. 6): with l uniform on 1..L and exactly l of the L
continuation tokens masked, log p ≥ E[L/l · Σ log p(masked token)]. It is a bound and an estimate; it must not be compared
with a causal model's value. Masks depend on seed and context alone, so that policies and choices share them: what they have
in common cancels in their differences.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sinkscope.checks import whole
from sinkscope.decoding import decoding_from_options, dream, option_names
from sinkscope.decoding.engine import Engine
from sinkscope.errors import InputError
from sinkscope.generation.generate import generate
from sinkscope.models.model import Model
from sinkscope.policies.policy import Policy, check_policy
from sinkscope.policies.runtime import PolicyRuntime, single_forward

DRAWS = 128

Pair = tuple[Sequence[int], Sequence[int]]
"""Token ids of a context (at least one) and of its continuation."""


@dataclass(frozen=True)
class Likelihood:
    """Of one continuation.

    Attributes:
        value: log-likelihood in nats, exact or a lower bound's estimate.
        greedy: whether greedy generation of the same length would write it.
        error: Monte Carlo standard error of the estimate; None where the value is exact.
    """

    value: float
    greedy: bool
    error: float | None = None


def exact(
    model: Model, pairs: Sequence[Pair], policy: Policy | None = None, rows: int = 16
) -> list[Likelihood]:
    """Log-likelihoods under a causal model.

    A policy acts as in generation: one that looks at scores sees those of the token before, so the continuation is fed token
    by token; one that does not needs a single forward.
    """
    if not model.spec.causal:
        raise InputError(
            f"{model.source} is a {model.family} model, which has no exact log-likelihood; use `bound`"
        )
    pairs = [_fitted(model, pair) for pair in pairs]
    by_shape: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, (context, continuation) in enumerate(pairs):
        by_shape[len(context), len(continuation)].append(number)
    likelihoods: dict[int, Likelihood] = {}
    for (prompt, _), numbers in by_shape.items():
        for start in range(0, len(numbers), rows):
            part = numbers[start : start + rows]
            ids = torch.tensor([[*pairs[n][0], *pairs[n][1]] for n in part], device=model.device)
            acting = check_policy(policy, model.shape.layers, ids.shape[1])
            logits = (
                _one_forward(model, ids, prompt, acting)
                if acting is None or _fixed(acting)
                else _token_by_token(model, ids, prompt, acting)
            )
            spread = logits.float().log_softmax(-1)
            target = ids[:, prompt:]
            values = spread.gather(-1, target[..., None])[..., 0].double().sum(1).tolist()
            greedy = (spread.argmax(-1) == target).all(1).tolist()
            likelihoods |= {n: Likelihood(v, g) for n, v, g in zip(part, values, greedy, strict=True)}
    return [likelihoods[number] for number in range(len(pairs))]


def bound(
    model: Model, pair: Pair, policy: Policy | None = None, draws: int = DRAWS, seed: int = 0, rows: int = 16
) -> Likelihood:
    """An estimate of a diffusion model's lower bound.

    A policy must not need an earlier step: a single forward has none. Use when="same".
    """
    if model.spec.causal:
        raise InputError(f"{model.source} is a causal model; its log-likelihood is exact, use `exact`")
    whole("draws", draws, 2)
    context, continuation = pair
    if not context or not continuation:
        raise InputError("a bound needs at least one token of context and one of continuation")
    ids = torch.tensor([*context, *continuation], device=model.device)
    single_forward(policy, model.shape.layers, len(ids), 1, False)  # refuses what needs an earlier step
    length = len(continuation)
    masked = masks(context, length, draws, seed).to(model.device)
    values = torch.cat(
        [
            _masked_values(
                model, ids, masked[start : start + rows], policy, range(start, min(start + rows, draws))
            )
            for start in range(0, draws, rows)
        ]
    )
    values = values * (length / masked.sum(1).double().cpu())
    return Likelihood(
        float(values.mean()),
        _greedy(model, context, continuation, policy),
        float(values.std(correction=1)) / math.sqrt(draws),
    )


def masks(context: Sequence[int], length: int, draws: int, seed: int = 0) -> Tensor:
    """Bool [draws, length]: which tokens of a continuation are hidden in each draw, at least one.

    The numbers depend on seed and context alone; a longer continuation sees those of a shorter one first.
    """
    text = f"{seed}/{','.join(map(str, context))}".encode()
    stream = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(text).digest()[:6], "big"))
    counts = 1 + (torch.rand(draws, generator=stream, dtype=torch.float64) * length).long().clamp(
        max=length - 1
    )
    order = torch.rand(length, draws, generator=stream, dtype=torch.float64).T.argsort(1)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(length).expand_as(order))
    return rank < counts[:, None]


def _fitted(model: Model, pair: Pair) -> tuple[list[int], list[int]]:
    """A context that is too long loses its beginning, as in lm-eval."""
    context, continuation = list(pair[0]), list(pair[1])
    if not context or not continuation:
        raise InputError("a log-likelihood needs at least one token of context and one of continuation")
    limit = model.shape.context
    if limit is not None and len(context) + len(continuation) > limit:
        if len(continuation) >= limit:
            raise InputError(f"a continuation of {len(continuation)} tokens passes the context of {limit}")
        context = context[len(continuation) - limit :]
    return context, continuation


def _fixed(policy: Policy) -> bool:
    """True when one forward over the whole sequence equals the steps of a generation."""
    return all(
        not rule.scored and rule.control is None and rule.regions is None and rule.steps is None
        for rule in policy.parts()
    )


def _one_forward(model: Model, ids: Tensor, prompt: int, policy: Policy | None) -> Tensor:
    fed = ids[:, :-1]
    runtime = single_forward(policy, model.shape.layers, ids.shape[1], len(ids), True)
    return model.forward(fed, model.context(policy=runtime), keep=ids.shape[1] - prompt)


def _token_by_token(model: Model, ids: Tensor, prompt: int, policy: Policy) -> Tensor:
    keys = [_row_key(row) for row in ids[:, :prompt].tolist()]
    engine = Engine(model, None, PolicyRuntime(policy, keys, True, prompt))
    cache = engine.new_cache()
    logits = [
        engine.next_logits(ids, column, 0 if column == prompt else column - 1, cache)
        for column in range(prompt, ids.shape[1])
    ]
    return torch.stack(logits, 1)


def _row_key(context: list[int]) -> int:
    """The key of a row's random controls: its context, so that choices share them and batches do not matter."""
    return int.from_bytes(hashlib.sha256(repr(context).encode()).digest()[:6], "big")


def _masked_values(
    model: Model, ids: Tensor, masked: Tensor, policy: Policy | None, numbers: range
) -> Tensor:
    """Float64 [draws] on the CPU: Σ log p over the masked tokens of each draw."""
    if model.ids.mask is None:
        raise InputError(f"{model.source} names no mask token; add mask_token_id to its config.json")
    prompt = len(ids) - masked.shape[1]
    where = torch.cat([masked.new_zeros(len(masked), prompt), masked], 1)
    x = torch.where(where, model.ids.mask, ids.expand(len(masked), -1))
    checked = check_policy(policy, model.shape.layers, len(ids))
    runtime = None
    if checked is not None:
        runtime = PolicyRuntime(checked, list(numbers), False, prompt)
        runtime.begin()
    hidden = model.hidden(x, model.context(policy=runtime))
    states = dream.shifted(hidden, where) if model.spec.shifted else hidden[where]
    spread = model.head(states).float().log_softmax(-1)
    each = spread.gather(-1, ids.expand(len(masked), -1)[where][:, None])[:, 0].double()
    row = where.nonzero()[:, 0]
    return torch.zeros(len(masked), dtype=torch.float64, device=ids.device).index_add_(0, row, each).cpu()


def _greedy(model: Model, context: Sequence[int], continuation: Sequence[int], policy: Policy | None) -> bool:
    """True when the family's loop, one token at a time by confidence, writes exactly this continuation."""
    length = len(continuation)
    options: dict[str, Any] = {
        name: length for name in ("length", "block") if name in option_names(model.family)
    }
    run = generate(model, [list(context)], decoding_from_options(model.family, options), policy, seed=[0])
    return run.answers[0] == list(continuation)
