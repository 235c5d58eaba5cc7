"""`received_far` and a policy's account in causal models, computed again from full attention maps and the definition of distance.

Prompts and answers are chosen so that the gap which makes a query distant grows while the text is written.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import golden
from tests.helpers.naive_sinks import causal_margins, gap_of, relative_far

import sinkscope as ss

CLOSE = {"atol": 3e-4, "rtol": 1e-4}
GROWING = {1: 18, 5: 30, 12: 24, 40: 30}
"""Prompt → tokens that are written after it."""

WINDOW = 12


@cache
def model_of(kind: str) -> Any:
    """The golden causal model, one in which every layer has a sliding window, or one in which some have, the first or not."""
    if kind == "plain":
        return golden.model("llama")
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig, MistralConfig, MistralForCausalLM

    sizes = {
        "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 128, "sliding_window": WINDOW,
        "initializer_range": 0.3,
    }  # fmt: skip
    torch.manual_seed(5)
    if kind == "windows":
        return ss.wrap(MistralForCausalLM(MistralConfig(**sizes)).eval())
    kinds = ["full_attention" if window is None else "sliding_attention" for window in windows(kind)]
    config = Gemma3TextConfig(**sizes, layer_types=kinds, query_pre_attn_scalar=1)  # sharp enough for sinks
    return ss.wrap(Gemma3ForCausalLM(config).eval())


def windows(kind: str) -> list[int | None]:
    """Of the three layers."""
    some = {"some windows": [WINDOW, None, WINDOW], "later windows": [None, WINDOW, WINDOW]}
    return {"plain": [None] * 3, "windows": [WINDOW] * 3, **some}[kind]


def batch(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two rows of random tokens, the second padded by a third."""
    ids = torch.randint(5, 70, (2, length), generator=torch.Generator().manual_seed(length))
    real = torch.ones_like(ids)
    real[1, : length // 3] = 0
    return ids, real


def naive(rows: np.ndarray, window: int | None) -> np.ndarray:
    """Of one head, whose rows so far are [n, n]."""
    return np.array([relative_far(rows, j, window) for j in range(len(rows))])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "length"),
    [("plain", length) for length in GROWING]
    + [("windows", 12), ("some windows", 5), ("some windows", 40), ("later windows", 40)],
)
def test_it_is_what_full_maps_give(kind: str, length: int) -> None:
    model, (ids, real) = model_of(kind), batch(length)
    decoding = ss.GreedyDecoding(length=GROWING[length], eos=None)
    heads, layers = (
        ss.generate(model, ids, decoding, attention_mask=real, capture=ss.Capture(level))
        for level in ("heads", "layers")
    )
    assert gap_of(length) < gap_of(length + GROWING[length]), "the gap should grow"
    if kind != "plain":
        assert heads.trace.dataset["window"].values.tolist() == [window or 0 for window in windows(kind)]
    written = heads.states[-2]  # the last token is never fed
    size = written.shape[1] - 1
    whole = torch.nn.functional.pad(real, (0, size - length), value=1)
    maps = model.attention(written[:, :size], whole).double().numpy()  # [layer, row, head, query, key]
    changes = [n for n in range(GROWING[length]) if gap_of(length + n) != gap_of(length + n - 1)]
    for step in {0, 1, *changes, GROWING[length] - 1}:
        for row, begin in enumerate((0, length // 3)):
            end = length + step
            rows = maps[:, row, :, begin:end, begin:end]
            expected = np.stack(
                [[naive(head, window) for head in layer] for layer, window in zip(rows, windows(kind), strict=True)]
            )
            for run, values in ((heads, expected), (layers, expected.mean(1))):
                found = run.trace.dataset["received_far"].sel(sample=row, step=step).values
                np.testing.assert_allclose(found[..., begin:end], values, err_msg=f"step {step}", **CLOSE)
                assert np.isnan(found[..., :begin]).all()
                assert np.isnan(found[..., end:]).all()
    if length == 40:
        assert np.isfinite(expected).mean() > 0.3, "long texts have keys with distant queries"


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "length"), [("plain", 12), ("windows", 12), ("some windows", 40)])
def test_a_policy_counts_the_sinks_that_its_own_maps_have(kind: str, length: int) -> None:
    """Silencing leaves attention as it is, so the maps of all steps together hold every row."""
    model, (ids, real) = model_of(kind), batch(length)
    decoding = ss.GreedyDecoding(length=8, eos=None)
    run = ss.generate(
        model, ids, decoding, policy="first:1,effect=silence", capture=ss.Capture(level="maps"), attention_mask=real,
    )  # fmt: skip
    data, sinks = run.trace.dataset, 0
    maps = data["attention"].transpose("sample", "step", "layer", "head", "query", "key").values
    for row, begin in enumerate((0, length // 3)):
        for step in (0, 1, 7):
            end = length + step
            seen = [maps[row, max(0, i - length + 1), :, :, i, begin:end] for i in range(begin, end)]
            rows = np.stack(seen, 2)  # [layer, head, query, key]
            for layer, head in np.ndindex(*rows.shape[:2]):
                margins = causal_margins(rows[layer, head], windows(kind)[layer])
                own = [j for j, margin in margins.items() if margin > 3]
                hit = data["sinks_hit"].sel(sample=row, step=step, layer=layer, head=head)
                expected = (0 in own) / len(own) if own else np.nan
                np.testing.assert_allclose(float(hit), expected, atol=1e-6)
                sinks += len(own)
    assert sinks > 0, "choose another prompt: there was no sink"
