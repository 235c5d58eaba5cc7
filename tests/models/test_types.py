"""Causal types of transformers: tiny random networks are measured, or refused with the reason that docs/models.md gives."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from lab.causal_types import BEGIN, END, PAGE, generated, outcome, said, tiny

import sinkscope as ss

ROWS = {
    kind: words
    for line in PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].splitlines()
    if line.startswith("| `")
    for kinds, words in [line.strip("| ").split(" | ")]
    for kind in re.findall(r"`([^`]+)`", kinds)
}
"""Type → what the page says."""
EVERYWHERE = [
    "afmoe", "apertus", "arcee", "bamba", "bert", "biogpt", "bloom", "cohere2", "deepseek_v2", "deepseek_v32", "deepseek_v4",
    "diffllama", "doge", "exaone4", "falcon_h1", "flint", "gemma2", "gemma3_text", "glm4", "glm4_moe", "gpt2", "gpt_neox",
    "gpt_oss", "granite_swa", "granitemoe_swa", "granitemoehybrid", "gptj", "hunyuan_v1_dense", "jamba", "kimi_linear",
    "lfm2_moe", "llama", "mamba2", "mimo_v2_flash", "minimax", "mistral", "mixtral", "nemotron_h", "olmo3", "olmo_hybrid",
    "phi3", "phimoe", "qwen3_5_text", "qwen3_moe", "qwen3_next", "recurrent_gemma", "smollm3", "stablelm", "vaultgemma", "xglm",
]  # fmt: skip
"""Types of every kind, tried in `make test`; the others in `make soak`."""


def known(kind: str) -> bool:
    """Whether the installed transformers has the type."""
    from transformers.models.auto import modeling_auto

    return kind in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def test_the_table_names_enough_types() -> None:
    assert len(EVERYWHERE) >= 40
    assert set(EVERYWHERE) <= set(ROWS)
    assert sum(words.startswith("measured") for words in ROWS.values()) >= 100
    assert sum(words.startswith("refused: ") for words in ROWS.values()) >= 30


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.slow if kind in EVERYWHERE else pytest.mark.soak)
        for kind in ROWS
        if known(kind)
    ],
)
def test_measured_and_generated_like_transformers_or_refused(kind: str, tmp_path: Path) -> None:
    assert said(outcome(kind, tmp_path)) == ROWS[kind]


LEARNED = ["gpt_oss", "deepseek_v4", "mimo_v2_flash", "granite_swa", "granitemoe_swa", "flint"]
"""Types whose softmax has one more score, that of a learned sink."""


def loaded(kind: str, folder: Path) -> ss.Model:
    tiny(kind).save_pretrained(folder)
    return ss.load(folder, device="cpu", dtype="float32")


def test_layers_without_attention_keep_their_numbers(tmp_path: Path) -> None:
    model = loaded("qwen3_next", tmp_path)
    assert model.layers == (3,)
    assert model.shape.layers == 4
    assert model.check().passed
    ids = torch.arange(3, 15)[None]
    maps = model.attention(ids)
    assert maps[:3].isnan().all()
    torch.testing.assert_close(maps[3].sum(-1), torch.ones(1, 4, 12))
    run = ss.generate(model, ids, ss.GreedyDecoding(3, eos=None), capture=ss.Capture(), policy="top:1")
    data = run.trace.dataset
    assert data.layer.values.tolist() == [3]
    assert data["received"].notnull().any()
    assert float(data["hidden_share"].max()) > 0
    with pytest.raises(ss.InputError, match="attention in layers 3"):
        ss.generate(model, ids, ss.GreedyDecoding(3), capture=ss.Capture(layers=[0]))


def test_gates_are_those_of_the_network(tmp_path: Path) -> None:
    """Of Qwen3-Next, whose query projection gives them: the mean of the sigmoid, over the channels of a head."""
    model = loaded("qwen3_next", tmp_path)
    attention = model.network.model.layers[3].self_attn
    given: list[torch.Tensor] = []
    handle = attention.q_proj.register_forward_hook(lambda *call: given.append(call[2]))
    ids = torch.arange(3, 15)[None]
    run = ss.generate(model, ids, ss.GreedyDecoding(2, eos=None), capture=ss.Capture())
    handle.remove()
    for step, projected in enumerate(given[-2:]):
        heads = projected[:, -1].view(1, 4, -1)
        gate = heads.chunk(2, -1)[1].sigmoid().mean(-1)
        found = torch.from_numpy(run.trace.dataset["gate"].values[:, step, 0])
        torch.testing.assert_close(found, gate, atol=1e-4, rtol=1e-4)
    assert "gate" not in ss.generate("organism/causal", "a", length=2, capture=ss.Capture()).trace.dataset


@pytest.mark.parametrize(
    ("kind", "gated"),
    [("beam", (0, 1, 2, 3)), ("bailing_hybrid", (1, 3)), ("laguna", (0, 1, 2, 3)), ("bitnet", ()), ("llama", ())],
)
def test_gates_are_told_from_norms_and_from_what_else_comes_before_the_output(
    kind: str, gated: tuple[int, ...], tmp_path: Path
) -> None:
    """The gate's own layer takes the tokens' states, as wide as the output; Laguna's gates pass 1; BitNet has a norm there."""
    assert tuple(loaded(kind, tmp_path).gates) == gated


