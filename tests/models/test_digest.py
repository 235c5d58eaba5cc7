"""The digest of a checkpoint names what is really loaded; sizes are compared with the weights before anything is built."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.helpers import golden

import sinkscope as ss
from sinkscope.models.load import find

IDS = torch.arange(5, 17)[None]


def copied(family: str, folder: Path) -> Path:
    """A golden checkpoint in one file of weights."""
    shutil.copytree(golden.checkpoint(family), folder)
    shards = sorted(folder.glob("*.safetensors"))
    tensors = {name: tensor.clone() for shard in shards for name, tensor in load_file(shard).items()}
    for path in (*shards, *folder.glob("*.index.json")):
        path.unlink()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def configured(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


def other_weights(source: Path, out: Path) -> None:
    save_file({name: tensor + 0.5 for name, tensor in load_file(source).items()}, out, metadata={"format": "pt"})


@pytest.mark.parametrize("family", ["llama", "llada"])
def test_an_index_beside_a_single_file(family: str, tmp_path: Path) -> None:
    """transformers reads the single file; the digest must be of that one, and so must the families that we read ourselves."""
    folder = copied(family, tmp_path / "c")
    plain = ss.load(folder, device="cpu")
    names = load_file(folder / "model.safetensors")
    other_weights(folder / "model.safetensors", folder / "shard.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "shard.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    both = ss.load(folder, device="cpu")
    assert torch.equal(both.logits(IDS), plain.logits(IDS))
    assert both.digest == plain.digest


def test_a_config_cannot_name_other_weights(tmp_path: Path) -> None:
    folder = copied("llama", tmp_path / "c")
    plain = ss.load(folder, device="cpu")
    other_weights(folder / "model.safetensors", folder / "evil.safetensors")
    configured(folder, transformers_weights="evil.safetensors")
    named = ss.load(folder, device="cpu")
    assert torch.equal(named.logits(IDS), plain.logits(IDS))
    assert named.digest == plain.digest


def test_a_link_named_like_a_digest_is_read(tmp_path: Path) -> None:
    folder = copied("llada", tmp_path / "c")
    before = find(folder).digest
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    (folder / "model.safetensors").rename(blobs / ("0" * 64))
    (folder / "model.safetensors").symlink_to(blobs / ("0" * 64))
    assert find(folder).digest == before


def test_config_and_tokenizer_are_part_of_it(tmp_path: Path) -> None:
    folder = copied("llada", tmp_path / "c")
    digests = [find(folder).digest]
    configured(folder, rope_theta=1234.0)
    digests.append(find(folder).digest)
    (folder / "tokenizer.json").write_text("{}")
    digests.append(find(folder).digest)
    (folder / "chat_template.jinja").write_text("x")
    digests.append(find(folder).digest)
    assert len(set(digests)) == 4


LIES = {
    "llama": [{"intermediate_size": 2_000_000}, {"num_hidden_layers": 10**7}],
    "llada": [{"mlp_hidden_size": 2_000_000}, {"n_layers": 10**7}],
    "dream": [{"intermediate_size": 2_000_000}, {"num_hidden_layers": 10**7}],
}


REFUSALS = """
import sys
import sinkscope as ss
for folder in sys.argv[1:]:
    try:
        ss.load(folder, device="cpu")
    except ss.CheckpointError:
        print("refused", folder, flush=True)
"""


@pytest.mark.slow
def test_a_lying_config_is_refused_without_time_or_memory(tmp_path: Path) -> None:
    """All in one process, which may use two minutes and 3 GiB for the six of them."""
    folders = []
    for family, lies in LIES.items():
        plain = copied(family, tmp_path / family)
        for number, lie in enumerate(lies):
            folder = Path(shutil.copytree(plain, tmp_path / f"{family}-{number}"))
            folders.append(str(configured(folder, **lie)))
    done = subprocess.run(
        [sys.executable, "-c", REFUSALS, *folders], capture_output=True, text=True, timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, 3 << 30)), check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == [f"refused {folder}" for folder in folders], done.stderr[-500:]


def test_loading_leaves_a_digest_as_it_was() -> None:
    """transformers writes into nested settings of a config; a study then found other weights than it had planned with."""
    folder = golden.checkpoint("llama")
    assert ss.load(folder, device="cpu").digest == find(folder).digest
