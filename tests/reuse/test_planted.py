"""A network in which every query looks at one key, which holds the answer: keeping sinks must beat keeping as many other keys."""

from __future__ import annotations

import pytest
import torch
from tests.helpers import golden

import sinkscope as ss
from sinkscope.models.model import Model
from sinkscope.reuse.agreement import agreement
from sinkscope.reuse.rule import Candidates
from sinkscope.reuse.text import shadowed

SINKS = range(10, 18)
"""Tokens that draw all attention; each makes the masks an answer of its own, ANSWER + token."""
ANSWER, NOTHING = 100, 99


@pytest.fixture(scope="module")
def planted() -> Model:
    """LLaDA's network with one working layer: dimension 0 is in every token, 1 marks sinks, 2 to 9 say which one it is."""
    model = ss.load(golden.checkpoint("llada"), device="cpu", dtype="float32")
    body, head = model.network.model, model.network.get_output_embeddings()
    with torch.no_grad():
        for layer in body.layers:
            for part in (layer.self_attn.o_proj, layer.mlp.down_proj):
                part.weight.zero_()
        embedding, attention = body.embed_tokens.weight, body.layers[0].self_attn
        width, size = embedding.shape[1], attention.head_dim
        slow = size // 2 - 1  # a dimension that rotary positions hardly turn
        embedding.zero_()
        embedding[:, 0] = 1.0
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj, head):
            projection.weight.zero_()
        for place, token in enumerate(SINKS):
            embedding[token, 1] = embedding[token, 2 + place] = 4.0
            head.weight[ANSWER + token, 2 + place] = 5.0
        head.weight[NOTHING, 0] = 1.0
        for start in range(0, width, size):
            attention.q_proj.weight[start + slow, 0] = 3.0
            attention.k_proj.weight[start + slow, 1] = 3.0
        for place in range(len(SINKS)):
            attention.v_proj.weight[place, 2 + place] = 1.0
            attention.o_proj.weight[2 + place, place] = 1.0
        for norm in (body.norm, *(layer.input_layernorm for layer in body.layers)):
            norm.weight.fill_(1.0)
    return model


@pytest.mark.slow
def test_keeping_sinks_beats_keeping_other_keys(planted: Model) -> None:
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(200, 400, (8, 24), generator=generator)
    ids[torch.arange(8), torch.randint(0, 10, (8,), generator=generator)] = torch.tensor(list(SINKS))
    decoding, seeds = ss.LladaDecoding(12, block=6), list(range(8))
    exact = ss.generate(planted, ids, decoding, seed=seeds)
    assert exact.answers == [[ANSWER + token] * 12 for token in SINKS]

    def equal(by: str) -> list[float]:
        run = ss.generate(planted, ids, decoding, seed=seeds, reuse=shadowed(f"sparse:1,by={by}"))
        found = agreement(exact, run)
        assert all((row.kl < 1e-6) == (row.tokens_equal == 1) for row in found)
        return [row.tokens_equal for row in found]

    assert equal("sinks") == equal("received") == [1.0] * 8
    assert sum(equal("recent")) / 8 < 0.5
    assert sum(equal("random")) / 8 < 0.6


def test_sinks_alone_and_heavy_hitters_without_them_are_as_many_keys() -> None:
    """Two sinks among eight keys: with random keys beside them, and the next in rank without them."""
    received = torch.tensor([[0.1, 9.0, 0.9, 0.3, 7.0, 0.8, 0.2, 0.4]])
    random = 1e18 * torch.tensor([[0.9, 0.1, 0.2, 0.8, 0.1, 0.3, 0.4, 0.5]], dtype=torch.float64)
    keys = torch.ones(1, 8, dtype=torch.bool)
    nothing = torch.empty(0)
    candidates = Candidates(keys, received, nothing, nothing, random, keys.sum(1))

    def kept(text: str) -> list[int]:
        return ss.parse_reuse(text).choose(candidates)[0].nonzero().flatten().tolist()

    assert kept("sparse:4,by=sinks") == [1, 2, 4, 5]
    assert kept("sparse:4,by=above") == [0, 1, 3, 4]
    assert kept("sparse:4,by=others") == [2, 3, 5, 7]
    assert kept("sparse:1,by=above") == [1]
    assert kept("sparse:7,by=others") == [0, 2, 3, 4, 5, 6, 7]  # no other keys are left, so a sink is taken
    assert [ss.parse_reuse(f"sparse:4,by={by}").draws for by in ("sinks", "above", "others")] == [False, True, False]


def test_agreement_says_where_runs_part(planted: Model) -> None:
    ids = torch.full((1, 20), 300)
    ids[0, 2] = SINKS[0]
    decoding = ss.LladaDecoding(12, block=6)
    exact = ss.generate(planted, ids, decoding)
    (same,) = agreement(exact, ss.generate(planted, ids, decoding, reuse=shadowed("sparse:1")))
    assert (same.tokens_equal, same.first_step) == (1.0, None)
    (other,) = agreement(exact, ss.generate(planted, ids, decoding, reuse="sparse:1,by=recent"))
    # Each block begins with a full forward, which decides one token right; the other five are lost.
    assert (other.tokens_equal, other.first_step, other.kl) == (2 / 12, 1, None)
    with pytest.raises(ss.InputError, match="same prompts"):
        agreement(exact, ss.generate(planted, ids + 1, decoding))
    with pytest.raises(ss.InputError, match="should be exact"):
        agreement(ss.generate(planted, ids, decoding, reuse="sparse:1"), exact)
    with pytest.raises(ss.InputError, match="without reuse every step is exact"):
        shadowed("none")


@pytest.mark.parametrize("by", ["sinks", "first:4+recent", "recent"])
def test_the_error_of_a_causal_model_is_that_of_exact_attention(by: str) -> None:
    model, ids = golden.model("llama"), torch.arange(20, 44)[None]
    run = ss.generate(model, ids, ss.GreedyDecoding(8, eos=None), reuse=shadowed(f"sparse:6,by={by}"))
    for step in range(8):
        logits = model.logits(run.states[step, :, : 24 + step])[0, -1].double().log_softmax(-1)
        if step == 0:
            assert float(run.extras["reuse"].error[0, 0]) < 1e-9
        # What was written is the approximate choice; its probability under exact attention bounds the divergence from below.
        token = int(run.states[step + 1, 0, 24 + step])
        assert float(run.extras["reuse"].error[step, 0]) >= 0
        if token != int(logits.argmax()):
            assert float(run.extras["reuse"].error[step, 0]) > 1e-4
    whole = ss.generate(model, ids, ss.GreedyDecoding(8, eos=None), reuse=shadowed("sparse:1.0"))
    assert float(whole.extras["reuse"].error.max()) < 1e-8
