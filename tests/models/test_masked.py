"""The family "masked" against transformers' own eager attention, and through LLaDA's loop."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import sinkscope as ss

SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
NAMES = ("bert", "roberta", "modernbert", "esm")
MASK = 5


def config_of(name: str) -> Any:
    import transformers

    common = {**SIZES, "vocab_size": 64, "max_position_embeddings": 80, "pad_token_id": 1}
    if name == "bert":
        return transformers.BertConfig(**common)
    if name == "roberta":
        return transformers.RobertaConfig(**common)
    if name == "esm":
        return transformers.EsmConfig(
            **common, position_embedding_type="rotary", mask_token_id=MASK, token_dropout=True
        )
    return transformers.ModernBertConfig(
        **common, local_attention=8, global_attn_every_n_layers=2, bos_token_id=2, eos_token_id=3, cls_token_id=2,
        sep_token_id=3,
    )  # fmt: skip


@cache
def pair(name: str, folder: Path) -> tuple[Any, Any]:
    """Our model and transformers' own with eager attention, with the same random weights."""
    from transformers import AutoModelForMaskedLM

    torch.manual_seed(3)
    network = AutoModelForMaskedLM.from_config(config_of(name), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    network.save_pretrained(folder / name)
    return ss.load(folder / name, device="cpu", dtype="float32", mask_token_id=MASK), network


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("masked")


def inputs(rows: int, columns: int) -> torch.Tensor:
    return torch.randint(6, 64, (rows, columns), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_attention_are_those_of_transformers(name: str, folder: Path) -> None:
    model, network = pair(name, folder)
    assert model.family == "masked"
    ids = inputs(2, 21)
    ids[:, 4] = MASK
    with torch.no_grad():
        expected = network(input_ids=ids, output_attentions=True)
    torch.testing.assert_close(model.logits(ids), expected.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model.attention(ids), torch.stack(expected.attentions), atol=2e-5, rtol=0)
    assert model.check().passed


@pytest.mark.parametrize("name", NAMES)
def test_padding_on_the_right(name: str, folder: Path) -> None:
    model, network = pair(name, folder)
    ids, mask = inputs(2, 13), torch.ones(2, 13, dtype=torch.long)
    ids[0, 9:], mask[0, 9:] = 1, 0
    with torch.no_grad():
        expected = network(input_ids=ids, attention_mask=mask).logits
    here = mask.bool()
    torch.testing.assert_close(model.logits(ids, mask)[here], expected[here], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_generation_is_llada_s_loop_by_hand(name: str, folder: Path) -> None:
    model, network = pair(name, folder)
    prompt = inputs(1, 7)
    run = ss.generate(model, prompt, ss.LladaDecoding(length=6, block=6, steps=3), capture=ss.Capture(), seed=0)
    x = torch.nn.functional.pad(prompt, (0, 6), value=MASK)
    for step in range(3):
        with torch.no_grad():
            spread, tokens = network(input_ids=x).logits.softmax(-1).max(-1)
        spread = spread.masked_fill(x != MASK, -1)
        chosen = spread.topk(2).indices
        x = x.scatter(1, chosen, tokens.gather(1, chosen))
        assert torch.equal(run.states[step + 1], x)
    received = run.trace.dataset["received"].values[:, :, 0]  # a layer without a sliding window
    assert abs(received.mean() - 1) < 1e-4


def test_masking_a_key_hides_it(folder: Path) -> None:
    model, _ = pair("bert", folder)
    ids = inputs(1, 12)
    maps = model.attention(ids, policy=ss.MaskKeys({1: [0, 3]}))
    assert float(maps[1, ..., [0, 3]].abs().max()) == 0
    assert float(maps[0, ..., [0, 3]].min()) > 0


def test_rows_of_unequal_length_run_apart(folder: Path) -> None:
    model, _ = pair("roberta", folder)
    rows = [inputs(1, 9)[0].tolist(), inputs(1, 5)[0].tolist()]
    decoding = ss.LladaDecoding(length=4, block=4, steps=2)
    together = ss.generate(model, rows, decoding)
    for row, prompt in enumerate(rows):
        assert together.answers[row] == ss.generate(model, [prompt], decoding).answers[0]


def test_no_sequence_passes_learned_positions(folder: Path) -> None:
    model, _ = pair("bert", folder)
    with pytest.raises(ss.InputError, match="pass the context of 80"):
        ss.generate(model, inputs(1, 70), ss.LladaDecoding(length=32))


# ---- real weights: Sapiens, a small RoBERTa of antibodies (PyPI, MIT)

HEAVY = (
    "QVQLVQSGVEVKKPGASVKVSCKASGYTFTNYYMYWVRQAPGQGLEWMGGINPSNGGTNFNEKFKNRVTLTTDSSTTTAYMELKSLQFDDTAVYYCARRDYRFDMGFDYWGQG"
    "TTVTVSS"
)
LETTERS = "ACDEFGHIKLMNPQRSTVWY"
RESIDUE = 24


def sapiens_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of sapiens==1.0.5's model of heavy chains; skips where the package cannot be fetched."""
    import argparse
    import subprocess
    import sys
    import zipfile

    command = [
        sys.executable, "-m", "pip", "download", "sapiens==1.0.5", "--no-deps", "-q", "-d", str(folder),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, timeout=300, check=False)
    found = list(folder.glob("sapiens-1.0.5*.whl"))
    if done.returncode or not found:
        pytest.skip("sapiens==1.0.5 cannot be fetched here")
    with zipfile.ZipFile(found[0]) as archive:
        stored = archive.extract("sapiens/models/v1/checkpoint_vh.pt", folder)
    with torch.serialization.safe_globals([argparse.Namespace]):
        weights: dict[str, torch.Tensor] = torch.load(stored, map_location="cpu", weights_only=True)["model"]
    return weights


def as_roberta(weights: dict[str, torch.Tensor]) -> Any:
    """transformers' RoBERTa with fairseq's weights, which have other names."""
    from transformers import RobertaConfig, RobertaForMaskedLM

    config = RobertaConfig(
        vocab_size=25, hidden_size=128, num_hidden_layers=4, num_attention_heads=8, intermediate_size=256,
        max_position_embeddings=146, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1, bos_token_id=0, eos_token_id=2,
    )  # fmt: skip
    network = RobertaForMaskedLM(config).eval()
    renamed = (
        ("decoder.sentence_encoder.layers.", "roberta.encoder.layer."),
        ("decoder.sentence_encoder.embed_tokens", "roberta.embeddings.word_embeddings"),
        ("decoder.sentence_encoder.embed_positions", "roberta.embeddings.position_embeddings"),
        ("decoder.sentence_encoder.emb_layer_norm", "roberta.embeddings.LayerNorm"),
        ("self_attn.q_proj", "attention.self.query"),
        ("self_attn.k_proj", "attention.self.key"),
        ("self_attn.v_proj", "attention.self.value"),
        ("self_attn.out_proj", "attention.output.dense"),
        ("self_attn_layer_norm", "attention.output.LayerNorm"),
        ("final_layer_norm", "output.LayerNorm"),
        ("fc1", "intermediate.dense"),
        ("fc2", "output.dense"),
        ("decoder.lm_head.", "lm_head."),
        ("lm_head.weight", "lm_head.decoder.weight"),
    )
    tensors = {}
    for name, tensor in weights.items():
        for old, new in renamed:
            name = name.replace(old, new)
        tensors[name] = tensor
    missing, unexpected = network.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert set(missing) <= {"roberta.embeddings.token_type_embeddings.weight", "lm_head.decoder.bias"}
    with torch.no_grad():
        network.roberta.embeddings.token_type_embeddings.weight.zero_()
        network.lm_head.decoder.bias.copy_(network.lm_head.bias)
    return network


@pytest.mark.slow
def test_real_weights(tmp_path: Path) -> None:
    """Sapiens knows the frame of an antibody: hidden residues come back, and attention is transformers' own."""
    network = as_roberta(sapiens_weights(tmp_path))
    network.save_pretrained(tmp_path / "sapiens")
    model = ss.load(tmp_path / "sapiens", device="cpu", dtype="float32", mask_token_id=RESIDUE)
    ids = torch.tensor([[0, *(4 + LETTERS.index(letter) for letter in HEAVY), 2]])
    hidden = torch.zeros_like(ids, dtype=torch.bool)
    hidden[0, [*range(4, 26, 3), *range(37, 48, 2), 96, *range(110, 119, 2)]] = True
    masked = ids.masked_fill(hidden, RESIDUE)
    network.set_attn_implementation("eager")
    with torch.no_grad():
        expected = network(input_ids=masked, output_attentions=True)
    torch.testing.assert_close(model.logits(masked), expected.logits, atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(model.attention(masked), torch.stack(expected.attentions), atol=2e-5, rtol=0)
    assert float((model.logits(masked).argmax(-1) == ids)[hidden].float().mean()) > 0.8
    run = ss.generate(model, masked, ss.LladaDecoding(length=1, block=1), capture=ss.Capture(), seed=0)
    assert run.trace.dataset.sizes["layer"] == 4


@pytest.mark.parametrize("rule", ["prefix:2", "sparse:0.5", "drift:0.9", "drift:0.9,refresh=layers"])
def test_approximate_steps_are_refused(rule: str, folder: Path) -> None:
    """Columns of the middle would be read as the first ones: the network counts positions itself."""
    model, _ = pair("bert", folder)
    with pytest.raises(ss.InputError, match="makes its own positions"):
        ss.generate(model, inputs(1, 6), ss.LladaDecoding(4, block=4), reuse=rule)
