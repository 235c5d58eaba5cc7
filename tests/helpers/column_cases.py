"""Cases for the column kernel, and their errors against float64: shared by the CPU tests (interpreter) and the GPU script.

python -m tests.helpers.column_cases cpu|cuda [CASE …]        prints one JSON line: case → error, limit, …
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from sinkscope.attention.fused import raw_lse
from sinkscope.attention.kernels import column_kernels
from sinkscope.attention.key_mask import KeyMask
from sinkscope.attention.received import dense_map, received
from sinkscope.attention.visibility import Scores, Visibility, query_weights


@dataclass(frozen=True)
class Case:
    """One input. `scores`: random, peaked (one key takes nearly all) or adversarial (scores of ±80 and equal keys)."""

    name: str
    dtype: str = "float32"
    width: int = 64
    heads: int = 3  # not as many as rows: a kernel that takes one for the other must not pass
    kv_heads: int = 3
    queries: int = 70
    keys: int = 70
    causal: bool = False
    window: int | None = None
    block: int | None = None
    padded: bool = False
    masked: str = ""
    classes: int = 1
    scores: str = "random"


CASES = (
    Case("plain"),
    Case("bf16", dtype="bfloat16"),
    Case("fp16", dtype="float16"),
    Case("width-96", width=96),
    Case("width-128-bf16", width=128, dtype="bfloat16"),
    Case("width-256", width=256, queries=40, keys=40),
    Case("width-256-bf16", width=256, queries=40, keys=40, dtype="bfloat16"),
    Case("grouped", heads=6, kv_heads=2),
    Case("causal", causal=True),
    Case("causal-one-row", causal=True, queries=1),
    Case("causal-behind-a-cache", causal=True, queries=33, keys=70),
    Case("window", causal=True, window=20),
    Case("window-both-ways", window=20),
    Case("blocks", block=8),
    Case("blocks-of-odd-size-behind-a-cache", block=11, queries=40),
    Case("blocks-wider-than-a-tile-bf16", block=50, dtype="bfloat16"),
    Case("blocks-padded-classes", block=4, padded=True, classes=3),
    Case("blocks-masked-stranded", block=4, masked="first"),
    Case("blocks-masked-grouped", block=16, masked="some", heads=6, kv_heads=2),
    Case("padded", padded=True),
    Case("padded-causal-bf16", padded=True, causal=True, dtype="bfloat16"),
    Case("masked", masked="some"),
    Case("masked-causal-stranded", masked="first", causal=True),
    Case("masked-all", masked="all"),
    Case("masked-padded-grouped", masked="some", padded=True, heads=4, kv_heads=2),
    Case("two-classes", classes=2),
    Case("four-classes-padded", classes=4, padded=True),
    Case("six-classes", classes=6),
    Case("masked-known-number", masked="few"),
    Case("peaked", scores="peaked"),
    Case("peaked-bf16", scores="peaked", dtype="bfloat16"),
    Case("adversarial", scores="adversarial"),
    Case("adversarial-bf16", scores="adversarial", dtype="bfloat16"),
    Case("adversarial-causal-masked", scores="adversarial", causal=True, masked="some"),
)


def inputs(case: Case, device: str) -> tuple[Tensor, Tensor, Visibility, KeyMask | None, Tensor, float]:
    """Query, key, pattern, taken keys, class weights and scale of a case."""
    draw = torch.Generator().manual_seed(sum(map(ord, case.name)))
    rows, scale = 2, case.width**-0.5
    query = torch.randn(rows, case.heads, case.queries, case.width, generator=draw)
    key = torch.randn(rows, case.kv_heads, case.keys, case.width, generator=draw)
    if case.scores == "peaked":
        key[:, :, 3] = query.mean((1, 2))[:, None] * case.width**0.5 * 4
    elif case.scores == "adversarial":
        query, key = query * 4, key * 4
        key[:, :, 1::7] = key[:, :, :1]
    dtype = getattr(torch, case.dtype)
    real = None
    if case.padded:
        real = torch.ones(rows, case.keys, dtype=torch.bool)
        real[0, :9] = False
        real = real.to(device)
    visibility = Visibility(case.queries, case.keys, real, case.causal, case.window, block=case.block)
    taken = None
    if case.masked:
        gone = torch.zeros(rows, case.heads, case.keys, dtype=torch.bool)
        if case.masked == "some":
            gone = torch.rand(gone.shape, generator=draw) < 0.1
        elif case.masked == "few":  # up to seven of each head
            gone.scatter_(-1, torch.randint(0, case.keys, (*gone.shape[:2], 7), generator=draw), True)
        elif case.masked == "first":  # in a causal call the first queries lose all they see
            gone[:, :2, :5] = True
        elif case.masked == "all":
            gone[:, 1] = True
        taken = KeyMask(gone.to(device), most=7 if case.masked == "few" else None)
    weights = torch.ones(rows, 1, case.queries)
    if case.classes > 1:
        weights = (torch.rand(rows, case.classes, case.queries, generator=draw) < 0.4).float()
    return query.to(device, dtype), key.to(device, dtype), visibility, taken, weights.to(device), scale


def measured(case: Case, device: str) -> dict[str, float]:
    """Largest relative error, its limit, whether NaN stands where it should and a second run on a GPU gives the same bits.

    The interpreter has one order of programs, so there a second run could only take as long again.
    """
    query, key, visibility, taken, weights, scale = inputs(case, device)
    exact = query.double(), key.double()
    weights = query_weights(visibility, weights, query)
    acting = dense_map(Scores(exact[0], exact[1], visibility, scale, taken))
    mass = weights[:, None].double() @ acting
    uniform = visibility.uniform(weights)
    wanted = torch.where(uniform[:, None] > 0, mass / uniform[:, None].clamp(min=1e-300), float("nan"))
    lse = _lse(*exact, visibility, taken, scale)
    used = column_kernels(query) is not None and (taken is None or taken.alike)
    found = received(Scores(query, key, visibility, scale, taken), lse.float(), weights).double()
    again = found
    if device != "cpu":
        again = received(Scores(query, key, visibility, scale, taken), lse.float(), weights).double()
    there = ~wanted.isnan()
    error = ((found - wanted).abs() / wanted.abs().clamp(min=1e-30))[there].max()
    largest = (exact[0] @ exact[1].repeat_interleave(case.heads // case.kv_heads, 1).mT * scale).abs().max()
    limit = 1e-6 * max(1.0, float(largest)) * (1 if case.dtype == "float32" else 10)
    wrong = int((found.isnan() != ~there).sum()) + int((found.nan_to_num() != again.nan_to_num()).sum())
    return {"error": float(error), "limit": limit, "wrong_nan": wrong, "kernel": int(used)}


def _lse(query: Tensor, key: Tensor, visibility: Visibility, taken: KeyMask | None, scale: float) -> Tensor:
    """Float64 [B, H, Q] over the keys that act; 0 for rows without a key."""
    scores = query @ key.repeat_interleave(query.shape[1] // key.shape[1], 1).mT * scale
    visible = torch.ones_like(scores, dtype=torch.bool)
    seen = visibility.rows(0, visibility.queries, query.device)
    if seen is not None:
        visible = visible & seen
    if taken is not None:
        visible = visible & ~taken.in_force(visibility, 0, visibility.queries, query.device)
    return scores.masked_fill(~visible, float("-inf")).logsumexp(-1).nan_to_num(0.0, 0.0, 0.0)


RAW = (
    Case("raw", masked="few"),
    Case("raw-bf16", masked="few", dtype="bfloat16", width=128),
    Case("raw-grouped", masked="few", heads=6, kv_heads=2),
    Case("raw-adversarial", masked="few", scores="adversarial"),
    Case("raw-nothing", masked="none"),
    Case("raw-padded", masked="few", padded=True),
    Case("raw-padded-one-row", masked="few", padded=True, causal=True, queries=1),
)
"""Cases for the log-sum-exp over all keys from that over the kept ones."""


def measured_raw(case: Case, device: str) -> dict[str, float]:
    """Largest error of the log-sum-exp over all keys, and its limit: a relative error of as much in every share."""
    query, key, visibility, taken, _, scale = inputs(case, device)
    assert taken is not None
    taken = KeyMask(taken.keys, most=7, least=case.keys - 9)
    exact = query.double(), key.double()
    kept, wanted = (_lse(*exact, visibility, one, scale) for one in (taken, None))
    found = raw_lse(Scores(query, key, visibility, scale, taken), kept.float()).double()
    largest = (exact[0] @ exact[1].repeat_interleave(case.heads // case.kv_heads, 1).mT * scale).abs().max()
    limit = 1e-6 * max(1.0, float(largest)) * (1 if case.dtype == "float32" else 10)
    used = column_kernels(query) is not None and taken.strands_none(visibility)
    return {"error": float((found - wanted).abs().max()), "limit": limit, "wrong_nan": 0, "kernel": int(used)}


if __name__ == "__main__":
    device, *names = sys.argv[1:]
    errors = {case.name: measured(case, device) for case in CASES if case.name in names or not names}
    errors |= {case.name: measured_raw(case, device) for case in RAW if case.name in names or not names}
    print(json.dumps(errors))
