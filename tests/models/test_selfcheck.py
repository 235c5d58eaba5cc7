"""The self-check: passes for every golden checkpoint, and fails when what is recorded is not what the model did."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.helpers import golden

import sinkscope as ss
from sinkscope.attention import interface
from sinkscope.attention.context import AttentionCall
from sinkscope.attention.short import Attended
from sinkscope.models import selfcheck
from sinkscope.models.selfcheck import CheckedBound, SelfCheck


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", golden.FAMILIES)
def test_golden_checkpoints_pass(family: str, dtype: str) -> None:
    model = golden.model(family, dtype)
    ids = golden.tensor(family, "forward_T24.npz", "input_ids")
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


def failing(family: str, dtype: str = "float32") -> str:
    """What the self-check names when it fails, which it must."""
    result = golden.model(family, dtype).check()
    assert not result.passed
    with pytest.raises(ss.CheckpointError) as caught:
        result.require()
    assert "\n" not in str(caught.value)
    return " | ".join(finding.what for finding in result.findings if not finding.passed)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", golden.FAMILIES)
def test_a_wrong_map_is_noticed(family: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads in another order: every row still sums to one."""
    right = AttentionCall.map
    monkeypatch.setattr(AttentionCall, "map", lambda call: right(call).roll(1, dims=1))
    assert "recorded map times values" in failing(family, dtype)


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_a_wrong_scale_is_noticed(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = AttentionCall.map
    monkeypatch.setattr(AttentionCall, "map", lambda call: right(replace(call, scale=call.scale * 1.1)))
    assert "recorded map times values" in failing(family)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_wrong_received_attention_is_noticed(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The known mistake: averaging over the heads of a group."""
    right = AttentionCall.received

    def averaged(call: AttentionCall, *args: Any, **options: Any) -> torch.Tensor:
        found = right(call, *args, **options)
        return (
            found.unflatten(1, (call.key.shape[1], -1))
            .mean(2, keepdim=True)
            .expand(-1, -1, 2, -1, -1)
            .flatten(1, 2)
        )

    monkeypatch.setattr(AttentionCall, "received", averaged)
    assert "received attention" in failing("dream", dtype)


def test_a_log_sum_exp_that_is_off_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = interface.fused.attend_and_sum

    def shifted(*args: Any) -> Attended:
        found = right(*args)
        return found if found.lse is None else replace(found, lse=found.lse + 0.01)

    monkeypatch.setattr(interface.fused, "attend_and_sum", shifted)
    assert "received attention" in failing("llama")


def test_column_sums_that_are_off_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short inputs of a diffusion model on a CPU: the sums that come with the output are those that are recorded."""
    right = interface.fused.attend_and_sum

    def scaled(*args: Any) -> Attended:
        found = right(*args)
        return found if found.acted is None else replace(found, acted=found.acted * 1.01)

    monkeypatch.setattr(interface.fused, "attend_and_sum", scaled)
    assert "received attention" in failing("llada")


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_recording_that_changes_the_output_by_one_bit_is_noticed(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = interface.AttentionCall

    def touching(*args: Any) -> AttentionCall:
        call = right(*args)
        call.output[0, 0, 0, 0] = torch.nextafter(call.output[0, 0, 0, 0], torch.tensor(float("inf")))
        return call

    monkeypatch.setattr(interface, "AttentionCall", touching)
    assert "with and without recording" in failing(family)


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


@pytest.mark.parametrize("family", ["dream", "llama"])
def test_padding_that_leaks_is_noticed(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = interface._visibility

    def leaking(*args: Any) -> Any:
        return replace(right(*args), real=None)

    monkeypatch.setattr(interface, "_visibility", leaking)
    assert "padded row" in failing(family)


def test_lost_causality_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trap of transformers: a name without a mask function silently loses causality."""
    right = interface._visibility
    monkeypatch.setattr(interface, "_visibility", lambda *args: replace(right(*args), causal=False))
    assert "transformers' own attention" in failing("llama")


def test_nan_does_not_pass() -> None:
    assert not CheckedBound("anything", float("nan"), 1.0).passed
    assert not SelfCheck("here", (CheckedBound("a", 0.0, 0.0), CheckedBound("b", float("nan"), 1.0))).passed


def test_bounds_are_no_wider_than_rounding() -> None:
    """float32 is held to 1e-4; half precisions to a few of their own roundings."""
    assert selfcheck.ROUNDING[torch.float32] <= 1e-4
    for dtype in (torch.bfloat16, torch.float16):
        assert selfcheck.ROUNDING[dtype] <= 6 * torch.finfo(dtype).eps
