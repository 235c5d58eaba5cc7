"""The state of a reuse rule between two forwards, in memory that stays where it is; and how the keys that stay are chosen."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from sinkscope.attention.context import ALL, AttentionCall, CallEditor, KeyMasker
from sinkscope.policies.numbers import priorities
from sinkscope.reuse.rule import Candidates, Reuse

BLOCK = "block queries"
"""The class of queries whose attention chooses keys: those of the current block."""

PADDED = 32
"""Where their number varies, active columns are filled up to a multiple of this on a GPU: few graphs then serve all numbers."""


@dataclass
class Clock:
    """Where the loop is: steps since the last refresh, which counts 1; how many there were; the first column of the block."""

    PASSING = ("age", "refreshes", "start")  # what no repeated forward reads (see `gpu.state`)

    age: int = 0
    refreshes: int = 0
    start: int | None = None


class Columns(CallEditor):
    """Keys and values of every layer of one group of rows, and where they are seen the residual streams before the layers.

    A full forward leaves its keys and values here. A partial one brings those of its active columns, and attends over what
    `inputs` hands back: everything, or, once `gather` was called for the layers, the gathered keys and the active ones.

    Attributes:
        active: Long [B, A]: the columns of a partial forward; None: the forward, or what is left of it, is of all columns.
        moved: how often keys and values got another place in memory, because their shape was another.
    """

    PASSING = ("active",)  # what no repeated forward reads (see `gpu.state`)

    def __init__(self, whole: bool) -> None:
        self.active: Tensor | None = None
        self.moved = 0
        self._whole = whole
        self._stored: dict[int, tuple[Tensor, Tensor]] = {}
        self._streams: dict[int, Tensor] = {}

    def inputs(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keep a full forward's keys and values [B, G, S, D]; add a partial one's [B, G, A, D] to what is kept."""
        if self.active is None:
            if self._whole:
                self._stored[layer] = self._into(layer, key.shape, key, value)
            return key, value
        stored = self._stored[layer]
        for store, fresh in zip(stored, (key, value), strict=True):
            if self._whole:
                index = self.active[:, None, :, None].expand(fresh.shape)
                store.scatter_(2, index, fresh)
            else:
                store[:, :, -fresh.shape[2] :] = fresh
        return stored

    def gather(self, layer: int, key: Tensor, value: Tensor, columns: Tensor, active: int) -> None:
        """Keep the keys and values of some columns, Long [B, k], with room for the active ones behind them."""
        index = columns[:, None, :, None]
        picked = [one.gather(2, index.expand(-1, one.shape[1], -1, one.shape[3])) for one in (key, value)]
        shape = (*key.shape[:2], columns.shape[1] + active, key.shape[3])
        self._stored[layer] = self._into(layer, torch.Size(shape), *picked)

    def keys_at(self, layer: int, columns: Tensor) -> Tensor:
        """The keys of one column of each row, Long [B]: Float [B, G · D]; where all columns are kept."""
        keys = self._stored[layer][0]
        rows = torch.arange(len(columns), device=columns.device)
        return keys[rows, :, columns].flatten(1)

    def see(self, layer: int, stream: Tensor) -> None:
        """Keep the stream that enters a layer: Float [B, S, width], or [B, A, width] of the active columns.

        Refreshes alone bring it: the columns of a partial forward stay active until the next one, which computes them again.
        """
        if self.active is None:
            self._streams[layer] = stream
        else:
            self._streams[layer].scatter_(1, self.active[..., None].expand(stream.shape), stream)

    def entering(self, layer: int) -> Tensor:
        """Float [B, S, width]: the stream before a layer, each column as it was last computed."""
        return self._streams[layer]

    def _into(self, layer: int, shape: torch.Size, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Copies in the first columns of memory that stays where it is while its shape does: a CUDA graph reads it there."""
        stored = self._stored.get(layer)
        if stored is None or stored[0].shape != shape:
            stored = (key.new_zeros(shape), value.new_zeros((*shape[:3], value.shape[3])))
            self.moved += 1
        for store, fresh in zip(stored, (key, value), strict=True):
            store[:, :, : fresh.shape[2]] = fresh
        return stored


class Memory:
    """Tensors by name, one place for each shape: a captured forward reads and writes the same places in every replay."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, torch.Size], Tensor] = {}

    def put(self, name: str, value: Tensor) -> Tensor:
        """The place of this name and shape, with the value copied into it."""
        buffer = self._places.get((name, value.shape))
        if buffer is None:
            buffer = self._places[name, value.shape] = torch.empty(value.shape, dtype=value.dtype, device=value.device)
        return buffer.copy_(value)


@dataclass
class Active:
    """The columns that a partial forward computes.

    Attributes:
        columns: Bool [B, S]. index: Long [B, A]: the same; a row with fewer than A repeats its last one.
        once: Float [B, A]: 0 for queries that repeat another.
    """

    columns: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    index: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    once: Tensor = field(default_factory=lambda: torch.empty(0))

    def choose(self, columns: Tensor, memory: Memory, fill: bool) -> None:
        """These columns, Bool [B, S], in memory that stays; fill: their number varies."""
        counts = columns.sum(1)
        most = max(1, int(counts.max()))
        if fill and fills_up(columns.device):
            most = min(-(-most // PADDED) * PADDED, columns.shape[1])
        order = first_of(columns, most)
        last = (counts - 1).clamp(min=0)[:, None]
        ranks = torch.arange(most, device=columns.device)[None]
        self.columns = columns
        self.index = memory.put("index", order.gather(1, ranks.minimum(last)))
        self.once = memory.put("once", (ranks < counts[:, None]).float())


@dataclass
class Seen:
    """The keys that partial forwards look at; of rules that select none, all that are real.

    Attributes:
        columns: layer → Long [B, K]: the column of each key that stays, the active ones behind. most: how many stay.
        real: Bool [B, K], or of all columns [B, S]: keys that there are; None: all. counts: Long [B]: how many; None: all.
    """

    real: Tensor | None = None
    counts: Tensor | None = None
    most: int | None = None
    columns: dict[int, Tensor] = field(default_factory=dict)


@dataclass
class Tracked:
    """The most attended key outside of the block, one of each layer.

    Attributes:
        columns: layer → Long [B]. keys: Float [layer, B, G · D]: as the layer's last refresh left them.
        top: Bool [B, S]: those of all layers in the last full forward. likeness: [layer or 1, B], of the last partial forward.
    """

    columns: dict[int, Tensor] = field(default_factory=dict)
    keys: Tensor = field(default_factory=lambda: torch.empty(0))
    top: Tensor | None = None
    likeness: Tensor | None = None

    def everywhere(self, like: Tensor) -> Tensor:
        """Bool [B, S]: their columns."""
        return torch.zeros_like(like).scatter(1, torch.stack(list(self.columns.values()), 1), True)

    def now(self, kept: Columns) -> Tensor:
        """Float [layer, B, G · D]: the keys as they are."""
        return torch.stack([kept.keys_at(layer, column) for layer, column in self.columns.items()])


@dataclass
class Choice(KeyMasker):
    """Stands in the place of a policy, and chooses keys as the attention calls of a forward come by.

    Attributes:
        row_keys: Long [B]: a number for each row, for random choices.
        candidates: Bool [B, S]: real keys that are not active. near: Float [B, S]: see Candidates.
        everything: Bool [B, S]: all real keys.
    """

    rule: Reuse
    row_keys: Tensor
    kept: Columns
    memory: Memory
    clock: Clock
    active: Active
    seen: Seen
    tracked: Tracked
    candidates: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    everything: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    near: Tensor = field(default_factory=lambda: torch.empty(0))

    def begin(self) -> None:
        """All columns are about to go through the layers, behind which the active ones are others."""
        self.seen.most = None
        self.candidates = self.everything & ~self.active.columns
        if self.rule.selects and "near" in self.rule.scores:
            columns = torch.arange(self.candidates.shape[1], device=self.candidates.device)
            gap = (columns[None, :, None] - self.active.index[:, None, :]).abs()
            self.near = -gap.amin(2).double()

    def reads(self, layer: int) -> tuple[str, ...]:
        """What is received from the block, and from all queries, where that is what the rule chooses by."""
        if self.rule.watches:
            return (BLOCK,)
        return tuple(name for name, score in ((BLOCK, "received"), (ALL, "sinks")) if score in self.rule.scores)

    def measure(self, call: AttentionCall) -> None:
        """Choose the keys of a layer that stay, or the one to track."""
        layer = call.layer
        if self.rule.watches:
            received = self._received(call, BLOCK).nan_to_num(float("-inf"))
            column = received.masked_fill(~self.candidates, float("-inf")).argmax(1)
            self.tracked.columns[layer] = self.memory.put(f"tracked {layer}", column)
            return
        nothing, scores, refresh = torch.empty(0), self.rule.scores, self.clock.refreshes
        candidates = Candidates(
            self.candidates,
            self._received(call, ALL) if "sinks" in scores else nothing,
            self._received(call, BLOCK) if "received" in scores else nothing,
            self.near,
            drawn(self.rule, self.row_keys, layer, refresh, self.everything) if "random" in scores else nothing,
            self.candidates.sum(1),
        )
        chosen = self.rule.choose(candidates)
        if self.seen.most is None:  # the host waits in the first layer only: all layers keep as many
            counts = chosen.sum(1)
            self.seen.most = int(counts.max())
            valid = torch.arange(self.seen.most, device=chosen.device) < counts[:, None]
            real = torch.cat([valid, self.active.once.bool()], 1)
            self.seen.real = None if bool(real.all()) else self.memory.put("seen", real)
            self.seen.counts = real.sum(1)
        columns = first_of(chosen, self.seen.most)
        self.seen.columns[layer] = self.memory.put(f"placed {layer}", torch.cat([columns, self.active.index], 1))
        self.kept.gather(layer, call.key, call.value, columns, self.active.index.shape[1])

    def _received(self, call: AttentionCall, queries: str) -> Tensor:
        """Float [B, S]: what a layer's keys received, mean over its heads."""
        return call.received(queries)[:, :, 0].mean(1)


def drawn(rule: Reuse, row_keys: Tensor, layer: int, refresh: int, real: Tensor) -> Tensor:
    """Float64 [B, S]: random numbers of a layer and a refresh; real: Bool [B, S]: columns are numbered from the first one."""
    steps = torch.full((len(real), 1), refresh, device=real.device)
    seed = int(getattr(rule, "seed", 0))
    return priorities(seed, row_keys, layer, 1, steps, (~real).sum(1), real.shape[1])[:, 0].double()


def first_of(chosen: Tensor, count: int) -> Tensor:
    """Long [B, count]: the chosen columns of Bool [B, S] in order, others where a row has fewer."""
    return (~chosen).to(torch.uint8).sort(dim=1, stable=True).indices[:, :count]


def fills_up(device: torch.device) -> bool:
    """Whether active columns are filled up to a multiple: on a GPU, where a forward of few columns costs what one of 32 does."""
    return device.type == "cuda"
