"""A partial forward equals a dense one in which the inactive columns have the keys and values of the last refresh."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.helpers import golden
from torch import Tensor

import sinkscope as ss

FAMILIES = ("llada", "mmada", "dream")


class Reference:
    """The layers one by one, from the network's own modules: keys and values of the columns that are fed replace stored ones."""

    def __init__(self, family: str) -> None:
        self.model = golden.model(family)
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.attention: list[Tensor] = []

    @torch.no_grad()
    def __call__(self, ids: Tensor, columns: list[int], kept: list[list[int]] | None = None) -> Tensor:
        """Hidden states [A, width] of one row's columns; kept: the other columns that each layer may look at, None: all."""
        body, first = self.model.network.model, not self.keys
        stream = body.embed_tokens(ids[None, columns])
        cosine, sine = body.rotary_emb(stream, torch.tensor([columns]))
        self.attention = []
        for index, layer in enumerate(body.layers):
            module, inner = layer.self_attn, layer.input_layernorm(stream)
            query, key, value = (
                projection(inner).view(len(columns), -1, module.head_dim).transpose(0, 1)
                for projection in (module.q_proj, module.k_proj, module.v_proj)
            )
            query, key = _rotated(query, cosine, sine), _rotated(key, cosine, sine)
            if first:
                self.keys.append(key.clone())
                self.values.append(value.clone())
            self.keys[index][:, columns], self.values[index][:, columns] = key, value
            allowed = sorted({*columns, *(range(len(ids)) if kept is None else kept[index])})
            repeat = query.shape[0] // key.shape[0]
            keys, values = (store[index][:, allowed].repeat_interleave(repeat, 0) for store in (self.keys, self.values))
            weights = (query @ keys.transpose(1, 2) * module.scaling).softmax(-1)
            whole = torch.zeros(*weights.shape[:2], len(ids))
            whole[..., allowed] = weights
            self.attention.append(whole)
            mixed = (weights @ values).transpose(0, 1).reshape(1, len(columns), -1)
            stream = stream + module.o_proj(mixed)
            stream = stream + layer.mlp(layer.post_attention_layernorm(stream))
        last: Tensor = body.norm(stream)[0]
        return last


def _rotated(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    half = values.shape[-1] // 2
    turned = torch.cat([-values[..., half:], values[..., :half]], -1)
    return values * cosine + turned * sine


def seen_hidden(family: str, decoding: Any, prompt: Tensor, reuse: str) -> tuple[list[Tensor], ss.Run]:
    """The hidden states that every step's loop worked with, and the run."""
    from sinkscope.reuse.runtime import ReuseRuntime

    kept, plain = [], ReuseRuntime.hidden

    def spy(self: Any, *given: Any) -> Tensor:
        found = plain(self, *given)
        kept.append(found.clone())
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReuseRuntime, "hidden", spy)
        run = ss.generate(golden.model(family), prompt, decoding, reuse=reuse, capture=ss.Capture())
    return kept, run


