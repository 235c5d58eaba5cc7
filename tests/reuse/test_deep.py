"""Deep refreshes, against the layers written out one by one: what is kept of each column, layer by layer, and when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import golden
from tests.reuse.test_partial import decoding_for
from torch import Tensor

import sinkscope as ss
from sinkscope.models.model import Model
from sinkscope.reuse.runtime import ReuseRuntime
from sinkscope.reuse.state import Columns
from sinkscope.reuse.work import WorkCount

FAMILIES = ("llada", "mmada", "dream")
PROMPT = torch.arange(20, 29)[None]


class Dense:
    """`drift:…,refresh=layers` for one row as docs/reuse.md has it: everything that is computed is kept, by layer and column.

    Attributes:
        first: the layer that the last step says the next one is refreshed from; as many as there are layers: from none.
        begun: the layer that each step was refreshed from. computed: the columns that went through all of its layers.
        work: multiply-adds so far.
    """

    def __init__(self, model: Model, threshold: float) -> None:
        self.model, self.threshold = model, threshold
        self.layers = model.network.model.layers
        self.first = 0
        self.begun: list[int] = []
        self.computed: list[list[int]] = []
        self.work = 0
        self.keys: list[Any] = [None] * len(self.layers)
        self.values: list[Any] = [None] * len(self.layers)
        self.streams: list[Any] = [None] * len(self.layers)
        self.tracked = [0] * len(self.layers)
        self.then: list[Any] = [None] * len(self.layers)
        self.hidden = torch.empty(0)

    @torch.no_grad()
    def step(self, ids: Tensor, block: list[int], begins: bool) -> Tensor:
        """Hidden states [S, width] of all columns, fresh or kept; ids: Long [S]."""
        body, everything = self.model.network.model, list(range(len(ids)))
        first = 0 if begins else self.first
        columns = sorted({*block, *self.tracked}) if first else everything
        self.begun.append(first)
        self.computed.append(columns)
        stream = body.embed_tokens(ids[columns])
        for index, layer in enumerate(self.layers):
            if index == first and columns != everything:
                whole = self.streams[index].clone()
                whole[columns] = stream
                stream, columns = whole, everything
            stream = self._layer(index, layer, stream, columns, block, len(ids))
        last = body.norm(stream)
        if columns == everything:
            self.hidden = last
        else:
            self.hidden = self.hidden.clone()
            self.hidden[columns] = last
        moved = [
            float(torch.cosine_similarity(keys[:, column].flatten(), then.flatten(), dim=0))
            for keys, column, then in zip(self.keys, self.tracked, self.then, strict=True)
        ]
        drifted = [index for index, cosine in enumerate(moved) if cosine < self.threshold]
        self.first = min(drifted, default=len(self.layers)) if first == len(self.layers) else len(self.layers)
        return self.hidden

    def _layer(
        self, index: int, layer: Any, stream: Tensor, columns: list[int], block: list[int], total: int
    ) -> Tensor:
        module = layer.self_attn
        cosine, sine = self.model.network.model.rotary_emb(stream[None], torch.tensor([columns]))
        inner = layer.input_layernorm(stream)
        query, key, value = (
            projection(inner).view(len(columns), -1, module.head_dim).transpose(0, 1)
            for projection in (module.q_proj, module.k_proj, module.v_proj)
        )
        query, key = (one * cosine + _turned(one) * sine for one in (query, key))
        for kept, now in ((self.keys, key), (self.values, value)):
            kept[index] = now.new_zeros(now.shape[0], total, now.shape[2]) if kept[index] is None else kept[index]
            kept[index][:, columns] = now
        if self.streams[index] is None:
            self.streams[index] = torch.zeros(total, stream.shape[1])
        self.streams[index][columns] = stream
        repeat = query.shape[0] // key.shape[0]
        keys, values = (kept[index].repeat_interleave(repeat, 0) for kept in (self.keys, self.values))
        weights = (query @ keys.transpose(1, 2) * module.scaling).softmax(-1)
        if len(columns) == total:  # a refreshed layer: what the block looks at most outside of itself is tracked
            received = weights[:, block].sum((0, 1))
            received[block] = -1.0
            self.tracked[index] = int(received.argmax())
            self.then[index] = self.keys[index][:, self.tracked[index]].clone()
        stream = stream + module.o_proj((weights @ values).transpose(0, 1).flatten(1))
        matrices = sum(weight.numel() for weight in layer.parameters() if weight.dim() == 2)
        self.work += len(columns) * (matrices + 2 * query.shape[0] * total * module.head_dim)
        result: Tensor = stream + layer.mlp(layer.post_attention_layernorm(stream))
        return result


def _turned(values: Tensor) -> Tensor:
    half = values.shape[-1] // 2
    return torch.cat([-values[..., half:], values[..., :half]], -1)


@pytest.mark.parametrize("threshold", [0.9, 0.99, 0.9999])
def test_a_generation_is_that_of_the_layers_one_by_one(threshold: float) -> None:
    """LLaDA's loop written out too: in each step the surest mask of the block becomes its best token."""
    model, decoding = golden.model("llada"), ss.LladaDecoding(24, steps=24, block=12)
    run = ss.generate(model, PROMPT, decoding, reuse=ss.DriftReuse(threshold, refresh="layers"))
    dense, mask = Dense(model, threshold), model.ids.mask
    state = torch.cat([PROMPT[0], torch.full((24,), mask)])
    states = [state]
    for start in (9, 21):
        block = list(range(start, start + 12))
        for number in range(12):
            logits = model.head(dense.step(state, block, number == 0))
            sure, token = logits.softmax(-1).max(-1)
            chosen = int(sure.masked_fill(state != mask, -1.0)[block].argmax()) + start
            state = state.clone()
            state[chosen] = token[chosen]
            states.append(state)
    assert torch.equal(run.states[:, 0], torch.stack(states))
    assert run.extras["reuse"].work is not None
    assert run.extras["reuse"].work.done == [dense.work]
    assert {0, 1, 2, 3} >= set(dense.begun)
    assert {1, 2} & set(dense.begun), "no refresh began in the middle"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("threshold", [0.9, 0.999])
