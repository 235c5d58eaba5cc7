"""`ss.replay` against model forwards with and without the policy, and against the dense reference."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import golden
from tests.policies.dense import Dense
from tests.policies.follow import DECODINGS, GUIDED, PROMPT, Setting, inputs, prompts
from torch import Tensor

import sinkscope as ss

SETTINGS = [
    *(
        Setting(family, decoding, batch)
        for family, decoding in DECODINGS.items()
        for batch in ("plain", "padded", "seeds")
    ),
    Setting("llada", GUIDED),
    Setting("llada", GUIDED, "padded"),
    Setting("mmada", ss.MmadaDecoding(length=12, steps=4, block=6, cfg=1.5)),
    Setting("dream", ss.DreamDecoding(length=12, steps=5, algorithm="maskgit_plus", temperature=0.2, top_p=0.95)),
    Setting("dream", ss.DreamDecoding(length=12, steps=5, algorithm="topk_margin")),
    Setting("llada", ss.LladaDecoding(length=12, steps=6, block=6, temperature=0.7)),
    Setting("llama", ss.SamplingDecoding(length=6, temperature=0.8, eos=None)),
]


@cache
def unmasked(setting: Setting) -> ss.Run:
    """A run without a policy."""
    return ss.generate(golden.model(setting.family), **inputs(setting))


def groups(setting: Setting) -> list[tuple[list[int], int, Tensor | None]]:
    """(rows, first column, attention mask of the prompt) of the rows that run together."""
    if setting.batch == "seeds":
        return [([1], 3, None), ([0], 0, None)]
    return [([0, 1], 0, inputs(setting).get("attention_mask"))]


def predictions(setting: Setting, logits: Any, x: Tensor, first: Tensor, mask_id: int | None) -> tuple[Tensor, Tensor]:
    """Where something is predicted, Bool [B, S], and the logits there, Float64 [N, V], from a function ids → logits."""
    if setting.family == "llama":
        written = int((x[0] >= 0).sum())
        where = torch.zeros_like(x, dtype=torch.bool)
        where[:, written] = True
        return where, logits(x[:, :written])[:, -1].double()
    where = x == mask_id
    cfg = getattr(setting.decoding, "cfg", 0.0)
    found = logits(x).double()
    if cfg:
        free = logits(torch.where(first != mask_id, mask_id, x)).double()
        found = free + (cfg + 1) * (found - free)
    if setting.family == "dream":
        found = torch.cat([found[:, :1], found[:, :-1]], 1)
    return where, found[where]


def confidence(decoding: Any, logits: Tensor) -> Tensor:
    """How sure the loop is of its best candidate, without any draw."""
    if not isinstance(decoding, ss.DreamDecoding):
        return logits.softmax(-1).amax(-1)
    if decoding.temperature:
        logits = logits / decoding.temperature
    if decoding.top_p is not None:
        cut = torch.full_like(logits, torch.finfo(torch.float32).min)
        for n, row in enumerate(logits.softmax(-1)):
            total = 0.0
            for j in row.argsort(descending=True).tolist():
                cut[n, j] = logits[n, j]
                total += float(row[j])
                if total > decoding.top_p:
                    break
        logits = cut
    spread = logits.softmax(-1)
    best = spread.sort(-1, descending=True).values
    if decoding.algorithm == "entropy":
        return (spread * torch.log(spread + 1e-10)).sum(-1)
    return best[:, 0] - best[:, 1] if decoding.algorithm == "topk_margin" else best[:, 0]


def check_step(
    found: ss.Replay, rows: list[int], offset: int, step: int, where: Tensor, one: Tensor, two: Tensor, decoding: Any
) -> None:
    """kl, confidence, its change and flips of one step."""
    here = {name: array[rows, step][..., offset:] for name, array in found.arrays.items() if array.ndim == 3}
    index = where.numpy()
    a, b = one.log_softmax(-1), two.log_softmax(-1)
    kl = (a.exp() * (a - b)).sum(-1).numpy()
    np.testing.assert_allclose(here["kl"][index], kl, atol=1e-4, rtol=1e-3)
    assert np.isnan(here["kl"][~index]).all()
    before, after = confidence(decoding, one).numpy(), confidence(decoding, two).numpy()
    np.testing.assert_allclose(here["confidence"][index], before, atol=1e-4)
    np.testing.assert_allclose(here["confidence_change"][index], after - before, atol=2e-4)
    assert np.array_equal(here["flipped"][index], (one.argmax(-1) != two.argmax(-1)).numpy())
    assert not here["flipped"][~index].any()


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: f"{one}-{one.decoding.to_json()[:60]}")
def test_a_fixed_policy_against_plain_forwards(setting: Setting) -> None:
    model, run = golden.model(setting.family), unmasked(setting)
    policy = ss.MaskKeys({0: [5], 1: [4, 6], 2: [7]})
    found = ss.replay(model, run, policy)
    changed = 0.0
    for rows, offset, mask in groups(setting):
        states = run.states[:, rows, offset:]
        for step in range(len(run)):
            x = states[step]

            def logits(ids: Tensor, policy: Any = None, mask: Tensor | None = mask, x: Tensor = x) -> Tensor:
                full = (
                    None if mask is None else torch.cat([mask, torch.ones(len(ids), ids.shape[1] - PROMPT).long()], 1)
                )
                return model.logits(ids, full, policy=policy)

            where, one = predictions(setting, logits, x, states[0], model.ids.mask)
            _, two = predictions(setting, lambda ids: logits(ids, policy), x, states[0], model.ids.mask)
            check_step(found, rows, offset, step, where, one, two, setting.decoding)
            changed += float((one - two).abs().max())
    assert changed > 0.1
    assert np.nanmax(found.arrays["kl"]) > 1e-3


SCORED = [ss.MaskTop(3), ss.MaskAbove(1.5, scope="layer"), ss.KeepTop(0.4, scope="model"), ss.MaskTop(2, when="same"),
          ss.MaskTop(2, scores="masked", effect="silence"), ss.Window(5, first=1), ss.MaskFirst(2)]  # fmt: skip


DENSE = [*SETTINGS[:12:3], *SETTINGS[2:12:3], SETTINGS[12]]
PAIRS = [
    # Every setting and every policy in `make test`, every pair of them in `make soak`.
    pytest.param(
        setting, policy, id=f"{setting}-{policy}", marks=pytest.mark.soak if (n + n // 4 + m) % 4 else pytest.mark.slow,
    )
    for n, setting in enumerate(DENSE)
    for m, policy in enumerate(SCORED)
]  # fmt: skip


@pytest.mark.parametrize(("setting", "policy"), PAIRS)
def test_a_scored_policy_against_the_dense_reference(setting: Setting, policy: Any) -> None:
    """Scores come from the policy's own forwards along the recorded states, with a cache of its own for causal models."""
    model, run = golden.model(setting.family), unmasked(setting)
    found = ss.replay(model, run, policy)
    for rows, offset, mask in groups(setting):
        assert mask is None
        states = run.states[:, rows, offset:]
        real = torch.ones(len(rows), states.shape[-1], dtype=torch.bool)
        free, acted = (Dense(model, one, PROMPT - offset, real) for one in (None, policy))
        for step in range(len(run)):
            x = states[step]
            results = []
            for dense in (free, acted):
                if setting.family == "llama":
                    written = int((x[0] >= 0).sum())
                    forward = dense.forward(x[:, 0 if step == 0 else written - 1 : written], None)
                    where = torch.zeros_like(x, dtype=torch.bool)
                    where[:, written] = True
                    results.append((forward, forward.logits[:, -1]))
                    continue
                twin = torch.where(states[0] != model.ids.mask, model.ids.mask, x)
                cfg = getattr(setting.decoding, "cfg", 0.0)
                forward = dense.forward(torch.cat([x, twin]) if cfg else x, None, branches=2 if cfg else 1)
                out = forward.logits
                if cfg:
                    one, two = out.chunk(2)
                    out = two + (cfg + 1) * (one - two)
                where = x == model.ids.mask
                if setting.family == "dream":
                    out = torch.cat([out[:, :1], out[:, :-1]], 1)
                results.append((forward, out[where]))
            check_step(found, rows, offset, step, where, results[0][1], results[1][1], setting.decoding)
            share = np.stack(results[1][0].share).mean((0, 2))
            np.testing.assert_allclose(found.arrays["hidden_share"][rows, step], share, atol=1e-4)
            masked, sinks = (np.stack(part, 1) for part in (results[1][0].taken, results[1][0].sinks))
            with np.errstate(invalid="ignore"):
                expected = (sinks & masked).sum((1, 2, 3)) / sinks.sum((1, 2, 3))
            np.testing.assert_allclose(found.arrays["sinks_hit"][rows, step], expected, atol=1e-4)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: f"{one}-{one.decoding.to_json()[:60]}")
