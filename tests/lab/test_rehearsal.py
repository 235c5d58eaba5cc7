"""The rehearsal of the paper's study: checkpoints in the official layouts, a kill in the middle, the same command again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import sinkscope as ss
from lab import rehearsal
from sinkscope.models.load import find
from sinkscope.study import spec

FAMILIES = {
    "llama": "causal",
    "qwen3": "causal",
    "qwen3-small": "causal",
    "coder": "causal",
    "llada21": "llada2",
    "fast_dllm": "fast_dllm_v2",
    "open-dcoder": "open_dcoder",
}
"""Name of a rehearsed model → its family, where that is another word."""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def shared() -> Path:
    folder = Path(os.environ.get("SINKSCOPE_SHARED", ""))
    if not (folder / "tokenizers" / "llada").is_dir() or not (folder / "data" / "gsm8k_test.jsonl").is_file():
        pytest.skip(
            "needs the official tokenizers and data: set SINKSCOPE_SHARED to a folder that has tokenizers/ and data/"
        )
    return folder


@pytest.mark.parametrize(
    "name",
    [
        # At this size they differ from llada2 and qwen3 in nothing that a checkpoint shows.
        pytest.param(name, marks=pytest.mark.soak if name in ("llada21", "qwen3-small") else pytest.mark.slow)
        for name in rehearsal.MODELS
    ],
)
def test_checkpoints_are_in_the_official_layouts(name: str, shared: Path, tmp_path: Path) -> None:
    rehearsal.write_checkpoint(name, tmp_path / name, True, shared / "tokenizers", 20_000_000)
    index = json.loads((tmp_path / name / "model.safetensors.index.json").read_text())
    files = set(index["weight_map"].values())
    assert len(files) >= 2
    assert all((tmp_path / name / file).is_file() for file in files)
    model = ss.load(tmp_path / name, device="cpu")
    assert model.family == FAMILIES.get(name, name)
    assert model.shape.layers == 2
    assert (model.ids.mask is None) == (model.family == "causal")
    assert model.tokenizer is not None
    assert len(model.tokenizer) <= model.shape.vocabulary


@pytest.mark.parametrize("study", ["paper", "families", "pairs"])
def test_every_model_of_a_study_is_rehearsed(study: str, tmp_path: Path) -> None:
    names = rehearsal.names_of(study)
    assert {rehearsal.MODELS[name][0] for name in names} == {
        model.source for model in spec.read(study).models
    }
    short = spec.read(rehearsal.write_study(tmp_path, names, 1, 8, ["none"], study))
    assert [model.name for model in short.models] == [model.name for model in spec.read(study).models]
    assert [model.twin for model in short.models] == [model.twin for model in spec.read(study).models]
    some = spec.read(rehearsal.write_study(tmp_path, names[:1], 1, None, [], study))
    assert len(some.models) == 1


def test_sizes_are_the_official_ones() -> None:
    sizes = {name: rehearsal.config_of(name, tiny=False) for name in rehearsal.MODELS}
    assert (sizes["llada"]["d_model"], sizes["llada"]["n_layers"], sizes["llada"]["vocab_size"]) == (
        4096,
        32,
        126464,
    )
    assert (sizes["mmada"]["vocab_size"], sizes["mmada"]["model_type"]) == (134656, "mmada")
    assert (sizes["dream"]["hidden_size"], sizes["dream"]["num_key_value_heads"]) == (3584, 4)
    assert (sizes["llama"]["intermediate_size"], sizes["llama"]["num_key_value_heads"]) == (14336, 8)


@pytest.mark.soak
def test_a_killed_study_of_the_paper_ends_whole(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = [
        str(tmp_path / "paper"),
        "--size",
        "tiny",
        "--models",
        "llada",
        "--length",
        "4",
        "--documents",
        "1",
    ]
    rehearsal.main([*words, "--policies", "none", "--device", "cpu"])
    seen = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert seen["report"]
    assert 1 <= seen["before_the_kill"] < seen["answers"] == 5
    out = tmp_path / "paper" / "study"
    assert find(str(tmp_path / "paper" / "llada")).digest in (out / "manifest.json").read_text()
    assert {path.stem for path in (out / "tables").glob("*.csv")} >= {
        "results",
        "records",
        "sinks",
        "depth",
        "diagnosis",
    }


@pytest.mark.soak
@pytest.mark.parametrize("study", ["families", "pairs"])
def test_other_studies_end_whole(
    study: str,
    shared: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every family loads, answers, reads and is traced; a kill in the middle loses nothing."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = [str(tmp_path), "--study", study, "--size", "tiny", "--length", "8", "--documents", "1"]
    rehearsal.main([*words, "--policies", "none;top:1;random(top:1)", "--device", "cpu"])
    seen = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert seen["report"]
    assert 1 <= seen["before_the_kill"] < seen["answers"]
