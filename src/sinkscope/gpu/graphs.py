"""CUDA graphs: a forward, launched as one piece, in this generation and in later ones of the same shape.

At small batches the Python that launches some thousand kernels takes longer than the kernels. A forward that stands twice where
it stood before (see `gpu.state`) is captured with what recorder and policy compute in it, and replayed from there on. What is
computed is the same, kernel for kernel; only the launching changes. When the generation is over its graphs are kept with the
network, as long as they do not hold too much memory, and serve the next one that comes to the same state.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sinkscope.gpu.stacked import likeness
from sinkscope.gpu.state import State, put, saved
from sinkscope.gpu.streams import on, stream_for

_log = logging.getLogger(__name__)

MOST, SHARE, TRIES, MET = 16, 16, 3, 256
"""Generations whose graphs are kept at most, and the part of a GPU's memory that graphs may hold: one of so many; kinds that fail
in the same circumstances before nothing is tried in them any more; kinds that are remembered without a graph."""


class Kind(NamedTuple):
    """What forwards have in common that do the same on the device.

    Attributes:
        circumstances: in which a forward can be captured or not. columns: of the state, where that grows from block to block.
    """

    circumstances: Hashable
    columns: int | None = None
    facts: Hashable = ()


@dataclass(frozen=True)
class Result:
    """What a forward gave: its output, variable → what was recorded, and the policy's account."""

    output: Tensor
    recorded: dict[str, Tensor]
    account: Any


Forward = Callable[[Tensor, bool], Result]
"""From the inputs, and whether it is being captured, to what the forward gave."""


@dataclass(frozen=True)
class Captured:
    """A graph with the memory that it reads and writes.

    Attributes:
        before: what it goes on from. after: what policy, recorder and cache held behind it.
        steady: that is the same: whatever fitted before it does so behind it. bytes: memory that the capture took.
    """

    replay: Callable[[], None]
    inputs: Tensor
    result: Result
    before: State
    after: list[dict[Any, Any]]
    steady: bool
    bytes: int


@dataclass
class Bundle:
    """The graphs of one generation, which share their memory, and what the network was like."""

    network: Hashable
    graphs: dict[Kind, Captured] = field(default_factory=dict)
    pool: Any = None  # memory of all its graphs, of which one runs at a time

    @property
    def bytes(self) -> int:
        """Memory that the captures took, and that of the states they go on from."""
        graphs = self.graphs.values()
        memory = {one.data_ptr(): one.nbytes() for graph in graphs for one in graph.before.memory}
        return sum(graph.bytes for graph in graphs) + sum(memory.values())


@dataclass
class Known:
    """What earlier generations left with a network.

    Attributes:
        bundles: graphs that no generation uses now, the latest last. Nothing in them holds the network.
        failed: kinds that could not be captured: each is tried once, because a failed try leaves memory behind.
        met: kinds that got no graph → the hash of the state in which the last forward of the kind stood.
    """

    bundles: list[Bundle] = field(default_factory=list)
    failed: set[Kind] = field(default_factory=set)
    met: dict[Kind, int] = field(default_factory=dict)


_KNOWN: WeakKeyDictionary[nn.Module, Known] = WeakKeyDictionary()


def drop_unused() -> None:
    """Let go of all graphs that no generation uses now: whoever is short of memory comes first."""
    for known in _KNOWN.values():
        known.bundles.clear()
    torch.cuda.empty_cache()