def test_taking_nothing_differs_in_nothing(setting: Setting) -> None:
    policy = [ss.MaskTop(0), ss.MaskKeys({}), ss.Window(64), ss.KeepTop(1.0)][SETTINGS.index(setting) % 4]
    found = ss.replay(golden.model(setting.family), unmasked(setting), policy)
    arrays = found.arrays
    known = ~np.isnan(arrays["kl"])
    assert known.any()
    assert (arrays["kl"][known] == 0).all()
    assert (arrays["confidence_change"][known] == 0).all()
    assert not arrays["flipped"].any()
    assert np.array_equal(arrays["selected"], arrays["selected_with"])
    assert (np.nan_to_num(arrays["changed"]) == 0).all()
    assert (arrays["hidden_share"] == 0).all()


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_what_is_selected_without_the_policy_is_what_the_run_decided(family: str) -> None:
    setting = Setting(family, DECODINGS[family])
    run = unmasked(setting)
    found = ss.replay(golden.model(family), run, ss.MaskTop(4))
    for step in range(len(run)):
        assert np.array_equal(found.arrays["selected"][:, step], (run.states[step + 1] != run.states[step]).numpy())
    chosen, other = found.arrays["selected"], found.arrays["selected_with"]
    assert np.array_equal(chosen.sum(-1), other.sum(-1))
    with np.errstate(invalid="ignore"):
        expected = (chosen & ~other).sum(-1) / chosen.sum(-1)
    np.testing.assert_allclose(found.arrays["changed"], expected, atol=1e-6)
    if family != "llama":
        assert (expected > 0).any()


