"""Studies of many runs: models are added while others train, recordings are not kept, and tables need no weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.study import small

from sinkscope.errors import CheckpointError, InputError
from sinkscope.study import run, spec
from sinkscope.study.store import Store

BLOCKS = """
[decodings.short]
causal = { length = 6 }
llada = { length = 8, steps = 4, block = 4 }
[[evaluate]]
task = "word_problems"
decodings = ["short"]
samples = 2
policies = ["none", "top:1", "random(top:1)"]
[[trace]]
task = "word_problems"
decodings = ["short"]
samples = 2
capture = { anatomy = true }
keep = false
"""


def _computed(study: Path, out: Path) -> int:
    outcome = run.run_study(spec.read(study), out, "here", "cpu", tables=False, traces=True)
    return outcome.computed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_models_are_added_and_tables_are_made_without_them(tmp_path: Path) -> None:
    out = tmp_path / "out"
    one = small.write_blocks(tmp_path / "models", ("llada",), BLOCKS)
    assert _computed(one, out) == 3 * 2 + 2
    both = small.write_blocks(tmp_path / "models", ("llada", "llama"), BLOCKS)
    assert _computed(both, out) == 3 * 2 + 2, "only what the new model was asked"
    assert _computed(both, out) == 0
    assert [model.name for model in spec.read(out / "study.toml").models] == ["llada", "llama"]
    assert not list(out.rglob("*.zarr.zip"))
    assert len(list(out.glob("traces/*/*.analysis.npz"))) == 4
    with pytest.raises(InputError, match="another study"):
        run.run_study(
            spec.read(small.write_blocks(tmp_path / "models", ("llada",), BLOCKS)), out, "here", "cpu"
        )
    both = small.write_blocks(tmp_path / "models", ("llada", "llama"), BLOCKS)
    for weights in tmp_path.glob("models/*/*.safetensors"):
        weights.unlink()
    outcome = run.run_study(spec.read(both), out, "here", "cpu")
    assert outcome.computed == 0
    assert set(outcome.frames["results"]["model"]) == {"llada", "llama"}
    assert set(outcome.frames["sinks"]["model"]) == {"llada", "llama"}
    (out / "models.json").unlink()
    with pytest.raises(CheckpointError):
        run.run_study(spec.read(both), out, "here", "cpu")
    assert json.loads((out / "manifest.json").read_text())["models"]["llama"]["weights"]


def test_recordings_that_are_read_again_must_be_kept() -> None:
    for more in ({"maps": 1}, {"policies": ("none", "top:1")}):
        with pytest.raises(InputError, match="keep = false"):
            spec.TraceGrid("word_problems", keep=False, **more)


def test_damaged_facts_are_told(tmp_path: Path) -> None:
    (tmp_path / "models.json").write_text("[]")
    with pytest.raises(InputError, match="is damaged"):
        Store(tmp_path).facts(spec.StudyModel("somewhere", "mine"))
