"""Every forward fixture: what the official code computed, through ss.load, model.logits and model.attention."""

from __future__ import annotations

import hashlib

import pytest
import torch
from tests.helpers import golden

import sinkscope as ss

PADDED_QUERIES = ("llada", "mmada")
"""Families whose fixtures define what the rows of padded queries are; elsewhere they are implementation specific."""


def logits_tolerance(family: str) -> dict[str, float]:
    """atol and rtol of float32 logits, as the manifest says."""
    return golden.manifest(family)["tolerances"]["logits_float32"]


def attention_tolerance(family: str) -> dict[str, float]:
    """atol of attention, as the manifest says."""
    return {"atol": golden.manifest(family)["tolerances"]["attn"]["atol"], "rtol": 0.0}


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_fixtures_are_the_ones_in_the_manifest(family: str) -> None:
    listed = golden.manifest(family)["files"]
    assert "manifest.json" not in listed
    for name, known in listed.items():
        content = (golden.ROOT / family / name).read_bytes()
        assert len(content) == known["bytes"], name
        assert hashlib.sha256(content).hexdigest() == known["sha256"], name
    on_disk = {
        path.relative_to(golden.ROOT / family).as_posix()
        for path in (golden.ROOT / family).rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }
    assert on_disk == set(listed)


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_tolerances_are_those_the_project_promises(family: str) -> None:
    assert logits_tolerance(family) == {"atol": 2e-4, "rtol": 1e-4}
    assert attention_tolerance(family)["atol"] == 2e-5


@pytest.mark.parametrize(("family", "name"), golden.cases("forward", "forward_T"))
def test_forward(family: str, name: str) -> None:
    model = golden.model(family)
    ids = golden.tensor(family, name, "input_ids")
    torch.testing.assert_close(
        model.logits(ids), golden.tensor(family, name, "logits"), **logits_tolerance(family)
    )
    maps = model.attention(ids)
    torch.testing.assert_close(maps, golden.tensor(family, name, "attn"), **attention_tolerance(family))
    assert maps.dtype == torch.float32


@pytest.mark.parametrize(
    ("family", "name"), [case for case in golden.cases("forward", "forward_T") if case[0] != "mmada"]
)
def test_hidden_states(family: str, name: str) -> None:
    model = golden.model(family)
    ids = golden.tensor(family, name, "input_ids")
    embedded = model.network.get_input_embeddings()(ids)
    torch.testing.assert_close(embedded, golden.tensor(family, name, "embed"), atol=0, rtol=0)
    if not model.spec.causal:
        hidden = model.hidden(ids)
        expected = golden.tensor(family, name, "last_hidden")
        torch.testing.assert_close(hidden, expected, **logits_tolerance(family))
        torch.testing.assert_close(model.head(hidden), model.logits(ids), atol=0, rtol=0)


@pytest.mark.parametrize(("family", "name"), golden.cases("forward", "leftpad"))
def test_left_padding(family: str, name: str) -> None:
    model = golden.model(family)
    ids, mask = golden.tensor(family, name, "input_ids"), golden.tensor(family, name, "attention_mask")
    assert int((mask == 0).sum()) > 0
    logits, attention = model.logits(ids, mask), model.attention(ids, attention_mask=mask)
    official_logits = golden.tensor(family, name, "logits")
    official_attention = golden.tensor(family, name, "attn")
    assert not logits.isnan().any()
    if family not in PADDED_QUERIES:
        real = mask.bool()
        logits, official_logits = logits[real], official_logits[real]
        rows = real[None, :, None, :, None]
        attention, official_attention = attention * rows, official_attention * rows
    torch.testing.assert_close(logits, official_logits, **logits_tolerance(family))
    torch.testing.assert_close(attention, official_attention, **attention_tolerance(family))


def test_left_padding_is_not_what_the_older_or_the_causal_code_gives() -> None:
    """The masks are honoured: neither LLaDA's old file, which ignored them, nor MMaDA's causal trap."""
    for family, name, other in (
        ("llada", "forward_leftpad.npz", "logits_if_mask_ignored"),
        ("mmada", "forward_leftpad_bias.npz", "logits_if_2d_attention_mask_passed"),
    ):
        ids, mask = golden.tensor(family, name, "input_ids"), golden.tensor(family, name, "attention_mask")
        padded_rows = (mask == 0).any(1)
        difference = golden.model(family).logits(ids, mask) - golden.tensor(family, name, other)
        assert difference[padded_rows].abs().max() > 0.5


