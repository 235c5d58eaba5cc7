"""The fused kernels and the fused forward against transformers' eager code: for the CPU tests (interpreter) and the GPU script.

python -m helpers.layer_cases cpu|cuda        prints one JSON line: case → what was found
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tests.helpers import golden
from tests.helpers.calls import Recorder
from tests.helpers.checkpoints import dream_config, llada_config, write
from torch import Tensor, nn
from torch.nn import functional

import sinkscope as ss

DTYPES = ("float32", "bfloat16", "float16")
STEP = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
"""The largest relative distance of two neighbouring numbers."""

NORMS = {
    f"norm-{kind}-{width}-{dtype}": (kind, width, dtype)
    for kind, width in (("whole", 64), ("whole", 512), ("drawn", 100), ("drawn", 900), ("alone", 96))
    for dtype in DTYPES
}
"""whole: small whole numbers, whose squares add up to the same in any order; alone: nothing to add."""

ROTATIONS = {
    f"rotate-{width}-{heads}+{groups}-{angles}-{dtype}": (width, heads, groups, angles, dtype)
    for width, heads, groups in ((64, 4, 4), (80, 7, 1), (128, 6, 2), (256, 3, 1))
    for dtype in DTYPES
    for angles in sorted({"float32", dtype})
}
GATES = {f"gate-{width}-{dtype}": (width, dtype) for width in (96, 1100) for dtype in DTYPES}

RANDOM = {
    "llada-biased": llada_config(n_kv_heads=2, include_bias=True, d_model=96, mlp_hidden_size=75),
    "dream-7-heads": dream_config(
        hidden_size=56, num_attention_heads=7, num_key_value_heads=1, head_dim=24, intermediate_size=75
    ),
    "llada-wide": llada_config(d_model=512, n_heads=4, n_kv_heads=4, mlp_hidden_size=1536),
    "dream-wide": dream_config(
        hidden_size=896, num_attention_heads=7, num_key_value_heads=1, head_dim=128, intermediate_size=1200
    ),
}
FORWARDS = (
    "llada-float32", "llada-bfloat16", "dream-float32", "dream-bfloat16", "mmada-float32", "llada-biased-float32",
    "dream-7-heads-bfloat16",
)  # fmt: skip
WIDE = ("llada-wide-bfloat16", "dream-wide-bfloat16", "llada-wide-float16", "dream-wide-float32")
"""Head widths and sizes that the interpreter would take too long for."""


def norm_case(name: str, device: str) -> dict[str, float]:
    """The sum must be equal bit for bit; so must the norm where the order of additions does not matter."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    from sinkscope.gpu import layer_kernels

    kind, width, dtype = NORMS[name]
    wanted = getattr(torch, dtype)
    draw = torch.Generator().manual_seed(width)
    norm = LlamaRMSNorm(width, eps=1e-5)
    norm.weight.data = torch.randn(width, generator=draw)
    norm = norm.to(device, wanted)
    if kind == "whole":
        x, branch = (torch.randint(-8, 9, (1, 2, width), generator=draw).to(device, wanted) for _ in range(2))
    else:
        x, branch = (3 * torch.randn(1, 2, width, generator=draw).to(device, wanted) for _ in range(2))
    total = x if kind == "alone" else x + branch
    stream = x.clone()
    out = layer_kernels.add_norm(stream, None if kind == "alone" else branch, norm.weight.data, 1e-5)
    found = compared(out, norm(total), dtype)
    return {**found, "exact": float(kind == "whole"), "sum": float(torch.equal(stream, total))}


