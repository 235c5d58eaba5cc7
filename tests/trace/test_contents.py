"""What a trace holds, computed again from full attention maps, plain logits and hooks of the test's own."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import golden
from tests.helpers.naive_sinks import sinks_of_far

import sinkscope as ss
from sinkscope.policies.numbers import mixed

CLOSE = {"atol": 3e-4, "rtol": 1e-4}
"""Received attention is of order 1 to 40 here; its maps agree to 2e-5 per weight."""

MASK = {"llada": 504, "dream": 501, "mmada": 504}
DECODINGS: dict[str, Any] = {
    "llada": ss.LladaDecoding(length=12, steps=6, block=6),
    "dream": ss.DreamDecoding(length=12, steps=6, algorithm="maskgit_plus"),
    "mmada": ss.MmadaDecoding(length=12, steps=6, block=4),
    "llama": ss.GreedyDecoding(length=12, eos=None),
}
DIFFUSION = ["llada", "dream", "mmada"]
PROMPT = 11


def prompt(rows: int = 2, pads: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ids; the second row is padded on the left."""
    ids = torch.randint(0, 470, (rows, PROMPT), generator=torch.Generator().manual_seed(7))
    mask = torch.ones_like(ids)
    mask[1, :pads] = 0
    return ids, mask


def recorded(family: str, capture: ss.Capture, decoding: Any = None, **more: Any) -> ss.Run:
    """A recorded run of a padded batch."""
    (ids, mask), decoding = prompt(), decoding or DECODINGS[family]
    return ss.generate(golden.model(family), ids, decoding, attention_mask=mask, capture=capture, **more)


@cache
def run_of(family: str, **options: Any) -> ss.Run:
    """The same without a policy, once per process."""
    return recorded(family, ss.Capture(**options))


def close(values: Any, expected: Any) -> None:
    np.testing.assert_allclose(values, expected, **CLOSE)


def full_mask(columns: int) -> torch.Tensor:
    return torch.nn.functional.pad(prompt()[1], (0, columns - PROMPT), value=1)


def maps_at(family: str, run: ss.Run, step: int, policy: Any = None) -> np.ndarray:
    """[row, layer, head, query, key] of the state that went into a step, computed apart from the run."""
    ids = run.states[step]
    if family == "llama":
        ids = ids[:, : PROMPT + step]
    maps = golden.model(family).attention(ids, full_mask(ids.shape[1]), policy=policy)
    return maps.transpose(0, 1).double().numpy()


def received_from(maps: np.ndarray, real: np.ndarray, queries: np.ndarray, causal: bool = False) -> np.ndarray:
    """Received attention of one row [layer, head, key], from its definition. queries, real: bool [S]."""
    size = len(real)
    visible = np.tril(np.ones((size, size))) if causal else np.ones((size, size))
    visible = visible * real[None, :]
    count = np.maximum(visible.sum(1), 1)
    inside = (queries & real).astype(float)
    uniform = ((inside / count)[:, None] * visible).sum(0)
    mass = np.einsum("q,lhqk->lhk", inside, maps)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((uniform > 0) & real, mass / uniform, np.nan)


@pytest.mark.parametrize("family", DIFFUSION)
@pytest.mark.parametrize("step", [0, 2, 5])
def test_received(family: str, step: int) -> None:
    run = run_of(family)
    data = run.trace.dataset
    assert data["received"].dims == ("sample", "step", "layer", "head", "key")
    maps = maps_at(family, run, step)
    for row in range(2):
        real = full_mask(23)[row].numpy() != 0
        expected = received_from(maps[row], real, np.ones(23, dtype=bool))
        close(data["received"].sel(sample=row, step=step).values, expected)
        # Attention adds up to one per query, so over the real keys the mean is exactly uniform attention.
        found = data["received"].sel(sample=row, step=step).values
        np.testing.assert_allclose(np.nanmean(found, -1), 1.0, atol=1e-4)
        assert np.isnan(found[..., ~real]).all()
        assert not np.isnan(found[..., real]).any()


