"""The model as a generation loop sees it: forward passes under a policy and a recorder, and one `Step` to yield per pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from sinkscope.attention.aside import Aside
from sinkscope.attention.context import ForwardContext
from sinkscope.decoding.graphs import Forward, Graphs, Recorded
from sinkscope.decoding.question import Question
from sinkscope.decoding.step import BlockPass, ForwardRecorder, Prompts, Step
from sinkscope.models.model import Model
from sinkscope.models.static_cache import StaticBlockCache, StaticCache, prefilled
from sinkscope.policies.runtime import PolicyRuntime, StepAccount
from sinkscope.reuse.causal import CausalReuseRuntime
from sinkscope.reuse.rule import Wanted
from sinkscope.reuse.runtime import ReuseRuntime
from sinkscope.reuse.shadow import Shadow

T = TypeVar("T")
FEW = 4096
"""Positions of a forward, at most, whose kernels leave room for others on a GPU."""


class Engine:
    """The model for one group of rows of equal layout.

    Attributes:
        real: Bool [B, S]: padding of the whole sequence, or None.
        policy: the policy while it runs, or None. recorder: what records, or None.
        reuse: the reuse rule while it runs, or None: every forward is computed in full.
        shadow: what computes exact forwards beside approximate ones, or None.
        everything: confidence and candidates are wanted for all masked positions, not only the selectable ones.
        cached: whether a block loop keeps finished blocks in a KV cache.
        prompts: what the loop may want to know of the whole batch.
        forwards: forward passes so far, one number for all rows or one each (a guided step counts two).
        account: what the policy did in the last forward.
    """

    def __init__(
        self,
        model: Model,
        real: Tensor | None = None,
        policy: PolicyRuntime | None = None,
        recorder: ForwardRecorder | None = None,
        everything: bool = False,
        cached: bool = False,
        prompts: Prompts | None = None,
        reuse: ReuseRuntime | CausalReuseRuntime | None = None,
        shadow: Shadow | None = None,
    ) -> None:
        self.model, self.real, self.policy, self.recorder = model, real, policy, recorder
        self.everything, self.cached = everything, cached
        self.prompts = prompts or Prompts()
        self.reuse, self.shadow = reuse, shadow
        self.forwards: int | Tensor = 0
        self.account: StepAccount | None = None
        self._padding = (
            0 if real is None else int((~real).sum(1).max())
        )  # looked at once: it stands on the left and stays
        self._graphs: Graphs | None = None
        self._aside: Aside | None = None  # of a step that is being captured; `_end` joins it
        self._columns: int | None = None  # of the block loop's forwards that are captured
        self._tokens: Tensor | None = None  # Long [B, S]: what is written so far, beside a static cache

    @property
    def mask_id(self) -> int:
        """The mask token; generation loops of masked models are only reached when there is one."""
        if self.model.ids.mask is None:
            raise RuntimeError("a masked loop was given a model without a mask token")
        return self.model.ids.mask

    def hidden(self, x: Tensor, alive: Tensor | None = None, wanted: Wanted | None = None) -> Tensor:
        """Last hidden states [B, S, width] of the state x; they may be overwritten by the next call.

        Args:
            alive: Bool [B]: rows that have not ended; None: all. The others run along and count for nothing.
            wanted: what the loop needs, so that a reuse rule can act; None: everything.
        """
        recorded = self._count(1, alive)
        if isinstance(self.reuse, ReuseRuntime) and wanted is not None:
            hidden = self.reuse.hidden(x, wanted, partial(self._reusing, recorded), alive)
            if self.shadow is not None:
                exact = self.model.hidden(x, self.model.context(self.real))
                before, found = (self.model.head(states[wanted.read]) for states in (exact, hidden))
                self.shadow.compare(before, found, wanted.read, alive)
            return hidden
        if self.reuse is not None or not self._replayable or not graphs_wanted(x.device):
            return self._forward(x)[0]
        if self._graphs is None:
            # A policy masks nothing in the first step, so its kernels are only met in the second.
            self._graphs = self._new_graphs(warm_ups=1 if self.policy is None else 2)
        return self._replayed(x, (recorded, alive is None), self._forward)

    def _reusing(
        self,
        recorded: bool,
        forward: Callable[[Tensor, ForwardContext], Tensor],
        x: Tensor,
        kind: Hashable | None,
    ) -> Tensor:
        """Runs a forward of the reuse rule; one that has a kind is captured, and replayed whenever that kind comes again."""

        def step(x: Tensor, captured: bool = False) -> tuple[Tensor, Recorded]:
            return forward(x, self._context(x, self.real, 1)), self._end(captured=captured)

        if kind is None or not self._replayable or not graphs_wanted(x.device):
            return step(x)[0]
        if self._graphs is None:
            self._graphs = self._new_graphs()
        return self._replayed(x, (recorded, kind), step)

    def _replayed(
        self,
        x: Tensor,
        kind: Hashable,
        forward: Forward,
        block_pass: BlockPass | None = None,
    ) -> Tensor:
        """A forward that graphs repeat, once it was captured."""
        if self._graphs is None:
            raise RuntimeError("there is no forward to repeat yet")

        def joined(x: Tensor, captured: bool) -> tuple[Tensor, Recorded]:
            try:
                return forward(x, captured)
            except BaseException:
                if captured and self._aside is not None:
                    # Else the capture would end in an error about the second stream, which hides this one.
                    with suppress(RuntimeError):
                        self._aside.join()
                raise

        output, arrays, repeated = self._graphs.run(x, kind, joined)
        if self.recorder is not None and repeated:
            self.recorder.adopt(arrays, block_pass, repeated=True)
        return output

    def _new_graphs(self, warm_ups: int = 1) -> Graphs:
        rules = () if self.policy is None else self.policy.rules
        circumstances = (
            f"{[str(rule) for rule in rules]}, {self.recorder is not None}, {self.reuse is not None}"
        )
        return Graphs(self.model.network, circumstances, self._remember, warm_ups)

    def _remember(self) -> Callable[[], None]:
        """A function that puts the policy back, after a capture that failed."""
        return (lambda: None) if self.policy is None else self.policy.remember()

    def release(self) -> None:
        """Give captured forwards back; a later forward starts anew."""
        self._graphs = None

    @property
    def _replayable(self) -> bool:
        """Whether a graph can repeat the forward: a policy needs one kind of step, because each kind has its own memory."""
        recorder, policy = self.recorder, self.policy
        if policy is not None and (not policy.replayable or not (recorder is None or recorder.steady)):
            return False
        return recorder is None or recorder.replayable

    def _forward(self, x: Tensor, captured: bool = False) -> tuple[Tensor, Recorded]:
        hidden = self.model.hidden(x, self._context(x, self.real, 1, captured=captured))
        recorded = self._end(captured=captured)
        self._carry()
        return hidden, recorded

    def _carry(self) -> None:
        """Where steps are repeated, leave the policy's scores where the next one looks for them."""
        if self.policy is not None and self._graphs is not None:
            self.policy.carry()

    def _end(self, block_pass: BlockPass | None = None, captured: bool = False) -> Recorded:
        """Finish a forward: the policy's account first, which the recorder keeps too.

        Args:
            captured: nothing was computed yet; what a graph records is taken when it is repeated.
        """
        if self._aside is not None:
            self._aside.join()
        self.account = None if self.policy is None else self.policy.end()
        if self.recorder is None:
            return {}
        recorded = self.recorder.end(self.account)
        if not captured:
            self.recorder.adopt(recorded, block_pass)
        return recorded

    def guided(
        self, x: Tensor, unconditional: Tensor, real: Tensor | None, alive: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Hidden states of a state and of its unconditional twin, from one forward of twice the batch.

        Args:
            real: Bool [B, S]: the twin's own padding.
        """
        self._count(2, alive)
        both = None
        if self.real is not None or real is not None:
            full = torch.ones_like(x, dtype=torch.bool)
            both = torch.cat([full if self.real is None else self.real, full if real is None else real])
        hidden = self.model.hidden(torch.cat([x, unconditional]), self._context(x, both, 2))
        self._end()
        conditional, twin = hidden.chunk(2)
        return conditional, twin

    def new_cache(self) -> DecodeCache:
        """An empty KV cache for the steps of a causal model."""
        return DecodeCache()

    def next_logits(
        self, state: Tensor, written: int, fed: int, cache: DecodeCache, alive: Tensor | None = None
    ) -> Tensor:
        """Logits [B, V] behind the last written token of a causal model; `fed` tokens are already in the cache."""
        recorded = self._count(1, alive)
        if cache.static is not None:
            return self._next_static(state, written, cache.static, cache.prompt, (recorded, alive is None))
        so_far = state[:, :written]
        real = None if self.real is None else self.real[:, :written]
        if fed == 0 and self.policy is not None and self.policy.reads_first:
            self.policy.begin(1, tokens=so_far, reading=True)
            self.model.forward(so_far, self.model.context(real, policy=self.policy), keep=1)
            self.policy.end()
            self.forwards = self.forwards + (1 if alive is None else alive.long())
        context = self._context(so_far, real, 1, prefill=fed == 0)
        if isinstance(self.reuse, CausalReuseRuntime):
            context = self.reuse.begin(context, len(so_far), written, fed, alive)
        logits = self.model.forward(so_far[:, fed:], context, keep=1, cache=cache.dynamic)
        self._end()
        if self.shadow is not None:
            exact = self.model.forward(
                so_far[:, fed:], self.model.context(real), keep=1, cache=self.shadow.cache
            )
            read = torch.ones_like(so_far[:, :1], dtype=torch.bool)
            self.shadow.compare(exact[:, -1], logits[:, -1], read, alive)
        if self.reuse is not None:
            return logits[:, -1]
        steady = self.recorder is None or (self.recorder.replayable and self.recorder.steady)
        windowed = self.policy is not None and self.policy.windowed  # a window asks where the query stands
        if fed == 0 and steady and not windowed and self.model.decodes_statically(state):
            cache.make_static(state.shape[1], self.real)
            self._tokens = state.clone()
        return logits[:, -1]

    def _next_static(
        self, state: Tensor, written: int, cache: StaticCache, prompt: int, kind: Hashable
    ) -> Tensor:
        inputs = torch.cat([state[:, written - 1], state.new_full((1,), written - 1)])

        def step(x: Tensor, captured: bool = False) -> tuple[Tensor, Recorded]:
            if self._tokens is not None:  # in memory that stays: a captured step writes the newest one there
                self._tokens.index_copy_(1, x[-1:], x[:-1, None])
            logits = self.model.decode(
                x,
                cache,
                lambda visible: self._context(
                    visible, visible, 1, prompt, captured=captured, tokens=self._tokens
                ),
            )
            recorded = self._end(captured=captured)
            self._carry()
            return logits, recorded

        replayable = self.policy is None or self.policy.replayable
        if not replayable or not graphs_wanted(state.device):
            return step(inputs)[0]
        if self._graphs is None:
            # The first step pads what the prefill has left; from the second on all shapes stay.
            self._graphs = self._new_graphs(warm_ups=2)
        return self._replayed(inputs, kind, step)

    def block_hidden(
        self, x: Tensor, block_pass: BlockPass, cache: Any = None, alive: Tensor | None = None
    ) -> Tensor:
        """Last hidden states [B, Q, width] of the queries of a block loop's forward.

        Args:
            x: Long [B, S]: the state up to the last key, −1 in rows that have ended before. cache: from `blocks`, or None.
        """
        recorded = self._count(1, alive, block_pass.step)
        real = None if self.real is None else self.real[:, : x.shape[1]]

        def step(x: Tensor, captured: bool = False) -> tuple[Tensor, Recorded]:
            context = self._context(x, real, 1, block_pass=block_pass, captured=captured)
            hidden = self.model.hidden(x[:, block_pass.queries].clamp(min=0), context, cache)
            recorded = self._end(block_pass, captured)
            if block_pass.step:
                self._carry()
            return hidden, recorded

        # Without a cache the steps of one block are alike, and many; with one, see `block_repeated`.
        if (
            cache is not None
            or block_pass.kind != "denoise"
            or not self._replayable
            or not graphs_wanted(x.device)
        ):
            return step(x)[0]
        if self._graphs is None:
            self._graphs = self._new_graphs(warm_ups=1 if self.policy is None else 2)
        if self._columns != x.shape[1]:
            self._graphs.forget()
        self._columns = x.shape[1]
        return self._replayed(x, (recorded, block_pass.active), step, block_pass)

    def repeats_blocks(self, device: torch.device) -> bool:
        """Whether the forwards of a block loop run on a cache of fixed size, so that CUDA graphs can repeat them."""
        steady = self.recorder is None or self.recorder.replays_blocks
        return self.real is None and steady and self._replayable and graphs_wanted(device)

    def block_repeated(
        self, x: Tensor, end: int, block_pass: BlockPass, cache: StaticBlockCache, alive: Tensor | None = None
    ) -> Tensor:
        """`block_hidden` on a cache of fixed size, for queries that see every key before column `end`.

        Args:
            x: Long [B, S]: the whole state. They may be overwritten by the next call: the hidden states [B, Q, width].
        """
        recorded = self._count(1, alive, block_pass.step)
        shape, queries = x.shape, block_pass.queries
        # Filled in on the device: a copy from the host would wait for it.
        inputs = torch.cat([x.flatten(), *(x.new_full((1,), place) for place in (queries.start, end))])

        def step(inputs: Tensor, captured: bool = False) -> tuple[Tensor, Recorded]:
            state, places = inputs[:-2].view(shape), inputs[-2:]
            columns = torch.arange(queries.stop - queries.start, device=x.device) + places[0]
            visible = (torch.arange(shape[1], device=x.device) < places[1])[None].expand(shape)
            # Later blocks have more keys, so that what is known of this one's number holds for them.
            ids = state.index_select(1, columns)
            context = self._context(
                state,
                visible,
                1,
                written=end,
                block_pass=block_pass,
                captured=captured,
                tokens=state,
                fed=ids,
            )
            cache.columns = columns
            ids = state.index_select(1, columns).clamp(min=0)
            hidden = self.model.hidden(ids, context, cache, columns[None])
            recorded = self._end(block_pass, captured)
            if block_pass.step:
                self._carry()
            return hidden, recorded

        if self._graphs is None:
            # The first forward pads what the prompt has left; a policy's kernels are met in the second.
            self._graphs = self._new_graphs(warm_ups=2)
        kind = (recorded, block_pass.kind, queries.stop - queries.start, block_pass.step)
        return self._replayed(inputs, kind, step, block_pass)

    def idle_step(self, x: Tensor, alive: Tensor) -> Step:
        """A step in which nothing is decided: no forward runs."""
        if self.recorder is not None:
            self.recorder.next_forward()
        nothing = torch.zeros_like(x, dtype=torch.bool)
        confidence = torch.full(x.shape, float("nan"), device=x.device)
        ties = torch.zeros(len(x), dtype=torch.long)
        return Step(
            x, x, x == self.mask_id, confidence, torch.full_like(x, -1), nothing, ties, alive, idle=True
        )

    def _context(
        self,
        x: Tensor,
        real: Tensor | None,
        branches: int,
        written: int | None = None,
        block_pass: BlockPass | None = None,
        captured: bool = False,
        prefill: bool = False,
        tokens: Tensor | None = None,
        fed: Tensor | None = None,
    ) -> ForwardContext:
        """What is wanted of the forward of state x [B, S]: built before it, for both branches of a guided one.

        Args:
            written: keys lie in a cache of fixed size, of which at least so many columns are written; x is then the state, or the
                visible columns, Bool [B, S].
            captured: as a graph, in which measuring can run beside the layers; launched one by one, kernels wait for the host.
            prefill: the prompt is read into the cache. tokens: Long [B, S]: what is written so far, where x does not say.
            fed: Long [B, Q]: the queries' tokens, where x does not say.
        """
        active = None if block_pass is None else block_pass.active
        observed = self.policy is not None or self.recorder is not None
        few = written is not None or x.numel() <= FEW
        self._aside = Aside(x.device) if captured and observed and few and beside_wanted(x.device) else None
        if self.policy is not None:
            least = (x.shape[1] if written is None else written) - self._padding
            fed = (x if block_pass is None else x[:, block_pass.queries]) if fed is None else fed
            masked = None if self.model.ids.mask is None else fed == self.model.ids.mask
            self.policy.begin(
                branches,
                least,
                active,
                block_pass is None or block_pass.step,
                tokens=x if tokens is None and written is None else tokens,
                masked=masked,
                scored=masked if masked is None or not self.model.spec.shifted else _before(masked),
                prefill=prefill or (block_pass is not None and block_pass.kind == "prefill"),
            )
        queries: Mapping[str, Tensor] = {}
        if self.recorder is not None:
            mask_id = self.model.ids.mask
            masked = (
                torch.zeros_like(x, dtype=torch.bool)
                if mask_id is None or written is not None
                else x == mask_id
            )
            own = None if real is None else real[: len(x)]
            queries = self.recorder.begin(own, masked, branches, block_pass)
        return self.model.context(
            real,
            policy=self.policy,
            recorder=self.recorder,
            queries=queries,
            newest=written is not None,
            block="model" if block_pass is None else block_pass.block,
            active=active,
            aside=self._aside,
        )

    def _count(self, passes: int, alive: Tensor | None, step: bool = True) -> bool:
        """Count a forward; whether it is recorded. One that is no step of the loop is counted as a forward only."""
        self.forwards = self.forwards + (passes if alive is None else passes * alive.long())
        if self.policy is not None:
            self.policy.set_alive(alive)
        return step and self.recorder is not None and self.recorder.next_forward()


def _before(masked: Tensor) -> Tensor:
    """Bool [B, Q]: the queries that predict the masked positions of a shifted model: those before them (position 0: itself)."""
    before = torch.nn.functional.pad(masked[:, 1:], (0, 1))
    return before | (masked & (torch.arange(masked.shape[1], device=masked.device) == 0))


class DecodeCache:
    """Keys and values of a causal model: transformers' growing cache, and once the prompt is in it, a static one where that runs.

    The growing cache has full length for every layer: columns must mean the same key in all of them, sliding windows included.
    """

    def __init__(self) -> None:
        from transformers import DynamicCache

        self.dynamic: Any = DynamicCache()
        self.static: StaticCache | None = None
        self.prompt = 0

    def make_static(self, columns: int, real: Tensor | None) -> None:
        """Go on with `columns` columns in fixed memory; the growing cache is let go."""
        layers = prefilled(self.dynamic)
        self.prompt = layers[0][0].shape[2]
        self.static, self.dynamic = StaticCache(layers, columns, real), None


def asked(ask: Callable[[], T], device: torch.device) -> Callable[[], T]:
    """A function that gives ask(), which looks at tensors that are there now and waits for its result.

    On a GPU it does not wait for what is launched until it is called (see `Question`).
    """
    return Question(ask, device).answer if device.type == "cuda" else ask


def select(confidence: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
    """The positions of highest confidence in each row, and how many of them had an equal rival.

    Rows that decide equally many are looked at together; a row's choice does not depend on that.

    Args:
        confidence: Float [B, S], −inf where nothing can be chosen.
        counts: how many each row chooses.

    Returns:
        Bool [B, S], and Long [B]: chosen positions with the same confidence as one that was not chosen.
    """
    chosen = torch.zeros_like(confidence, dtype=torch.bool)
    for count in sorted(set(counts) - {0}):
        if counts.count(count) == len(counts):
            chosen.scatter_(1, torch.topk(confidence, count).indices, True)
        else:
            rows = torch.tensor([row for row, own in enumerate(counts) if own == count], device=chosen.device)
            columns = torch.topk(confidence[rows], count).indices
            chosen[rows[:, None], columns] = True
    # Nothing that was left can beat what was chosen from the top, so only the largest of the rest can tie.
    rest = confidence.masked_fill(chosen, float("-inf")).amax(-1, keepdim=True)
    tied = chosen & (confidence == rest) & (rest > float("-inf"))
    return chosen, tied.sum(-1)


def marked(positions: list[Tensor], like: Tensor) -> Tensor:
    """Bool [B, S]: True at the positions Long [count] of each row."""
    chosen = torch.zeros_like(like, dtype=torch.bool)
    for row, columns in enumerate(positions):
        chosen[row, columns] = True
    return chosen


def graphs_wanted(device: torch.device) -> bool:
    """Whether forwards on this device are to be captured."""
    return device.type == "cuda" and os.environ.get("SINKSCOPE_GRAPHS", "1") != "0"


def beside_wanted(device: torch.device) -> bool:
    """Whether what is measured in a captured step runs on a stream of its own; SINKSCOPE_BESIDE=0 switches it off."""
    return device.type == "cuda" and os.environ.get("SINKSCOPE_BESIDE", "1") != "0"
