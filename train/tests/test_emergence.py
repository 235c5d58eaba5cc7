"""The probe: fixed texts and masks, and numbers that are right where the answer is known."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from sinkscope.attention.context import AttentionCall
from sinkscope.attention.visibility import Scores, Visibility
from sinkscope_train import emergence
from sinkscope_train.network import build, hidden_states, rotation
from sinkscope_train.recipe import SIZES, recipe
from sinkscope_train.vocabulary import shipped

CPU = torch.device("cpu")
SINK = 7


def test_log_spaced_steps_start_at_zero_and_end_at_the_end() -> None:
    steps = emergence.log_spaced(10_000)
    assert steps[:8] == (0, 1, 2, 3, 4, 6, 8, 11)
    assert steps[-1] == 10_000
    assert len(steps) < 40


def test_masks_are_nested_and_fixed() -> None:
    first, again = (emergence.probe(recipe("scratch"), shipped("llada"), CPU, each=3) for _ in range(2))
    mask, targets = shipped("llada").mask, first.batch.targets(causal=False)
    covered = [first.levels[time] == mask for time in emergence.TIMES]
    for time, masked in zip(emergence.TIMES, covered, strict=True):
        assert first.levels[time].equal(again.levels[time])
        assert abs(float(masked[targets].float().mean()) - time) < 0.08
        assert not masked[~targets].any()
    assert all((~earlier | later).all() for earlier, later in pairwise(covered))
    assert covered[-1].equal(targets)


def test_every_token_has_a_category() -> None:
    words = shipped("llada")
    table = emergence.token_categories(words)
    named = {
        text: emergence.CATEGORIES[table[words.encode([text])[0][0]]] for text in ("\n", ".", "7", " has", " ", ",")
    }
    assert named == {
        "\n": "newline", ".": "punctuation", "7": "digit", " has": "word", " ": "whitespace", ",": "punctuation"
    }  # fmt: skip
    assert emergence.CATEGORIES[table[words.bos]] == "control"
    assert emergence.CATEGORIES[table[words.mask]] == "mask"
    assert emergence.CATEGORIES[table[words.token("<|start_header_id|>")]] == "control"
    assert emergence.CATEGORIES[table[words.eot]] == emergence.CATEGORIES[table[words.eos]] == "end"


def planted(causal: bool, real: Tensor) -> tuple[AttentionCall, Tensor]:
    """Head 0 of two looks at column SINK alone, whose value is small; head 1 looks everywhere alike."""
    B, S, D = 2, real.shape[1], 4
    query = torch.zeros(B, 2, S, D)
    key = torch.zeros(B, 2, S, D)
    value = torch.ones(B, 2, S, D)
    query[:, 0, :, 0], key[:, 0, SINK, 0] = 30.0, 1.0
    value[:, 0, SINK] = 0.1
    visibility = Visibility(S, S, real, causal)
    from sinkscope.attention import fused

    output, lse = fused.attend(Scores(query, key, visibility, 1.0), value)
    hidden = torch.ones(B, S, 8)
    hidden[:, SINK] = 5.0
    return AttentionCall(0, query, key, value, output, lse, 1.0, visibility), hidden


@pytest.mark.parametrize("causal", [True, False])
def test_a_planted_sink_is_found_and_measured(causal: bool) -> None:
    real = torch.arange(48)[None] < torch.tensor([[48], [40]])
    categories = torch.where(real, 7, -1)
    categories[:, SINK] = 4
    call, hidden = planted(causal, real)
    found = {name: value.tolist() for name, value in emergence._layer(call, hidden, real, categories).items()}
    assert found["sink_heads"] == pytest.approx(0.5)
    assert found["gu_any"] == pytest.approx(0.5)
    assert found["gu_first"] == pytest.approx(0.0)
    assert found["value_ratio"] == pytest.approx(0.1)
    assert found["hidden_ratio"] == pytest.approx(5.0)
    assert found["sinks_by_category"][4] == 2.0
    assert sum(found["sinks_by_category"]) == 2.0
    usable = (48 - 4 - 7) + (40 - 4 - 7) if causal else 48 + 40  # each with eight queries at least four behind it
    assert sum(found["keys_by_category"]) == 2 * usable
    if not causal:
        assert found["max_received"] == pytest.approx((1.0 + (48 + 40) / 2) / 2, rel=1e-3)


def test_watching_does_not_change_the_forward_pass() -> None:
    network: Any = build(SIZES["smoke"], 128, "llada", seed=1)
    ids = torch.arange(60).view(2, 30)
    real = torch.arange(30)[None] < torch.tensor([[30], [21]])
    seen: list[int] = []
    with torch.no_grad():
        for causal in (True, False):
            rotary = rotation(network, 30, CPU)
            pattern = Visibility(30, 30, real, causal)
            plain = hidden_states(network, ids, rotary, pattern)
            watched = hidden_states(network, ids, rotary, pattern, lambda call, _: seen.append(call.layer))
            assert torch.allclose(plain[real], watched[real], atol=1e-5)
    assert seen == [0, 1, 0, 1]