@pytest.mark.parametrize("family", DIFFUSION)
@pytest.mark.parametrize("level", ["heads", "layers"])
def test_received_by_kind_of_query(family: str, level: str) -> None:
    run = run_of(family, by_query=True, level=level)
    data = run.trace.dataset
    assert list(data["query_kind"].values) == ["masked", "decided", "prompt", "control a", "control b"]
    for step in (0, 3):
        maps = maps_at(family, run, step)
        for row in range(2):
            real = full_mask(23)[row].numpy() != 0
            masked = (run.states[step, row] == MASK[family]).numpy()
            answer = np.arange(23) >= PROMPT
            kinds = {"masked": masked, "decided": answer & ~masked, "prompt": ~answer & ~masked}
            order = mixed(torch.arange(23 - PROMPT)).argsort().argsort().numpy()
            drawn = np.concatenate([np.zeros(PROMPT, dtype=bool), order < masked.sum()])
            kinds |= {"control a": drawn, "control b": answer & ~drawn}
            assert drawn.sum() == masked.sum()
            for kind, queries in kinds.items():
                found = data["received_by"].sel(sample=row, step=step, query_kind=kind).values
                expected = received_from(maps[row], real, queries)
                expected = expected.mean(1) if level == "layers" else expected
                close(found, expected)
                assert np.isnan(found).all() == (not (queries & real).any())


@pytest.mark.parametrize("family", [*DIFFUSION, "llama"])
def test_level_layers_is_the_mean_and_counts_the_heads_that_agree(family: str) -> None:
    decoding = ss.GreedyDecoding(length=48, eos=None) if family == "llama" else DECODINGS[family]
    heads, layers = (recorded(family, ss.Capture(level), decoding).trace.dataset for level in ("heads", "layers"))
    assert "head" not in layers.dims
    close(layers["received"].values, heads["received"].values.mean(3))
    if family == "llama":
        far, tokens, padded = (heads[name].values for name in ("received_far", "tokens", "region"))
        sinks = np.zeros(far.shape, dtype=bool)
        for row, step in np.ndindex(*far.shape[:2]):
            real = (tokens[row, step] >= 0) & (padded[row] != "padding")
            sinks[row, step] = sinks_of_far(far[row, step], real)
    else:
        scores = heads["received"].values.astype(np.float64)
        count = (~np.isnan(scores)).sum(-1, keepdims=True)
        others = (np.nansum(scores, -1, keepdims=True) - scores) / np.maximum(count - 1, 1)
        sinks = (scores > others + 3.0) & (count > 1)
        assert not (np.abs(scores - others - 3.0) < 1e-4).any(), "choose another prompt"
    np.testing.assert_array_equal(layers["sink_heads"].values, sinks.sum(3))
    assert sinks.sum() > 10


@pytest.mark.parametrize("step", [0, 1, 7, 11])
def test_causal_received(step: int) -> None:
    run = run_of("llama", by_query=True)
    data = run.trace.dataset
    maps = maps_at("llama", run, step)
    size = PROMPT + step
    for row in range(2):
        real = full_mask(size)[row].numpy() != 0
        every, last = np.ones(size, dtype=bool), np.arange(size) == size - 1
        here = data.sel(sample=row, step=step)
        close(here["received"].values[..., :size], received_from(maps[row], real, last, causal=True))
        # By hand: the newest token's row, times the keys that it sees.
        close(here["received"].values[..., :size][..., real], maps[row, :, :, -1][..., real] * real.sum())
        total = received_from(maps[row], real, every, causal=True)
        seen = np.where(real, size - np.arange(size), 0)
        close(here["received_all"].values[..., :size], np.where(seen >= 16, total, np.nan))
        for kind, queries in (("prompt", np.arange(size) < PROMPT), ("decided", np.arange(size) >= PROMPT)):
            close(
                here["received_by"].sel(query_kind=kind).values[..., :size],
                received_from(maps[row], real, queries, causal=True),
            )
        assert np.isnan(here["received_by"].sel(query_kind="masked").values).all()
        for name in ("received", "received_all", "received_by"):
            assert np.isnan(here[name].values[..., size:]).all()
        if step == 0:
            prefill = data["prefill_received"].sel(sample=row).values
            close(prefill[..., :size], total)
            assert np.isnan(prefill[..., size:]).all()
    if step == 11:
        assert (~np.isnan(data["received_all"].sel(step=11).values)).any()


