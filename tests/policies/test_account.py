"""`run.hidden_share` and `run.sinks_hit` are what docs/policies.md says, pooled, recomputed from full attention maps.

hidden_share: the share of attention on masked keys, of what attention would have been over all keys: mean over real queries,
then over layers, heads and the steps in which the row lost a key anywhere. sinks_hit: of all the sinks (ε = 3) of those steps,
over all layers and heads together, the share that was masked. strongest_hit: of the heads that have a sink, the share whose
strongest one was masked. sink_removed: of the attention on sinks, the share on masked ones.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from tests.helpers import golden
from tests.helpers.naive_sinks import causal_margins, distant_mean

import sinkscope as ss
from sinkscope.base.errors import InputError

PROMPT = 11
DECODINGS = {
    "llada": ss.LladaDecoding(length=24, steps=8, block=12),
    "dream": ss.DreamDecoding(length=24, steps=8),
    "llama": ss.GreedyDecoding(length=9, eos=None),
}


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Two rows, the second padded on the left."""
    ids = torch.randint(5, 90, (2, PROMPT), generator=torch.Generator().manual_seed(3))
    real = torch.ones(2, PROMPT, dtype=torch.long)
    real[1, :5] = 0
    return ids, real


def traced(family: str, policy: str) -> ss.Run:
    ids, real = batch()
    capture = ss.Capture(level="maps")
    return ss.generate(
        golden.model(family), ids, DECODINGS[family], policy=policy, capture=capture, seed=0, attention_mask=real,
    )  # fmt: skip


def sinks(received: np.ndarray) -> np.ndarray:
    """The rule as its sentence says, key by key: above the mean of the other keys by more than 3."""
    out = np.zeros(received.shape, dtype=bool)
    for at in np.ndindex(*received.shape[:-1]):
        keys = np.flatnonzero(np.isfinite(received[at]))
        for key in keys:
            others = keys[keys != key]
            out[(*at, key)] = len(others) > 0 and received[at][key] > received[at][others].mean() + 3.0
    return out


