"""The self-check: passes for every golden checkpoint, and fails when what is recorded is not what the model did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from tests.helpers import golden

import sinkscope as ss
from sinkscope.attention import interface
from sinkscope.attention.context import AttentionCall
from sinkscope.attention.cpu import Attended
from sinkscope.models import selfcheck
from sinkscope.models.selfcheck import CheckedBound, SelfCheck

HALF = [(family, "bfloat16") for family in golden.FAMILIES]


@pytest.mark.parametrize(
    ("family", "dtype"), [*product(golden.FAMILIES + golden.LATER + golden.EXPERTS, ["float32"]), *HALF]
)
def test_golden_checkpoints_pass(family: str, dtype: str) -> None:
    model = golden.model(family, dtype)
    ids = torch.arange(24)[None]
    before = model.logits(ids)
    for seed in (0, 1):
        result = model.check(seed=seed)
        assert result.passed, [finding for finding in result.findings if not finding.passed]
        result.require()
    assert model.check(length=61).passed
    assert len(result.findings) == (6 if model.spec.causal else 5)
    assert torch.equal(model.logits(ids), before), "the check left something behind"
    unchanged = next(finding for finding in result.findings if "without recording" in finding.what)
    assert unchanged.measured == 0
    assert unchanged.bound == 0


def test_loading_with_check() -> None:
    assert ss.load(golden.checkpoint("dream"), device="cpu", check=True).family == "dream"


def test_too_short_a_check() -> None:
    with pytest.raises(ss.InputError, match="8 tokens"):
        golden.model("llada").check(length=4)


Patch = Callable[[pytest.MonkeyPatch], None]


def patched(owner: Any, name: str, wrong: Callable[..., Any]) -> Patch:
    """Puts `wrong(right, *args)` in the place of a function `right(*args)`."""
    right = getattr(owner, name)
    return lambda patch: patch.setattr(owner, name, lambda *args, **more: wrong(partial(right, **more), *args))


def averaged(right: Any, call: AttentionCall, *args: Any) -> torch.Tensor:
    """The known mistake: averaging over the heads of a group."""
    heads = right(call, *args).unflatten(1, (call.key.shape[1], -1))
    return heads.mean(2, keepdim=True).expand(-1, -1, 2, -1, -1).flatten(1, 2)


def shifted(right: Any, *args: Any) -> Attended:
    found = right(*args)
    return found if found.lse is None else replace(found, lse=found.lse + 0.01)


def scaled(right: Any, *args: Any) -> Attended:
    """Short inputs of a diffusion model on a CPU: the sums that come with the output are those that are recorded."""
    found = right(*args)
    return found if found.acted is None else replace(found, acted=found.acted * 1.01)


def touching(right: Any, *args: Any) -> AttentionCall:
    call = right(*args)
    call.output[0, 0, 0, 0] = torch.nextafter(call.output[0, 0, 0, 0], torch.tensor(float("inf")))
    return call


MAP, SUMS, SEEN = "recorded map times values", "received attention", (interface, "_visibility")
FUSED = (interface, "attend_and_sum")
MISTAKES: dict[str, tuple[tuple[str, ...], tuple[str, ...], Patch, str]] = {
    "heads in another order: every row still sums to one": (
        golden.FAMILIES, ("float32", "bfloat16"),
        patched(AttentionCall, "map", lambda right, call: right(call).roll(1, dims=1)), MAP,
    ),
    "a wrong scale": (
        golden.FAMILIES, ("float32",),
        patched(AttentionCall, "map", lambda right, call: right(replace(call, scale=call.scale * 1.1))), MAP,
    ),
    "heads of a group averaged": (("dream",), ("float32", "bfloat16"), patched(AttentionCall, "received", averaged), SUMS),
    "a log-sum-exp that is off": (("llama",), ("float32",), patched(*FUSED, shifted), SUMS),
    "column sums that are off": (("llada",), ("float32",), patched(*FUSED, scaled), SUMS),
    "recording that changes the output by one bit": (
        golden.FAMILIES, ("float32",), patched(interface, "AttentionCall", touching), "with and without recording"
    ),
    "padding that leaks": (
        ("dream", "llama"), ("float32",), patched(*SEEN, lambda right, *args: replace(right(*args), real=None)), "padded row"
    ),
    # The trap of transformers: a name without a mask function silently loses causality.
    "lost causality": (
        ("llama",), ("float32",), patched(*SEEN, lambda right, *args: replace(right(*args), causal=False)),
        "transformers' own attention",
    ),
}  # fmt: skip
"""Mistake → families and dtypes it is made in, how, and what the check names."""


@pytest.mark.parametrize(
    ("mistake", "family", "dtype"),
    [(name, *case) for name, (families, dtypes, *_) in MISTAKES.items() for case in product(families, dtypes)],
)
def test_a_mistake_is_noticed(mistake: str, family: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    *_, make, named = MISTAKES[mistake]
    model = golden.model(family, dtype)
    make(monkeypatch)
    result = model.check()
    assert not result.passed
    with pytest.raises(ss.CheckpointError) as caught:
        result.require()
    assert "\n" not in str(caught.value)
    assert named in " | ".join(finding.what for finding in result.findings if not finding.passed)


def test_a_layer_that_goes_another_way_is_noticed() -> None:
    """A layer that does not call the attention function: nothing of it would be recorded."""
    model = ss.load(golden.checkpoint("llada"), device="cpu")
    attention = model.network.model.layers[1].self_attn
    attention.forward = lambda hidden_states, **options: (hidden_states, None)
    result = model.check()
    assert not result.passed
    assert "exactly once" in next(finding.what for finding in result.findings if not finding.passed)


def test_a_layer_that_attends_twice_is_noticed() -> None:
    model = ss.load(golden.checkpoint("dream"), device="cpu")
    attention = model.network.model.layers[0].self_attn
    right = attention.forward

    def twice(*args: Any, **options: Any) -> Any:
        right(*args, **options)
        return right(*args, **options)

    attention.forward = twice
    assert not model.check().passed


def test_nan_does_not_pass() -> None:
    assert not CheckedBound("anything", float("nan"), 1.0).passed
    assert not SelfCheck("here", (CheckedBound("a", 0.0, 0.0), CheckedBound("b", float("nan"), 1.0))).passed


def test_bounds_are_no_wider_than_rounding() -> None:
    """float32 is held to 1e-4; half precisions to a few of their own roundings."""
    assert selfcheck.ROUNDING[torch.float32] <= 1e-4
    for dtype in (torch.bfloat16, torch.float16):
        assert selfcheck.ROUNDING[dtype] <= 6 * torch.finfo(dtype).eps