def test_received_all_counts_every_query_also_when_few_steps_are_recorded() -> None:
    every = run_of("llama").trace.dataset
    third = run_of("llama", every=3, anatomy=True).trace.dataset
    full = run_of("llama", anatomy=True).trace.dataset
    assert third["step"].values.tolist() == [0, 3, 6, 9]
    for name in ("received", "received_all", "prefill_received"):
        found, expected = third[name].values, every[name].values
        expected = expected if name == "prefill_received" else expected[:, [0, 3, 6, 9]]
        np.testing.assert_array_equal(found, expected, err_msg=name)
    for name in ("hidden_norm", "value_norm", "key_norm", "largest_activation", "median_activation"):
        np.testing.assert_array_equal(third[name].values, full[name].values[:, [0, 3, 6, 9]], err_msg=name)


@pytest.mark.parametrize("family", DIFFUSION)
def test_every_third_step_is_that_step(family: str) -> None:
    every, third = run_of(family).trace, run_of(family, every=3).trace
    assert third.dataset["step"].values.tolist() == [0, 3]
    assert len(third) == 2
    for name in ("received", "tokens", "masked", "confidence", "candidate", "decided", "ties"):
        np.testing.assert_array_equal(
            third.dataset[name].values, every.dataset[name].sel(step=[0, 3]).values, err_msg=name
        )
    # When a token was written is known for all steps.
    np.testing.assert_array_equal(third.dataset["decided_step"].values, every.dataset["decided_step"].values)


@pytest.mark.parametrize("family", [*DIFFUSION, "llama"])
def test_subsets_are_labelled(family: str) -> None:
    whole = run_of(family, anatomy=True).trace.dataset
    part = run_of(family, layers=(0, 2), heads=(1, 3), anatomy=True).trace.dataset
    assert part["layer"].values.tolist() == [0, 2]
    assert part["head"].values.tolist() == [1, 3]
    np.testing.assert_array_equal(part["received"].values, whole["received"].sel(layer=[0, 2], head=[1, 3]).values)
    np.testing.assert_array_equal(
        part["received"].sel(layer=2, head=3).values, whole["received"].sel(layer=2, head=3).values
    )
    for name in ("value_norm", "key_norm", "hidden_norm", "largest_activation", "median_activation"):
        np.testing.assert_array_equal(part[name].values, whole[name].sel(layer=[0, 2]).values, err_msg=name)


class Norms:
    """Norms of keys, values and residual stream of one plain forward, from hooks of its own."""

    def __init__(self, family: str, ids: torch.Tensor, mask: torch.Tensor) -> None:
        model = golden.model(family)
        self.value: list[np.ndarray] = []
        self.key: list[np.ndarray] = []
        self.hidden: list[torch.Tensor] = []
        handles = []
        for layer in model.network.model.layers:
            handles.append(layer.register_forward_pre_hook(self._enter, with_kwargs=True))
            for projection, into in ((layer.self_attn.v_proj, self.value), (layer.self_attn.k_proj, self.key)):
                handles.append(projection.register_forward_hook(self._leave(into, model.shape)))
        try:
            model.logits(ids, mask)
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, _: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.hidden.append((positional[0] if positional else named["hidden_states"]).clone())

    @staticmethod
    def _leave(into: list[np.ndarray], shape: Any) -> Any:
        def see(_: Any, __: Any, out: torch.Tensor) -> None:
            # Rotary embedding turns keys and leaves their norms as they are.
            heads = out.unflatten(-1, (shape.kv_heads, shape.head_dim))
            into.append(heads.norm(dim=-1).transpose(1, 2).numpy())

        return see


