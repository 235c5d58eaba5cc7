"""Negative log-probabilities of given tokens, in nats: exact for causal models, of masked tokens for diffusion models.

A policy acts as in generation. One that looks at the previous step sees a text token by token (causal models), step by step
(`denoised`), or twice (`masked`: the first time nothing is hidden, and those scores decide what is hidden the second time).

The bound is that of masked diffusion training (LLaDA, arXiv 2502.09992, eq. 6): with l uniform on 1..L and exactly l of the L
tokens masked, log p ≥ E[L/l · Σ log p(masked token)]. It is a bound and an estimate; it must not be compared with a causal
model's value. Masks depend on seed and context (or the text's id) alone, so that policies and choices share them: what they
have in common cancels in their differences.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sinkscope.base.checks import whole
from sinkscope.base.errors import InputError
from sinkscope.base.masked import MASK
from sinkscope.decoding import decoding_from_options, default_decoding, option_fields
from sinkscope.decoding.causal import newest
from sinkscope.decoding.engine import Engine
from sinkscope.decoding.groups import accelerated
from sinkscope.decoding.step import Request, select
from sinkscope.generation.generate import generate
from sinkscope.models.model import Model
from sinkscope.policies.policy import FixedRule, Policy, check_policy
from sinkscope.policies.runtime import PolicyRuntime
from sinkscope.tasks.task import in_parts, seed_of

DRAWS = 128

Pair = tuple[Sequence[int], Sequence[int]]
"""Token ids of a context (at least one) and of its continuation."""


# ---- single forwards and loops -------------------------------------------------------------------


@dataclass(frozen=True)
class Nats:
    """Some rows of equal shape.

    Attributes:
        values: Float64 on the CPU: −log p of each scored token.
        forwards: forward passes of each row.
        account: Float [B] each: what the policy did, by the names of `Run`; NaN where it never acted. Empty without one.
        best: Bool, like values: whether the true token is the most likely one; empty for a diffusion model.
    """

    values: Tensor
    forwards: int
    account: Mapping[str, Tensor] = field(default_factory=dict)
    best: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))

    def acted(self, rows: slice) -> dict[str, float]:
        """What the policy did: means over some rows; NaN without one, or where it never acted."""
        shares = {name: self.account[name][rows] for name in MASK if self.account}
        return {name: float(shares[name].double().nanmean()) if shares else math.nan for name in MASK}


def causal(model: Model, ids: Tensor, given: int, policy: Policy | None, keys: Sequence[int]) -> Nats:
    """Of every token behind the given ones, under a causal model: values [B, S − given].

    The given tokens are the prefill: a policy acts on the queries and from the moment that it names (see `Rule`). One that looks
    at the previous step begins once twice as many keys are there as it masks, so that its random control has others to choose
    from and begins in the same step.

    Args:
        ids: Long [B, S]. keys: one number per row, for random controls.
    """
    length = ids.shape[1]

    def read(engine: Engine, end: int, keep: int) -> Tensor:
        """Logits behind the last `keep` of the first `end` tokens, [B, keep, V]."""
        return engine.forward(Request(ids, queries=slice(0, end), kind="read", keep=keep))

    with _engine(model, ids, policy, keys, given) as engine:
        if engine.policy is None or _fixed(engine.policy.policy):
            return _counted(engine, 1, *_nats(read(engine, length - 1, length - given), ids[:, given:]))
        # The keys that a rule masks at most; 1 where that is not known beforehand.
        most = sum(rule.original.most or 1 for rule in engine.policy.policy.parts())
        begin = min(max(given, 2 * most), length - 1)
        cache = model.new_cache()
        parts = []
        # Tokens before the policy begins are read in one plain forward, those behind one by one: it looks at the step before.
        if begin > given:
            with accelerated(Engine(model)) as plain:
                early = read(plain, begin - 1, begin - given)
            parts += [_nats(early[:, place], ids[:, given + place]) for place in range(begin - given)]
        for column in range(begin, length):
            logits = engine.forward(newest(ids, column, 0 if column == begin else column - 1, cache))
            parts.append(_nats(logits, ids[:, column]))
        stacked = (torch.stack(part, 1) for part in zip(*parts, strict=True))
        return _counted(engine, int(engine.forwards) + (begin > given), *stacked)


def masked(model: Model, ids: Tensor, where: Tensor, given: int, policy: Policy | None, keys: Sequence[int]) -> Nats:
    """Of every masked token, under a diffusion model: values [N], row by row.

    A model with two modes (Nemotron-Labs-Diffusion) reads all of it both ways, as with `causal_context=False`.

    Args:
        ids: Long [B, S], the true tokens. where: Bool [B, S], N of them masked, all behind the given ones.
        keys: as for `causal`.
    """
    with _masking(model, ids, policy, keys, given) as engine:
        x = torch.where(where, engine.mask_id, ids)
        twice = engine.policy is not None and any(rule.waits for rule in engine.policy.rules)
        loop = default_decoding(model.family).on(engine)
        if twice:
            loop.hidden(x)
        logits = loop.predictions(x, ~where, where)
        return _counted(engine, 2 if twice else 1, _nats(logits, ids[where])[0])


def masked_copies(
    model: Model, ids: Tensor, where: Tensor, given: int, policy: Policy | None, keys: Sequence[int], rows: int
) -> Nats:
    """`masked` of texts in several copies each, `rows` of which run beside each other: values [M], copy by copy.

    Args:
        ids: Long [N, S]. where: Bool [N, C, S], M of them masked. keys: N × C of them.
    """
    texts, masks = ids.repeat_interleave(where.shape[1], 0), where.flatten(0, 1).to(ids.device)
    batches = zip(torch.split(texts, rows), torch.split(masks, rows), in_parts(keys, rows), strict=True)
    parts = [masked(model, text, mask, given, policy, some) for text, mask, some in batches]
    account = {name: torch.cat([part.account[name] for part in parts]) for name in parts[0].account}
    return Nats(torch.cat([part.values for part in parts]), parts[0].forwards, account)


def denoised(model: Model, ids: Tensor, given: int, steps: int, policy: Policy | None, keys: Sequence[int]) -> Nats:
    """Of every token behind the given ones, when a diffusion model decides on them: values [B, S − given].

    In each step the family's loop chooses the positions that it is surest of; the true tokens are written there.

    Args:
        ids: Long [B, S]. steps: as even as possible; the first ones take the remainder. keys: as for `causal`.
    """
    if model.spec.blocks:
        raise InputError(
            f"{model.source} writes block after block, so its loop has no order of a whole text; "
            "read it with masks: share=0.5, or share=None for the bound"
        )
    rows, length = len(ids), ids.shape[1] - given
    decoding = decoding_from_options(model.family, _whole_answer(model, length))
    left = torch.zeros_like(ids, dtype=torch.bool)
    left[:, given:] = True
    settled = ~left
    values = torch.zeros(ids.shape, dtype=torch.float64)
    with _masking(model, ids, policy, keys, given) as engine:
        loop = decoding.on(engine)
        for step in range(steps):
            count = length // steps + (step < length % steps)
            # What was decided holds the true token, whatever the model would have written.
            x = torch.where(left, engine.mask_id, ids)
            logits = loop.predictions(x, settled, left)
            confidence = torch.full(ids.shape, float("-inf"), dtype=torch.float64, device=ids.device)
            confidence[left] = loop.best(logits)[1]
            chosen, _ = select(confidence, [count] * rows)
            decided = chosen[left]
            values[chosen.cpu()], _ = _nats(logits[decided], ids[chosen])
            left = left & ~chosen
        return _counted(engine, steps, values[:, given:])


def _engine(model: Model, ids: Tensor, policy: Policy | None, keys: Sequence[int], given: int) -> Engine:
    kind, shape, columns = model.attention_kind, model.shape, ids.shape[1]
    acting = check_policy(policy, shape.layers, columns, kind, shape.heads, model.has_learned_sinks)
    if acting is None:
        return accelerated(Engine(model))
    return accelerated(
        Engine(model, None, PolicyRuntime(acting, keys, kind == "causal", given, None, columns, model.words))
    )


def _masking(model: Model, *arguments: Any) -> Engine:
    """As `_engine`, for a model that can be shown masked tokens."""
    if model.spec.causal or model.ids.mask is None:
        why = "is a causal model" if model.spec.causal else "names no mask token"
        raise InputError(f"{model.source} {why}, so no token of a text can be masked")
    return _engine(model, *arguments)


def _nats(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """−log p of the targets, and whether they are the most likely tokens; on the CPU."""
    logits = logits.float()
    values = logits.logsumexp(-1) - logits.gather(-1, target[..., None])[..., 0]
    return values.double().cpu(), (logits.argmax(-1) == target).cpu()


def _counted(engine: Engine, forwards: int, values: Tensor, *best: Tensor) -> Nats:
    return Nats(values, forwards, {} if engine.policy is None else engine.policy.shares(), *best)


def _fixed(policy: Policy) -> bool:
    """True when one forward over the whole sequence equals the steps of a generation."""
    return all(isinstance(rule, FixedRule) and rule.regions is None and rule.steps is None for rule in policy.parts())


def _whole_answer(model: Model, length: int) -> dict[str, Any]:
    """Decoding options for an answer of one block; where attention stands in blocks, of as many of them as it needs."""
    if model.spec.blocks:
        block = int(getattr(default_decoding(model.family), "block", 1))
        return {"length": -(-length // block) * block}
    return {name: length for name in ("length", "block") if name in option_fields(model.family)}


# ---- continuations -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Likelihood:
    """Of one continuation.

    Attributes:
        value: log-likelihood in nats, exact or a lower bound's estimate.
        greedy: whether greedy generation of the same length would write it; None: not asked for.
        error: Monte Carlo standard error of the estimate; None where the value is exact.
        forwards: forward passes. account: what the policy did, as `Nats.acted` gives it.
    """

    value: float
    greedy: bool | None
    error: float | None
    forwards: int
    account: Mapping[str, float]


def likelihoods(
    model: Model,
    pairs: Sequence[Pair],
    policy: Policy | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    rows: int = 16,
    greedy: bool = True,
) -> list[Likelihood]:
    """Log-likelihoods: exact under a causal model, estimates of a lower bound under a diffusion model.

    Pairs of equal lengths run together. Under a causal model a policy acts as in generation: one that looks at scores sees those
    of the token before, so the continuation is fed token by token; one that does not needs a single forward.

    Args:
        draws: masked copies of each pair, for a bound; seed: of their masks.
        rows: pairs, or copies, in one forward.
        greedy: for a bound, also find out what the model would write itself, which takes a forward for each token.
    """
    if model.spec.causal:
        pairs = [_fitted(model, pair) for pair in pairs]
    else:
        whole("draws", draws, 2)
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, (context, continuation) in enumerate(pairs):
        if not context or not continuation:
            raise InputError("a likelihood needs at least one token of context and one of continuation")
        groups[len(context), len(continuation)].append(number)
    of_pairs: dict[int, Likelihood] = {}
    for numbers in groups.values():
        alike = [pairs[number] for number in numbers]
        if model.spec.causal:
            values = [value for part in in_parts(alike, rows) for value in _exact(model, part, policy)]
        else:
            values = _bounds(model, alike, policy, draws, seed, rows, greedy)
        of_pairs |= zip(numbers, values, strict=True)
    return [of_pairs[number] for number in range(len(pairs))]


def _exact(model: Model, pairs: Sequence[Pair], policy: Policy | None) -> list[Likelihood]:
    """Of pairs of equal lengths, in one batch."""
    ids = torch.tensor([[*context, *continuation] for context, continuation in pairs], device=model.device)
    # Random controls are keyed by the context, so that choices share them and batches do not matter.
    keys = [seed_of(repr(list(context))) for context, _ in pairs]
    nats = causal(model, ids, len(pairs[0][0]), policy, keys)
    return [
        Likelihood(-float(values.sum()), bool(best.all()), None, nats.forwards, nats.acted(slice(row, row + 1)))
        for row, (values, best) in enumerate(zip(nats.values, nats.best, strict=True))
    ]


def _bounds(
    model: Model, pairs: Sequence[Pair], policy: Policy | None, draws: int, seed: int, rows: int, greedy: bool
) -> list[Likelihood]:
    given, length = map(len, pairs[0])
    ids = torch.tensor([[*context, *continuation] for context, continuation in pairs], device=model.device)
    where = torch.zeros(len(pairs), draws, given + length, dtype=torch.bool)
    where[:, :, given:] = torch.stack([masks(context, length, draws, seed) for context, _ in pairs])
    # Random controls are keyed by the draw's number: all pairs, choices of one question among them, share them.
    nats = masked_copies(model, ids, where, given, policy, [*range(draws)] * len(pairs), rows)
    copies = where.flatten(0, 1)
    values = torch.zeros(len(copies), dtype=torch.float64).index_add_(0, copies.nonzero()[:, 0], -nats.values)
    values *= length / copies.sum(1).double()
    bounds = []
    for number, (context, continuation) in enumerate(pairs):
        drawn = slice(number * draws, (number + 1) * draws)
        written = None
        if greedy:  # by the family's loop, one token at a time by confidence
            decoding = decoding_from_options(model.family, _whole_answer(model, length))
            run = generate(model, [list(context)], decoding, policy=policy, seed=[0])
            written = run.answer(0)[:length] == list(continuation)
        error = float(values[drawn].std(correction=1)) / math.sqrt(draws)
        bounds.append(Likelihood(float(values[drawn].mean()), written, error, nats.forwards * draws, nats.acted(drawn)))
    return bounds


def masks(context: Sequence[int], length: int, draws: int, seed: int = 0) -> Tensor:
    """Bool [draws, length]: which tokens of a continuation are hidden in each draw, at least one.

    The numbers depend on seed and context alone; a longer continuation sees those of a shorter one first.
    """
    stream = torch.Generator().manual_seed(seed_of(f"{seed}/{','.join(map(str, context))}"))
    drawn = torch.rand(draws, generator=stream, dtype=torch.float64) * length
    counts = 1 + drawn.long().clamp(max=length - 1)
    order = torch.rand(length, draws, generator=stream, dtype=torch.float64).T.argsort(1)
    return _ranks(order) < counts[:, None]


def text_masks(name: str, length: int, count: int, share: float | None) -> Tensor:
    """Bool [count, length]: which tokens of a text are masked in each of its copies, at least one.

    The numbers depend on the text's name alone; the tokens of a smaller share are among those of a larger one.

    Args:
        share: of the tokens; None: the copies have every number of masked tokens from 1 to all equally often: they are spread
            evenly over that range, from a random start.
    """
    stream = torch.Generator().manual_seed(seed_of(f"text/{name}"))
    ranks = _ranks(torch.rand(count, length, generator=stream, dtype=torch.float64).argsort(1))
    if share is not None:
        return ranks < max(1, round(share * length))
    start = torch.rand(1, generator=stream, dtype=torch.float64)
    counts = 1 + (((torch.arange(count) + start) / count) % 1 * length).long().clamp(max=length - 1)
    return ranks < counts[:, None]


def _ranks(order: Tensor) -> Tensor:
    """Long [draws, length]: the place of every column in an order."""
    return torch.empty_like(order).scatter_(1, order, torch.arange(order.shape[1]).expand_as(order))


def _fitted(model: Model, pair: Pair) -> tuple[list[int], list[int]]:
    """A context that is too long loses its beginning, as in lm-eval."""
    context, continuation = list(pair[0]), list(pair[1])
    limit = model.shape.context
    if limit is not None and len(context) + len(continuation) > limit:
        if len(continuation) >= limit:
            raise InputError(f"a continuation of {len(continuation)} tokens passes the context of {limit}")
        context = context[len(continuation) - limit :]
    return context, continuation
