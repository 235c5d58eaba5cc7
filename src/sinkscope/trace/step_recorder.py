"""Recording one step: attention calls of a forward pass become the arrays of a trace.

One `StepRecorder` belongs to one group of rows. What is recorded stays on the model's device until the step is over (see
`gpu.outbox`), so that no layer has to wait for a copy; nothing of size S×S exists except at level "maps".
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np
import torch
from torch import Tensor

from sinkscope.attention.context import ACTIVE_AND_ALL, ALL, AttentionCall
from sinkscope.base.masked import MASK
from sinkscope.decoding.step import Recorded, Request
from sinkscope.policies.account import StepAccount
from sinkscope.trace.anatomy import Residual
from sinkscope.trace.block_scores import BlockScores, sink_heads
from sinkscope.trace.capture import Capture, Frame
from sinkscope.trace.causal_scores import CausalScores
from sinkscope.trace.query_classes import query_classes

KINDS = "all, masked, decided, prompt, two random classes"
BLOCK_KINDS = f"active, {KINDS}"
"""The classes of queries under `by_query`, by the name that the forward's context knows them by."""


class StepRecorder:
    """Records the attention of one group of rows, forward by forward.

    Args:
        rows: places of the group's rows in the batch. offset: their first column in the frame.
        first, last: columns of the answer within the group; last None: to the end of the sequence.

    Attributes:
        arrays: variable → [B, layer, …]: what the latest step has recorded. repeated: the next one overwrites it.
        between: name, first query, received [B, layer, …] of each forward that is no step.
    """

    PASSING = (
        "arrays", "repeated", "between", "_forwards", "_request", "_real", "_queries", "_recorded", "_whole", "_ungated",
        "_gates",
    )  # fmt: skip
    """What no repeated forward reads (see `gpu.state`)."""

    def __init__(
        self, frame: Frame, capture: Capture, rows: list[int], offset: int, first: int, last: int | None = None
    ) -> None:
        self.frame, self.capture, self.rows, self.offset = frame, capture, rows, offset
        self.first, self.last = first, last
        self.arrays: Recorded = {}
        self.repeated = False
        self.between: list[tuple[str, int, Tensor]] = []
        self._forwards, self._active = 0, True
        self._request: Request | None = None
        self._real: Tensor | None = None
        self._queries = ALL
        self._recorded: dict[str, list[Tensor]] = {}  # layer by layer, each [B, …]
        self._whole: Recorded = {}  # all layers at once, [B, layer, …]
        self._sums: CausalScores | BlockScores | None = None
        if frame.causal:
            self._sums = CausalScores(frame.columns - offset, capture.by_query)
        elif frame.block is not None:
            self._sums = BlockScores(len(rows))
        self._ungated: AttentionCall | None = None  # whose gated output comes next
        self._gates: dict[int, Tensor] = {}
        self._residual = Residual(len(rows), frame.causal) if capture.anatomy else None

    # ---- a forward, from beginning to end

    @property
    def windows(self) -> list[int]:
        """Keys that a query of each recorded layer of a causal model sees at most; 0: all up to itself."""
        return self._sums.distant.windows if isinstance(self._sums, CausalScores) else []

    def replay_key(self, request: Request, masked: bool) -> Hashable | None:
        """Whether this forward is recorded; None: its recording looks at values, or differs between places or steps.

        Args:
            masked: a policy acts, and keeps the scores of one kind of step.
        """
        capture = self.capture
        placed = request.active is not None and request.stored  # which queries are drawn depends on the place
        looks = capture.anatomy or capture.level == "maps" or (capture.by_query and placed)
        # Sums over all queries so far, of a causal model, have to get each of them.
        if looks or ((masked or self.frame.causal) and capture.every != 1):
            return None
        return request.step and self._active

    def next_forward(self) -> None:
        """Count a step: every so many of them are recorded."""
        self._active = self._forwards % self.capture.every == 0
        self._forwards += 1

    @property
    def _step(self) -> bool:
        """Whether the forward is a step that is recorded."""
        return self._active and self._request is not None and self._request.step

    @property
    def _wanted(self) -> bool:
        """Whether this forward is recorded; what is put into a cache always is, because later steps go on from it."""
        return self._active or (self._request is not None and self._request.kind in ("prefill", "store"))

    def begin(self, request: Request, real: Tensor | None, mask_id: int | None) -> Mapping[str, Tensor]:
        """Prepare for a forward; the classes of queries that are wanted besides those that every context knows.

        Args:
            real: Bool [B, K] or None: padding of the conditional rows.
        """
        self._recorded, self._whole = {}, {}
        self._request, self._real = request, real
        if self._sums is not None:  # a capture that failed in the middle of a forward leaves layers behind
            self._sums.begin()
        loop = request.active is not None
        if self.frame.causal or not self.capture.by_query:
            self._queries = ACTIVE_AND_ALL if loop else ALL
            return {}
        self._queries = BLOCK_KINDS if loop else KINDS
        return {self._queries: query_classes(request, mask_id, self.first, self.last)}

    def reads(self, layer: int) -> tuple[str, ...]:
        """The classes of queries that are recorded; those of causal models come by another way."""
        recorded = self._wanted and layer in self.frame.layers and not self.frame.causal
        return (self._queries,) if recorded else ()

    def record(self, call: AttentionCall) -> None:
        """Compute from one attention call what the capture asks for."""
        if call.layer not in self.frame.layers:
            return
        if self._sums is not None:
            if self._wanted or self.frame.causal:
                self._sums.take(call, self._queries)
        elif self._active:
            self._bidirectional(call)
        if not self._step:
            return
        rows = len(self.rows)
        if self.frame.learned:
            nothing = torch.full_like(call.output[..., 0], float("nan"), dtype=torch.float32)
            absorbed = nothing if call.absorbed is None else call.absorbed  # of a layer without a learned sink
            self._keep_shares("learned_sink", self._over_queries(call, absorbed))
        if self.frame.gated:
            self._ungated = call
        if self.capture.level == "maps":
            self._keep("attention", self._heads(call.map()[:rows]))
        if self.capture.anatomy:
            # A layer with fewer of them has each for more query heads.
            times = self.frame.kv_heads // call.key.shape[1]
            for name, vectors in (("value_norm", call.value), ("key_norm", call.key)):
                self._keep(name, vectors[:rows].float().norm(dim=-1).repeat_interleave(times, 1))

    def gated(self, layer: int, taken: Tensor) -> None:
        """What the module behind a layer's attention takes, Float [B, Q, H · E]: attention's output times its gate."""
        call, self._ungated = self._ungated, None
        if call is None or call.layer != layer:
            return
        # Where the call was measured: what the weights of its queries are was computed there, and may not be done yet.
        with call.context.measuring((call, taken)):
            output = call.output.transpose(1, 2).float()  # [B, Q, H, E]
            gate = taken.reshape(output.shape).float() / output
            self._gates[layer] = self._over_queries(call, gate.nanmean(-1).transpose(1, 2))

    def _over_queries(self, call: AttentionCall, values: Tensor) -> Tensor:
        """Values Float [B, H, Q] of the newest query, or the mean over the queries whose attention is `received`: [b, H]."""
        values = values[: len(self.rows)]
        if self.frame.causal:
            return values[..., -1]
        weights = call.expected(self._queries).weights[: len(self.rows), None, 0]
        return (values * weights).sum(-1) / weights.sum(-1)

    def _keep_shares(self, name: str, shares: Tensor) -> None:
        """Keep one number of each head, Float [B, H]."""
        self._keep(name, shares.nanmean(1) if self.capture.level == "layers" else self._heads(shares))

    def end(self, account: StepAccount | None) -> Recorded:
        """Finish a forward; account: what the policy did in it. Variable → [B, layer, …]."""
        layers = self.capture.level == "layers"
        arrays: Recorded = {}
        if self._sums is not None and self._request is not None:
            arrays = self._sums.settle(self._request, self._active)
            if layers and "received" in arrays:
                self._whole["sink_heads"] = self._sums.sink_heads(arrays["received"], self._request.active or 0)
        for name, scores in arrays.items():  # as they are: nothing is copied
            self._whole[name] = self._reduced(scores, 2)
        if self._gates:
            nothing = torch.full_like(next(iter(self._gates.values())), float("nan"))
            for layer in self.frame.layers:
                self._keep_shares("gate", self._gates.get(layer, nothing))
            self._gates = {}
        if account is not None and self._step:
            self._policy(account)
        self._request = None
        return {**self._whole, **{name: _stacked(layers) for name, layers in self._recorded.items()}}

    def adopt(self, arrays: Recorded, request: Request, repeated: bool = False) -> None:
        """Take what a forward has recorded; repeated: by a CUDA graph, whose next repetition writes to the same place."""
        if request.step:
            self.arrays, self.repeated = arrays, repeated
            return
        for name, received in arrays.items():
            # A GPU goes on meanwhile: who reads them waits for it.
            copy = received[..., : request.queries.stop].to("cpu", non_blocking=True)
            self.between.append((name, request.queries.start, copy))

    # ---- attention

    def _bidirectional(self, call: AttentionCall) -> None:
        received = call.received(self._queries)
        if call.context.placed is not None:
            received = call.context.placed.spread(call.layer, received, call.context.real)
        rows = len(self.rows)
        self._keep_scores("received", received[:rows, :, 0])
        if self.capture.level == "layers":
            self._keep("sink_heads", sink_heads(received[:rows, :, 0], call.visibility))
        if len(received) > rows:
            self._keep_scores("received_uncond", received[rows:, :, 0])
        if self.capture.by_query:
            self._keep_scores("received_by", received[:rows, :, 1:])

    def _policy(self, account: StepAccount) -> None:
        """What the policy did in the recorded layers."""
        for layer in self.frame.layers:
            index = account.layers.index(layer)
            raw = account.raw[index]
            self._keep_scores("received_raw", raw)
            shares = account.share, account.hit, account.strongest, account.sink_removed
            for name, share in zip(MASK, shares, strict=True):
                self._keep_shares(name, share[index])
            if self.capture.level != "layers":
                keys = account.keys.get(layer)
                masked = torch.zeros_like(raw, dtype=torch.bool) if keys is None else keys.expand_as(raw)
                self._keep("masked_keys", _packed(self._heads(masked), self.offset, self.frame.columns))

    def residual(self, layer: int, hidden: Tensor) -> None:
        """Norms and largest activations of the residual stream [B·branches, Q, width] entering a layer."""
        recorded = layer in self.frame.layers and (self._wanted or self.frame.causal)
        if not recorded or self._request is None or self._residual is None:
            return
        measured = self._residual.measure(layer, hidden, self._real, self._request)
        for name, values in measured.items() if self._step else ():
            self._keep(name, values)

    # ---- keeping

    def _keep_scores(self, name: str, scores: Tensor) -> None:
        self._keep(name, self._reduced(scores))

    def _reduced(self, scores: Tensor, axis: int = 1) -> Tensor:
        """The mean over heads, or the recorded ones of them."""
        return scores.mean(axis) if self.capture.level == "layers" else self._heads(scores, axis)

    def _heads(self, scores: Tensor, axis: int = 1) -> Tensor:
        if len(self.frame.heads) == scores.shape[axis]:
            return scores
        # By single slices: a list of indices would be copied to the GPU, which a captured step cannot do.
        return torch.stack([scores.select(axis, head) for head in self.frame.heads], axis)

    def _keep(self, name: str, value: Tensor) -> None:
        self._recorded.setdefault(name, []).append(value)


def _stacked(layers: list[Tensor]) -> Tensor:
    """Layers along a second axis: [B, …] each → [B, layer, …].

    On a CPU by numpy: torch's large aligned blocks left the heap in pieces, and a long recording then took three times the
    memory.
    """
    if layers[0].is_cuda:
        return torch.stack(layers, 1)
    return torch.from_numpy(np.stack([layer.numpy() for layer in layers], 1))


def _packed(keys: Tensor, offset: int, columns: int) -> Tensor:
    """Uint8 [..., bytes]: keys Bool [..., K], whose first stands at `offset` of the frame, one bit each, the highest first."""
    after = -columns % 8 + columns - offset - keys.shape[-1]
    bits = torch.nn.functional.pad(keys, (offset, after)).view(*keys.shape[:-1], -1, 8)
    values = 1 << torch.arange(7, -1, -1, device=keys.device)
    packed: Tensor = (bits * values).sum(-1).to(torch.uint8)
    return packed