def decoding_for(family: str) -> Any:
    if family == "dream":
        return ss.DreamDecoding(8, steps=8, algorithm="maskgit_plus")
    return (ss.MmadaDecoding if family == "mmada" else ss.LladaDecoding)(8, steps=8, block=4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text", ["prefix:3", "prefix:block,fresh=rest", "prefix:4,fresh=masks"])
def test_partial_forward_is_a_dense_one_with_stale_keys(family: str, text: str) -> None:
    prompt = torch.arange(20, 29)[None]
    found, run = seen_hidden(family, decoding_for(family), prompt, text)
    fresh = run.trace.dataset["fresh"].values[0]
    received = run.trace.dataset["received"].values[0]
    assert fresh.all(1).any()
    assert not fresh.all()
    at = run.trace.dataset["step"].values  # steps that decide nothing run no forward
    reference, expected = Reference(family), None
    for step, hidden in enumerate(found):
        columns = fresh[step].nonzero()[0].tolist()
        computed = reference(run.states[at[step], 0], columns)
        expected = computed if expected is None or len(columns) == hidden.shape[1] else expected
        expected = expected.clone()
        expected[columns] = computed
        torch.testing.assert_close(hidden[0], expected, atol=2e-5, rtol=1e-4)
        sums = torch.stack([one.sum(1) for one in reference.attention]) * hidden.shape[1] / len(columns)
        torch.testing.assert_close(torch.from_numpy(received[step]), sums, atol=2e-4, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("by", ["sinks", "received", "recent", "first", "random", "first:1+recent"])
def test_sparse_forward_sees_the_kept_keys_and_the_block_only(family: str, by: str) -> None:
    prompt = torch.arange(20, 29)[None]
    found, run = seen_hidden(family, decoding_for(family), prompt, f"sparse:3,by={by},refresh=3")
    dataset = run.trace.dataset
    fresh, received = dataset["fresh"].values[0], dataset["received"].values[0]
    at = dataset["step"].values
    reference = Reference(family)
    for step, hidden in enumerate(found):
        columns = fresh[step].nonzero()[0].tolist()
        kept = [[j for j in (layer > 0).any(0).nonzero()[0].tolist() if j not in columns] for layer in received[step]]
        computed = reference(run.states[at[step], 0], columns, kept)
        torch.testing.assert_close(hidden[0, columns], computed, atol=2e-5, rtol=1e-4)
        if len(columns) == hidden.shape[1]:
            continue
        assert all(len(layer) == 3 for layer in kept)
        if by == "first":
            assert all(layer == [0, 1, 2] for layer in kept)
        if by == "recent":
            block = set(columns)
            far = [min(abs(j - one) for one in block) for layer in kept for j in layer]
            assert max(far) <= 3
        sums = torch.stack([one.sum(1) for one in reference.attention]) * hidden.shape[1] / len(columns)
        torch.testing.assert_close(torch.from_numpy(received[step]), sums, atol=2e-4, rtol=1e-3)


def test_keeping_every_key_is_prefix_reuse() -> None:
    model, prompt = golden.model("llada"), torch.arange(20, 29)[None]
    decoding = ss.LladaDecoding(12, block=4)
    whole = ss.generate(model, prompt, decoding, reuse="prefix:block")
    sparse = ss.generate(model, prompt, decoding, reuse="sparse:1.0")
    assert torch.equal(whole.states, sparse.states)


def test_drift_refreshes_between_never_and_always() -> None:
    model, prompt = golden.model("llada"), torch.arange(20, 29)[None]
    decoding = ss.LladaDecoding(16, block=16)

    def refreshes(threshold: float) -> int:
        run = ss.generate(model, prompt, decoding, reuse=ss.DriftReuse(threshold), capture=ss.Capture())
        return int(run.trace.dataset["fresh"].all("key").sum())

    never, some, always = refreshes(-1.0), refreshes(0.999), refreshes(1.0)
    assert never == 1
    assert always == 16
    assert 1 < some < 16


def test_other_keys_that_are_attended_to_most_refresh_too() -> None:
    model, prompt = golden.model("llada"), torch.arange(20, 29)[None]
    decoding = ss.LladaDecoding(16, block=16)

    def ran(reuse: str) -> tuple[torch.Tensor, list[int]]:
        run = ss.generate(model, prompt, decoding, reuse=reuse, capture=ss.Capture())
        full = run.trace.dataset["fresh"].all("key").values.reshape(-1)
        return run.states, [step for step, all_fresh in enumerate(full) if all_fresh]

    states, never = ran("drift:0.0,by=union")
    assert never == [0]
    assert torch.equal(states, ran("prefix:block")[0]), "nothing is computed beside the block"
    assert ran("drift:1.1,by=union")[1] == list(range(0, 16, 2)), "a partial step finds it, the next one is full"
    some = ran("drift:1.0,by=union")[1]
    assert 1 < len(some) < 8
    assert set(ran("drift:0.3,by=union")[1]) != set(some)