@pytest.mark.parametrize("family", [*DIFFUSION, "llama"])
@pytest.mark.parametrize("step", [0, 4])
def test_anatomy(family: str, step: int) -> None:
    run = run_of(family, anatomy=True)
    data = run.trace.dataset
    size = PROMPT + step if family == "llama" else 23
    mask = full_mask(size)
    own = Norms(family, run.states[step][:, :size], mask)
    real = mask.numpy() != 0
    assert data["value_norm"].dims == ("sample", "step", "layer", "kv_head", "key")
    for row in range(2):
        here = data.sel(sample=row, step=step)
        for layer in range(3):
            stream = own.hidden[layer][row].abs()
            expected = {
                "value_norm": own.value[layer][row],
                "key_norm": own.key[layer][row],
                "hidden_norm": stream.norm(dim=-1).numpy(),
                "largest_activation": stream.amax(-1).numpy(),
            }
            for name, values in expected.items():
                found = here[name].sel(layer=layer).values
                np.testing.assert_allclose(
                    found[..., :size][..., real[row]], values[..., real[row]], rtol=1e-4, atol=1e-5, err_msg=name,
                )  # fmt: skip
                assert np.isnan(found[..., :size][..., ~real[row]]).all(), f"{name} in padding"
                assert np.isnan(found[..., size:]).all(), f"{name} of tokens that do not exist yet"
            # Of a causal model the median stays that of the prompt.
            inside = (
                stream[mask[row] != 0][: int(mask[row, :PROMPT].sum())] if family == "llama" else stream[mask[row] != 0]
            )
            np.testing.assert_allclose(
                float(here["median_activation"].sel(layer=layer)), float(inside.median()), rtol=1e-4
            )


@pytest.mark.parametrize("family", DIFFUSION)
def test_the_input_of_each_step_and_what_was_decided(family: str) -> None:
    run = run_of(family)
    data, states = run.trace.dataset, run.states.numpy()
    np.testing.assert_array_equal(data["tokens"].values, states[:-1].transpose(1, 0, 2))
    np.testing.assert_array_equal(data["masked"].values, states[:-1].transpose(1, 0, 2) == MASK[family])
    changed = (states[1:] != states[:-1]).transpose(1, 0, 2)
    assert changed.any()
    np.testing.assert_array_equal(data["decided"].values, changed)
    np.testing.assert_array_equal(data["ties"].values, run.ties.numpy().T)
    when = np.where(changed.any(1), changed.argmax(1), -1)
    np.testing.assert_array_equal(data["decided_step"].values, when)


@pytest.mark.parametrize("family", DIFFUSION)
def test_confidence_and_candidate_of_every_masked_position(family: str) -> None:
    """At temperature 0: the most likely token and its probability, in all masked positions, blocks or not."""
    run, model = run_of(family), golden.model(family)
    data = run.trace.dataset
    for step in (0, 3):
        state = run.states[step]
        logits = model.logits(state, full_mask(23))
        if family == "dream":
            logits = torch.cat([logits[:, :1], logits[:, :-1]], 1)
        best = logits.softmax(-1).max(-1)
        masked = (state == MASK[family]).numpy()
        found = data.sel(step=step)
        np.testing.assert_array_equal(found["candidate"].values, np.where(masked, best.indices, -1))
        np.testing.assert_allclose(
            found["confidence"].values, np.where(masked, best.values, np.nan), rtol=1e-4, atol=1e-6
        )
        written = found["decided"].values
        assert (written <= masked).all()
        np.testing.assert_array_equal(run.states[step + 1].numpy()[written], found["candidate"].values[written])


def test_causal_tokens_candidates_and_decisions() -> None:
    run = run_of("llama")
    data = run.trace.dataset
    np.testing.assert_array_equal(data["tokens"].values, run.states[:-1].numpy().transpose(1, 0, 2))
    assert not data["masked"].values.any()
    for step in (0, 5):
        column = PROMPT + step
        logits = golden.model("llama").logits(run.states[step][:, :column], full_mask(column))[:, -1]
        best = logits.softmax(-1).max(-1)
        here = data.sel(step=step)
        assert here["candidate"].values[:, column].tolist() == best.indices.tolist()
        np.testing.assert_allclose(here["confidence"].values[:, column], best.values, rtol=1e-4)
        only = np.arange(23) == column
        np.testing.assert_array_equal(here["decided"].values, np.tile(only, (2, 1)))
        assert (here["candidate"].values[:, ~only] == -1).all()
        assert np.isnan(here["confidence"].values[:, ~only]).all()
    np.testing.assert_array_equal(data["decided_step"].values[:, PROMPT:], np.tile(np.arange(12), (2, 1)))
    assert (data["decided_step"].values[:, :PROMPT] == -1).all()