def test_hidden_states_are_those_of_the_layers_one_by_one(
    family: str, threshold: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, steps, plain = golden.model(family), [], ReuseRuntime.hidden

    def spy(self: Any, x: Tensor, wanted: Any, *given: Any) -> Tensor:
        found = plain(self, x, wanted, *given)
        steps.append((x[0].clone(), wanted.block[0].nonzero()[:, 0].tolist(), wanted.start, found[0].clone()))
        return found

    monkeypatch.setattr(ReuseRuntime, "hidden", spy)
    rule = ss.DriftReuse(threshold, refresh="layers")
    run = ss.generate(model, PROMPT, decoding_for(family), reuse=rule, capture=ss.Capture())
    dense, start = Dense(model, threshold), None
    for ids, block, own, hidden in steps:
        torch.testing.assert_close(hidden, dense.step(ids, block, own != start), atol=2e-5, rtol=1e-4)
        start = own
    assert run.extras["reuse"].work is not None
    assert run.extras["reuse"].work.done == [dense.work]
    assert {1, 2} & set(dense.begun), "no refresh began in the middle"
    fresh = run.trace.dataset["fresh"].values[0]
    assert [row.nonzero()[0].tolist() for row in fresh] == dense.computed


def test_what_is_recorded_of_a_deep_refresh() -> None:
    """Up to the layer keys receive from the active columns, behind it from all; relative to uniform both times."""
    model = golden.model("llada")
    run = ss.generate(
        model, PROMPT, ss.LladaDecoding(12, block=12), reuse="drift:0.99,refresh=layers",
        capture=ss.Capture(by_query=True),
    )  # fmt: skip
    received = run.trace.dataset["received"].values
    np.testing.assert_allclose(received.mean(-1), 1.0, rtol=1e-4)
    assert bool(np.isfinite(run.trace.dataset["received_by"].sel(query_kind="masked").values[:, :-1]).all())


def test_from_a_threshold_of_1_on_every_step_is_exact() -> None:
    model, decoding = golden.model("llada"), ss.LladaDecoding(12, block=6)
    exact = ss.generate(model, PROMPT, decoding)
    run = ss.generate(model, PROMPT, decoding, reuse="drift:1,refresh=layers")
    assert torch.equal(run.states, exact.states)
    assert run.extras["reuse"].work is None


@pytest.mark.parametrize("family", FAMILIES)
def test_refreshes_from_the_first_layer_on_are_the_exact_loop(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, decoding = golden.model(family), decoding_for(family)
    exact = ss.generate(model, PROMPT, decoding)
    monkeypatch.setattr(ReuseRuntime, "_drifted_from", lambda self: 0)
    run = ss.generate(model, PROMPT, decoding, reuse="drift:0.9,refresh=layers", capture=ss.Capture())
    assert torch.equal(run.states, exact.states)
    assert run.extras["reuse"].work is not None
    assert run.extras["reuse"].work.done == run.extras["reuse"].work.exact
    assert bool(run.trace.dataset["fresh"].all())


def test_where_every_column_is_active_nothing_is_lost() -> None:
    """One token before the block is what every layer tracks; whatever is refreshed, each step computes all columns."""
    model, decoding = golden.model("llada"), ss.LladaDecoding(12, block=12)
    exact = ss.generate(model, PROMPT[:, :1], decoding)
    for threshold in (-1.0, 0.99, 0.9999):
        run = ss.generate(model, PROMPT[:, :1], decoding, reuse=ss.DriftReuse(threshold, refresh="layers"))
        assert torch.equal(run.states, exact.states)
        assert run.extras["reuse"].work is not None
        assert run.extras["reuse"].work.done == run.extras["reuse"].work.exact


def test_no_drift_is_no_difference() -> None:
    """Under a threshold that no key falls below, both ways of refreshing are the same, bit for bit."""
    model, decoding = golden.model("llada"), ss.LladaDecoding(12, block=6)
    deep, whole = (
        ss.generate(model, PROMPT, decoding, reuse=ss.DriftReuse(-1.0, refresh=refresh))
        for refresh in ("layers", "all")
    )
    assert torch.equal(deep.states, whole.states)
    assert deep.extras["reuse"].work == whole.extras["reuse"].work


@pytest.mark.parametrize("layer", [0, 2])
def test_the_model_is_left_as_it_was(layer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a layer of the active columns, and in one of all columns."""
    model, decoding = golden.model("llada"), ss.LladaDecoding(12, block=12)
    body = model.network.model
    held = {name: dict(module._modules) for name, module in model.network.named_modules()}
    before, plain = model.logits(PROMPT), Columns.inputs

    def stopped(self: Columns, at: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if len(body.layers) < model.shape.layers and at == layer:
            raise KeyboardInterrupt
        return plain(self, at, key, value)

    monkeypatch.setattr(Columns, "inputs", stopped)
    with pytest.raises(KeyboardInterrupt):
        ss.generate(model, PROMPT, decoding, reuse="drift:0.9999,refresh=layers")
    assert {name: dict(module._modules) for name, module in model.network.named_modules()} == held
    assert not any(module._forward_pre_hooks for module in model.network.modules())
    assert torch.equal(model.logits(PROMPT), before)


def test_a_forward_in_two_parts_is_one() -> None:
    model = golden.model("llada")
    ids, context = torch.arange(20, 40).view(2, 10), model.context()
    positions = torch.arange(10)[None]
    for layer in range(model.shape.layers):
        stream = model.entering(ids, layer, context, positions)
        assert torch.equal(model.onward(stream, layer, context), model.hidden(ids, context)), layer


def test_layers_of_a_forward_are_counted() -> None:
    count = WorkCount(golden.model("llada"), 2)
    queries, keys = torch.tensor([3, 5]), torch.tensor([7, 9])
    whole = count.cost(queries, keys)
    assert torch.equal(count.cost(queries, keys, 1) + count.cost(queries, keys, 2), whole)
    assert torch.equal(count.cost(queries, keys, 3), whole)


def test_the_first_layer_that_drifts() -> None:
    cosines = torch.tensor([[1.0, 1.0], [0.95, 1.0], [1.0, 0.5]])
    deep = [ss.DriftReuse(limit, refresh="layers").drifted_from(cosines) for limit in (0.4, 0.9, 0.99)]
    whole = [ss.DriftReuse(limit).drifted_from(cosines) for limit in (0.4, 0.9, 0.99)]
    assert (deep, whole) == ([None, 2, 1], [None, 0, 0])