class Graphs:
    """The captured forwards of one group of rows, one of each kind (with recording, without)."""

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        self._network, self._device = network, device
        self._known = _KNOWN.setdefault(network, Known())
        if self._known.bundles and _is_short_of_memory(device):
            drop_unused()
        self._bundle: Bundle | None = None
        # Kinds whose graphs this generation uses, and of these the graphs in whose memory the state lies.
        self._bound: set[Kind] = set()
        self._ready: dict[Kind, Captured] = {}
        self._met: dict[Kind, int] = {}
        self._like: Hashable = None
        self._collected = self._full = False

    def run(self, x: Tensor, kind: Kind | None, forward: Forward, roots: Sequence[Any]) -> tuple[Result, bool]:
        """The forward of the inputs x, plain the first times, later replayed; and whether it was replayed.

        Args:
            kind: forwards of one kind are the same function of the inputs and the state of `roots`; None: of no kind.
            roots: the objects whose state a forward reads and changes.
        """
        graph = None if kind is None else self._ready.get(kind) or self._found(x, kind, forward, roots)
        if graph is None:
            self._ready.clear()
            return forward(x, False), False
        graph.inputs.copy_(x)
        with on(x.device):
            graph.replay()
        return graph.result, True

    def release(self) -> None:
        """Give the graphs back, for the next generation; none may be replayed any more."""
        bundle, known = self._bundle, self._known
        for kind in self._met:
            known.met.pop(kind, None)
        known.met |= {kind: stood for kind, stood in self._met.items() if kind not in self._bound}
        for kind in list(known.met)[:-MET]:
            del known.met[kind]
        self._bundle, self._bound, self._ready, self._met = None, set(), {}, {}
        if bundle is None or not bundle.graphs:
            return
        known.bundles.append(bundle)
        room = _room(self._device)
        while len(known.bundles) > MOST or (known.bundles and sum(one.bytes for one in known.bundles) > room):
            known.bundles.pop(0)

    def _found(self, x: Tensor, kind: Kind, forward: Forward, roots: Sequence[Any]) -> Captured | None:
        """A graph of this kind for the state as it is: of this generation, of an earlier one, or captured now."""
        failed = self._known.failed
        if kind in failed or sum(one.circumstances == kind.circumstances for one in failed) >= TRIES:
            return None
        state = State(roots)
        graph = self._fitting(kind, state, roots)
        if graph is None and self._stands_again(kind, state):
            graph = self._capture(x, kind, forward, state, roots)
        return graph

    def _fitting(self, kind: Kind, state: State, roots: Sequence[Any]) -> Captured | None:
        """A graph that was captured where this generation stands now, bound to it."""
        bundles = self._known.bundles[::-1] if self._bundle is None else [self._bundle]
        for bundle in [one for one in bundles if kind in one.graphs and one.network == self._network_like()]:
            graph = bundle.graphs[kind]
            if not state.equals(graph.before) or not state.moves_into(graph.before):
                continue
            if self._bundle is None:
                self._known.bundles.remove(bundle)
            if not graph.steady or not state.lies_in(graph.before):
                put(roots, graph.after)
                self._ready.clear()
            self._bundle, self._ready[kind] = bundle, graph
            self._bound.add(kind)
            return graph
        return None

    def _stands_again(self, kind: Kind, state: State) -> bool:
        """Whether the last forward of the kind stood in the same state, which then is one that comes again.

        That one was launched kernel by kernel, so that all kernels are compiled and chosen. Where an earlier generation has a
        graph of the kind, its last forward says nothing: what comes before the graph's state comes once in a generation.
        """
        before, stands = self._met.get(kind), hash(state.outline)
        if before is None and not any(kind in bundle.graphs for bundle in self._known.bundles):
            before = self._known.met.get(kind)
        self._met[kind] = stands
        return before == stands and not self._full

    def _network_like(self) -> Hashable:
        if self._like is None:
            self._like = _circumstances(self._network)
        return self._like

    def _capture(self, x: Tensor, kind: Kind, forward: Forward, before: State, roots: Sequence[Any]) -> Captured | None:
        """Captures the forward; where it cannot be captured, says so once and stays with plain launches."""
        contents, inputs = saved(roots), x.clone()
        # Once: it takes longer than a step, and what is thrown away later waits behind the capture.
        if not self._collected:
            gc.collect()
            self._collected = True
        bundle = self._with_room(kind)
        if x.is_cuda:
            bundle.pool = bundle.pool or torch.cuda.graph_pool_handle()
            torch.cuda.empty_cache()  # a capture begins with that, and what it frees is not the graph's
        held = _reserved(x.device)
        try:
            replay, result = record(lambda x: forward(x, True), inputs, roots, bundle.pool)
        except RuntimeError as error:
            put(roots, contents)
            bundle.pool = None  # what failed may still hold it
            self._full = isinstance(error, torch.OutOfMemoryError)
            if not self._full:
                self._known.failed.add(kind)
            why = f"this forward cannot be captured as a CUDA graph ({error}); steps are launched one kernel at a time"
        else:
            steady, taken = State(roots).outline == before.outline, _reserved(x.device) - held
            graph = Captured(replay, inputs, result, before, saved(roots, passing=False), steady, taken)
            bundle.graphs[kind] = graph
            self._bundle, self._ready = bundle, {kind: graph}
            self._bound.add(kind)
            return graph
        _log.warning(why)
        if self._full:  # here, where the error no longer holds what the forward had computed
            drop_unused()
        return None

    def _with_room(self, kind: Kind) -> Bundle:
        """Where a graph goes: those of shorter states go where they hold too much, as those blocks do not come again."""
        bundle = self._bundle
        if bundle is not None and bundle.bytes > _room(self._device):
            for other in [one for one in bundle.graphs if one.columns != kind.columns]:
                del bundle.graphs[other]
                self._bound.discard(other)
                self._ready.pop(other, None)
        return bundle if bundle is not None and bundle.graphs else Bundle(self._network_like())


def record(
    run: Callable[[Tensor], Result], inputs: Tensor, roots: Sequence[Any], pool: Any = None
) -> tuple[Callable[[], None], Result]:
    """Capture what run(inputs) launches; a function that launches it again, and what it returned, which that fills.

    Args:
        roots: the objects whose state is read and changed. pool: where it takes memory that others give back.
    """
    graph, device = torch.cuda.CUDAGraph(), inputs.device
    stream = torch.cuda.current_stream(device) if inputs.is_cuda else None
    collecting = gc.isenabled()
    # An older graph that is thrown away during a capture spoils it, and so would the recorder's thread by waiting.
    gc.disable()
    try:
        # torch's own default stream belongs to whichever GPU captured first.
        own = stream_for("captures", device) if inputs.is_cuda else None
        with on(device), torch.cuda.graph(graph, pool=pool, stream=own, capture_error_mode="thread_local"):
            result = run(inputs)
    except RuntimeError:
        if stream is not None:  # torch stays on the capture's stream when it fails
            with on(device):
                torch.cuda.set_stream(stream)
                torch.cuda.synchronize()
        raise
    finally:
        if collecting:
            gc.enable()
    return graph.replay, result


def _circumstances(network: nn.Module) -> Hashable:
    """What decides, besides shapes, which kernels a network launches on which memory: the network, and torch's settings."""
    matmul = torch.backends.cuda.matmul
    settings = (
        network.training, matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction,
        torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled(), torch.is_autocast_enabled("cuda"),
        getattr(getattr(network, "config", None), "_attn_implementation", None),
    )  # fmt: skip
    buffers = tuple((buffer.data_ptr(), buffer.dtype) for buffer in network.buffers())
    return likeness(network.modules()), buffers, settings


def _is_short_of_memory(device: torch.device) -> bool:
    """Whether graphs that are kept could take what a generation needs: less than a quarter of a GPU is free beside them."""
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + unused < total // 4


def _room(device: torch.device) -> int:
    """Bytes that graphs may hold."""
    whole = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 16 << 30
    return whole // SHARE


def _reserved(device: torch.device) -> int:
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