def rotate_case(name: str, device: str) -> dict[str, float]:
    """q and k as views of one product; v behind them must stay as it is."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    from sinkscope.gpu import layer_kernels

    width, heads, groups, angles, dtype = ROTATIONS[name]
    draw = torch.Generator().manual_seed(width)
    rows = 1 if heads == groups else 2  # angles of one row serve all, or every row has its own
    phase = 100 * torch.randn(rows, 5, width // 2, generator=draw)
    phase = torch.cat((phase, phase), -1)
    cos, sin = (one.to(device, getattr(torch, angles)) for one in (phase.cos(), phase.sin()))
    qkv = torch.randn(2, 5, heads + 2 * groups, width, generator=draw).to(device, getattr(torch, dtype))
    before = qkv.clone().transpose(1, 2)
    query, key = apply_rotary_pos_emb(before[:, :heads], before[:, heads : heads + groups], cos, sin)
    layer_kernels.rotate(qkv, cos, sin, heads + groups)
    after = qkv.transpose(1, 2)
    found = compared(after[:, : heads + groups], torch.cat((query, key), 1).to(qkv.dtype), dtype)
    untouched = torch.equal(after[:, heads + groups :], before[:, heads + groups :])
    return {**found, "exact": 1.0, "sum": float(untouched)}


def gate_case(name: str, device: str) -> dict[str, float]:
    """The interpreter's exponential is not torch's; on a GPU they are the same."""
    from sinkscope.gpu import layer_kernels

    width, dtype = GATES[name]
    draw = torch.Generator().manual_seed(width)
    both = (5 * torch.randn(2, 3, 2 * width, generator=draw)).to(device, getattr(torch, dtype))
    wanted = functional.silu(both[..., :width]) * both[..., width:]
    return {**compared(layer_kernels.silu_mul(both), wanted, dtype), "exact": float(device == "cuda"), "sum": 1.0}


def compared(found: Tensor, wanted: Tensor, dtype: str) -> dict[str, float]:
    """Share of numbers that differ, and the largest relative difference in steps of the dtype."""
    differ = (found != wanted).double().mean()
    error = (found.double() - wanted.double()).abs() / wanted.double().abs().clamp(min=1e-6)
    return {"differ": float(differ), "steps": float(error.max()) / STEP[dtype]}


@contextmanager
def fused(on: bool) -> Iterator[None]:
    """With the switch on or off."""
    before = os.environ.get("SINKSCOPE_FAST")
    os.environ["SINKSCOPE_FAST"] = "1" if on else "0"
    try:
        yield
    finally:
        os.environ.pop("SINKSCOPE_FAST")
        if before is not None:
            os.environ["SINKSCOPE_FAST"] = before


@contextmanager
def counted() -> Iterator[list[int]]:
    """How often the fused norm ran: a list of one number."""
    from sinkscope.gpu import layer_kernels

    calls, original = [0], layer_kernels.add_norm

    def add_norm(*given: Any) -> Tensor:
        calls[0] += 1
        return original(*given)

    layer_kernels.add_norm = add_norm
    try:
        yield calls
    finally:
        layer_kernels.add_norm = original


def load(name: str, dtype: str, device: str) -> Any:
    """A golden checkpoint, or one with random weights."""
    if name not in RANDOM:
        return ss.load(golden.checkpoint(name), device=device, dtype=dtype)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), RANDOM[name])
        return ss.load(folder, device=device, dtype=dtype)


def run(model: Any, ids: Tensor, real: Tensor | None, on: bool) -> tuple[Tensor, list[Any], int]:
    """Logits of a recorded forward, its attention calls, and how many fused norms ran."""
    recorder = Recorder()
    with fused(on), counted() as norms:
        logits = model.forward(ids, model.context(real, recorder=recorder))
    return logits, recorder.calls, norms[0]


def forward_case(name: str, device: str, batch: int = 2, length: int = 3) -> dict[str, float]:
    """The fused forward of a padded batch against the plain one, with what listeners are told."""
    source, _, dtype = name.rpartition("-")
    model = load(source, dtype, device)
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(0, model.shape.vocabulary, (batch, length), generator=draw).to(device)
    real = torch.ones_like(ids, dtype=torch.bool)
    real[0, :1] = False
    plain, calls, none = run(model, ids, real, False)
    quick, own, norms = run(model, ids, real, True)
    layers = model.shape.layers
    return {
        "error": distance(quick[real], plain[real]),
        "attention": max(
            distance(getattr(a, part), getattr(b, part))
            for a, b in zip(own, calls, strict=True)
            for part in ("query", "key", "value", "output", "lse")
        ),
        "same_calls": float(all(alike(a, b) for a, b in zip(own, calls, strict=True))),
        "switched": float(none == 0 and norms == 2 * layers + 1),
        "aside": float(steps_aside(model, ids[:1, :1])),
    }


def alike(one: Any, other: Any) -> bool:
    """Whether two attention calls say the same, but for the numbers in their tensors."""
    parts = ("query", "key", "value", "output", "lse")
    same = all(getattr(one, part).shape == getattr(other, part).shape for part in parts)
    same = same and all(getattr(one, part).dtype == getattr(other, part).dtype for part in parts)
    seen, wanted = one.visibility, other.visibility
    return same and (one.layer, one.scale, seen.causal, seen.dense, seen.padded, seen.window) == (
        other.layer, other.scale, wanted.causal, wanted.dense, wanted.padded, wanted.window,
    )  # fmt: skip


def steps_aside(model: Any, ids: Tensor) -> bool:
    """Whether the plain code runs while a hook listens or a module is replaced, after weights were moved, and only then."""
    heard: list[Tensor] = []
    heard_all: list[nn.Module] = []
    handle = model.network.model.layers[1].register_forward_pre_hook(lambda _, given: heard.append(given[0]))
    with fused(True), counted() as listening:
        model.hidden(ids)
    handle.remove()
    handle = nn.modules.module.register_module_forward_hook(lambda module, given, found: heard_all.append(module))
    with fused(True), counted() as listening_to_all:
        model.hidden(ids)
    handle.remove()
    replaced = all(as_plain(model, ids, change) for change in (other_mlp, other_forward))
    with fused(True), counted() as alone:
        model.hidden(ids)
    weight = model.network.model.layers[1].mlp.up_proj.weight
    weight.data = 0 * weight.data
    with fused(True), counted() as moved:
        changed = model.hidden(ids)
    with fused(False):
        wanted = model.hidden(ids)
    return (
        replaced
        and len(heard) == 1
        and not listening[0]
        and model.network.model.layers[1].mlp in heard_all
        and not listening_to_all[0]
        and alone[0] > 0
        and not moved[0]
        and torch.equal(changed, wanted)
    )


def as_plain(model: Any, ids: Tensor, change: Callable[[Any], Callable[[], None]]) -> bool:
    """Whether a change of the network acts with the switch on as it does with the switch off; the change is undone."""
    undo = change(model.network.model.layers[1])
    with fused(False):
        wanted = model.hidden(ids)
    with fused(True), counted() as norms:
        found = model.hidden(ids)
    undo()
    return not norms[0] and torch.equal(found, wanted)


def other_mlp(layer: Any) -> Callable[[], None]:
    """An MLP that gives back what it is given."""
    before, layer.mlp = layer.mlp, nn.Identity()
    return lambda: setattr(layer, "mlp", before)


def other_forward(layer: Any) -> Callable[[], None]:
    """An MLP whose forward is put aside."""
    layer.mlp.forward = lambda x: x
    return lambda: delattr(layer.mlp, "forward")


def distance(found: Tensor, wanted: Tensor) -> float:
    """‖found − wanted‖ / ‖wanted‖."""
    found, wanted = found.double(), wanted.double()
    return float((found - wanted).norm() / wanted.norm())


def everything(device: str) -> dict[str, dict[str, float]]:
    """Every case."""
    cases = dict.fromkeys(NORMS, norm_case) | dict.fromkeys(ROTATIONS, rotate_case)
    cases |= dict.fromkeys(GATES, gate_case) | dict.fromkeys(FORWARDS, forward_case)
    with torch.no_grad():
        return {name: case(name, device) for name, case in cases.items()}


if __name__ == "__main__":
    print(json.dumps(everything(sys.argv[1])))
