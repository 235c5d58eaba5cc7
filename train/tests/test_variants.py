"""Changed attention: training, inference and attention written out in full agree; traces, policies and prompts go through it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sinkscope as ss
from sinkscope.attention.context import AttentionCall
from sinkscope.attention.visibility import Visibility
from sinkscope.base.errors import CheckpointError, InputError
from sinkscope.models.changed import CHANGED
from sinkscope.models.model import Model
from sinkscope_train.emergence import measure, probe
from sinkscope_train.layout import DTYPE, save
from sinkscope_train.network import build, hidden_states, rotation
from sinkscope_train.recipe import SIZES, Recipe, recipe
from sinkscope_train.start import as_dream
from sinkscope_train.variant import KEY, PLAIN, Variant, variant_of, vary
from sinkscope_train.vocabulary import SINK, Vocabulary, shipped, with_sink_token

CPU = torch.device("cpu")
LONG = ["What is the sum of three and four, and of that and five? And of all of these, and of six and of seven?"]
VARIANTS = {
    "seen": Variant(extra_sink="seen"),
    "alone": Variant(extra_sink="alone"),
    "learned": Variant(softmax="learned"),
    "one": Variant(softmax="one"),
    "gate": Variant(gate=True),
    "norm": Variant(qk_norm=True),
    "plain_first": Variant(plain_first=True),
    "all": Variant("learned", True, True, True, "alone"),
    "window": Variant(window=6),
    "future": Variant(future=0),
    "both": Variant(qk_norm=True, extra_sink="alone", window=5, future=0),
    "wide": Variant(softmax="learned", extra_sink="alone", window=5),
}
LAYOUTS = ("llama", "llada", "dream")


def trained(layout: str, variant: Variant, seed: int = 3) -> Any:
    """A network whose weights are as large as trained ones, so that attention is far from uniform."""
    network = build(SIZES["smoke"], shipped(layout).rows, layout, seed, variant)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if name.endswith("sinks"):
                weight.copy_(torch.randn(weight.shape, generator=random))
            elif "norm" in name:
                weight.copy_(1 + 0.3 * torch.randn(weight.shape, generator=random))
            elif "self_attn" in name and weight.dim() == 2:
                weight.mul_(12)
            weight.copy_(weight.to(DTYPE))  # what saving rounds to; the angles of the rotation stay exact
    return network


def words(layout: str, variant: Variant) -> Vocabulary:
    plain = shipped(layout)
    return plain if variant.extra_sink == "none" else with_sink_token(plain)


def saved(layout: str, variant: Variant, folder: Path) -> tuple[Any, Model]:
    network = trained(layout, variant)
    save(network, layout, words(layout, variant), folder)
    return network, ss.load(folder, device="cpu", dtype="float32")


def some_ids(rows: int, length: int) -> Tensor:
    return torch.randint(20, 900, (rows, length), generator=torch.Generator().manual_seed(1))


def dense(network: Any, ids: Tensor, causal: bool, variant: Variant) -> tuple[Tensor, list[Tensor]]:
    """Logits and attention maps in float64, every weight read from the network and every operation written out."""
    weights = {name: weight.detach().double() for name, weight in network.named_parameters()}
    size, S = SIZES["smoke"], ids.shape[1]
    width = size.width // size.heads

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + size.eps).sqrt() * weights[name]

    def turn(x: Tensor) -> Tensor:
        turned = torch.empty_like(x)
        for position in range(S):
            for channel in range(width // 2):
                angle = torch.tensor(position * size.theta ** (-2 * channel / width), dtype=torch.float64)
                a, b = x[..., position, channel], x[..., position, channel + width // 2]
                turned[..., position, channel] = a * angle.cos() - b * angle.sin()
                turned[..., position, channel + width // 2] = b * angle.cos() + a * angle.sin()
        return turned

    x, maps = weights["model.embed_tokens.weight"][ids], []
    for layer in range(size.layers):
        at = f"model.layers.{layer}."
        h = norm(x, at + "input_layernorm.weight")
        q, k, v = (
            (h @ weights[f"{at}self_attn.{name}_proj.weight"].T).view(*ids.shape, size.heads, width).transpose(1, 2)
            for name in "qkv"
        )
        if variant.qk_norm:
            q, k = norm(q, at + "self_attn.q_norm.weight"), norm(k, at + "self_attn.k_norm.weight")
        scores = turn(q) @ turn(k).mT
        if variant.plain_first:
            scores[..., 0] = (q * k[:, :, :1]).sum(-1)
        scores = scores / width**0.5
        hidden = torch.triu(torch.ones(S, S, dtype=torch.bool), 1) if causal else torch.zeros(S, S).bool()
        if variant.extra_sink == "alone":
            hidden[0, 1:] = True
        if variant.future == 0:
            hidden |= torch.triu(torch.ones(S, S, dtype=torch.bool), 1)
        if variant.window is not None:
            behind = torch.arange(S)[:, None] - torch.arange(S)
            hidden |= behind.abs() >= variant.window
        mass = scores.masked_fill(hidden, float("-inf")).exp()
        level = {"plain": 0.0, "one": 1.0}.get(variant.softmax)
        more = weights[at + "self_attn.sinks"].exp()[:, None, None] if level is None else level
        attention = mass / (mass.sum(-1, keepdim=True) + more)
        maps.append(attention)
        mixed = (attention @ v).transpose(1, 2).reshape(*ids.shape, -1)
        if variant.gate:
            mixed = mixed / (1 + (-(h @ weights[at + "self_attn.gate_proj.weight"].T)).exp())
        x = x + mixed @ weights[at + "self_attn.o_proj.weight"].T
        h = norm(x, at + "post_attention_layernorm.weight")
        gate, up = (h @ weights[f"{at}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (gate / (1 + (-gate).exp()) * up) @ weights[at + "mlp.down_proj.weight"].T
    return norm(x, "model.norm.weight") @ weights["lm_head.weight"].T, maps


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", list(VARIANTS))
def test_training_is_inference_is_attention_in_full(name: str, layout: str, tmp_path: Path) -> None:
    variant, causal = VARIANTS[name], layout == "llama"
    network, model = saved(layout, variant, tmp_path)
    assert variant_of(model.network) == variant
    assert model.family == {"llama": "causal"}.get(layout, layout)
    ids = some_ids(2, 12)
    wanted, maps = dense(network, ids, causal, variant)
    with torch.no_grad():
        trains = network.lm_head(
            hidden_states(network, ids, rotation(network, 12, CPU), Visibility(12, 12, None, causal))
        )
    torch.testing.assert_close(trains.double(), wanted, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(model.logits(ids).double(), wanted, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(model.attention(ids).double(), torch.stack(maps), atol=1e-5, rtol=1e-4)
    checked = model.check()
    assert checked.passed, checked
    plain = ss.load(folder_of(layout, tmp_path / "plain"), device="cpu", dtype="float32")
    same = name == "seen" or (name in ("alone", "future") and causal)
    assert torch.equal(plain.logits(ids), model.logits(ids)) == same, "the option changes the network"


def folder_of(layout: str, folder: Path) -> Path:
    """The same weights without the change."""
    network = trained(layout, PLAIN)
    save(network, layout, shipped(layout), folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all", "alone", "one", "plain_first", "window", "future", "both", "wide"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_padding_caches_traces_and_policies(name: str, layout: str, tmp_path: Path) -> None:
    """Rows in a batch are the rows alone; received attention is that of the maps; a policy hides keys."""
    variant = VARIANTS[name]
    _, model = saved(layout, variant, tmp_path)
    decodings: dict[str, Any] = {
        "llama": ss.GreedyDecoding(length=4, eos=None),
        "llada": ss.LladaDecoding(length=4, steps=2, block=4),
        "dream": ss.DreamDecoding(length=4, steps=2),
    }
    prompts = ["Two and two.", "What is the sum of three and four, and of that and five?"]
    together = ss.generate(model, prompts, decodings[layout], capture=ss.Capture(level="maps"))
    for text, answer in zip(prompts, together.texts, strict=True):
        assert ss.generate(model, [text], decodings[layout]).texts == [answer]
    data = together.trace.dataset if together.trace is not None else None
    assert data is not None
    sums = data["attention"].sum("key").where(data["attention"].sum("key") > 0)
    if variant.softmax == "plain":
        assert float(abs(sums - 1).max()) < 1e-4
    else:
        assert float(sums.max()) < 1, "one more score takes a share of every query's attention"
    if layout != "llama":
        # One query of each row in padding sees nothing here; the others: received is the column sum relative to uniform.
        row = data.isel(sample=1, step=0)
        n = int((row["region"] != "padding").sum())
        attention, received = row["attention"].values, row["received"].values
        pairs = variant.narrowed(Visibility(n, n), CPU).rows(0, n, CPU)
        seen = torch.ones(n, n) if pairs is None else pairs[0, 0].float()
        uniform = (seen / seen.sum(1, keepdim=True)).sum(0).numpy()
        assert abs(attention[..., -n:, -n:].sum(-2) / uniform - received[..., -n:]).max() < 1e-3
    masked = model.attention(some_ids(1, 12), policy="first:1")
    alone = variant.first_alone or variant.future == 0 or layout == "llama"
    assert float(masked[:, :, :, 1 if alone else 0 :, 0].max()) == 0


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["all", "one", "alone", "window", "future", "wide"])
def test_the_probe_of_training_sees_the_attention_that_acts(name: str, layout: str) -> None:
    """Padding on the right, as training has it: what is observed is what is computed, and the map in full."""
    variant, causal = VARIANTS[name], layout == "llama"
    network, ids = trained(layout, variant), some_ids(1, 12)
    calls: list[AttentionCall] = []
    padded, real = torch.cat((ids, ids[:, :5]), 1), (torch.arange(17) < 12)[None]
    angles = rotation(network, 17, CPU)
    with torch.no_grad():
        pattern = Visibility(17, 17, real, causal)
        plain = hidden_states(network, padded, angles, pattern)
        seen = hidden_states(network, padded, angles, pattern, lambda call, _: calls.append(call))
    torch.testing.assert_close(seen[:, :12], plain[:, :12], atol=1e-5, rtol=1e-5)
    for call, wanted in zip(calls, dense(network, ids, causal, variant)[1], strict=True):
        torch.testing.assert_close(call.map()[:, :, :12, :12].double(), wanted, atol=1e-5, rtol=1e-4)
        shares = 1 - wanted.sum(-1)
        assert (call.absorbed is None) == (variant.softmax == "plain")
        if call.absorbed is not None:
            torch.testing.assert_close(call.absorbed[:, :, :12].double(), shares, atol=1e-5, rtol=1e-4)
    chosen = {"llama": "causal", "llada": "scratch", "dream": "adapted"}[layout]
    held_out = probe(recipe(chosen, extra_sink=variant.extra_sink), words(layout, variant), CPU, each=1)
    assert all(level["max_received"] > 0 for level in measure(network, held_out).values())


def test_the_same_seed_gives_the_same_weights_with_and_without_a_change() -> None:
    plain, varied = (
        dict(build(SIZES["smoke"], 128, "llada", 5, variant).named_parameters()) for variant in (PLAIN, VARIANTS["all"])
    )
    assert all(varied[name].equal(weight) for name, weight in plain.items())
    assert len(varied) == len(plain) + 4 * SIZES["smoke"].layers
    assert all(weight.requires_grad for weight in varied.values())


@pytest.mark.parametrize("seed", [0, 3])
def test_gates_start_apart_from_all_other_weights(seed: int) -> None:
    network = build(SIZES["smoke"], 128, "llama", seed, Variant(gate=True))
    drawn = {name: weight for name, weight in network.named_parameters() if weight.dim() == 2}
    gates = {name: weight.flatten() for name, weight in drawn.items() if "gate_proj" in name and "mlp" not in name}
    assert len(gates) == SIZES["smoke"].layers
    for name, gate in gates.items():
        for other, weight in drawn.items():
            if other != name:
                n = min(gate.numel(), weight.numel())
                both = torch.stack((gate[:n], weight.flatten()[:n]))
                assert float(torch.corrcoef(both)[0, 1].detach().abs()) < 0.2, (name, other)


def test_a_learned_sink_a_gate_and_norms_are_trained() -> None:
    network = trained("llada", VARIANTS["all"])
    hidden_states(network, some_ids(2, 12), rotation(network, 12, CPU), Visibility(12, 12)).square().sum().backward()
    for name, weight in network.named_parameters():
        if "lm_head" not in name:
            assert weight.grad is not None, name
            assert bool(weight.grad.abs().sum() > 0), name


def test_a_causal_network_becomes_dream_with_its_change() -> None:
    network = trained("llama", VARIANTS["all"])
    ids = some_ids(1, 12)
    with torch.no_grad():
        before, after = (
            hidden_states(one, ids, rotation(one, 12, CPU), Visibility(12, 12)) for one in (network, as_dream(network))
        )
    assert before.equal(after)


def test_other_programs_do_not_take_a_variant_for_the_network_it_resembles(tmp_path: Path) -> None:
    saved("llama", VARIANTS["one"], tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "sinkscope_llama"
    assert config[KEY]["softmax"] == "one"
    config[KEY]["softmax"] = "two"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="softmax 'two' is not known"):
        ss.load(tmp_path, device="cpu")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sink_token_opens_every_prompt_once(layout: str, tmp_path: Path) -> None:
    _, model = saved(layout, VARIANTS["seen"], tmp_path)
    plain, opened = shipped(layout), words(layout, VARIANTS["seen"])
    run = ss.generate(model, ["Two and two."], _short(layout))
    row = run.states[0][0].tolist()
    assert row[:2] == [opened.token(SINK), plain.bos]
    assert row.count(row[0]) == 1
    assert model.ids.bos == opened.token(SINK)


def _short(layout: str) -> Any:
    if layout == "llama":
        return ss.GreedyDecoding(length=2, eos=None)
    return ss.LladaDecoding(length=2, steps=1, block=2) if layout == "llada" else ss.DreamDecoding(length=2, steps=1)


def test_sinks_without_a_key_ahead_are_told_by_the_causal_rule(tmp_path: Path) -> None:
    """A trace, its counts by layer, and what a policy masks and says that it hit agree; and a sum ranks keys by their sums."""
    _, model = saved("llada", Variant(future=0), tmp_path)
    decoding = ss.LladaDecoding(length=12, steps=6, block=12)
    policy = "top:1,epsilon=0.5,by=sum"
    run = ss.generate(model, LONG, decoding, policy=policy, capture=ss.Capture(level="maps"))
    data = run.trace.dataset if run.trace is not None else None
    assert data is not None
    sinks = ss.detect(data, epsilon=0.5, scores="received_raw").values
    assert ss.detect(data).attrs["rule"] == "distance"
    masked = np.asarray(run.trace.masked_keys())  # type: ignore[union-attr]
    n = data.sizes["key"]
    uniform = np.tril(1 / np.arange(1, n + 1)[:, None] * np.ones((n, n))).sum(0)
    strongest = (data["received_raw"].values * uniform).argmax(-1)
    assert sinks.any()
    assert not masked[:, 0].any(), "it waits for scores"
    for step in range(1, masked.shape[1]):
        before, top = sinks[:, step - 1], np.eye(n, dtype=bool)[strongest[:, step - 1]]
        assert (masked[:, step] == (before & top)).all()
    attention = data["attention"].isel(step=0).values
    assert (np.triu(attention, 1) == 0).all()
    counts = ss.generate(model, LONG, decoding, capture=ss.Capture(level="layers")).trace
    heads = ss.detect(ss.generate(model, LONG, decoding, capture=ss.Capture()).trace).sum("head").values
    assert counts is not None
    assert (counts.dataset["sink_heads"].values == heads).all()
    hit = ss.generate(model, LONG, decoding, policy="above:3", capture=ss.Capture())
    told = hit.trace.dataset["sinks_hit"].values if hit.trace is not None else None
    assert told is not None
    assert np.nanmax(told) == 1, "the sinks that it looks for are those that it counts"


def test_steps_with_a_cache_see_the_window_that_the_whole_text_has(tmp_path: Path) -> None:
    _, model = saved("llama", Variant(window=4), tmp_path)
    run = ss.generate(model, LONG, ss.GreedyDecoding(length=8, eos=None), capture=ss.Capture())
    best = model.logits(run.sequences[:, :-1])[:, -8:].argmax(-1)
    assert run.sequences[:, -8:].equal(best)
    assert run.trace is not None
    assert run.trace.dataset["window"].values.tolist() == [4, 4]


def test_what_cannot_follow_the_first_token_is_refused(tmp_path: Path) -> None:
    _, model = saved("llada", VARIANTS["alone"], tmp_path)
    with pytest.raises(InputError, match="does not let all tokens see one another alike"):
        ss.generate(model, ["Two."], ss.LladaDecoding(length=4, steps=4, block=4), reuse="prefix")


def test_recipes_say_only_the_changes_that_are_made() -> None:
    plain = recipe("scratch").as_dict()
    assert "softmax" not in plain
    assert recipe("scratch", softmax="one").as_dict() == {**plain, "softmax": "one"}
    assert isinstance(recipe("causal", gate=True), Recipe)
    with pytest.raises(InputError, match="attention of their families only"):
        recipe("multimodal", gate=True)
    with pytest.raises(InputError, match="softmax 'two' is not known"):
        recipe("scratch", softmax="two")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bfloat16_is_near_float32(layout: str, tmp_path: Path) -> None:
    _, exact = saved(layout, VARIANTS["all"], tmp_path)
    rounded = ss.load(tmp_path, device="cpu", dtype="bfloat16")
    assert rounded.check().passed
    ids = some_ids(2, 12)
    found, wanted = rounded.logits(ids).float(), exact.logits(ids)
    assert float((found - wanted).norm() / wanted.norm()) < 0.05


def test_outside_of_a_context_each_batch_has_its_own_first_token(tmp_path: Path) -> None:
    """transformers' own call, with a mask of its own and no context of ours around it."""
    _, model = saved("llada", VARIANTS["alone"], tmp_path)
    ids = some_ids(1, 9)
    for padding in (3, 1, 0):
        padded = torch.cat((ids[:, :padding], ids), 1)
        real = (torch.arange(9 + padding) >= padding).long()[None]
        positions = torch.arange(9 + padding)[None]
        network = model.network
        out = network.model(input_ids=padded, attention_mask=real, position_ids=positions, is_causal=False)
        ours = model.logits(padded, attention_mask=real)
        with torch.no_grad():
            theirs = network.lm_head(out.last_hidden_state)
        torch.testing.assert_close(theirs[:, padding:], ours[:, padding:], atol=1e-5, rtol=1e-4)


def test_gates_of_changed_attention() -> None:
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=96
    )
    network = transformers.LlamaForCausalLM(config)
    vary(network, Variant(gate=True), "cpu")
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model = ss.wrap(network)
    assert tuple(model.gates) == (0, 1)
    run = ss.generate(model, torch.arange(9)[None], ss.GreedyDecoding(2, eos=None), capture=ss.Capture())
    assert 0.2 < float(run.trace.dataset["gate"].mean()) < 0.8


def test_a_changed_network_without_its_distribution_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it taken for the network that it resembles, where somebody has renamed it."""
    saved("llama", VARIANTS["one"], tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(CHANGED, "_things", {})
        with pytest.raises(CheckpointError, match="pip install sinkscope-train"):
            ss.load(tmp_path, device="cpu")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
    with pytest.raises(CheckpointError, match="sets sinkscope_variant to"):
        ss.load(tmp_path, device="cpu")