def account(run: ss.Run, maps: np.ndarray, row: int) -> tuple[float, float]:
    """(hidden_share, sinks_hit) of one row. maps float [step, layer, head, query, key]: attention over all keys."""
    data = run.trace.dataset.isel(sample=row)
    masked = run.trace.masked_keys().isel(sample=row).transpose("step", "layer", "head", "key").values
    raw = data["received_raw"].transpose("step", "layer", "head", "key").values
    shares, caught, present = [], 0, 0
    for step in range(masked.shape[0]):
        if not masked[step].any():
            continue
        real = (data["region"].values != "padding") & (data["tokens"].values[step] >= 0)
        queries = np.isfinite(maps[step]).all(axis=(0, 1, 3)) & (maps[step].sum(axis=-1) > 0.5).all(axis=(0, 1))
        queries &= real
        taken = np.where(masked[step][:, :, None, :], np.nan_to_num(maps[step]), 0.0).sum(-1)  # [layer, head, query]
        shares.append(taken[:, :, queries].mean())
        own = sinks(raw[step])
        caught += int((own & masked[step]).sum())
        present += int(own.sum())
    return (float(np.mean(shares)) if shares else np.nan), (caught / present if present else np.nan)


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy",
    [
        "top:2,effect=silence", "top:3@layer,effect=silence", "first:2,effect=silence", "above:1,effect=silence",
    ],
)  # fmt: skip
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_silenced_keys_are_counted_on_the_attention_that_stays(family: str, policy: str) -> None:
    """Silencing leaves attention as it is: the recorded maps are those over all keys, in every layer."""
    run = traced(family, policy)
    maps = run.trace.dataset["attention"].transpose("sample", "step", "layer", "head", "query", "key").values
    for row in range(2):
        share, hit = account(run, maps[row], row)
        assert float(run.hidden_share[row]) == pytest.approx(share, abs=2e-5)
        assert float(run.sinks_hit[row]) == pytest.approx(hit, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_mask_of_one_layer_is_counted_over_all_of_them(family: str) -> None:
    """Masked keys of the first layer, whose input no mask has touched: sinks of the other layers count, and are not hit."""
    run = traced(family, "top:2,layers=0")
    model, real = golden.model(family), batch()[1]
    real = torch.cat([real, torch.ones(2, run.states.shape[2] - PROMPT, dtype=torch.long)], 1)
    maps = run.trace.dataset["attention"].transpose("sample", "step", "layer", "head", "query", "key").values.copy()
    for step in range(maps.shape[1]):
        plain = model.attention(run.states[step], real)  # [layer, B, head, query, key]
        maps[:, step, 0] = plain[0].numpy()
    for row in range(2):
        share, hit = account(run, maps[row], row)
        assert float(run.hidden_share[row]) == pytest.approx(share, abs=2e-5)
        assert float(run.sinks_hit[row]) == pytest.approx(hit, abs=1e-6, nan_ok=True)
        masked = run.trace.masked_keys().isel(sample=row)
        assert not masked.isel(layer=slice(1, None)).any(), "only one layer was masked"


@pytest.mark.parametrize("policy", ["top:2,effect=silence", "first:1,effect=silence", "above:1,effect=silence"])
def test_the_account_of_a_causal_model_is_that_of_its_maps(policy: str) -> None:
    """Silenced keys keep their attention: the maps of all steps together hold every row by which sinks are told."""
    run = traced("llama", policy)
    maps = run.trace.dataset["attention"].transpose("sample", "step", "layer", "head", "query", "key").values
    masked = run.trace.masked_keys().transpose("sample", "step", "layer", "head", "key").values
    for row, begin in enumerate((0, 5)):
        counts = {name: np.zeros(2) for name in ("sinks_hit", "strongest_hit", "sink_removed")}
        for step in range(len(run)):
            if not masked[row, step].any():
                continue
            size = PROMPT + step
            # A step with a cache has one query; those before it are in earlier steps' maps.
            seen = [maps[row, max(0, i - PROMPT + 1), :, :, i, begin:size] for i in range(begin, size)]
            rows = np.stack(seen, 2)  # [layer, head, query, key]
            for layer, head in np.ndindex(*rows.shape[:2]):
                mine, taken = rows[layer, head], masked[row, step, layer, head, begin:size]
                own = [j for j, margin in causal_margins(mine).items() if margin > 3]
                strongest = max(own, key=partial(distant_mean, mine), default=None)
                counts["sinks_hit"] += [sum(taken[own]), len(own)]
                counts["strongest_hit"] += [strongest is not None and taken[strongest], bool(own)]
                # In units of uniform attention, over the keys that the newest query sees.
                newest = mine[-1] * len(mine)
                counts["sink_removed"] += [sum(newest[own] * taken[own]), sum(newest[own])]
        for name, (part, whole) in counts.items():
            expected = part / whole if whole else np.nan
            assert float(getattr(run, name)[row]) == pytest.approx(expected, abs=1e-4, nan_ok=True), name
    assert np.isfinite(run.sinks_hit.numpy()).any(), "choose another prompt: there was no sink"


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_hits_are_pooled_and_not_a_mean_of_layer_means(family: str) -> None:
    run = traced(family, "top:2")
    assert np.isfinite(run.sinks_hit.numpy()).any(), "choose another prompt: there was no sink"
    for row in range(2):
        data = run.trace.dataset.isel(sample=row)
        masked = run.trace.masked_keys().isel(sample=row).transpose("step", "layer", "head", "key").values
        own = sinks(data["received_raw"].transpose("step", "layer", "head", "key").values)
        acted = masked.any(axis=(1, 2, 3))
        hit = (own & masked)[acted].sum() / own[acted].sum() if own[acted].any() else np.nan
        assert float(run.sinks_hit[row]) == pytest.approx(hit, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_mask_of_all_keys_of_a_row_does_nothing_and_says_so(family: str) -> None:
    """The short row has 30 real keys of the batch's 35: top:30 would leave its queries nothing, so they keep all."""
    ids, real = batch()
    arguments = {"seed": 0, "attention_mask": real}
    run = ss.generate(golden.model(family), ids, DECODINGS[family], policy="top:30", capture=ss.Capture(), **arguments)
    plain = ss.generate(golden.model(family), ids, DECODINGS[family], policy=None, capture=None, **arguments)
    assert torch.equal(run.sequences[1], plain.sequences[1]), "nothing was masked in the short row"
    assert np.isnan(float(run.sinks_hit[1]))
    assert np.isnan(float(run.hidden_share[1]))
    assert not run.trace.masked_keys().isel(sample=1).any()
    assert float(run.hidden_share[0]) > 0.5
    with pytest.raises(InputError, match="the sequence has only 30"):
        ss.generate(golden.model(family), ids, DECODINGS[family], policy="top:31", capture=None, **arguments)
