"""Policies written the slow, obvious way: an own network on S×S maps, and masked sets from the definitions in plain loops.

Everything is float64. From the package come the weights of a loaded model and the fields of a policy, nothing else: no
attention code, no choosing, no sinks (what they are is stated in `helpers/naive_sinks.py`). A forward is told what the package
took, so that two things can be handled honestly: a choice between keys whose scores agree to within rounding (adopted, and
counted), and the draws of a random control, whose numbers are no one's business but whose sets must have the right size, place
and lifetime (checked, then adopted).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from tests.helpers.naive_sinks import block_margins, causal_margins, distant_mean, paper_margins
from torch import Tensor

import sinkscope as ss

Attend = Callable[[int, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(layer, q, k, v, visible) → what comes out of a layer's attention."""

NEAR = 2e-4
"""Scores (uniform = 1) of a float32 network that differ by less may come out in either order."""


@dataclass
class Forward:
    """What one dense forward found, by layer.

    Attributes:
        logits: Float64 [B·branches, Q, V].
        taken: [L] Bool [B, H, K]. received, raw: [L] Float64 [B, H, K], NaN without a key.
        share, hit, strongest, removed: [L] Float64 [B, H]. sinks: [L] Bool [B, H, K], none for a window alone.
    """

    logits: Tensor
    taken: list[np.ndarray] = field(default_factory=list)
    received: list[np.ndarray] = field(default_factory=list)
    raw: list[np.ndarray] = field(default_factory=list)
    share: list[np.ndarray] = field(default_factory=list)
    hit: list[np.ndarray] = field(default_factory=list)
    strongest: list[np.ndarray] = field(default_factory=list)
    removed: list[np.ndarray] = field(default_factory=list)
    sinks: list[np.ndarray] = field(default_factory=list)


