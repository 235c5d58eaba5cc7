"""A policy while it runs: it decides which keys each layer masks, measures, and keeps the account.

One `PolicyRuntime` belongs to one group of rows of a generation. The attention function calls `mask` before each attention call
and `measure` after it; nothing is left behind in the model.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sinkscope.attention.context import ACTIVE, ALL, NEWEST, AttentionCall
from sinkscope.attention.distant import settled
from sinkscope.attention.key_mask import Band, KeyMask
from sinkscope.attention.visibility import Visibility
from sinkscope.base.masked import MASK
from sinkscope.policies.account import LayerState, StepAccount, account_of
from sinkscope.policies.forward import Forward
from sinkscope.policies.layer_view import AllLayers, LayerView
from sinkscope.policies.numbers import wrapped
from sinkscope.policies.policy import Policy, Rule, ScoredRule
from sinkscope.policies.scores import ScoreMemory, SinkTeller

if TYPE_CHECKING:
    from sinkscope.models.vocabulary import TokenTables


class PolicyRuntime:
    """A policy acting on one group of rows.

    Args:
        row_keys: one number per row that keys random controls (its seed).
        causal: scores are those of the last query's row, and the newest key is never masked.
        first, last: columns of the answer; last None: to the end of the sequence. A tensor Long [B, 1, 1]: of each row.
        width: keys that a causal model's text will have at the end.
        vocabulary: what is known of the model's tokens, for rules that look at them.

    Attributes:
        rows: of the conditional branch. now: the forward that runs. step: how many steps there were before it.
        alive: Bool [B]: rows that have not ended; None: all.
        memory: (rule, layer) → what the rule remembers of it. held: its columns. chosen: rule → its keys of all layers.
    """

    PASSING = ("step", "now", "chosen", "_layers")
    """What no repeated forward reads (see `gpu.state`)."""

    def __init__(
        self,
        policy: Policy,
        row_keys: Sequence[int],
        causal: bool,
        first: int | Tensor,
        last: int | Tensor | None = None,
        width: int = 0,
        vocabulary: TokenTables | None = None,
    ) -> None:
        self.policy = policy
        self.rules = [rule for rule in policy.parts() if not rule.empty]
        self.row_keys, self.rows = torch.tensor([wrapped(key) for key in row_keys], dtype=torch.long), len(row_keys)
        self.causal, self.first, self.last = causal, first, last
        self.step, self.now = -1, Forward()
        self.scores, self.sinks = ScoreMemory(), SinkTeller(causal, width)
        self.memory: dict[tuple[int, int], Any] = {}
        self.held: dict[tuple[int, int], Tensor] = {}
        self.chosen: dict[int, AllLayers] = {}
        self.alive: Tensor | None = None
        self.vocabulary = vocabulary
        originals = [rule.original for rule in self.rules]
        named = {getattr(rule, "by", None) for rule in originals}
        self._by = [kind for kind in ("received", "sum", "distant") if kind in named]
        self._masked_scores = any(getattr(rule, "scores", "raw") == "masked" for rule in originals)
        self._taken = torch.zeros(len(row_keys), dtype=torch.long)  # steps of each row of a block loop
        self._widest = 0  # of the blocks so far
        self._patterned = False  # whether some query did not see all real keys: a window of the model's own
        self._clock: Tensor | None = None  # Long []: the step, where a captured step can count on
        self._layers: list[LayerState] = []
        # The account's sums of the steps in which it acted, for each row, so that they do not depend on the batch.
        self._totals = torch.zeros(8, len(row_keys), dtype=torch.float64)

    def shares(self) -> dict[str, Tensor]:
        """Float [B] each, over the steps in which it acted; NaN: there was none.

        Attention removed, mean over layers and heads; of the sinks the share that was masked, of heads with a sink those whose
        strongest was, of attention on sinks what was.
        """
        done, of = self._totals[::2], self._totals[1::2]
        return dict(zip(MASK, (done / of).float().cpu(), strict=True))

    # ---- what rules and layers ask for

    @property
    def queries(self) -> str:
        """The class of queries whose attention gives the scores."""
        return NEWEST if self.causal else ALL if self.now.active is None else ACTIVE

    @property
    def reads_first(self) -> bool:
        """Whether the prompt is to be read once without the policy, for scores by which a rule acts from the prompt on."""
        return any(rule.prefill is True and rule.waits for rule in self.rules)

    @property
    def taking(self) -> Tensor | None:
        """Bool [B]: rows of a block loop that take part in this forward and do not wait for others; None: all."""
        return None if self.now.active is None else self.alive

    def row_steps(self, device: torch.device) -> Tensor:
        """Long [B, 1]: steps of each row so far; rows of a block loop that wait for others do not count."""
        if self.now.active is not None:
            return (self._taken - 1).clamp(min=0)[:, None].to(device)
        clock = torch.tensor(max(0, self.step)) if self._clock is None else self._clock
        return clock.to(device).expand(self.rows, 1)

    def telling(self, visibility: Visibility) -> int | None:
        """How many of the last queries tell the sinks where attention stands in blocks; None: it does not."""
        whole = self.now.active is None and visibility.block is not None
        return visibility.queries if whole else self.now.active

    def one_sided(self, visibility: Visibility) -> bool:
        """Whether a diffusion model reads whole texts and sees no key ahead, so that sums rank keys otherwise than `received`."""
        return not self.causal and self.now.active is None and visibility.block == 1

    def leaves(self, count: int) -> bool:
        """Whether it is known without looking that every row has at least so many candidates."""
        unscored = self.causal + self._widest  # the newest key, and those of a block that has just begun
        everywhere = all(rule.regions is None for rule in self.rules)
        least = self.now.least
        return least is not None and everywhere and not self._patterned and count <= least - unscored

    def replay_key(self) -> Hashable | None:
        """What decides which operations a step consists of; None: they differ between steps, so that none can be repeated."""
        rules = self.rules
        # What a rule of another package remembers need not lie in memory that stays.
        ours = all(type(rules[number]).__module__.startswith("sinkscope.") for number, _ in self.memory)
        drawn = all(self.leaves(2 * (rule.most or 0)) for rule in rules if rule.original is not rule)
        return str(self.policy) if ours and drawn and all(map(_repeats, rules)) else None

    # ---- a forward

    def set_alive(self, alive: Tensor | None) -> None:
        """The rows Bool [B] that have not ended; None: all. Always the same memory, which a captured step goes on reading."""
        self.alive = None if alive is None else settled(self.alive, alive)

    def begin(self, forward: Forward) -> None:
        """Start a forward: what was measured in the last one is now the previous step."""
        self.now, self._layers, self.chosen = forward, [], {}
        self._widest = max(self._widest, forward.active or 0)
        self.scores.begin(forward.step)
        if forward.reading:
            self.sinks.restart()
        elif forward.step:
            self.step += 1
            if self._clock is not None:
                self._clock += 1
            if forward.active is not None:
                here = self._taken if self.alive is None else self._taken.to(self.alive.device)
                self._taken = here.add_(1 if self.alive is None else self.alive.long())

    def learned(self, layer: int, sink: Tensor) -> Tensor:
        """The score of a learned sink, Float [H], as rules leave it: −inf where one takes it away."""
        for rule in self.rules:
            if rule.takes_learned and not self.now.reading and rule.acts(layer, max(0, self.step), self.now.prefill):
                sink = sink.masked_fill(_in_heads(rule, len(sink), sink.device), float("-inf"))
        return sink

    def mask(self, layer: int, query: Tensor, key: Tensor, visibility: Visibility, scale: float) -> KeyMask | None:
        """The union of what all rules mask in this call."""
        if self.now.reading:
            return None
        keys: Tensor | None = None
        band: Band | None = None
        acting, numbers = self.now.queries_of(self.rules[0], self.causal, query), []
        view = LayerView(self, 0, layer, query, key, visibility, scale)
        for number, rule in enumerate(self.rules):
            if not rule.acts(layer, max(0, self.step), self.now.prefill):
                continue
            window = rule.band()
            if window is not None:
                band = band if window.covers(visibility) else window
                continue
            chosen = rule.keys(replace(view, number=number))
            if chosen is None:
                continue
            if rule.heads is not None:
                chosen = chosen & _in_heads(rule, query.shape[1], query.device)[None, :, None]
            if acting is not None:  # in rows that have a query to act on
                chosen = chosen & acting.any(-1)[:, None, None]
            keys = chosen if keys is None else keys | chosen
            numbers.append(number)
        return self._key_mask(keys, band, numbers, acting, view)

    def _key_mask(
        self, keys: Tensor | None, band: Band | None, numbers: list[int], acting: Tensor | None, view: LayerView
    ) -> KeyMask | None:
        """The mask of a call; None where nothing is masked.

        Args:
            keys: Bool [B|1, H|1, K], the keys that the rules of these numbers mask together.
        """
        now, visibility, counts = self.now, view.whole, [self.rules[number].most for number in numbers]
        most = None if None in counts else sum(count or 0 for count in counts)
        # A GPU would have to wait for the answer.
        if keys is not None and not (keys.is_cuda and most is not None) and not bool(keys.any()):
            keys = None
        if keys is None and band is None:
            return None
        if keys is not None and now.branches > 1 and keys.shape[0] > 1:  # both guidance branches are masked alike
            keys = keys.repeat(now.branches, 1, 1)
        mask = KeyMask(
            keys,
            band,
            silence=self.rules[0].effect == "silence",
            most=most if keys is not None else None,
            # A guided twin may have padding of its own.
            least=now.least if now.branches == 1 else None,
            queries=None if acting is None or visibility.queries == 1 else acting.repeat(now.branches, 1),
        )
        single = view.query.is_cuda and len(numbers) == 1 and now.branches == 1
        return replace(view, number=numbers[0]).with_lists(mask) if single else mask

    def reads(self, layer: int) -> tuple[str, ...]:
        """Scores are over all real queries, or those of a block; a causal model's are over the last, and come by another way."""
        return () if self.causal else (self.queries,)

    def measure(self, call: AttentionCall) -> None:
        """Measure one layer: scores for the next step, and what was masked in this one."""
        rows, mask, seen = self.rows, call.key_mask, call.visibility
        patterned = seen.banded or seen.dense is not None or self.one_sided(seen)
        self._patterned = self._patterned or patterned
        raw = call.received(self.queries, raw=True)[:rows, :, 0]
        if self.now.step:
            self.scores.keep("raw", call.layer, raw, self.taking)
            if self._masked_scores:
                acted = raw if mask is None else call.received(self.queries)[:rows, :, 0]
                self.scores.keep("masked", call.layer, acted, self.taking)
        added = None
        if self.sinks.sums is not None:
            newest = raw.nan_to_num(0.0) * call.expected(NEWEST).uniform.to(torch.float32)
            added = self.sinks.sums.share(call, newest)
        keys = None if mask is None or mask.keys is None else mask.keys_in_force(seen)[:rows]
        kept = None if call.kept is None else call.kept[:rows]
        weights, window = self._weights(call, rows), mask is not None and mask.band is not None
        self._layers.append(LayerState(call.layer, raw, keys, kept, weights, window, seen, added))

    def _weights(self, call: AttentionCall, rows: int) -> Tensor:
        """Float [B, 1, Q]: how much each query counts for the share of attention that was masked."""
        weights = call.expected(ALL if self.causal else self.queries).weights[:rows]
        mask, spared = call.key_mask, self.now.spared
        if mask is not None and mask.queries is not None:
            # Of the queries that keys are masked for: how many others a forward holds says nothing about the policy.
            weights = weights * mask.queries[:rows, None]
        if spared is not None:
            # The prompt's queries count as one step, as they do where the prompt is read by itself.
            prompt = (weights * spared[:, None]).sum(-1, keepdim=True).clamp(min=1.0)
            weights = torch.where(spared[:, None], weights / prompt, weights)
        return weights

    def end(self) -> StepAccount:
        """The account of the forward that just ran, all layers in one go; the totals are brought up to date."""
        layers, now = self._layers, self.now
        raw = torch.stack([layer.raw for layer in layers])
        seen = layers[0].visibility
        one_sided = self.one_sided(seen)
        sinks, strength = self.sinks.tell(layers, raw, self.telling(seen), now.step, one_sided)
        summed = "sum" in self._by and now.step and one_sided
        for kind in self._by if self.causal else ["sum"] if summed else []:
            for layer, scores in zip(layers, self.sinks.scores(kind), strict=True):
                self.scores.keep(kind, layer.index, scores)
        account = account_of(layers, raw, sinks, strength, any(rule.takes_learned for rule in self.rules))
        if self._clock is None:
            self._clock = torch.full((), self.step, dtype=torch.long, device=raw.device)
        if now.reading:  # the same queries come again, under the policy
            self.sinks.restart()
        elif now.step:
            counted = account.acted if self.alive is None else account.acted & self.alive
            self._totals = self._totals.to(counted.device)
            self._totals += torch.where(counted, account.sums, 0.0)
        return account


def _repeats(rule: Rule) -> bool:
    """Whether a rule does the same operations in every step after the first, so that a CUDA graph can repeat them.

    How many keys it masks at most must be known without a look at them.
    """
    early = isinstance(rule.original, ScoredRule) and not rule.original.waits
    return not early and rule.steps is None and rule.band() is None and rule.most is not None


def _in_heads(rule: Rule, count: int, device: torch.device) -> Tensor:
    """Bool [H]: the query heads of so many in which a rule acts."""
    index = torch.arange(count, device=device)
    if rule.heads is None:
        return torch.ones_like(index, dtype=torch.bool)
    # One by one: a captured step cannot copy a list of indices from the host.
    return torch.stack([index == head for head in rule.heads]).any(0)
