"""Causal generation on a static cache against transformers' growing one, on a GPU or in Triton's interpreter.

python -m tests.helpers.decode_cases cpu|cuda [some]        prints one JSON line: case → how far apart the two are
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from tests.helpers import golden

import sinkscope as ss
from sinkscope.models.model import Model
from sinkscope.policies.text import as_policy
from sinkscope.tasks.likelihood import causal
from sinkscope.trace import causal_scores

POLICIES = (
    "none", "top:2", "top:1@layer,effect=silence", "top:2@model", "above:1.2", "random(top:2)", "first:1", "window:5,first=1",
    "keep:0.6", "top:1,layers=1", "top:1 & first:2", "first:1,prefill=no", "top:1,epsilon=0.2,by=distant",
    "top:1,epsilon=0.2,among=others", "top:1,by=sum,prefill=yes", "token:7+9", "top:2,heads=1", "random(first:1,prefill=no)",
)  # fmt: skip


@contextmanager
def growing() -> Iterator[None]:
    """The same generation on the growing cache."""
    before = Model.decodes_statically
    Model.decodes_statically = lambda *_: False  # type: ignore[method-assign]
    try:
        yield
    finally:
        Model.decodes_statically = before  # type: ignore[method-assign]


def arrays(run: ss.Run) -> dict[str, Any]:
    """What was recorded, without xarray, which a GPU machine may lack: name → [B, step, …]."""
    parts = run.trace._parts
    return {name: np.stack(steps, 1) for name, steps in parts.arrays.items()} | parts.static


def compare(model: Model, policy: str, batch: str, length: int) -> dict[str, float]:
    """Largest differences of states and recorded variables between the two caches."""
    draw = torch.Generator().manual_seed(2)
    ids = torch.randint(0, 470, (2, 18), generator=draw)
    options: dict[str, Any] = {"seed": [4, 5]} if batch == "seeds" else {}
    if batch == "padded":
        mask = torch.ones_like(ids)
        mask[0, :3] = 0
        options["attention_mask"] = mask

    def run() -> ss.Run:
        return ss.generate(
            model, ids, ss.GreedyDecoding(length, eos=None), policy=policy, capture=ss.Capture(by_query=True), **options,
        )  # fmt: skip

    static = run()
    with growing():
        plain = run()
    found = {"states": float((static.states != plain.states).sum())}
    ours, theirs = arrays(static), arrays(plain)
    assert set(ours) == set(theirs)
    for name in theirs:
        a, b = ours[name], theirs[name]
        if a.dtype.kind == "f":
            found[str(name)] = (
                float(np.nanmax(np.abs(a - b), initial=0.0)) if (np.isnan(a) == np.isnan(b)).all() else 1e9
            )
        else:
            found[str(name)] = float((a != b).sum())
    return found


def read(model: Model, policy: str, length: int) -> dict[str, float]:
    """The same of texts of so many tokens that are read from their second token on, as short sentences are."""
    ids = torch.randint(0, 470, (3, length), generator=torch.Generator().manual_seed(3)).to(model.device)
    found = []
    for cache in (nullcontext(), growing()):
        with cache:
            found.append(causal(model, ids, 1, as_policy(policy), [1, 2, 3]))
    ours, theirs = found
    differences = {"states": float((ours.best != theirs.best).sum())}
    differences["values"] = float((ours.values - theirs.values).abs().max())
    for name in ("hidden_share", "sinks_hit", "strongest_hit", "sink_removed"):
        differences[name] = float((ours.account[name] - theirs.account[name]).abs().max())
    return differences


def later(model: Model, policy: str, length: int) -> dict[str, float]:
    """The second generation of a shape, with graphs played on a CPU (see `repeated`): against the growing cache."""
    import pytest
    from tests.helpers.repeated import play

    draw = torch.Generator().manual_seed(5)
    prompts = [torch.randint(0, 470, (2, 18), generator=draw) for _ in range(2)]

    def run(ids: torch.Tensor) -> ss.Run:
        decoding = ss.GreedyDecoding(length, eos=None)
        return ss.generate(model, ids, decoding, policy=policy, capture=ss.Capture(), seed=[4, 5])

    with pytest.MonkeyPatch.context() as patch:
        played = play(patch)
        first, second = (run(ids) for ids in prompts)
    with growing():
        plain = [run(ids) for ids in prompts]
    states = sum(int((a.states != b.states).sum()) for a, b in zip((first, second), plain, strict=True))
    ours, theirs = arrays(second), arrays(plain[1])
    far = [float(np.nanmax(np.abs(ours[name] - theirs[name]), initial=0.0)) for name in ("received", "received_all")]
    return {"states": float(states), "received": max(far), "captured again": float(played.captured != 1)}


def cases(device: str, every: bool = True) -> dict[str, dict[str, float]]:
    """Every policy, or one for each kind of batch, with one kind of batch each."""
    length = 24 if device != "cpu" else 6 if every else 4
    # Short generations also have keys that enough queries have seen, and others that came too late for that.
    before, causal_scores.SEEN_BY = causal_scores.SEEN_BY, length // 2
    model = ss.load(golden.checkpoint("llama"), device=device, dtype="float32")
    chosen = [(policy, ("plain", "padded", "seeds")[index % 3]) for index, policy in enumerate(POLICIES)]
    if not every:
        chosen = [pair for pair in chosen if pair[0] in ("none", "top:2", "random(top:2)")]
    try:
        found = {f"{policy} {batch}": compare(model, policy, batch, length) for policy, batch in chosen}
        for policy in ("top:1", "random(top:1)") if every else ("top:1",):
            found[f"{policy} read"] = read(model, policy, length)
        if device == "cpu":
            found["top:2 later"] = later(model, "top:2", 4 + length // 2)
        return found
    finally:
        causal_scores.SEEN_BY = before


if __name__ == "__main__":
    used = 0
    decode = Model.decode

    def counted(*arguments: Any) -> Any:
        global used
        used += 1
        return decode(*arguments)

    Model.decode = counted  # type: ignore[method-assign, assignment]
    results = cases(sys.argv[1], every="some" not in sys.argv)
    results["used"] = {"steps": float(used)}
    print(json.dumps(results))
