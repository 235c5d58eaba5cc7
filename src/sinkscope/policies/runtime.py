"""A policy at work: it keeps the scores of the step before, decides what each layer may not use, and keeps the account.

One `PolicyRuntime` per group of rows of a generation. The attention function asks it before each call (`take`) and tells it after
it (`__call__`), and it leaves nothing behind in the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sinkscope.attention import fused
from sinkscope.attention.interface import AttentionCall
from sinkscope.attention.key_mask import Band, KeyMask, first_real
from sinkscope.attention.received import query_weights, received
from sinkscope.attention.visibility import Visibility
from sinkscope.errors import InputError
from sinkscope.policies.mask_random import MaskRandom
from sinkscope.policies.numbers import priorities, wrapped
from sinkscope.policies.policy import FixedRule, Policy, Rule, ScoredRule, check_policy
from sinkscope.sink_rule import torch_sinks_of


@dataclass
class Account:
    """What a policy did in one forward, layer by layer.

    Attributes:
        share: layer → Float [B, H]: the share of attention that was hidden or silenced, mean over real queries.
        hit: layer → Float [B, H]: the share of this step's own sinks that was taken; NaN where there was none.
        columns: layer → Bool [B, H, K]: the taken keys (none for a window, which takes others from every query).
        raw: layer → Float [B, H, K]: received attention as if nothing had been taken.
    """

    share: dict[int, Tensor] = field(default_factory=dict)
    hit: dict[int, Tensor] = field(default_factory=dict)
    columns: dict[int, Tensor] = field(default_factory=dict)
    raw: dict[int, Tensor] = field(default_factory=dict)


@dataclass
class Drawn:
    """The latest random set of a control in one layer: for which choice of its policy it was drawn, and when."""

    chosen: Tensor
    taken: Tensor
    step: Tensor


class PolicyRuntime:
    """A policy acting on one group of rows.

    Args:
        rows: one number per row that keys random controls (its seed).
        causal: scores are those of the last query's row, and the newest key is never taken.
        prompt: columns before it are the prompt.
        last: where the answer ends and the prompt goes on, for pictures; None: with the sequence.
    """

    def __init__(
        self, policy: Policy, rows: Sequence[int], causal: bool, prompt: int, last: int | None = None
    ) -> None:
        self.policy = policy
        self.rules = [rule for rule in policy.parts() if not rule.empty_rule]
        self._rows = torch.tensor([wrapped(row) for row in rows], dtype=torch.long)
        self._causal, self._prompt, self._last = causal, prompt, last
        self._step = -1
        self._branches = 1
        self._last_query: Tensor | None = None
        self._padding: int | None = None  # the most that a row has; None: not known, or none
        self._previous: dict[str, dict[int, Tensor]] = {"raw": {}, "masked": {}}
        self._current: dict[str, dict[int, Tensor]] = {"raw": {}, "masked": {}}
        self._whole: dict[str, Tensor] = {}
        self._drawn: dict[tuple[int, int], Drawn] = {}
        self._masked_scores = any(getattr(_source(rule), "scores", "raw") == "masked" for rule in self.rules)
        self.account = Account()
        self.alive: Tensor | None = None  # Bool [B]: rows whose totals go on; None: all
        self.shares = torch.zeros(len(rows), 2, dtype=torch.float64)
        self.hits = torch.zeros(len(rows), 2, dtype=torch.float64)

    @property
    def replayable(self) -> bool:
        """Whether every step after the first does the same, so that a CUDA graph can repeat it (see `carry`)."""
        return all(
            isinstance(rule, ScoredRule) and rule.sure and rule.when == "previous" and rule.steps is None
            for rule in self.rules
        )

    def remember(self) -> Callable[[], None]:
        """A function that puts the policy back to where it is now, as if no forward had begun since."""
        before = (self._previous, self._current, self._step, self._whole, self.account)

        def put_back() -> None:
            self._previous, self._current, self._step, self._whole, self.account = before

        return put_back

    def carry(self) -> None:
        """Puts this step's scores where a repeated step looks for those of the step before."""
        for kind, scores in self._previous.items():
            for layer, before in scores.items():
                before.copy_(self._current[kind][layer])

    def begin(self, ids: Tensor, real: Tensor | None, masked: Tensor, branches: int) -> None:
        """A new forward: what was measured in the last one is now the step before."""
        self._previous, self._current = self._current, {"raw": {}, "masked": {}}
        self._whole = {}
        self._step += 1
        self._branches = branches
        if self._padding is None and real is not None:  # looked at once: padding stands on the left and stays
            self._padding = int((~real).sum(1).max())
        self.account = Account()

    def take(
        self, layer: int, query: Tensor, key: Tensor, visibility: Visibility, scale: float
    ) -> KeyMask | None:
        """The union of what all rules take in this call."""
        columns: Tensor | None = None
        band: Band | None = None
        most: int | None = 0
        sure = False
        for number, rule in enumerate(self.rules):
            if not rule.acts(layer, self._step):
                continue
            if isinstance(rule, FixedRule) and rule.band() is not None:
                window = rule.band()
                band = window if window is not None and not window.covers(visibility) else band
                continue
            found = self._columns(number, rule, layer, query, key, visibility, scale)
            if found is not None:
                columns = found if columns is None else columns | found
                most = None if most is None or rule.most is None else most + rule.most
                sure = sure or rule.sure
        # A GPU would have to wait for the answer, so it is only asked where the rule leaves it open.
        if columns is not None and not (sure and columns.is_cuda) and not bool(columns.any()):
            columns = None
        if columns is None and band is None:
            return None
        if columns is not None:
            columns = self._both_branches(columns)
        # A guided twin may have padding of its own.
        known = self._branches == 1 and self._padding is not None
        return KeyMask(
            columns,
            band,
            self.rules[0].effect == "silence",
            most if columns is not None else None,
            visibility.keys - (self._padding or 0) if known else None,
        )

    def asks(self, layer: int) -> tuple[None, ...]:
        """Scores are over all real queries (a causal model's are over the last one): see interface.Asking."""
        return () if self._causal else (None,)

    def __call__(self, call: AttentionCall) -> None:
        """Measures this forward: scores for the next step, and what was taken in this one."""
        rows = len(self._rows)
        weights = self._score_weights(call.query, call.visibility)
        raw = call.received(weights, raw=True)[:rows, :, 0]
        self._current["raw"][call.layer] = raw
        if self._masked_scores:
            acted = raw if call.taken is None else call.received(weights)[:rows, :, 0]
            self._current["masked"][call.layer] = acted
        self.account.raw[call.layer] = raw
        share, hit = self._measured(call, raw)
        self.account.share[call.layer] = share
        self.account.hit[call.layer] = hit
        if call.taken is not None:
            counted = self._counted(call.taken)
            self.shares, self.hits = self.shares.to(raw.device), self.hits.to(raw.device)
            _add(self.shares, share, counted)
            _add(self.hits, hit, counted)
            if call.taken.columns is not None:
                heads = raw.shape[1]
                self.account.columns[call.layer] = call.taken.columns[:rows].expand(rows, heads, -1)

    def _counted(self, taken: KeyMask) -> Tensor | None:
        """Bool [B]: rows that have not ended and lose a key in this call, so that totals do not depend on the batch."""
        if taken.columns is None or taken.band is not None:
            return self.alive
        lost = taken.columns[: len(self._rows)].flatten(1).any(1).expand(len(self._rows))
        return lost if self.alive is None else lost & self.alive

    def _measured(self, call: AttentionCall, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Share of attention taken and share of own sinks hit, Float32 [B, H] each."""
        rows, heads = raw.shape[:2]
        if call.taken is None or call.kept is None:
            nothing = torch.zeros(rows, heads, device=raw.device)
            return nothing, torch.where(torch_sinks_of(raw).any(-1), 0.0, float("nan"))
        weights = query_weights(call.visibility, None, call.query)[:rows]
        gone = (1 - call.kept[:rows]).clamp(min=0.0)
        share = (gone * weights).nan_to_num(0.0).sum(-1) / weights.sum(-1).clamp(min=1.0)
        if call.taken.columns is None:
            return share, torch.full((rows, heads), float("nan"), device=raw.device)
        own = torch_sinks_of(raw)
        caught = (own & call.taken.columns[:rows]).sum(-1)
        return share, torch.where(own.any(-1), caught / own.sum(-1).clamp(min=1), float("nan"))

    def _columns(
        self,
        number: int,
        rule: Rule,
        layer: int,
        query: Tensor,
        key: Tensor,
        visibility: Visibility,
        scale: float,
    ) -> Tensor | None:
        """Bool [B, h, K]: the columns that one rule takes; None for none."""
        if isinstance(rule, MaskRandom):
            return self._control(number, rule, layer, query, key, visibility, scale)
        if isinstance(rule, FixedRule):
            found = rule.columns(layer, self._conditional(visibility), query.device)
            if found is None:
                return None
            return found & self._takeable(rule, visibility, query.device)
        if isinstance(rule, ScoredRule):
            scores = self._scores(rule, layer, query, key, visibility, scale)
            if scores is None:
                return None
            return rule.choose(scores, self._candidates(rule, scores, visibility, query.device))
        raise InputError(f"there is no way to act for {type(rule).__name__}")

    def _control(
        self,
        number: int,
        rule: MaskRandom,
        layer: int,
        query: Tensor,
        key: Tensor,
        visibility: Visibility,
        scale: float,
    ) -> Tensor | None:
        """The control's set: the one it had where its policy chooses the same keys as before, else a new one."""
        like = rule.like
        rows, heads, device = len(self._rows), query.shape[1], query.device
        scores = None
        if isinstance(like, ScoredRule):
            scores = self._scores(like, layer, query, key, visibility, scale)
        elif rule.match == "mass":
            scores = self._kept_scores("raw", "head", layer, visibility)
        if scores is None and rule.needs_scores:
            return None
        chosen = self._columns(number, like, layer, query, key, visibility, scale)
        if chosen is None:
            return None
        allowed = self._candidates(like, scores, visibility, device)
        width = max(chosen.shape[1], 1 if scores is None else scores.shape[1])
        chosen = chosen.expand(rows, width, -1)
        allowed = allowed.expand(rows, width, -1)
        before = self._drawn.get((number, layer))
        step = torch.full((rows, width), self._step, dtype=torch.long, device=device)
        if before is not None:
            grown = visibility.keys - before.chosen.shape[-1]
            old = torch.nn.functional.pad(before.chosen, (0, grown))
            step = torch.where((old == chosen).all(-1), before.step, step)
        scope_layer = -1 if isinstance(like, ScoredRule) and like.scope == "model" else layer
        order = priorities(
            rule.seed,
            self._rows,
            scope_layer,
            width,
            step,
            first_real(self._conditional(visibility), device),
            visibility.keys,
        )
        if rule.match == "count" and bool(((allowed & ~chosen).sum(-1) < chosen.sum(-1)).any()):
            raise InputError(
                f"{rule}: in step {self._step} its policy takes more keys than are left, so that no equal number of others "
                "exists; take fewer keys, give a longer prompt, or use match='mass'"
            )
        taken = rule.draw(chosen, allowed, scores, order)
        if before is not None:
            same = (step == before.step)[..., None]
            taken = torch.where(same, torch.nn.functional.pad(before.taken, (0, grown)), taken)
        self._drawn[number, layer] = Drawn(chosen, taken, step)
        return taken.expand(rows, heads if width > 1 else 1, -1)

    def _scores(
        self, rule: ScoredRule, layer: int, query: Tensor, key: Tensor, visibility: Visibility, scale: float
    ) -> Tensor | None:
        """Float [B, h, K]: what the rule looks at; None when there is nothing yet."""
        if rule.when == "previous":
            return self._kept_scores(rule.scores, rule.scope, layer, visibility)
        # This forward's own scores: the plain kernel gives the log-sum-exp; the keys stand in for values that are not used.
        _, lse = fused.attend(query, key, key, visibility, None, scale)
        weights = self._score_weights(query, visibility)
        own = received(query, key, lse, visibility, None, scale, weights)[: len(self._rows), :, 0]
        return own.mean(1, keepdim=True) if rule.scope == "layer" else own

    def _kept_scores(self, kind: str, scope: str, layer: int, visibility: Visibility) -> Tensor | None:
        """Scores of the step before, over the keys of now: keys that are new have none."""
        kept = self._previous[kind]
        if not kept:
            return None
        if scope == "model":
            if kind not in self._whole:
                self._whole[kind] = torch.stack([one.mean(1) for one in kept.values()]).mean(0)[:, None]
            scores = self._whole[kind]
        else:
            scores = kept[layer].mean(1, keepdim=True) if scope == "layer" else kept[layer]
        return torch.nn.functional.pad(scores, (0, visibility.keys - scores.shape[-1]), value=float("nan"))

    def _candidates(
        self, rule: Rule, scores: Tensor | None, visibility: Visibility, device: torch.device
    ) -> Tensor:
        """Bool [B|1, h|1, K]: real keys with a score, in the rule's region; never the newest token of a causal model."""
        allowed = self._takeable(rule, visibility, device)
        if scores is not None:
            allowed = allowed & ~scores.isnan()
        if self._causal:
            allowed = allowed & (torch.arange(visibility.keys, device=device) < visibility.keys - 1)
        return allowed

    def _takeable(self, rule: Rule, visibility: Visibility, device: torch.device) -> Tensor:
        """Bool [B|1, 1, K]: real keys in the rule's region."""
        index = torch.arange(visibility.keys, device=device)
        allowed = torch.ones(1, 1, visibility.keys, dtype=torch.bool, device=device)
        if rule.regions is not None:
            answer = index >= self._prompt
            if self._last is not None:
                answer = answer & (index < self._last)
            allowed = allowed & (~answer if rule.regions == "prompt" else answer)
        real = self._conditional(visibility).real
        return allowed if real is None else allowed & real[:, None]

    def _score_weights(self, query: Tensor, visibility: Visibility) -> Tensor | None:
        """Which queries score the keys: all real ones, or a causal model's last."""
        if not self._causal:
            return None
        shape = (query.shape[0], 1, query.shape[2])
        if self._last_query is None or self._last_query.shape != shape:
            # One object for all layers, so that what follows from it is computed once.
            self._last_query = torch.zeros(shape, device=query.device)
            self._last_query[..., -1] = 1.0
        return self._last_query

    def _conditional(self, visibility: Visibility) -> Visibility:
        """The pattern of the conditional rows alone."""
        if self._branches == 1 or visibility.real is None:
            return visibility
        real = visibility.real[: len(self._rows)]
        return Visibility(
            visibility.queries,
            visibility.keys,
            real,
            visibility.causal,
            visibility.window,
            None,
            visibility.padded,
        )

    def _both_branches(self, columns: Tensor) -> Tensor:
        """Both guidance branches are masked alike."""
        if self._branches == 1 or columns.shape[0] == 1:
            return columns
        return columns.repeat(self._branches, 1, 1)


def _source(rule: Rule) -> Rule:
    return rule.like if isinstance(rule, MaskRandom) else rule


def _add(total: Tensor, values: Tensor, counted: Tensor | None) -> None:
    """Adds a row's mean over heads, where it is known, and counts it; rows that do not count keep what they had."""
    known = ~values.isnan()
    if counted is not None:
        known = known & counted[:, None]
    any_known = known.any(1)
    mean = (values.masked_fill(~known, 0.0).sum(1) / known.sum(1).clamp(min=1)).double()
    total[:, 0] += torch.where(any_known, mean, 0.0)
    total[:, 1] += any_known


def single_forward(
    policy: Policy | None, layers: int, keys: int, rows: int, causal: bool
) -> PolicyRuntime | None:
    """A policy for one forward outside of a generation: it must not need an earlier step."""
    checked = check_policy(policy, layers, keys)
    if checked is None:
        return None
    for rule in checked.parts():
        source = _source(rule)
        waits = isinstance(source, ScoredRule) and source.when == "previous"
        by_mass = isinstance(source, FixedRule) and isinstance(rule, MaskRandom) and rule.needs_scores
        if waits or by_mass:
            raise InputError(
                f"{rule} decides from the step before, and a single forward has none; use MaskKeys, MaskFirst, Window, "
                "when='same', or ss.generate"
            )
    acting = PolicyRuntime(checked, list(range(rows)), causal, keys)
    acting.begin(torch.empty(0), None, torch.empty(0), 1)
    return acting