@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.int32, torch.float32])
def test_masks_of_any_dtype_mean_the_same(mask_dtype: torch.dtype) -> None:
    ids = golden.tensor("llada", "forward_leftpad.npz", "input_ids")
    mask = golden.tensor("llada", "forward_leftpad.npz", "attention_mask")
    model = golden.model("llada")
    assert torch.equal(model.logits(ids, mask.to(mask_dtype)), model.logits(ids, mask))
    assert torch.equal(model.logits(ids, mask.tolist()), model.logits(ids, mask))


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_a_mask_of_ones_is_no_mask(family: str) -> None:
    ids = golden.tensor(family, "forward_T24.npz", "input_ids")
    model = golden.model(family)
    assert torch.equal(model.logits(ids, torch.ones_like(ids)), model.logits(ids))
    assert torch.equal(model.attention(ids, torch.ones_like(ids)), model.attention(ids))


@pytest.mark.parametrize(("family", "name"), golden.cases("sinkmask"))
def test_sink_mask(family: str, name: str) -> None:
    model = golden.model(family)
    entry = golden.manifest(family)["sinkmask"][name]
    columns = {int(layer): chosen for layer, chosen in entry["columns_per_layer"].items()}
    ids = golden.tensor(family, "forward_T24.npz", "input_ids")
    policy = ss.MaskKeys(columns)
    logits, attention = model.logits(ids, policy=policy), model.attention(ids, policy=policy)
    torch.testing.assert_close(logits, golden.tensor(family, name, "logits"), **logits_tolerance(family))
    torch.testing.assert_close(attention, golden.tensor(family, name, "attn"), **attention_tolerance(family))
    changed = (logits - model.logits(ids)).abs().max()
    assert float(changed) == pytest.approx(entry["max_abs_change_of_logits"], abs=1e-3)
    if "exempted_rows_total" in entry:
        kept = sum(
            int((attention[layer, 0, 0][:, chosen].sum(-1) > 0).sum())
            for layer, chosen in columns.items()
            if chosen
        )
        assert kept == entry["exempted_rows_total"]


@pytest.mark.parametrize(("family", "name"), golden.cases("forward", "bf16"))
def test_bfloat16_is_as_near_to_float32_as_the_official_run(family: str, name: str) -> None:
    model = golden.model(family, "bfloat16")
    ids = golden.tensor(family, name, "input_ids")
    logits = model.logits(ids)
    assert logits.dtype == torch.bfloat16
    bound = golden.manifest(family)["forward"][name]["mean_abs_diff_to_float32"]
    difference = (logits.float() - golden.tensor(family, name, "logits")).abs().mean()
    assert float(difference) < bound


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_received_attention_is_that_of_the_official_maps(family: str) -> None:
    """The statistic of every key from the official maps by the definition, against what a listener is handed."""
    from tests.helpers.calls import Recorder

    from sinkscope.attention.context import AttentionCall

    model = golden.model(family)
    name = golden.cases("forward", "leftpad")[golden.FAMILIES.index(family)][1]
    ids, mask = golden.tensor(family, name, "input_ids"), golden.tensor(family, name, "attention_mask")
    maps = golden.tensor(family, name, "attn").double()
    found: dict[int, torch.Tensor] = {}

    def listen(call: AttentionCall) -> None:
        found[call.layer] = call.received()[:, :, 0]

    ids, real = model.real_tokens(ids, mask)
    model.forward(ids, model.context(real, recorder=Recorder(see=listen)))
    for layer in range(maps.shape[0]):
        for row in range(len(ids)):
            real = mask[row].bool()
            visible = real[None, :] & real[:, None]
            if model.spec.causal:
                visible = visible & torch.ones_like(visible).tril()
            uniform = (visible / visible.sum(-1, keepdim=True).clamp(min=1)).double().sum(0)
            expected = (maps[layer, row] * real[:, None]).sum(-2) / uniform
            expected[:, ~real] = float("nan")
            torch.testing.assert_close(
                found[layer][row].double(), expected, atol=2e-3, rtol=1e-4, equal_nan=True
            )


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_rows_do_not_depend_on_their_neighbours(family: str) -> None:
    ids = golden.tensor(family, "forward_T49.npz", "input_ids")
    model = golden.model(family)
    torch.testing.assert_close(model.logits(ids)[1:], model.logits(ids[1:]), **logits_tolerance(family))


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_one_token(family: str) -> None:
    model = golden.model(family)
    ids = torch.tensor([[7]])
    maps = model.attention(ids)
    assert torch.equal(maps, torch.ones_like(maps))
    assert model.logits(ids).shape == (1, 1, model.shape.vocabulary)