@pytest.mark.parametrize("family", [*DIFFUSION, "llama"])
def test_region_and_position_with_padding(family: str) -> None:
    data = run_of(family).trace.dataset
    assert data["region"].values[0].tolist() == ["prompt"] * 11 + ["answer"] * 12
    assert data["region"].values[1].tolist() == ["padding"] * 4 + ["prompt"] * 7 + ["answer"] * 12
    assert data["position"].values[0].tolist() == list(range(23))
    assert data["position"].values[1].tolist() == [-1] * 4 + list(range(19))


def test_pictures_have_their_slots_as_answer() -> None:
    ids = torch.tensor([[5, 6, 7, *[504] * 9, 483], [480, 8, 9, *[504] * 9, 483]])
    mask = torch.ones_like(ids)
    mask[1, 0] = 0
    free, free_mask = ids.clone(), mask.clone()
    free[:, :2], free_mask[:, :2] = 480, 0
    run = ss.generate(
        golden.model("mmada"), ids, ss.MmadaImageDecoding(timesteps=4, guidance=2.0, offset=507), seed=3, attention_mask=mask,
        unconditional=(free, free_mask), capture=ss.Capture(by_query=True),
    )  # fmt: skip
    data = run.trace.dataset
    assert data["region"].values[1].tolist() == ["padding", *["prompt"] * 2, *["answer"] * 9, "prompt"]
    states = run.states.numpy()
    np.testing.assert_array_equal(data["tokens"].values, states[:-1].transpose(1, 0, 2))
    changed = (states[1:] != states[:-1]).transpose(1, 0, 2)
    np.testing.assert_array_equal(data["decided"].values, changed)
    model, step = golden.model("mmada"), 2
    maps = model.attention(run.states[step], mask).transpose(0, 1).double().numpy()
    twin = torch.cat([free[:, :3], run.states[step][:, 3:]], 1)
    other = model.attention(twin, free_mask).transpose(0, 1).double().numpy()
    every = np.ones(13, dtype=bool)
    for row in range(2):
        here = data.sel(sample=row, step=step)
        real, free_real = mask[row].numpy() != 0, free_mask[row].numpy() != 0
        close(here["received"].values, received_from(maps[row], real, every))
        close(here["received_uncond"].values, received_from(other[row], free_real, every))
        # The closing token is no part of the picture.
        masked = (run.states[step, row] == 504).numpy()
        picture = (np.arange(13) >= 3) & (np.arange(13) < 12)
        for kind, queries in (("masked", masked), ("decided", picture & ~masked), ("prompt", ~picture)):
            close(here["received_by"].sel(query_kind=kind).values, received_from(maps[row], real, queries))
    # Every masked slot has a candidate that is an image code, and no other position has one.
    candidate = data["candidate"].values
    assert ((candidate >= 507) == data["masked"].values).all()
    assert (candidate[~data["masked"].values] == -1).all()


def test_guided_rows_record_both_branches() -> None:
    model = golden.model("llada")
    run = recorded("llada", ss.Capture(), ss.LladaDecoding(length=8, steps=4, block=8, cfg=1.0))
    assert run.forwards == [8, 8]
    twin = run.states[2].clone()
    twin[:, :PROMPT] = 504
    other = model.attention(twin, full_mask(19)).transpose(0, 1).double().numpy()
    for row in range(2):
        real = full_mask(19)[row].numpy() != 0
        expected = received_from(other[row], real, np.ones(19, dtype=bool))
        found = run.trace.dataset["received_uncond"].sel(sample=row, step=2).values
        close(found, expected)