def test_summary_and_dataset() -> None:
    setting = Setting("llada", DECODINGS["llada"])
    model = golden.model("llada")
    found = ss.replay(model, unmasked(setting), ss.MaskTop(3))
    summary, arrays = found.summary(), found.arrays
    assert set(summary) == {"kl", "confidence_change", "flipped", "changed", "hidden_share", "sinks_hit"}
    acted = arrays["hidden_share"] > 0
    assert not acted[:, 0].any()
    assert acted[:, 1:].all()
    known = ~np.isnan(arrays["kl"][:, 1:])
    assert summary["kl"] == pytest.approx(arrays["kl"][:, 1:][known].mean(), rel=1e-5)
    assert summary["flipped"] == pytest.approx(arrays["flipped"][:, 1:][known].mean(), rel=1e-6)
    assert summary["hidden_share"] == pytest.approx(arrays["hidden_share"][:, 1:].mean(), rel=1e-5)
    data = found.dataset
    assert data["kl"].dims == ("sample", "step", "key")
    assert data["changed"].dims == ("sample", "step")
    assert data.attrs["policy"] == "top:3"
    assert "nats" in data["kl"].attrs["units"]
    assert "top:3" in repr(found)
    nothing = ss.replay(model, unmasked(setting), ss.MaskTop(0)).summary()
    assert np.isnan(nothing["kl"])  # it acted in no step


@pytest.mark.slow
def test_a_row_of_its_own_seed_is_replayed_as_if_alone() -> None:
    for family in golden.FAMILIES:
        model, given = golden.model(family), inputs(Setting(family, DECODINGS[family], "seeds"))
        policy = ss.MaskRandom(like=ss.MaskTop(2))
        both = ss.replay(model, ss.generate(model, **given), policy).arrays
        alone_run = ss.generate(model, given["prompts"][1:, 3:], DECODINGS[family], seed=[5])
        alone = ss.replay(model, alone_run, policy).arrays
        for name, array in alone.items():
            mine = both[name][1:, :, 3:] if array.ndim == 3 else both[name][1:]
            np.testing.assert_array_equal(mine, array, err_msg=f"{family} {name}")