@pytest.mark.parametrize("kind", ["gemma3", "qwen3_5"])
def test_text_networks_of_checkpoints_with_towers_for_images(kind: str, tmp_path: Path) -> None:
    network = tiny(kind)
    network.save_pretrained(tmp_path)
    model, ids = ss.load(tmp_path, device="cpu", dtype="float32"), torch.arange(3, 15)[None]
    assert generated(model) == ""
    network.set_attn_implementation("eager")
    torch.testing.assert_close(model.logits(ids), network(ids).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", LEARNED)
def test_learned_sinks_are_traced_and_taken_away(kind: str, tmp_path: Path) -> None:
    model = loaded(kind, tmp_path)
    ids = torch.randint(3, 90, (3, 14), generator=torch.Generator().manual_seed(3))
    decoding = ss.GreedyDecoding(4, eos=None)
    run = ss.generate(model, ids, decoding, capture=ss.Capture())
    share = run.trace.dataset["learned_sink"]
    assert share.dims == ("sample", "step", "layer", "head")
    learned = list(model.attending.learned)
    left = 1 - model.attention(ids)[learned][:, :, :, -1].sum(-1)  # [layer, B, head] of the newest token
    torch.testing.assert_close(
        torch.from_numpy(share[:, 0].sel(layer=learned).values), left.transpose(0, 1), atol=1e-5, rtol=1e-4
    )
    without = ss.generate(model, ids, decoding, capture=ss.Capture(), policy=ss.MaskLearned())
    taken = without.trace.dataset
    assert float(taken["learned_sink"].max()) == 0.0
    assert not taken["masked_keys"].any()
    shown = taken["hidden_share"][:, 0].sel(layer=learned)
    assert ((shown > 0) & (shown < 1)).all()
    torch.testing.assert_close(without.hidden_share, torch.from_numpy(taken["hidden_share"].values).mean((1, 2, 3)))
    whole = model.attention(ids, policy="learned")[list(model.layers)]
    torch.testing.assert_close(whole.sum(-1), torch.ones_like(whole.sum(-1)))
    # Without its sink a softmax is that of the same scores, renormalised.
    plain = model.attention(ids)[learned[0]]
    torch.testing.assert_close(whole[model.layers.index(learned[0])], plain / plain.sum(-1, keepdim=True))
    table = ss.summary(run.trace).set_index("measure")["value"]
    assert table["learned sink"] == pytest.approx(float(share.mean()), abs=1e-6)
    assert ss.diagnose(run.trace)["sinks without a token"].answer in ("yes", "no", "")


def test_without_learned_sinks_there_is_nothing_to_take() -> None:
    with pytest.raises(ss.InputError, match="no"):
        ss.generate("organism/causal", "a", length=2, policy="learned")
    with pytest.raises(ss.InputError, match="leave out effect"):
        ss.MaskLearned(effect="silence")


@pytest.mark.parametrize("kind", ["jamba", "minimax"])
def test_generation_of_hybrids_is_that_of_transformers(kind: str, tmp_path: Path) -> None:
    assert generated(loaded(kind, tmp_path)) == ""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_attention_that_looks_both_ways_is_told_in_every_dtype(dtype: str, tmp_path: Path) -> None:
    """A tiny random BERT moves earlier logits by less than half precision rounds what two attention functions give."""
    tiny("bert").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"is_decoder": False, "architectures": ["BertLMHeadModel"]})
    )
    with pytest.raises(ss.SinkscopeError, match="looks both ways"):
        ss.load(tmp_path, device="cpu", dtype=dtype, family="causal")