def test_nothing_is_recorded_after_a_causal_row_has_ended() -> None:
    model, (ids, mask) = golden.model("llama"), prompt()
    free = ss.generate(model, ids, ss.GreedyDecoding(length=12, eos=None), attention_mask=mask).sequences
    end = int(free[0, PROMPT + 3])
    assert end not in free[1, PROMPT:].tolist()
    last = free[0, PROMPT:].tolist().index(end)
    for seed in (None, [1, 2]):
        decoding = ss.GreedyDecoding(length=12, eos=end)
        data = recorded("llama", ss.Capture(anatomy=True), decoding, seed=seed).trace.dataset
        ended, goes_on = data.isel(sample=0), data.isel(sample=1)
        numbers = ("received", "received_all", "value_norm", "hidden_norm", "confidence", "median_activation")
        for name in numbers:
            assert np.isnan(ended[name].values[last + 1 :]).all(), name
        assert (ended["tokens"].values[last + 1 :] == -1).all()
        assert (ended["candidate"].values[last + 1 :] == -1).all()
        assert not ended["decided"].values[last + 1 :].any()
        assert ended["decided"].values[last, PROMPT + last]
        assert not np.isnan(ended["received"].values[last, 0, 0, : PROMPT + last]).any()
        assert (ended["decided_step"].values[PROMPT + last + 1 :] == -1).all()
        assert not np.isnan(goes_on["received"].values[11, 0, 0, 4 : PROMPT + 11]).any()


def test_nothing_is_recorded_after_a_mmada_row_has_stopped() -> None:
    model, (ids, mask) = golden.model("mmada"), prompt()
    free = ss.MmadaDecoding(length=12, steps=6, block=4, temperature=1.0)
    for first in range(3, 60):
        seeds = [first, 4]
        states = ss.generate(model, ids, free, attention_mask=mask, seed=seeds).states
        stop = int(states[-1, 0, PROMPT + 3])
        if stop not in states[-1, 1, [PROMPT + 3, PROMPT + 7]].tolist():
            break
    else:
        pytest.fail("no seed ends the first block of one row only")
    decoding = ss.MmadaDecoding(length=12, steps=6, block=4, temperature=1.0, stop_at=stop)
    run = recorded("mmada", ss.Capture(), decoding, seed=seeds)
    data = run.trace.dataset
    assert np.isnan(data["received"].isel(sample=0).values[2:]).all()
    assert np.isnan(data["confidence"].isel(sample=0).values[2:]).all()
    assert (data["tokens"].isel(sample=0).values[2:] == -1).all()
    assert not np.isnan(data["received"].isel(sample=1).values[:, :, :, 4:]).any()
    np.testing.assert_array_equal(data["tokens"].isel(sample=1).values, run.states[:-1, 1].numpy())


def test_a_fixed_policy_is_accounted_for() -> None:
    """Keys taken in the last layer only: its q and k are those of a plain forward, so everything can be computed apart."""
    for family in DIFFUSION:
        policy = ss.MaskKeys({2: [6, 9]})
        run = recorded(family, ss.Capture(level="maps"), policy=policy)
        data = run.trace.dataset
        for step in (0, 3):
            raw, acted = maps_at(family, run, step), maps_at(family, run, step, policy)
            for row in range(2):
                here = data.sel(sample=row, step=step)
                real = full_mask(23)[row].numpy() != 0
                every = np.ones(23, dtype=bool)
                expected = received_from(raw[row], real, every)
                close(here["received_raw"].values, expected)
                close(here["received"].values, received_from(acted[row], real, every))
                np.testing.assert_allclose(here["attention"].values[:, :, real], acted[row][:, :, real], atol=2e-5)
                assert (here["received"].sel(layer=2).values[:, [6, 9]] == 0).all()
                share = raw[row, 2][:, real][..., [6, 9]].sum(-1).mean(-1)
                np.testing.assert_allclose(here["hidden_share"].sel(layer=2).values, share, atol=2e-5)
                assert (here["hidden_share"].sel(layer=[0, 1]).values == 0).all()
                scores = expected[2]
                others = (np.nansum(scores, -1, keepdims=True) - scores) / (real.sum() - 1)
                sinks = scores > others + 3
                with np.errstate(invalid="ignore", divide="ignore"):
                    hit = sinks[:, [6, 9]].sum(-1) / sinks.sum(-1)
                np.testing.assert_allclose(here["sinks_hit"].sel(layer=2).values, hit)
        taken = run.trace.masked_keys()
        assert taken.dims == ("sample", "step", "layer", "head", "key")
        expected = np.zeros((3, 23), dtype=bool)
        expected[2, [6, 9]] = True
        np.testing.assert_array_equal(taken.values, np.broadcast_to(expected[:, None], taken.shape))


