"""A policy while it runs: it keeps the scores of the previous step, decides which keys each layer masks, and keeps the account.

One `PolicyRuntime` belongs to one group of rows of a generation. The attention function calls `mask` before each attention call
and `measure` after it; nothing is left behind in the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention.context import ACTIVE, ALL, NEWEST, AttentionCall
from sinkscope.attention.distant import DistantSums, LayerShare, block_sinks, in_blocks, kept_in
from sinkscope.attention.key_mask import Band, KeyMask
from sinkscope.attention.received import query_weights
from sinkscope.attention.visibility import Visibility
from sinkscope.errors import InputError
from sinkscope.policies.layer_view import AllLayers, LayerView
from sinkscope.policies.mask_tokens import KnownTokens
from sinkscope.policies.numbers import wrapped
from sinkscope.policies.policy import Policy, check_policy
from sinkscope.sink_rule import Distant, torch_sinks_of

Scores = dict[str, dict[int, Tensor]]
"""Kind of score ("raw", "masked") → layer → Float [B, H, K]."""


@dataclass(frozen=True)
class StepAccount:
    """What a policy did in one forward.

    Attributes:
        share: Float [layer, B, H]: the share of attention that was hidden or silenced, mean over the real queries it acts on.
        caught, sinks: Long [layer, B, H]: how many sinks were masked, of how many there are (ε = 3, over all keys; in causal
            models by all queries so far).
        strongest: Float [layer, B, H]: 1 where the strongest sink was masked, 0 where it was not; NaN where there is none.
        removed, absorbed: Float64 [layer, B, H]: attention of this step that went to sinks that were masked, and to all sinks,
            in units of uniform attention.
        keys: layer → Bool [B|1, H|1, K]: the masked keys; a window, which masks others for every query, names none.
        raw: Float [layer, B, H, K]: received attention as if nothing had been masked.
        acted: Bool [B]: rows in which some layer masked a key.
    """

    share: Tensor
    caught: Tensor
    sinks: Tensor
    strongest: Tensor
    removed: Tensor
    absorbed: Tensor
    keys: dict[int, Tensor]
    raw: Tensor
    acted: Tensor

    @property
    def hit(self) -> Tensor:
        """Float [layer, B, H]: the share of the sinks that was masked; NaN where there was none."""
        return torch.where(self.sinks > 0, self.caught / self.sinks.clamp(min=1), float("nan"))

    @property
    def sink_removed(self) -> Tensor:
        """Float [layer, B, H]: the share of the attention on sinks that was masked; NaN where there was none."""
        return (self.removed / torch.where(self.absorbed > 0, self.absorbed, float("nan"))).float()


class PolicyRuntime:
    """A policy acting on one group of rows.

    Args:
        row_keys: one number per row that keys random controls (its seed).
        causal: scores are those of the last query's row, and the newest key is never masked.
        first, last: columns of the answer; last None: to the end of the sequence. A tensor Long [B, 1, 1]: of each row.
        width: keys that a causal model's text will have at the end.
        vocabulary: what is known of the model's tokens, for rules that look at them.
    """

    def __init__(
        self,
        policy: Policy,
        row_keys: Sequence[int],
        causal: bool,
        first: int | Tensor,
        last: int | Tensor | None = None,
        width: int = 0,
        vocabulary: KnownTokens | None = None,
    ) -> None:
        self.policy = policy
        self.rules = [rule for rule in policy.parts() if not rule.empty_rule]
        self.row_keys = torch.tensor([wrapped(key) for key in row_keys], dtype=torch.long)
        self.causal, self.first, self.last = causal, first, last
        self.step = -1
        self.branches = 1
        self.queries = NEWEST if causal else ALL
        self.active: int | None = None
        self.previous: Scores = {"raw": {}, "masked": {}}
        self.model_scores: dict[str, Tensor] = {}
        self.memory: dict[tuple[int, int], Any] = {}
        self.chosen: dict[int, AllLayers] = {}
        self._current: Scores = {"raw": {}, "masked": {}}
        self._carried: Scores = {"raw": {}, "masked": {}}
        self._width, self._vocabulary = width, vocabulary
        self._tokens: Tensor | None = None  # Long [B, K], −1 where nothing is written
        self._scored: Tensor | None = None  # Bool [B|1, Q]: queries whose predictions are read
        self._mask_tokens: Tensor | None = None  # Bool [B, Q]: queries at mask tokens
        self._spared: Tensor | None = None
        self._prefill = False
        self._reading = False  # whether the prompt is read for its scores, without the policy
        ruling = [rule if rule.control is None else rule.control.like for rule in self.rules]
        named = {getattr(rule, "by", None) for rule in ruling}
        self._by = [kind for kind in ("received", "sum", "distant") if kind in named]
        self._sums = DistantSums(width, raw=True) if causal else None
        self._judged: DistantSums | None = None  # what sinks of the previous step are told by
        self._in_blocks: Distant | None = None  # see `distant.in_blocks`, of the last step of a block loop
        self._masked_scores = any(rule.reads_masked_scores for rule in self.rules)
        self._least: int | None = None  # real keys that every row has at least; None: not known
        self._alive: Tensor | None = None  # Bool [B]: rows whose totals go on; None: all
        self._taken = torch.zeros(
            len(row_keys), dtype=torch.long
        )  # steps that each row of a block loop took part in
        self._widest = 0  # of the blocks so far
        self._patterned = (
            False  # whether some query of a layer did not see all real keys: a window of the model's own
        )
        self._clock: Tensor | None = None  # Long []: the step, where a captured step can count on
        self._between = False  # whether this forward comes between two steps
        self._layers: list[_LayerState] = []
        # Sums over the steps in which it acted, for each row: of the mean share, of those steps, of caught sinks, of sinks, of
        # strongest sinks that were caught, of heads that have one, of attention on caught sinks, and on all.
        self._totals = torch.zeros(8, len(row_keys), dtype=torch.float64)

    @property
    def hidden_share(self) -> Tensor:
        """Float [B]: the share of attention masked, mean over layers, heads and the steps in which it acted; NaN: none."""
        return (self._totals[0] / self._totals[1]).float().cpu()

    @property
    def sinks_hit(self) -> Tensor:
        """Float [B]: the share of all sinks of those steps, over layers and heads, that was masked; NaN: there were none."""
        return (self._totals[2] / self._totals[3]).float().cpu()

    @property
    def strongest_hit(self) -> Tensor:
        """Float [B]: the share of heads with a sink, over layers and steps, whose strongest one was masked."""
        return (self._totals[4] / self._totals[5]).float().cpu()

    @property
    def sink_removed(self) -> Tensor:
        """Float [B]: the share of the attention on sinks, over layers, heads and steps, that was masked; NaN: there was none."""
        return (self._totals[6] / self._totals[7]).float().cpu()

    # ---- what rules ask for

    @property
    def reads_first(self) -> bool:
        """Whether the prompt is to be read once without the policy, for the scores (see `Rule.reads_first`)."""
        return any(rule.reads_first for rule in self.rules)

    def present_tokens(self, keys: int) -> Tensor:
        """Long [B, K]: the token ids so far."""
        if self._tokens is None:
            raise InputError(
                f"{self.policy} looks at tokens, which are not known in this forward; use ss.generate"
            )
        return self._tokens[:, :keys]

    def known_vocabulary(self) -> KnownTokens:
        """What is known of the model's tokens."""
        if self._vocabulary is None:
            raise InputError(
                f"{self.policy} needs to know what tokens are, which is known in ss.generate and ss.evaluate"
            )
        return self._vocabulary

    def distant_sinks(self, epsilon: float, scope: str) -> Tensor:
        """Bool [layer, B, h, K]: sinks of a causal model by all queries so far; one layer at scope "model"."""
        if self._judged is None:
            raise RuntimeError("there was no step yet")
        mass, expected = self._judged.far()
        limit, known = expected.limit(epsilon), expected.known
        if scope != "head":
            mass = mass.mean(2, keepdim=True)
        if scope == "model":
            mass, limit, known = mass.mean(1, True), limit.mean(1, True), known.all(1, keepdim=True)
        sinks: Tensor = ((mass > limit) & known).transpose(0, 1)
        return sinks

    def telling(self, visibility: Visibility) -> int | None:
        """How many of the last queries tell the sinks where attention stands in blocks; None: it does not."""
        return visibility.queries if self.active is None and visibility.block is not None else self.active

    def block_sinks(self, received: Tensor, epsilon: float) -> Tensor:
        """Bool [N, h, K]: of the previous step of a block loop, by its scores."""
        if self._in_blocks is None:
            raise RuntimeError("there was no step yet")
        return block_sinks(received[..., : self._in_blocks.local.shape[-1]], self._in_blocks, epsilon)

    # ---- a forward

    @property
    def replayable(self) -> bool:
        """Whether every step after the first does the same, so that a CUDA graph can repeat it (see `carry`)."""
        return all(
            rule.replayable and (rule.control is None or self.leaves(2 * (rule.most or 0)))
            for rule in self.rules
        )

    def leaves(self, count: int) -> bool:
        """Whether it is known without looking that every row has at least so many candidates."""
        unscored = self.causal + self._widest  # the newest key, and those of a block that has just begun
        ruling = [rule if rule.control is None else rule.control.like for rule in self.rules]
        everywhere = (
            all(part.regions is None for rule in ruling for part in rule.parts()) and not self._patterned
        )
        return self._least is not None and everywhere and count <= self._least - unscored

    @property
    def windowed(self) -> bool:
        """Whether a rule masks all keys outside of a window."""
        return any(rule.band() is not None for rule in self.rules)

    def remember(self) -> Callable[[], None]:
        """A function that puts the policy back to where it is now, after a capture that failed.

        What kernels write on the GPU needs no putting back: those of a failed capture did not run.
        """
        before = (self.previous, self._current, self.step, self.model_scores)
        totals = self._totals.clone()

        def put_back() -> None:
            self.previous, self._current, self.step, self.model_scores = before
            self._totals.copy_(totals)

        return put_back

    def carry(self) -> None:
        """Put this step's scores into memory that stays, where every captured step looks for those of the previous one."""
        for kind, scores in self._current.items():
            self._carried.setdefault(kind, {})
            for layer, now in scores.items():
                before = self._carried[kind].get(layer)
                if before is None or before.shape != now.shape:
                    self._carried[kind][layer] = now.clone()
                elif before is not now:
                    before.copy_(now)
        self._current = self._carried

    def set_alive(self, alive: Tensor | None) -> None:
        """The rows Bool [B] that have not ended; None: all. Always the same memory, which a captured step goes on reading."""
        if alive is None or self._alive is None:
            self._alive = None if alive is None else alive.clone()
        else:
            self._alive.copy_(alive)

    def begin(
        self,
        branches: int = 1,
        least: int | None = None,
        active: int | None = None,
        step: bool = True,
        *,
        tokens: Tensor | None = None,
        masked: Tensor | None = None,
        scored: Tensor | None = None,
        prefill: bool = False,
        reading: bool = False,
        spared: Tensor | None = None,
    ) -> None:
        """Start a forward: what was measured in the last one is now the previous step.

        Args:
            branches: 2 with guidance. least: real keys that every row has at least, where that is known.
            active: how many of the last queries give the scores, those of the block that is being denoised; None: all.
            step: whether the forward is a step of the loop. One between two steps (a prefill, a block that is stored) is masked
                by the scores of the step before it, and gives none itself.
            tokens: Long [B, K]: the token ids so far. masked: Bool [B, Q]: queries at mask tokens. scored: Bool [B|1, Q]: queries
                whose predictions are read; None: the newest (causal), or those at mask tokens.
            prefill: the prompt is read into the cache. reading: for its scores only, without the policy.
            spared: Bool [1, Q]: queries of the prompt, in a forward that also holds what follows; rules with prefill=no leave
                them alone.
        """
        self._spared = spared
        self._tokens, self._mask_tokens, self._scored = tokens, masked, scored
        self._prefill, self._reading = prefill, reading
        if not self.causal:
            self.active, self.queries = active, ALL if active is None else ACTIVE
            self._widest = max(self._widest, active or 0)
        self._layers = []
        self._between = not step
        self.previous = self._current
        if reading and self._sums is not None:
            self._sums = DistantSums(self._width, raw=True)
        if step:
            self._current = {"raw": {}, "masked": {}}
        if step and not reading:
            self.step += 1
            if self._clock is not None:
                self._clock += 1
            if active is not None:
                here = self._taken if self._alive is None else self._taken.to(self._alive.device)
                self._taken = here.add_(1 if self._alive is None else self._alive.long())
        self.model_scores, self.chosen = {}, {}
        self.branches, self._least = branches, least

    def mask(
        self, layer: int, query: Tensor, key: Tensor, visibility: Visibility, scale: float
    ) -> KeyMask | None:
        """The union of what all rules mask in this call."""
        keys: Tensor | None = None
        band: Band | None = None
        most: int | None = 0
        sure, masking = False, []
        if self._reading:
            return None
        acting = self._acting(self.rules[0].queries, query, visibility)
        if self._spared is not None and self.rules[0].prefill is False:
            acting = ~self._spared if acting is None else acting & ~self._spared
        for number, rule in enumerate(self.rules):
            if not rule.acts(layer, max(0, self.step), self._prefill):
                continue
            window = rule.band()
            if window is not None:
                band = band if window.covers(visibility) else window
                continue
            chosen = rule.keys(LayerView(self, number, layer, query, key, visibility, scale))
            if chosen is not None:
                if rule.heads is not None:
                    chosen = chosen & self._heads(rule.heads, query)
                if acting is not None:  # a row without such a query loses none
                    chosen = chosen & acting.any(-1)[:, None, None]
                keys = chosen if keys is None else keys | chosen
                most = None if most is None or rule.most is None else most + rule.most
                sure = sure or rule.sure
                masking.append(number)
        # A GPU would have to wait for the answer, so it is only asked where steps are not repeated anyway.
        if keys is not None and not ((sure or self.replayable) and keys.is_cuda) and not bool(keys.any()):
            keys = None
        if keys is None and band is None:
            return None
        if (
            keys is not None and self.branches > 1 and keys.shape[0] > 1
        ):  # both guidance branches are masked alike
            keys = keys.repeat(self.branches, 1, 1)
        mask = KeyMask(
            keys,
            band,
            silence=self.rules[0].effect == "silence",
            most=most if keys is not None else None,
            # A guided twin may have padding of its own.
            least=self._least if self.branches == 1 else None,
            queries=None if acting is None or visibility.queries == 1 else acting.repeat(self.branches, 1),
        )
        alone = (
            self.chosen.get(masking[0])
            if len(masking) == 1
            and mask.alike
            and self.rules[masking[0]].heads is None
            and self.branches == 1
            and self.rules[masking[0]].control is None
            else None
        )
        if alone is not None and mask.most is not None and query.is_cuda and mask.strands_none(visibility):
            # Listed and turned into a bias once for all layers: a handful of kernels in place of as many for each.
            place = alone.layers[layer]
            listed, bias = alone.for_kernels(mask.most, query, visibility)
            return replace(mask, listed=(listed[0][place], listed[1][place]), bias=bias[place])
        return mask

    def _acting(self, name: str, query: Tensor, visibility: Visibility) -> Tensor | None:
        """Bool [B|1, Q]: the queries for which keys are masked; None: all."""
        if name == "all":
            return None
        if name == "masked" or (name == "scored" and self._scored is None and not self.causal):
            rows = self._mask_tokens
        elif name == "decided":
            rows = None if self._mask_tokens is None else ~self._mask_tokens
        elif self._scored is not None:  # where one forward holds many steps, those are the newest of each
            rows = self._scored
        else:
            rows = (torch.arange(visibility.queries, device=query.device) == visibility.queries - 1)[None]
        if rows is None:
            raise InputError(
                f"{self.policy}: which queries are {name} is not known in this forward; use ss.generate"
            )
        return rows

    def _heads(self, heads: tuple[int, ...], query: Tensor) -> Tensor:
        """Bool [1, H, 1]."""
        if heads[-1] >= query.shape[1]:
            raise InputError(
                f"{self.policy} names head {heads[-1]}, but the model has heads 0 to {query.shape[1] - 1}"
            )
        index = torch.arange(query.shape[1], device=query.device)
        return torch.stack([index == head for head in heads]).any(0)[None, :, None]

    def reads(self, layer: int) -> tuple[str, ...]:
        """Scores are over all real queries, or those of a block; a causal model's are over the last, and come by another way."""
        return () if self.causal else (self.queries,)

    def measure(self, call: AttentionCall) -> None:
        """Measure one layer: scores for the next step, and what was masked in this one."""
        rows = len(self.row_keys)
        self._patterned = self._patterned or call.visibility.banded or call.visibility.dense is not None
        raw = call.received(self.queries, raw=True)[:rows, :, 0]
        mask = call.key_mask
        if not self._between:
            self._current["raw"][call.layer] = self._own(raw, "raw", call.layer)
        if self._masked_scores and not self._between:
            acted = raw if mask is None else call.received(self.queries)[:rows, :, 0]
            self._current["masked"][call.layer] = self._own(acted, "masked", call.layer)
        keys = None if mask is None or mask.keys is None else mask.keys[:rows]
        if mask is not None and keys is not None and not mask.strands_none(call.visibility):
            # A query that would lose every key keeps them; the last one that the policy acts on stands for all.
            stranded = mask.stranded(call.visibility, raw.device)[:rows]
            if mask.queries is None:
                stranded = stranded[:, :, -1:]
            else:
                index = torch.arange(call.visibility.queries, device=raw.device)
                last = (mask.queries[:rows] * index).argmax(-1).expand(len(stranded))
                stranded = stranded.gather(2, last[:, None, None].expand(-1, stranded.shape[1], 1))
            keys = keys & ~stranded
        kept = None if call.kept is None else call.kept[:rows]
        if self.causal:
            weights = query_weights(call.visibility, None, call.query)[:rows]
        else:
            weights = call.expected(self.queries).weights[:rows]
        if mask is not None and mask.queries is not None:
            # Of the queries that keys are masked for: how many others a forward holds says nothing about the policy.
            weights = weights * mask.queries[:rows, None]
        if self._spared is not None:
            # The prompt's queries count as one step, as they do where the prompt is read by itself.
            prompt = (weights * self._spared[:, None]).sum(-1, keepdim=True).clamp(min=1.0)
            weights = torch.where(self._spared[:, None], weights / prompt, weights)
        added = None
        if self._sums is not None:
            newest = raw.nan_to_num(0.0) * call.expected(NEWEST).uniform.to(torch.float32)
            added = self._sums.share(call, newest)
        self._layers.append(
            _LayerState(
                call.layer,
                raw,
                keys,
                kept,
                weights,
                mask is not None and mask.band is not None,
                call.visibility,
                added,
            )
        )

    def _own(self, scores: Tensor, kind: str, layer: int) -> Tensor:
        """Scores Float [B, H, K] in which rows of a block loop that wait for others keep those of the last step they took."""
        if self.active is None or self._alive is None:
            return scores
        before = self.previous[kind].get(layer, scores[..., :0])
        before = torch.nn.functional.pad(before, (0, scores.shape[-1] - before.shape[-1]), value=float("nan"))
        return torch.where(self._alive[:, None, None], scores, before)

    def end(self) -> StepAccount:
        """The account of the forward that just ran, all layers in one go; the totals are brought up to date."""
        layers = self._layers
        raw = torch.stack([layer.raw for layer in layers])
        sinks, strength = self._found_sinks(layers, raw)
        nothing = torch.zeros(raw.shape[1:3], device=raw.device)
        share, caught = nothing.expand(raw.shape[:3]), nothing.long().expand(raw.shape[:3])
        strongest = removed = share
        acted = torch.zeros(raw.shape[1], dtype=torch.bool, device=raw.device)
        # Stacked where all layers mask, which is the usual case: few kernels, and none that a CUDA graph could not repeat.
        if all(layer.kept is not None for layer in layers):
            share = _hidden_share(torch.stack([layer.kept for layer in layers]), layers[0].weights)  # type: ignore[misc]
        elif any(layer.kept is not None for layer in layers):
            parts = [
                nothing if layer.kept is None else _hidden_share(layer.kept, layer.weights)
                for layer in layers
            ]
            share = torch.stack(parts)
        if any(layer.keys is not None for layer in layers):
            none = torch.zeros(1, 1, 1, dtype=torch.bool, device=raw.device)
            masked = [(none if layer.keys is None else layer.keys).expand_as(raw[0]) for layer in layers]
            keys = torch.stack(masked)
            hit = sinks & keys
            caught = hit.sum(-1)
            strongest = hit.gather(-1, strength.argmax(-1, keepdim=True))[..., 0].float()
            removed = torch.where(hit, raw, 0.0).sum(-1, dtype=torch.float64)
            acted = keys.any(-1).any(2).any(0)
        if any(layer.window for layer in layers):
            acted = torch.ones_like(acted)
            # A window masks other keys for every query: of how many sinks there is no saying, so they are not counted.
            unknown = [layer.window and layer.keys is None for layer in layers]
            sinks = sinks & ~torch.tensor(unknown, device=raw.device)[:, None, None, None]
        some = sinks.any(-1)
        account = StepAccount(
            share,
            caught,
            sinks.sum(-1),
            torch.where(some, strongest, float("nan")),
            torch.where(some, removed, 0.0),
            torch.where(sinks, raw, 0.0).sum(-1, dtype=torch.float64),
            {layer.index: layer.keys for layer in layers if layer.keys is not None},
            raw,
            acted,
        )
        if self._clock is None:
            self._clock = torch.full((), self.step, dtype=torch.long, device=raw.device)
        if not self._between and not self._reading:
            self._add(account)
        return account

    def _found_sinks(self, layers: list[_LayerState], raw: Tensor) -> tuple[Tensor, Tensor]:
        """Bool [layer, B, H, K]: this step's sinks; Float, like it: their strength, −inf for all other keys.

        Args:
            raw: Float [layer, B, H, K]: received attention, by which bidirectional sinks are told; those of causal models by all
                queries so far, to which this step's are added here.
        """
        if self._sums is not None:
            self._sums.add([layer.added for layer in layers if layer.added is not None])
            mass, expected = self._sums.far()
            self._judged = self._sums
            for kind in self._by:
                self._current[kind] = dict(zip([x.index for x in layers], self._scores_by(kind), strict=True))
            if self._reading:  # the same queries come again, under the policy
                self._sums = DistantSums(self._width, raw=True)
            sinks = ((mass > expected.limit()) & expected.known).transpose(0, 1)
            strength = (mass / expected.count.clip(1)).transpose(0, 1)
        elif (telling := self.telling(layers[0].visibility)) is not None:
            expected = in_blocks(layers[0].visibility, telling, raw.device)
            if not self._between:
                self._in_blocks = kept_in(self._in_blocks, expected)
            sinks = block_sinks(raw.flatten(0, 1), expected).view(raw.shape)
            strength = raw
        else:
            sinks, strength = torch_sinks_of(raw), raw
        return sinks, torch.where(sinks, strength, float("-inf"))

    def _scores_by(self, kind: str) -> Tensor:
        """Float32 [layer, B, H, K]: a causal model's scores by all queries so far, NaN where a key has none."""
        if self._sums is None:
            raise RuntimeError("only causal models keep sums")
        mass, expected = self._sums.far() if kind == "distant" else self._sums.every()
        known = expected.known if kind == "distant" else expected.count > 0
        unit = {
            "distant": expected.count,
            "received": expected.uniform,
            "sum": torch.ones_like(expected.uniform),
        }[kind]
        scores = torch.where(known, mass / torch.where(known, unit, 1), float("nan"))
        return scores.float().transpose(0, 1)

    def _add(self, account: StepAccount) -> None:
        """Add a step to the totals of the rows in which it acted and which have not ended; so they do not depend on the batch."""
        counted = account.acted if self._alive is None else account.acted & self._alive
        sums = torch.stack(
            [
                account.share.double().mean((0, 2)),
                torch.ones(len(counted), dtype=torch.float64, device=counted.device),
                account.caught.sum((0, 2)).double(),
                account.sinks.sum((0, 2)).double(),
                account.strongest.nan_to_num(0.0).sum((0, 2)).double(),
                (account.sinks > 0).sum((0, 2)).double(),
                account.removed.sum((0, 2)).double(),
                account.absorbed.sum((0, 2)).double(),
            ]
        )
        self._totals = self._totals.to(counted.device)
        self._totals += torch.where(counted, sums, 0.0)