@pytest.mark.parametrize("seed", [0, [0, 1]])
def test_nothing_is_predicted_for_a_row_that_has_ended(seed: Any) -> None:
    model, ids = golden.model("llama"), prompts("llama")
    free = ss.generate(model, ids, ss.GreedyDecoding(length=7, eos=None))
    end = int(free.sequences[0, PROMPT + 2])
    assert end not in free.sequences[1, PROMPT:]
    run = ss.generate(model, ids, ss.GreedyDecoding(length=7, eos=[end]), seed=seed)
    found = ss.replay(model, run, ss.MaskFirst(2)).arrays
    predicted = ~np.isnan(found["kl"]).all(-1)
    assert predicted[0].tolist() == [True] * 3 + [False] * 4
    assert predicted[1].all()
    for name in ("selected", "selected_with", "flipped"):
        assert not found[name][0, 3:].any()
    for name in ("hidden_share", "sinks_hit", "changed"):
        assert np.isnan(found[name][0, 3:]).all()
    assert (found["hidden_share"][1] > 0).all()


def test_nothing_is_predicted_behind_a_block_that_ended_the_row() -> None:
    model, ids = golden.model("mmada"), prompts("mmada")
    decoding = ss.MmadaDecoding(length=12, steps=6, block=4)
    free = ss.generate(model, ids, decoding, seed=[0, 1])
    end = int(free.sequences[0, PROMPT + 3])
    assert end not in free.sequences[1, [PROMPT + 3, PROMPT + 7]]
    run = ss.generate(model, ids, ss.MmadaDecoding(length=12, steps=6, block=4, stop_at=end), seed=[0, 1])
    assert len(run) == 6
    found = ss.replay(model, run, ss.MaskFirst(2)).arrays
    predicted = ~np.isnan(found["kl"]).all(-1)
    assert predicted[0].tolist() == [True] * 2 + [False] * 4
    assert predicted[1].all()


def test_what_replay_refuses() -> None:
    llada, llama = golden.model("llada"), golden.model("llama")
    ids = prompts("llada")
    masked = ss.generate(llada, ids, DECODINGS["llada"], policy=ss.MaskTop(1))
    with pytest.raises(ss.InputError, match="made under top:1"):
        ss.replay(llada, masked, ss.MaskTop(1))
    free = ss.generate(llada, ids, DECODINGS["llada"])
    with pytest.raises(ss.InputError, match="is for llada"):
        ss.replay(llama, free, ss.MaskTop(1))
    with pytest.raises(ss.InputError, match="should be a policy"):
        ss.replay(llada, free, 5)


def test_replay_leaves_the_model_and_the_run_as_they_were() -> None:
    model, run = golden.model("llada"), unmasked(Setting("llada", DECODINGS["llada"]))
    states, logits = run.states.clone(), model.logits(run.sequences)
    first = ss.replay(model, run, ss.MaskTop(3)).arrays
    assert torch.equal(run.states, states)
    assert torch.equal(model.logits(run.sequences), logits)
    second = ss.replay(model, run, ss.MaskTop(3)).arrays
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])


@pytest.mark.parametrize("seed", [None, [1, 2]], ids=["one stream", "streams"])
def test_rows_padded_on_the_right_are_compared_as_alone(seed: list[int] | None) -> None:
    """An A2D model's prompts begin in column 0, and the answer follows each at once."""
    model, decoding = golden.model("a2d_llama"), ss.MdlmDecoding(8, 8, 8)
    long = list(range(20, 29))
    short = long[:6]
    both = ss.replay(model, ss.generate(model, [long, short], decoding, seed=seed), "top:1").arrays
    one = ss.generate(model, [short], decoding, seed=None if seed is None else seed[1:])
    alone = ss.replay(model, one, "top:1").arrays
    for name in ("kl", "confidence", "flipped", "selected"):
        np.testing.assert_allclose(both[name][1, :, :14], alone[name][0], atol=1e-4, err_msg=name)