class Network:
    """The network of a dense family, from its weights: RMS norm, RoPE, grouped heads, SwiGLU.

    Qwen3 also norms q and k; Ministral 3 also makes q longer at far positions.
    """

    def __init__(self, model: ss.Model) -> None:
        network = model.network
        self.causal = model.family == "causal"
        self.shifts = model.family in ("causal", "dream")
        self.counts_real = model.family == "a2d"
        self.reads_before = model.spec.shifted
        self.mask = model.ids.mask
        config = network.config
        self.layers, self.heads = config.num_hidden_layers, config.num_attention_heads
        self.groups = self.heads // config.num_key_value_heads
        self.eps = config.rms_norm_eps
        self.weights = {name: value.detach().double() for name, value in network.state_dict().items()}
        self.inv_freq = network.model.rotary_emb.inv_freq.float()
        rope = config.rope_parameters
        self.lengthens = rope.get("llama_4_scaling_beta", 0.0), rope.get("original_max_position_embeddings", 1)

    def positions(self, real: Tensor) -> Tensor:
        """Long [B, K]: LLaDA and MMaDA count columns, Dream, causal models and A2D in blocks real tokens."""
        if self.shifts or self.counts_real:
            return (real.long().cumsum(-1) - 1).masked_fill(~real, int(self.shifts))
        return torch.arange(real.shape[1]).expand(*real.shape)

    def linear(self, x: Tensor, name: str) -> Tensor:
        """A projection, with its bias if it has one."""
        y = x @ self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None else y + bias

    def norm(self, x: Tensor, name: str) -> Tensor:
        """RMS norm."""
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weights[f"{name}.weight"]

    def split(self, x: Tensor, norm: str = "") -> Tensor:
        """[B, Q, h·D] → [B, h, Q, D]; each head is normed where the network has such a norm."""
        D = 2 * len(self.inv_freq)
        x = x.reshape(*x.shape[:2], -1, D)
        return (self.norm(x, norm) if f"{norm}.weight" in self.weights else x).transpose(1, 2)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """RoPE, half-split layout; angles in float32 as in the models."""
        angles = positions[..., None].float() * self.inv_freq
        angles = torch.cat([angles, angles], -1).double()[:, None]
        one, two = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-two, one], -1) * angles.sin()

    def longer(self, q: Tensor, positions: Tensor) -> Tensor:
        """The queries [B, H, Q, D] of Ministral 3, which grow with the logarithm of their positions."""
        beta, original = self.lengthens
        return q * (1 + beta * (1 + positions // original).double().log())[:, None, :, None]


class Dense:
    """A policy acting on rows that run together, dense and slow.

    Args:
        prompt: columns before it are the prompt.
        real: Bool [B, S] over the whole sequence.
        block: attention stands in blocks of so many columns, and the last block's queries score the keys; None: no blocks.
        first: the column that blocks are counted from. network: that of the model, where it is not a `Network`.
    """

    def __init__(
        self,
        model: ss.Model,
        policy: Any,
        prompt: int,
        real: Tensor,
        block: int | None = None,
        first: int = 0,
        network: Any = None,
    ) -> None:
        self.network, self.policy = network or Network(model), policy
        self.prompt, self.real, self.block, self.first = prompt, real, block, first
        self.step = -1
        self.prefill, self.active, self.active_before = False, 0, 0
        self.tokens = torch.zeros(len(real), 0, dtype=torch.long)
        self.previous: dict[str, list[np.ndarray]] = {}
        self.rows: list[np.ndarray] = []  # of a causal model: raw attention so far, [L] [B, H, n, n]
        self.judged: list[np.ndarray] = []  # as they were after the previous step
        self.cache: list[tuple[Tensor, Tensor]] = []
        self.controls: dict[tuple[int, int, int, int], tuple[frozenset[int], frozenset[int]]] = {}
        self.bands: dict[tuple[int, int, int | None, int, int], Tensor] = {}
        self.choices = self.adopted = self.redrawn = self.kept = 0

    # ---- the forward ------------------------------------------------------------------------------------------------

    def forward(
        self,
        ids: Tensor,
        package: list[np.ndarray] | None,
        branches: int = 1,
        stores: bool | None = None,
        step: bool = True,
        prefill: bool = False,
        onward: bool = False,
    ) -> Forward:
        """One forward of the whole state (with a cache: of the new tokens, the others are in it).

        Args:
            ids: Long [B·branches, Q], conditional rows first.
            package: [L] Bool [B, H, K]: what the package took; None: not known, and no control can be checked.
            stores: keys and values go into the cache; None: a causal model's do.
            step: a step of the loop; one between two steps gives no scores. prefill: it reads the prompt into the cache.
            onward: no query sees a key behind itself, whatever the blocks.
        """
        stores = self.network.causal if stores is None else stores
        self.step += step
        self.prefill = prefill
        self.active = min(self.block or ids.shape[1], ids.shape[1])  # the last block may be shorter
        B, before = len(ids) // branches, self.stored
        real = self.real[:, : before + ids.shape[1]]
        self.tokens = torch.cat([self.tokens[:, :before], ids[:B]], 1)
        acting, found = self.acting(ids[:B]), Forward(torch.zeros(0))

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
            theirs = None if package is None else package[layer]
            return self.attention(layer, q, k, v, visible, real, acting, theirs, found)

        found.logits = self.through(ids, real.repeat(branches, 1), stores, onward, attend)
        if step:
            self.remember(found)
        return found

    @property
    def stored(self) -> int:
        """Columns in the cache."""
        return self.cache[0][0].shape[2] if self.cache else 0

    def through(self, ids: Tensor, real: Tensor, stores: bool, onward: bool, attend: Attend) -> Tensor:
        """Logits of ids Long [B, Q] behind the cache; real: Bool [B, K]. attend gives the output of a layer's attention."""
        net, before = self.network, self.stored
        positions, visible = net.positions(real)[:, before:], self.visible(real, before, onward)
        x = net.weights["model.embed_tokens.weight"][ids]
        for layer in range(net.layers):
            name = f"model.layers.{layer}"
            h = net.norm(x, f"{name}.input_layernorm")
            q, k, v = (
                net.split(net.linear(h, f"{name}.self_attn.{one}_proj"), f"{name}.self_attn.{one}_norm")
                for one in "qkv"
            )
            q, k = net.longer(net.rotate(q, positions), positions), net.rotate(k, positions)
            if before:
                k, v = (torch.cat([old, new], 2) for old, new in zip(self.cache[layer], (k, v), strict=True))
            if stores:
                self.cache[layer:] = [(k, v), *self.cache[layer + 1 :]]
            out = attend(layer, q, k, v, visible)
            x = x + net.linear(out.transpose(1, 2).flatten(2), f"{name}.self_attn.o_proj")
            h = net.norm(x, f"{name}.post_attention_layernorm")
            gate, up = net.linear(h, f"{name}.mlp.gate_proj"), net.linear(h, f"{name}.mlp.up_proj")
            x = x + net.linear(torch.nn.functional.silu(gate) * up, f"{name}.mlp.down_proj")
        return net.linear(net.norm(x, "model.norm"), "lm_head")

    def remember(self, found: Forward) -> None:
        """Keep what the next step decides from."""
        self.previous = {"raw": found.raw, "masked": found.received}
        self.active_before = self.active
        self.judged = list(self.rows)
        for kind in {getattr(imitated(rule), "by", None) for rule in rules(self.policy)} - {None, "newest"}:
            self.previous[kind] = self.scores_by(kind) if self.network.causal else found.raw

    def read(self, ids: Tensor) -> None:
        """The prompt without the policy, for its scores alone."""
        policy, self.policy = self.policy, None
        found = self.forward(ids, None, stores=False, step=False)
        self.policy = policy
        self.remember(found)
        self.rows = []

    def acting(self, ids: Tensor) -> Tensor:
        """Bool [B, Q]: the queries for which keys are masked; all rules of a policy name the same."""
        name = rules(self.policy)[0].queries if self.policy is not None else "all"
        rows = torch.zeros(ids.shape, dtype=torch.bool)
        for b, tokens in enumerate(ids.tolist()):
            for i, token in enumerate(tokens):
                last, masked = i == len(tokens) - 1, token == self.network.mask
                read = last if self.network.causal else masked
                if self.network.reads_before and not self.network.causal:  # a prediction is read one position earlier
                    read = (not last and tokens[i + 1] == self.network.mask) or (i == 0 and masked)
                meant = {"all": True, "newest": last, "scored": read, "masked": masked, "decided": not masked}
                rows[b, i] = meant[name]
        return rows

    def visible(self, real: Tensor, before: int, onward: bool) -> Tensor:
        """Bool [B, Q, K]: before any policy."""
        K = real.shape[1]
        seen = real[:, None, :].expand(-1, K - before, -1)
        if self.network.causal or onward:
            return seen & torch.ones(K, K, dtype=torch.bool).tril()[before:]
        if self.block is not None:
            place = (torch.arange(K) - self.first) // self.block
            return seen & (place[None] <= place[before:, None])
        return seen

    def attention(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        visible: Tensor,
        real: Tensor,
        acting: Tensor,
        package: np.ndarray | None,
        found: Forward,
    ) -> Tensor:
        """S×S scores, −inf before the softmax or values zeroed; a query that would lose every key keeps its scores."""
        B = len(acting)
        k, v = (x.repeat_interleave(self.network.groups, 1) for x in (k, v))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        seen = visible[:, None].expand(scores.shape)
        plain = softmax(scores, seen)
        own = self.received(plain[:B], visible[:B], real)
        if self.network.causal:
            self.rows[layer:] = [self.grown(layer, plain), *self.rows[layer + 1 :]]
        columns = self.columns(layer, own, real, package)
        band = self.band(layer, real, q.shape[2])
        taken = torch.from_numpy(columns)[:, :, None, :].expand(-1, -1, q.shape[2], -1)
        if band is not None:
            taken = taken | band[:, None]
        taken = (taken & acting[:, None, :, None]).repeat(len(q) // B, 1, 1, 1)
        stranded = ~(seen & ~taken).any(-1, keepdim=True)
        taken = taken & ~stranded
        silence = any(one.effect == "silence" for one in rules(self.policy))
        acted = plain if silence else softmax(scores, seen & ~taken)
        queries = (self.scoring(real[:, -q.shape[2] :]) * acting)[:, None]
        # Nothing is masked where the last query that could lose it keeps its scores, or there is no such query.
        last = [int(max(where.nonzero(), default=-1)) for where in acting]
        loses = [~stranded[b, :, i] & (i >= 0) for b, i in enumerate(last)]
        found.taken.append(columns & torch.stack(loses).numpy())
        found.raw.append(own)
        found.received.append(self.received(acted[:B], visible[:B], real))
        lost = (plain * taken)[:B].sum(-1)
        found.share.append(((lost * queries).sum(-1) / queries.sum(-1).clamp(min=1)).numpy())
        self.account(layer, own, band is not None, found)
        return (acted * ~taken if silence else acted) @ v

    def received(self, attention: Tensor, visible: Tensor, real: Tensor) -> np.ndarray:
        """Σ A_ij / Σ u_ij over the real queries; causal: of the last one alone; blocks: of the last one's."""
        rows = self.scoring(real[:, -visible.shape[1] :])
        if self.network.causal:
            rows = torch.zeros_like(rows)
            rows[:, -1] = 1
        uniform = visible.double() / visible.sum(-1, keepdim=True).clamp(min=1)
        expected = torch.einsum("bq,bqk->bk", rows, uniform)[:, None]
        mass = torch.einsum("bq,bhqk->bhk", rows, attention)
        return torch.where(expected > 0, mass / expected, float("nan")).numpy()

    def scoring(self, real: Tensor) -> Tensor:
        """Float64 [B, Q]: 1 for the queries that count: real ones, with blocks those of the last block."""
        rows = real.double()
        if self.block is not None:
            rows[:, : -self.block] = 0
        return rows

    def grown(self, layer: int, plain: Tensor) -> np.ndarray:
        """[B, H, n, n]: raw attention of all queries so far, those of this forward last."""
        Q, K = plain.shape[2:]
        whole = np.zeros((*plain.shape[:2], K, K))
        if K > Q:
            whole[:, :, : K - Q, : K - Q] = self.rows[layer]
        whole[:, :, K - Q :] = plain.numpy()
        return whole

    def account(self, layer: int, own: np.ndarray, band: bool, found: Forward) -> None:
        """Of this step's own sinks (ε = 3): the share that is taken, whether the strongest is, the share of their attention that
        is taken; NaN without sinks, or for a window alone."""
        B, H, _ = own.shape
        columns = found.taken[-1]
        numbers = np.full((3, B, H), np.nan)
        found.sinks.append(np.zeros_like(columns))
        for b in range(B):
            for h in range(H):
                scores = mean([own[b, h]])
                margins = self.margins(scores, b, [self.rows[layer][b, h]] if self.network.causal else [])
                sinks = [j for j in sorted(margins) if margins[j] > 3]
                if not sinks or (band and not columns.any()):
                    continue
                found.sinks[-1][b, h, sinks] = True
                strength = scores
                if self.network.causal:
                    rows, place = self.of_real([self.rows[layer][b, h]], b)
                    strength = {j: distant_mean(rows, place[j]) for j in sinks}
                strongest = max(sinks, key=lambda j: strength[j])
                hit = [j for j in sinks if columns[b, h, j]]
                mass = sum(scores[j] for j in sinks)
                removed = sum(scores[j] for j in hit) / mass if mass else np.nan
                numbers[:, b, h] = len(hit) / len(sinks), strongest in hit, removed
        found.hit.append(numbers[0])
        found.strongest.append(numbers[1])
        found.removed.append(numbers[2])

    # ---- sinks and scores -------------------------------------------------------------------------------------------

    def of_real(self, rows: list[np.ndarray], b: int) -> tuple[np.ndarray, dict[int, int]]:
        """The mean of some heads' attention [n, n] over the real tokens of a row, and column → position there."""
        whole = sum(rows) / len(rows)
        columns = np.flatnonzero(self.real[b, : len(whole)].numpy())
        return whole[columns[:, None], columns], {int(j): place for place, j in enumerate(columns)}

    def margins(self, scores: dict[int, float], b: int, rows: list[np.ndarray], active: int = 0) -> dict[int, float]:
        """Key → by how much it is a sink (see naive_sinks).

        Args:
            rows: of a causal model, the heads whose mean is judged, [n, n]. active: queries of the block; 0: as many as now.
        """
        if self.network.causal:
            whole, place = self.of_real(rows, b)
            found = causal_margins(whole)
            return {j: found[at] for j, at in place.items() if at in found}
        if self.block is not None:
            place = {j: at for at, j in enumerate(sorted(scores))}
            queries = range(len(scores) - (active or self.active), len(scores))
            found = block_margins({place[j]: score for j, score in scores.items()}, len(scores), queries)
            return {j: found[at] for j, at in place.items() if at in found}
        return paper_margins(scores)

    def judging(self, rule: Any, layer: int, b: int, h: int) -> list[np.ndarray]:
        """[n, n] of each head: what a rule tells a causal model's sinks by: all steps before this one."""
        if not self.network.causal:
            return []
        before = self.rows if rule.when == "same" and self.step == 0 else self.judged
        if rule.scope == "head":
            return [before[layer][b, h]]
        return [head for one in (before if rule.scope == "model" else [before[layer]]) for head in one[b]]

    def scores_by(self, kind: str) -> list[np.ndarray]:
        """[L] Float64 [B, H, K]: a causal model's scores by all queries so far."""
        found = []
        for layer in self.rows:
            scores = np.full(layer.shape[:3], np.nan)
            for b, h in np.ndindex(*layer.shape[:2]):
                rows, place = self.of_real([layer[b, h]], b)
                for j, at in place.items():
                    behind = range(at, len(rows))
                    given = sum(float(rows[i, at]) for i in behind)
                    uniform = sum(1 / (i + 1) for i in behind)
                    meant = {"sum": given, "received": given / uniform, "distant": distant_mean(rows, at)}
                    scores[b, h, j] = meant[kind]
            found.append(scores)
        return found

    # ---- the masked sets --------------------------------------------------------------------------------------------

    def acts(self, rule: Any, layer: int) -> bool:
        """Whether layers, steps and the moment let it act."""
        if self.prefill and rule.prefill is False:
            return False
        return (rule.layers is None or layer in rule.layers) and (rule.steps is None or max(0, self.step) in rule.steps)

    def band(self, layer: int, real: Tensor, Q: int) -> Tensor | None:
        """Bool [B, Q, K]: taken by a window, pair by pair."""
        for rule in rules(self.policy):
            if isinstance(rule, ss.Window) and self.acts(rule, layer):
                B, K = real.shape
                # The same in all layers, and in all steps over as many keys.
                known = (rule.width, rule.first, rule.future, Q, K)
                if known not in self.bands:
                    gone = torch.zeros(B, Q, K, dtype=torch.bool)
                    for b in range(B):
                        begin = real[b].tolist().index(True)
                        for i in range(K - Q, K):
                            for j in range(K):
                                inside = abs(i - j) < rule.width or begin <= j < begin + rule.first
                                if rule.future is not None and j - i > rule.future:
                                    inside = False
                                gone[b, i - (K - Q), j] = not inside
                    self.bands[known] = gone
                gone = self.bands[known]
                return gone if bool((gone & real[:, None]).any()) else None
        return None

    def columns(self, layer: int, own: np.ndarray, real: Tensor, package: np.ndarray | None) -> np.ndarray:
        """Bool [B, H, K]: the union of what the rules take by column."""
        B, H, K = own.shape
        taken = np.zeros((B, H, K), dtype=bool)
        for b in range(B):
            for h in range(H):
                theirs = None if package is None else frozenset(np.flatnonzero(package[b, h, :K]).tolist())
                sets = [
                    self.set_of(n, rule, layer, b, h, own, real, theirs) for n, rule in enumerate(rules(self.policy))
                ]
                union = sorted(frozenset().union(*sets))
                taken[b, h, union] = True
        return taken

    def set_of(
        self,
        n: int,
        rule: Any,
        layer: int,
        b: int,
        h: int,
        own: np.ndarray,
        real: Tensor,
        theirs: frozenset[int] | None,
    ) -> frozenset[int]:
        """The keys that one rule takes from one head of one row."""
        like = imitated(rule)
        if isinstance(like, ss.Window) or not self.acts(like, layer):
            return frozenset()
        if like.heads is not None and h not in like.heads:
            return frozenset()
        keys = [j for j, there in enumerate(real[b].tolist()) if there and in_region(like, j, self.prompt)]
        newest = real.shape[1] - 1 if self.network.causal else None
        scored = isinstance(like, (ss.MaskTop, ss.MaskAbove, ss.KeepTop))
        scores: dict[int, float] | None = None
        if scored:
            scores = self.scores(like, layer, b, h, own)
        elif isinstance(rule, ss.MaskRandom) and rule.match == "mass":
            scores = self.previous_scores("raw", "head", layer, b, h)
        if scores is None and (scored or (isinstance(rule, ss.MaskRandom) and rule.match == "mass")):
            return frozenset()
        if scored and scores is not None:
            keys = [j for j in keys if j in scores and j != newest]
            active = self.active if like.when == "same" else self.active_before
            margins = self.margins(scores, b, self.judging(like, layer, b, h), active) if decides_by_sinks(like) else {}
            chosen = choose(like, scores, margins, keys)
            if theirs is not None and rule is like and len(rules(self.policy)) == 1:
                chosen = self.settle(like, scores, margins, keys, chosen, theirs)
        elif isinstance(like, ss.MaskFirst):
            begin = real[b].tolist().index(True)
            chosen = frozenset(j for j in keys if j < begin + like.k)
        elif isinstance(like, ss.MaskToken):
            chosen = frozenset(j for j in keys if int(self.tokens[b, j]) in like.tokens)
        else:
            chosen = frozenset(j for j in keys if j in dict(like.chosen).get(layer, ()))
        if rule is like:
            return chosen
        if theirs is None:
            raise ValueError("a control can only be checked against what was drawn")
        keys = [j for j in keys if j != newest]
        if scored and scores is not None:
            # What the control avoids: to within rounding the policy's own set, so look at near choices too.
            chosen = self.settle_control(like, scores, margins, keys, chosen, theirs)
        return self.control(n, rule, layer, b, h, chosen, keys, scores, theirs)

    def scores(self, rule: Any, layer: int, b: int, h: int, own: np.ndarray) -> dict[int, float] | None:
        """Key → score, as the rule looks at them; None when there is no step before."""
        if rule.when == "previous":
            kind = rule.scores if rule.by in (None, "newest") else rule.by
            return self.previous_scores(kind, rule.scope, layer, b, h)
        return mean([own[b, h]] if rule.scope == "head" else list(own[b]))

    def previous_scores(self, kind: str, scope: str, layer: int, b: int, h: int) -> dict[int, float] | None:
        """Scores of the step before, averaged over what the scope says."""
        if not self.previous:
            return None
        before = self.previous[kind]
        if scope == "head":
            return mean([before[layer][b, h]])
        return mean([row for one in (before if scope == "model" else [before[layer]]) for row in one[b]])

    def settle(
        self,
        rule: Any,
        scores: dict[int, float],
        margins: dict[int, float],
        keys: list[int],
        chosen: frozenset[int],
        theirs: frozenset[int],
    ) -> frozenset[int]:
        """The package's set where it differs only by scores that are equal to within rounding."""
        self.choices += 1
        if chosen == theirs:
            return chosen
        if near(rule, scores, margins, keys, chosen, theirs):
            self.adopted += 1
            return theirs
        return chosen

    def settle_control(
        self,
        rule: Any,
        scores: dict[int, float],
        margins: dict[int, float],
        keys: list[int],
        chosen: frozenset[int],
        theirs: frozenset[int],
    ) -> frozenset[int]:
        """As `settle`, where only the control's draw is known: it must avoid the policy's set."""
        overlap = theirs & chosen
        if not overlap:
            return chosen
        for j in sorted(overlap):
            for other in sorted(set(keys) - chosen - theirs, key=lambda one: abs(scores[one] - scores[j])):
                swapped = (chosen - {j}) | {other}
                if near(rule, scores, margins, keys, chosen, swapped):
                    self.adopted += 1
                    chosen = swapped
                    break
        return chosen

    def control(
        self,
        n: int,
        rule: Any,
        layer: int,
        b: int,
        h: int,
        chosen: frozenset[int],
        keys: list[int],
        scores: dict[int, float] | None,
        theirs: frozenset[int],
    ) -> frozenset[int]:
        """Checks a random control's set and adopts it."""
        where = f"step {self.step} layer {layer} row {b} head {h}"
        free = [j for j in keys if j not in chosen and (scores is None or j in scores)]
        assert not theirs & chosen, f"{where}: the control takes its policy's own keys"
        assert theirs <= set(free), f"{where}: the control takes keys that are no candidates"
        before = self.controls.get((n, layer, b, h))
        if before is not None and before[0] == chosen:
            assert theirs == before[1], f"{where}: drawn anew although the policy's set is the same"
            self.kept += 1
        else:
            self.redrawn += 1
            if rule.match == "count":
                assert len(theirs) == len(chosen), f"{where}: {len(theirs)} keys for {len(chosen)}"
            elif scores is not None:
                mass = sum(scores.get(j, 0.0) for j in chosen)  # a layer may not see a key
                gap = abs(sum(scores[j] for j in theirs) - mass)
                # The nearest over prefixes of one random order: dropping the key that was drawn last would not help, nor
                # adding the one that comes next. Neither is known here, so: some key is not better dropped, none (or not
                # every one) is better added.
                assert not theirs or any(
                    abs(sum(scores[i] for i in theirs - {j}) - mass) >= gap - NEAR for j in theirs
                ), where
                rest = set(free) - theirs
                assert not rest or any(abs(sum(scores[i] for i in theirs | {j}) - mass) >= gap - NEAR for j in rest), (
                    where
                )
        self.controls[n, layer, b, h] = (chosen, theirs)
        return theirs


def rules(policy: Any) -> list[Any]:
    """The single rules of a combination."""
    return [] if policy is None else list(policy.parts())


def imitated(rule: Any) -> Any:
    """The rule itself, or what it is the control of."""
    return rule.like if isinstance(rule, ss.MaskRandom) else rule


def decides_by_sinks(rule: Any) -> bool:
    """Whether it has a threshold."""
    return getattr(rule, "epsilon", None) is not None


def choose(rule: Any, scores: dict[int, float], margins: dict[int, float], keys: list[int]) -> frozenset[int]:
    """What a rule takes, from its definition."""
    ordered = sorted(keys, key=lambda j: (-scores[j], j))
    if isinstance(rule, ss.KeepTop):
        return frozenset(ordered[math.ceil(Fraction(repr(rule.fraction)) * len(keys)) :])
    if rule.epsilon is None:
        return frozenset(ordered[: rule.k])
    sinks = {j for j in keys if j in margins and margins[j] > rule.epsilon}
    if isinstance(rule, ss.MaskAbove):
        return frozenset(sinks)
    return frozenset(j for j in ordered[: rule.k] if (j in sinks) == (rule.among == "sinks"))


def near(
    rule: Any,
    scores: dict[int, float],
    margins: dict[int, float],
    keys: list[int],
    ours: frozenset[int],
    theirs: frozenset[int],
) -> bool:
    """Whether two sets differ only in keys at the border, whose scores are almost but not exactly those of the border."""
    if not theirs <= set(keys):
        return False

    def at_threshold(j: int, epsilon: float) -> bool:
        return j in margins and 0 < abs(margins[j] - epsilon) < NEAR

    odd = ours ^ theirs
    epsilon = getattr(rule, "epsilon", None)
    if epsilon is not None and all(at_threshold(j, epsilon) for j in odd):
        return True
    if isinstance(rule, ss.MaskAbove) or len(ours) != len(theirs):
        return False
    gaps = [abs(scores[i] - scores[j]) for i in ours - theirs for j in theirs - ours]
    return all(0 < gap < NEAR for gap in gaps)


def mean(rows: list[np.ndarray]) -> dict[int, float]:
    """Key → mean score over rows of scores, for the keys that have one in each."""
    plain = [row.tolist() for row in rows]
    return {
        j: sum(of_key) / len(rows) for j, of_key in enumerate(zip(*plain, strict=True)) if not math.isnan(sum(of_key))
    }


def in_region(rule: Any, j: int, prompt: int) -> bool:
    """Whether the rule's region lets it take column j."""
    return rule.regions is None or (rule.regions == "prompt") == (j < prompt)


def softmax(scores: Tensor, seen: Tensor) -> Tensor:
    """Over the seen keys; rows that see nothing are 0."""
    return scores.masked_fill(~seen, float("-inf")).softmax(-1).nan_to_num(0.0)