@pytest.mark.parametrize("family", [*DIFFUSION, "llama"])
@pytest.mark.parametrize("seed", [None, [1, 2]], ids=["one group", "a group per length"])
def test_taken_keys_are_the_strongest_of_the_step_before(family: str, seed: Any) -> None:
    run = recorded(family, ss.Capture(), policy=ss.MaskTop(2), seed=seed)
    data, taken = run.trace.dataset, run.trace.masked_keys().values
    raw = data["received_raw"].values
    assert not taken[:, 0].any(), "there is no step before the first"
    for step in range(1, data.sizes["step"]):
        scores = np.nan_to_num(raw[:, step - 1], nan=-np.inf)
        order = np.argsort(-scores, axis=-1, kind="stable")[..., :2]
        expected = np.zeros_like(taken[:, step])
        np.put_along_axis(expected, order, True, axis=-1)
        np.testing.assert_array_equal(taken[:, step], expected)
        assert (data["received"].values[:, step][taken[:, step]] == 0).all()
    np.testing.assert_allclose(run.hidden_share.numpy(), data["hidden_share"].values[:, 1:].mean((1, 2, 3)), rtol=1e-4)
    with pytest.raises(ss.InputError, match="no masked keys"):
        run_of(family).trace.masked_keys()


def test_attributes_say_where_a_trace_came_from() -> None:
    import transformers

    for family in ("llada", "llama"):
        model = golden.model(family)
        run = recorded(family, ss.Capture(every=2), policy=ss.MaskTop(1), seed=[5, 6])
        about = run.trace.dataset.attrs
        assert about == run.trace.attributes
        assert about["model"] == model.source
        assert about["revision"] == ""
        assert about["weights_digest"] == model.digest
        assert len(about["weights_digest"]) == 64
        assert about["family"] == model.family
        assert about["dtype"] == "float32"
        assert json.loads(about["decoding"]) == DECODINGS[family].as_dict()
        assert ss.parse_policy(about["policy"]) == ss.MaskTop(1)
        assert json.loads(about["capture"])["every"] == 2
        assert json.loads(about["seed"]) == [5, 6]
        versions = json.loads(about["versions"])
        assert versions["sinkscope"] == ss.__version__
        assert versions["torch"] == torch.__version__
        assert versions["transformers"] == transformers.__version__
        special = json.loads(about["special_ids"])
        assert special["mask"] == model.ids.mask
        assert special["eos"] == list(model.ids.eos)
        assert about["n_heads"] == 4
        assert about["n_kv_heads"] == model.shape.kv_heads
        assert about["ties_total"] == int(run.ties.sum())


def test_a_seed_that_was_drawn_is_recorded_and_repeats_the_run() -> None:
    model, (ids, mask) = golden.model("llada"), prompt()
    decoding = ss.LladaDecoding(length=8, steps=4, block=8, temperature=1.0)
    run = ss.generate(model, ids, decoding, attention_mask=mask, capture=ss.Capture())
    assert isinstance(run.seed, int)
    assert json.loads(run.trace.attributes["seed"]) == run.seed
    again = ss.generate(model, ids, decoding, attention_mask=mask, seed=run.seed)
    assert torch.equal(again.states, run.states)
    other = ss.generate(model, ids, decoding, attention_mask=mask)
    assert other.seed != run.seed


def test_slicing_length_and_representations() -> None:
    trace = run_of("llada").trace
    assert len(trace) == 6
    assert trace.dataset["received"].sel(layer=1, head=2, step=3).dims == ("sample", "key")
    assert trace.tokens_at(0) == [f"⟨{int(n)}⟩" for n in run_of("llada").states[0, 0]]
    assert trace.tokens_at(4, sample=1) == [f"⟨{int(n)}⟩" for n in run_of("llada").states[4, 1, 4:]]
    text = repr(trace)
    assert "llada" in text
    assert "step 6" in text
    page = trace._repr_html_()
    assert "<table" in page
    assert "data:image/png;base64," in page
    assert "http" not in page
    causal = run_of("llama").trace
    assert len(causal.tokens_at(2)) == PROMPT + 2


@pytest.mark.slow
def test_html_is_escaped() -> None:
    trace = ss.Trace(run_of("llada").trace.dataset.assign_attrs(model="<script>alert(1)</script>"))
    assert "<script>" not in trace._repr_html_()
