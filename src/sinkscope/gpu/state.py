"""What a captured forward goes on from: the tensors that policy, recorder and cache hold between forwards, and what Python knows.

A CUDA graph reads and writes the memory that was there at its capture, and has what Python knew built in. It may serve another
generation where Python knows the same now, value for value, once the tensors of that generation were copied into its memory.
Whatever is not understood here is compared by identity, so that the graph is then captured anew. What no captured forward reads
(counters, results, what a forward puts there before it looks) a class names in PASSING: it may differ, and stays what it is.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor

PLAIN = (type(None), bool, int, float, str, bytes, slice, Enum, torch.dtype, torch.device)
Memory = torch.UntypedStorage


class State:
    """The state of some objects now, without a copy of any tensor.

    Attributes:
        outline: what Python knows, and which tensors there are; states with equal outlines differ in the tensors' values only.
        memory: where those lie, each once, in the order in which they are met.
    """

    def __init__(self, roots: Sequence[Any]) -> None:
        self.memory: list[Memory] = []
        self._places: dict[tuple[str, int], int] = {}
        self._numbers: dict[int, int] = {}
        self._held: list[Any] = []
        self.outline = tuple(self._look(root) for root in roots)

    def equals(self, other: State) -> bool:
        """Whether another state, of which some objects may be gone, has the same outline."""
        # Another object may have been given the address of one that was compared by identity.
        return self.outline == other.outline and all(_there(reference) is not None for reference in other._held)

    def _look(self, node: Any) -> Any:
        if isinstance(node, Tensor):
            storage = node.untyped_storage()
            place, size = self._place(storage), storage.nbytes()
            return place, size, node.dtype, str(node.device), node.shape, node.stride(), node.storage_offset()
        if isinstance(node, PLAIN):
            return type(node).__name__, str(node) if isinstance(node, slice) else node
        if isinstance(node, np.ndarray):  # a captured forward reads none
            return "array", node.shape, str(node.dtype)
        if isinstance(node, dict):
            return "dict", tuple((key, self._look(value)) for key, value in node.items())
        if isinstance(node, (list, tuple)):
            return type(node).__name__, tuple(map(self._look, node))
        if not _ours(node):
            self._held.append(_reference(node))
            return "this", id(node)
        if id(node) in self._numbers:
            return "again", self._numbers[id(node)]
        self._numbers[id(node)] = len(self._numbers)
        return type(node), self._look(_attributes(node, passing=False))

    def _place(self, storage: Memory) -> int:
        """Which of the memories it is."""
        address = str(storage.device), storage.data_ptr()
        if address not in self._places or not storage.nbytes():
            self._places[address] = len(self.memory)
            self.memory.append(storage)
        return self._places[address]

    def moves_into(self, other: State) -> bool:
        """Copy the values of all tensors into the memory of another state, of the same outline; False: nothing was copied.

        None is where one of this state has to stay until it was copied itself.
        """
        pairs = [pair for pair in zip(self.memory, other.memory, strict=True) if _address(pair[0]) != _address(pair[1])]
        possible = not {_address(one) for one in self.memory if one.nbytes()} & {
            _address(theirs) for _, theirs in pairs
        }
        for ours, theirs in pairs if possible else ():
            _bytes(theirs).copy_(_bytes(ours))
        return possible

    def lies_in(self, other: State) -> bool:
        """Whether all tensors are in the memory of another state already."""
        return list(map(_address, self.memory)) == list(map(_address, other.memory))


def saved(roots: Sequence[Any], passing: bool = True) -> list[dict[Any, Any]]:
    """What the objects hold, in containers of their own; tensors are the same ones, and the model is not held.

    Args:
        passing: with what captured forwards do not read.
    """
    known: dict[int, Any] = {}
    return [_copied(_attributes(root, passing), known, _reference, passing=passing) for root in roots]


def put(roots: Sequence[Any], contents: list[dict[Any, Any]]) -> None:
    """Give the objects what was saved of others of their kind, besides what was not saved; what was stays as it is."""
    known: dict[int, Any] = {}
    for root, content in zip(roots, contents, strict=True):
        attributes = root if isinstance(root, dict) else vars(root)
        attributes.update(_copied(content, known, _there, attributes))


def _attributes(node: Any, passing: bool) -> dict[Any, Any]:
    """What an object holds; passing: with what captured forwards do not read."""
    if isinstance(node, dict):
        return node
    without = () if passing else getattr(type(node), "PASSING", ())
    return {name: value for name, value in vars(node).items() if name not in without}


def _copied(
    node: Any, known: dict[int, Any], other: Callable[[Any], Any], now: Any = None, passing: bool = True
) -> Any:
    """The structure copied, tensors as they are.

    Args:
        other: what becomes of what is neither. now: what stands there: a copied object keeps the attributes that were not saved.
    """
    if isinstance(node, dict):
        there = now if isinstance(now, dict) else {}
        return {key: _copied(value, known, other, there.get(key), passing) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        items = now if isinstance(now, (list, tuple)) and len(now) == len(node) else [None] * len(node)
        parts = [_copied(value, known, other, item, passing) for value, item in zip(node, items, strict=True)]
        if isinstance(node, list):
            return parts
        return type(node)(*parts) if hasattr(node, "_fields") else tuple(parts)
    if isinstance(node, (Tensor, np.ndarray, *PLAIN)):
        return node
    if not _ours(node):
        return other(node)
    if id(node) not in known:
        known[id(node)] = copied = object.__new__(type(node))
        there = vars(now) if type(now) is type(node) else {}
        vars(copied).update(there)
        vars(copied).update(_copied(_attributes(node, passing), known, other, there, passing))
    return known[id(node)]


def _reference(node: Any) -> Any:
    """A weak reference, so that graphs that are kept hold no model; the node itself where there can be none."""
    try:
        return weakref.ref(node)
    except TypeError:
        return node


def _there(reference: Any) -> Any:
    return reference() if isinstance(reference, weakref.ref) else reference


def _ours(node: Any) -> bool:
    """Whether it holds state that is looked into: an object of this package, or a frozen dataclass, as rules of others are too.

    A model, and what belongs to it, does not change.
    """
    kind = type(node)
    ours = kind.__module__.startswith("sinkscope.") and not kind.__module__.startswith("sinkscope.models.")
    frozen = is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    return (ours or frozen) and hasattr(node, "__dict__")


def _address(storage: Memory) -> tuple[str, int]:
    """Where it lies; nothing lies at 0, like all that is empty."""
    return str(storage.device), storage.data_ptr() if storage.nbytes() else 0


def _bytes(storage: Memory) -> Tensor:
    """Uint8 [n]: the memory itself."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
