"""Linear layers that read the same input, as one matrix: q, k and v of a layer, gate and up of its MLP.

One product in place of three or two keeps a GPU busy at a few hundred tokens, where the small ones leave it half empty. The
weights are laid out side by side while they are read, and every layer's own weight is a view of its rows: nothing is held twice,
and whoever reads `q_proj.weight` finds it where it was.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as modules

GROUPS = {"self_attn": ("q_proj", "k_proj", "v_proj"), "mlp": ("gate_proj", "up_proj")}
"""Module of a decoder layer → its linear layers that read the same input, in the order of their rows."""

LEAVES = ("weight", "bias")


def room(network: Any, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """Memory for the weights of a network on the meta device that belong side by side.

    Returns:
        Name of a parameter → the rows, still empty, that it should be copied into.
    """
    found: dict[str, Tensor] = {}
    for owner, linears, leaf, parts in _alike(network):
        sizes = [len(part) for part in parts]
        rows = torch.empty(sum(sizes), *parts[0].shape[1:], device=device, dtype=dtype)
        names = (f"model.layers.{owner}.{name}.{leaf}" for name in linears)
        found |= dict(zip(names, torch.split(rows, sizes), strict=True))
    return found


def lay_side_by_side(network: Any) -> None:
    """Move the weights of a loaded network so that those which belong together lie side by side, one layer at a time."""
    for _, linears, leaf, parts in _alike(network):
        joined = torch.cat([part.detach() for part in parts])
        rows = torch.split(joined, [len(part) for part in parts])
        for linear, part in zip(linears.values(), rows, strict=True):
            setattr(linear, leaf, nn.Parameter(part, requires_grad=False))


def _alike(network: Any) -> Iterator[tuple[str, dict[str, nn.Module], str, list[Tensor]]]:
    """What belongs side by side: owner ("0.mlp"), its linear layers, and of these one leaf after the other."""
    for index, layer in enumerate(network.model.layers):
        for owner, names in GROUPS.items():
            linears = {name: getattr(getattr(layer, owner), name, None) for name in names}
            for leaf in LEAVES:  # a mixture of experts has no gate and up of its own
                parts = [getattr(linear, leaf, None) for linear in linears.values()]
                if all(part is not None for part in parts):
                    yield f"{index}.{owner}", linears, leaf, parts  # type: ignore[misc]


@dataclass(frozen=True)
class Stack:
    """Some linear layers of a module as one.

    Attributes:
        weight: Float [all rows, inputs], in which theirs lie. bias: Float [all rows] or None.
    """

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """What the layers make of x [..., inputs], side by side: Float [..., all rows]."""
        return functional.linear(x, self.weight, self.bias)


def stack(owner: nn.Module, names: tuple[str, ...]) -> Stack | None:
    """The layers of `owner` as one, or None where there are none or they do not lie side by side."""
    if not all(isinstance(getattr(owner, name, None), nn.Module) for name in names):
        return None
    layers = tuple(owner.get_submodule(name) for name in names)
    # An adapter computes something else from the same weight.
    if any(type(layer) is not nn.Linear for layer in layers):
        return None
    weight, bias = (_joined([getattr(layer, leaf) for layer in layers]) for leaf in LEAVES)
    if weight is None or (bias is None and any(layer.bias is not None for layer in layers)):
        return None
    return Stack(weight, bias)


def _joined(parts: list[Tensor | None]) -> Tensor | None:
    """The one tensor that neighbouring parts are rows of, or None."""
    tensors = [part.detach() for part in parts if part is not None]
    if len(tensors) < len(parts):
        return None
    first, end = tensors[0], tensors[0].storage_offset()
    for tensor in tensors:
        # Neighbouring addresses are not enough: two allocations may touch.
        same = tensor.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same or tensor.storage_offset() != end or not tensor.is_contiguous():
            return None
        end += tensor.numel()
    return first.as_strided((sum(len(tensor) for tensor in tensors), *first.shape[1:]), first.stride())


class Likeness(NamedTuple):
    """What decides, besides sizes and settings, what a network computes: its modules, what was changed in them, its weights.

    Attributes:
        modules: what each holds. changes: hooks, on all modules there are too (torch's flop counter sets one), and forwards that
            were replaced. weights: where each lies, and its dtype.
    """

    modules: Hashable
    changes: Hashable
    weights: Hashable


def likeness(network: Iterable[nn.Module]) -> Likeness:
    """What some modules are like now; as long as they live, two that are alike compute the same."""
    held, weights = [], []
    changes: list[Hashable] = [*modules._global_forward_hooks, *modules._global_forward_pre_hooks]
    for module in network:
        held.append((id(module), *map(id, module._modules.values())))
        changes += [(id(module), hook) for hook in (*module._forward_hooks, *module._forward_pre_hooks)]
        changes += [id(module)] if "forward" in vars(module) else []
        weights += [(weight.data_ptr(), weight.dtype) for weight in module._parameters.values() if weight is not None]
    return Likeness(tuple(held), tuple(changes), tuple(weights))
