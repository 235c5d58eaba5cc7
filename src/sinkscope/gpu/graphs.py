"""CUDA graphs: a forward, launched as one piece, in this generation and in later ones of the same shape.

At small batches the Python that launches some thousand kernels takes longer than the kernels. The state of a group of rows has
the same shape in every step, so its forward is run once or twice, then captured with what recorder and policy compute in it, and
replayed from there on. What is computed is the same, kernel for kernel; only the launching changes. When the generation is over
its graphs are kept with the network, as long as they do not hold too much memory, and serve the next one that comes to the same
state (see `gpu.state`).
"""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules

from sinkscope.gpu.state import State, put, saved
from sinkscope.gpu.streams import on, stream_for

_log = logging.getLogger(__name__)

Kind = tuple[Hashable, ...]
"""What forwards have in common that do the same on the device; first the circumstances, in which one can be captured or not."""

MOST, SHARE = 16, 16
"""Generations whose graphs are kept at most, and the part of a GPU's memory that they may hold: one of so many."""


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
        bytes: memory that the capture took.
    """

    replay: Callable[[], None]
    inputs: Tensor
    result: Result
    before: State
    after: list[dict[Any, Any]]
    bytes: int


@dataclass
class Bundle:
    """The graphs of one generation, which share their memory, and what the network was like."""

    network: Hashable
    graphs: dict[Hashable, Captured] = field(default_factory=dict)
    pool: Any = None  # memory of all its graphs, of which one runs at a time: a block loop has one for each block

    @property
    def bytes(self) -> int:
        """Memory that the captures took, and that of the states they go on from."""
        graphs = self.graphs.values()
        memory = {one.data_ptr(): one.nbytes() for graph in graphs for one in graph.before.memory}
        return sum(graph.bytes for graph in graphs) + sum(memory.values())


_KEPT: WeakKeyDictionary[nn.Module, list[Bundle]] = WeakKeyDictionary()
"""Network → graphs that no generation uses now, the latest last. Nothing in them holds the network."""

_FAILED: WeakKeyDictionary[nn.Module, set[Kind]] = WeakKeyDictionary()
"""Network → kinds that could not be captured: each is tried once, because a failed try leaves memory behind."""

TRIES = 3
"""Kinds that fail in the same circumstances before nothing is tried in them any more."""


class Graphs:
    """The captured forwards of one group of rows, one of each kind (with recording, without)."""

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        self._network = network
        if network in _KEPT and _is_short_of_memory(device):
            del _KEPT[network]
            torch.cuda.empty_cache()
        self._seen: Counter[Hashable] = Counter()
        self._bound: dict[Hashable, Captured] = {}
        self._bundle: Bundle | None = None
        self._like: Hashable = None
        self._collected = False

    def run(self, x: Tensor, kind: Kind, forward: Forward, roots: Sequence[Any], warm_ups: int) -> tuple[Result, bool]:
        """The forward of the inputs x, plain the first times, later replayed; and whether it was replayed.

        Args:
            kind: forwards of one kind are the same function of the inputs and the state of `roots`.
            roots: the objects whose state a forward reads and changes.
            warm_ups: plain forwards before a capture, in which kernels are compiled and chosen.
        """
        failed = _FAILED.get(self._network, set())
        if kind in failed or sum(one[0] == kind[0] for one in failed) >= TRIES:
            return forward(x, False), False
        captured = self._bound.get(kind) or self._adopted(kind, roots)
        if captured is None:
            self._seen[kind] += 1
            if self._seen[kind] > warm_ups:
                captured = self._capture(x, kind, forward, roots)
        if captured is None:
            return forward(x, False), False
        captured.inputs.copy_(x)
        with on(x.device):
            captured.replay()
        return captured.result, True

    def release(self) -> None:
        """Give the graphs back, for the next generation; none may be replayed any more."""
        bundle, self._bundle, self._bound = self._bundle, None, {}
        if bundle is None or not bundle.graphs:
            return
        kept = _KEPT.setdefault(self._network, [])
        kept.append(bundle)
        device = next(iter(bundle.graphs.values())).inputs.device
        whole = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 16 << 30
        room = whole // SHARE
        while len(kept) > MOST or sum(one.bytes for one in kept) > room:
            kept.pop(0)

    def _adopted(self, kind: Hashable, roots: Sequence[Any]) -> Captured | None:
        """A graph of an earlier generation that stood where this one stands now, bound to it."""
        kept_bundles = _KEPT.get(self._network, [])
        candidates = [self._bundle] if self._bundle is not None else kept_bundles[::-1]
        candidates = [one for one in candidates if kind in one.graphs and kind not in self._bound]
        if not candidates:
            return None
        state, like = State(roots), self._network_like()
        bound = [one for graph in self._bound.values() for one in graph.before.memory]
        for bundle in candidates:
            graph = bundle.graphs[kind]
            if bundle.network != like or graph.before.outline != state.outline or not graph.before.stands:
                continue
            if state.moves_into(graph.before, bound):
                if bundle is not self._bundle:
                    kept_bundles.remove(bundle)
                self._bundle = bundle
                state.move_into(graph.before)
                put(roots, graph.after)
                self._bound[kind] = graph
                return graph
        return None

    def _network_like(self) -> Hashable:
        if self._like is None:
            self._like = likeness(self._network)
        return self._like

    def _capture(self, x: Tensor, kind: Kind, forward: Forward, roots: Sequence[Any]) -> Captured | None:
        """Captures the forward; where it cannot be captured, says so once and stays with plain launches."""
        before, contents = State(roots), saved(roots)
        inputs = x.clone()
        # Once: it takes longer than a step, and what is thrown away later waits behind the capture.
        if not self._collected:
            gc.collect()
            self._collected = True
        bundle = self._bundle or Bundle(self._network_like())
        if x.is_cuda:
            bundle.pool = bundle.pool or torch.cuda.graph_pool_handle()
            torch.cuda.empty_cache()  # a capture begins with that, and what it frees is not the graph's
        held = _reserved(x.device)
        try:
            replay, result = record(lambda x: forward(x, True), inputs, roots, bundle.pool)
        except RuntimeError as error:
            put(roots, contents)
            bundle.pool = None  # what failed may still hold it
            _log.warning(
                "this forward cannot be captured as a CUDA graph (%s); steps are launched one kernel at a time", error
            )
            _FAILED.setdefault(self._network, set()).add(kind)
            return None
        graph = Captured(replay, inputs, result, before, saved(roots), _reserved(x.device) - held)
        self._bundle = bundle
        bundle.graphs[kind] = self._bound[kind] = graph
        return graph


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


def likeness(network: nn.Module) -> Hashable:
    """What decides, besides shapes, which kernels a network launches on which memory: weights, hooks, forwards, settings."""
    hooks = []
    for module in network.modules():
        set_here = tuple(module._forward_hooks), tuple(module._forward_pre_hooks), "forward" in vars(module)
        hooks.append((id(module), *set_here))
    weights = [(tensor.data_ptr(), tensor.dtype) for tensor in (*network.parameters(), *network.buffers())]
    matmul = torch.backends.cuda.matmul
    settings = (
        tuple(modules._global_forward_hooks), tuple(modules._global_forward_pre_hooks), network.training,
        matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction, torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(), torch.is_autocast_enabled("cuda"),
        getattr(getattr(network, "config", None), "_attn_implementation", None),
    )  # fmt: skip
    return tuple(hooks), tuple(weights), settings


def _is_short_of_memory(device: torch.device) -> bool:
    """Whether graphs that are kept could take what a generation needs: less than a quarter of a GPU is free beside them."""
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + unused < total // 4


def _reserved(device: torch.device) -> int:
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