@dataclass(frozen=True)
class _LayerState:
    """What one layer gave in one forward: see StepAccount. kept: Float [B, H, Q]; weights: Float [B, 1, Q], 0 in padding."""

    index: int
    raw: Tensor
    keys: Tensor | None
    kept: Tensor | None
    weights: Tensor
    window: bool
    visibility: Visibility
    added: LayerShare | None


def _hidden_share(kept: Tensor, weights: Tensor) -> Tensor:
    """The mean over real queries of what is not kept: Float [..., B, H, Q] → [..., B, H]."""
    # In double precision, so that the order of additions, and with it the batch, does not show in the digits that are kept.
    hidden = ((1 - kept).clamp(min=0.0) * weights).nan_to_num(0.0).sum(-1, dtype=torch.float64)
    return (hidden / weights.sum(-1).clamp(min=1.0)).float()


def single_forward(
    policy: Policy | None,
    layers: int,
    tokens: Tensor,
    kind: str,
    vocabulary: KnownTokens | None = None,
    heads: int | None = None,
) -> PolicyRuntime | None:
    """A policy for one forward outside of a generation, of tokens Long [B, S]: it must not need an earlier step.

    kind, heads: see `check_policy`.
    """
    rows, keys = tokens.shape
    checked = check_policy(policy, layers, keys, kind, heads)
    if checked is None:
        return None
    for rule in checked.parts():
        if rule.waits:
            raise InputError(
                f"{rule} decides from the previous step, and a single forward has none; use MaskKeys, MaskFirst, Window, "
                "when='same', or ss.generate"
            )
    runtime = PolicyRuntime(checked, list(range(rows)), kind == "causal", keys, None, keys, vocabulary)
    runtime.begin(tokens=tokens)
    return runtime
