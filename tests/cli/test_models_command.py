"""`sinkscope models`: what it lists, what it says of a checkpoint, and how it fails."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.helpers import golden
from tests.helpers.checkpoints import llama_config, tensors_for, write
from tests.helpers.tokenizers import golden_with_tokenizer

from sinkscope.attention.context import AttentionCall


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "sinkscope", *arguments], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
    )  # fmt: skip


def test_families_and_known_checkpoints(sinkscope) -> None:
    done = sinkscope("models")
    assert done.code == 0
    for family in ("llada", "dream", "mmada", "causal"):
        assert family in done.out
    for name in (
        "GSAI-ML/LLaDA-8B-Instruct",
        "Dream-org/Dream-v0-Instruct-7B",
        "Gen-Verse/MMaDA-8B-MixCoT",
        "meta-llama/Llama-3.1-8B-Instruct",
    ):
        assert name in done.out
    assert "entropy" in done.out
    assert "low_confidence" in done.out


FACTS = {
    "llada": {"family": "llada", "layers": "3", "heads": "4 (4 ", "mask id": "504", "end ids": "480"},
    "dream": {"family": "dream", "layers": "3", "heads": "4 (2 ", "mask id": "501", "end ids": "478"},
    "mmada": {"family": "mmada", "layers": "3", "heads": "4 (4 ", "mask id": "504", "vocabulary": "576"},
    "llama": {"family": "causal", "layers": "3", "heads": "4 (2 ", "mask id": "none", "end ids": "481"},
}


@pytest.mark.parametrize("family", golden.FAMILIES)
def test_what_a_checkpoint_is(family: str, sinkscope) -> None:
    done = sinkscope("models", str(golden.checkpoint(family)))
    assert done.code == 0, done.error
    rows = dict(re.findall(r"│\s*([a-z ]+?)\s*│\s*(.*?)\s*│", done.out))
    for name, value in FACTS[family].items():
        assert rows[name].startswith(value), (name, rows[name])
    count = sum(torch.Size(shape).numel() for shape in golden.manifest(family)["parameters"].values())
    assert rows["parameters"].replace(",", "") == str(count)
    for each, dtype in ((4, "float32"), (2, "bfloat16")):
        told = f"{each * count / 1e6:.1f} MB" if each * count >= 1e6 else f"{each * count / 1e3:.1f} kB"
        assert f"{told} in {dtype}" in rows["memory for weights"]
    assert rows["tokenizer"].startswith("none")


def test_a_tokenizer_is_mentioned(sinkscope, tmp_path: Path) -> None:
    done = sinkscope("models", str(golden_with_tokenizer("mmada", tmp_path / "checkpoint")))
    assert done.code == 0
    assert "507 tokens" in done.out


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", golden.FAMILIES)
def test_check(family: str, dtype: str, sinkscope) -> None:
    done = sinkscope("models", str(golden.checkpoint(family)), "--check", "--device", "cpu", "--dtype", dtype)
    assert done.code == 0, done.error
    assert dtype in done.out
    assert "FAILED" not in done.out
    assert len(re.findall(r"│\s*passed\s*│", done.out)) == (6 if family == "llama" else 5)


def test_a_check_that_fails_is_an_error(sinkscope, monkeypatch: pytest.MonkeyPatch) -> None:
    right = AttentionCall.map
    monkeypatch.setattr(AttentionCall, "map", lambda call: right(call).roll(1, dims=1))
    done = sinkscope("models", str(golden.checkpoint("llada")), "--check", "--device", "cpu")
    assert done.code == 2
    assert "FAILED" in done.out
    assert done.error.count("\n") == 1
    assert "self-check" in done.error


def broken(kind: str, folder: Path) -> str:
    """A checkpoint with a fault of some kind; returns what to give on the command line."""
    if kind == "no such folder":
        return str(folder / "nothing")
    if kind == "unknown hub id, offline":
        return "nobody/nothing-of-that-name"
    shutil.copytree(golden.checkpoint("llada"), folder / "checkpoint")
    checkpoint = folder / "checkpoint"
    config, shard = checkpoint / "config.json", checkpoint / "model-00002-of-00003.safetensors"
    if kind == "unknown model_type":
        config.write_text(config.read_text().replace('"model_type": "llada"', '"model_type": "lladda"'))
    elif kind == "corrupt safetensors":
        shard.write_bytes(b"\x00\x01 nonsense" * 50)
    elif kind == "truncated shard":
        shard.write_bytes(shard.read_bytes()[:-1000])
    elif kind == "config misses a key":
        config.write_text(config.read_text().replace('"n_heads": 4,', ""))
    elif kind == "only pickles":
        for path in checkpoint.glob("*.safetensors*"):
            path.unlink()
        torch.save({}, checkpoint / "pytorch_model.bin")
    return str(checkpoint)


BROKEN = {
    "no such folder": "config.json",
    "unknown hub id, offline": "cannot be reached",
    "unknown model_type": "llada",
    "corrupt safetensors": "download it again",
    "truncated shard": "download it again",
    "config misses a key": "n_heads",
    "only pickles": "save_pretrained",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("check", [False, True])
def test_bad_checkpoints_are_one_line_and_exit_code_2(
    kind: str, check: bool, sinkscope, tmp_path: Path
) -> None:  # fmt: skip
    source = broken(kind, tmp_path)
    done = sinkscope("models", source, *(["--check", "--device", "cpu"] if check else []))
    assert done.code == 2
    assert done.error.startswith("error: ")
    assert done.error.count("\n") == 1, done.error
    assert BROKEN[kind] in done.error


def test_misfits_of_a_causal_model_are_one_line(sinkscope, tmp_path: Path) -> None:
    """transformers would print a table of its own."""
    tensors = tensors_for(llama_config())
    tensors["lm_head.weight"] = torch.zeros(2, 2)
    del tensors["model.norm.weight"]
    write(tmp_path, llama_config(), tensors)
    done = sinkscope("models", str(tmp_path), "--check", "--device", "cpu")
    assert done.code == 2
    assert done.error.count("\n") == 1, done.error
    assert "model.norm.weight" in done.error
    assert "lm_head.weight" in done.error


@pytest.mark.slow
def test_help_is_fast_and_complete() -> None:
    """Under a second. Processor time is measured, which on an idle machine is the time one waits, and on a busy one is not."""
    took = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = process("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.returncode == 0
        assert "models" in done.stdout
    assert min(took) < 1.0, f"`sinkscope --help` took {min(took):.2f} s at best"
