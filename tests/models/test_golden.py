"""Every forward fixture: what the official code computed, through ss.load, model.logits and model.attention."""

from __future__ import annotations

import hashlib

import pytest
import torch
from tests.helpers import golden

import sinkscope as ss

PADDED_QUERIES = ("llada", "mmada")
"""Families whose fixtures define what the rows of padded queries are; elsewhere they are implementation specific."""


ALL = (*golden.FAMILIES, *golden.LATER, *golden.EXPERTS)
LOGITS = {"atol": 2e-4, "rtol": 1e-4}
ATTENTION = {"atol": 2e-5, "rtol": 0.0}
PLAIN = [*golden.cases("forward", "forward_T"), *golden.cases("forward", families=ALL[len(golden.FAMILIES) :])]
"""Forwards of which every row is defined."""


@pytest.mark.parametrize("family", [*golden.FAMILIES, *golden.EXPERTS])
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


@pytest.mark.parametrize("family", ALL)
def test_family_and_the_tolerances_that_the_project_promises(family: str) -> None:
    name = {"llama": "causal", "a2d_qwen3": "a2d", "a2d_llama": "a2d", "sdar_moe": "sdar"}.get(family, family)
    assert golden.model(family).family == name
    tolerances = golden.manifest(family)["tolerances"]
    assert tolerances["logits_float32"] == LOGITS
    assert tolerances["attn"]["atol"] == ATTENTION["atol"]
    assert all(golden.cases(section, families=(family,)) for section in ("forward", "sinkmask", "generate"))


@pytest.mark.parametrize(("family", "name"), PLAIN)
def test_forward(family: str, name: str) -> None:
    """Logits, maps and hidden states, blocks and padding on the right included."""
    model, block = golden.model(family), golden.block(family, name)
    stored = {key: golden.tensor(family, name, key) for key in golden.arrays(family, name)}
    ids, mask = stored["input_ids"], stored.get("attention_mask")
    logits, maps = model.logits(ids, mask, block=block), model.attention(ids, mask, block=block)
    rows = len(stored["logits"])  # of the larger inputs one row is stored
    torch.testing.assert_close(logits[:rows], stored["logits"], **LOGITS)
    torch.testing.assert_close(maps[:, :rows], stored["attn"], **ATTENTION)
    assert maps.dtype == torch.float32
    if "embed" in stored:
        embedded = model.network.get_input_embeddings()(ids)
        torch.testing.assert_close(embedded[: len(stored["embed"])], stored["embed"], atol=0, rtol=0)
    if "last_hidden" in stored and not model.spec.causal:
        hidden = model.hidden(ids, model.context(block=block))
        torch.testing.assert_close(hidden[:rows], stored["last_hidden"], **LOGITS)
        torch.testing.assert_close(model.head(hidden), logits, atol=0, rtol=0)


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
    torch.testing.assert_close(logits, official_logits, **LOGITS)
    torch.testing.assert_close(attention, official_attention, **ATTENTION)


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


@pytest.mark.parametrize(("family", "name"), golden.cases("sinkmask", families=ALL))
def test_sink_mask(family: str, name: str) -> None:
    """Masked columns in some layers, also where queries would lose all that they see."""
    model = golden.model(family)
    entry = golden.manifest(family)["sinkmask"][name]
    columns = {int(layer): chosen for layer, chosen in entry["columns_per_layer"].items()}
    plain = min(golden.names(family, "forward"), key=len)
    ids, block = golden.tensor(family, plain, "input_ids"), golden.block(family, plain)
    policy = ss.MaskKeys(columns)
    logits = model.logits(ids, policy=policy, block=block)
    attention = model.attention(ids, policy=policy, block=block)
    official = golden.tensor(family, name, "logits")  # of the larger ones one row is stored
    torch.testing.assert_close(logits[: len(official)], official, **LOGITS)
    official = golden.tensor(family, name, "attn")
    torch.testing.assert_close(attention[:, : official.shape[1]], official, **ATTENTION)
    if "max_abs_change_of_logits" in entry:
        changed = (logits - model.logits(ids, block=block)).abs().max()
        assert float(changed) == pytest.approx(entry["max_abs_change_of_logits"], abs=1e-3)
    if "exempted_rows_total" in entry:
        rows = len(ids) if block else 1  # the fixtures of causal models count those of the first
        maps = [attention[layer, :rows, 0][..., chosen] for layer, chosen in columns.items() if chosen]
        kept = sum(int((map_.sum(-1) > 0).sum()) for map_ in maps)
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
            torch.testing.assert_close(found[layer][row].double(), expected, atol=2e-3, rtol=1e-4, equal_nan=True)


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_rows_do_not_depend_on_their_neighbours(family: str) -> None:
    ids = golden.tensor(family, "forward_T49.npz", "input_ids")
    model = golden.model(family)
    torch.testing.assert_close(model.logits(ids)[1:], model.logits(ids[1:]), **LOGITS)


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_one_token(family: str) -> None:
    model = golden.model(family)
    ids = torch.tensor([[7]])
    maps = model.attention(ids)
    assert torch.equal(maps, torch.ones_like(maps))
    assert model.logits(ids).shape == (1, 1, model.shape.vocabulary)
