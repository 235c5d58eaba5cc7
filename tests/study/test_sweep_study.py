"""Studies of many runs: models are added while others train, recordings are not kept, and tables need no weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.study import small

from sinkscope.base.errors import CheckpointError, InputError, SinkscopeError
from sinkscope.study import documents, run, spec
from sinkscope.study.cells import identify, outline
from sinkscope.study.estimate import storage
from sinkscope.study.facts import Facts
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
    return run.run_study(spec.read(study), out, "here", "cpu").computed


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
    with pytest.raises(InputError, match="holds foreign results"):
        run.run_study(spec.read(small.write_blocks(tmp_path / "models", ("llada",), BLOCKS)), out, "here", "cpu")
    both = small.write_blocks(tmp_path / "models", ("llada", "llama"), BLOCKS)
    for weights in tmp_path.glob("models/*/*.safetensors"):
        weights.unlink()
    outcome = run.run_study(spec.read(both), out, "here", "cpu")
    assert outcome.computed == 0
    assert set(outcome.frames["results"]["model"]) == {"llada", "llama"}
    assert set(outcome.frames["sinks"]["model"]) == {"llada", "llama"}
    shutil.rmtree(next(out.glob("cells/*/shards/*")))
    with pytest.raises(SinkscopeError, match="llada"):
        run.run_study(spec.read(both), out, "here", "cpu")
    (out / "models.json").unlink()
    with pytest.raises(CheckpointError):
        run.run_study(spec.read(both), out, "here", "cpu")
    assert json.loads((out / "manifest.json").read_text())["models"]["llama"]["weights"]


def test_recordings_that_are_read_again_must_be_kept() -> None:
    for more in ({"maps": 1}, {"policies": ("none", "top:1")}):
        with pytest.raises(InputError, match="keep = false"):
            spec.TraceGrid("word_problems", keep=False, **more)


def test_a_cell_of_two_blocks_is_kept_if_one_of_them_wants_its_recordings() -> None:
    facts = {"m": Facts("m", "llada", "float32", "0", 32, 32, 1000)}
    block = {"task": "word_problems", "decodings": ["short"], "samples": 2}
    data = {
        "name": "s", "models": [{"source": "x", "name": "m"}],
        "decodings": {"short": {"llada": {"length": 8, "steps": 4, "block": 4}}},
    }  # fmt: skip
    blocks = [{**block, "keep": False}, {**block, "policies": ["none", "top:1"]}]
    for order in (blocks, blocks[::-1]):
        cells = identify(outline(spec.from_data({**data, "trace": order}), facts))
        assert [(cell.policy, cell.keep) for cell in cells] == [("none", True), ("top:1", True)]
    (alone,) = identify(outline(spec.from_data({**data, "trace": blocks[:1]}), facts))
    assert not alone.keep
    assert storage(alone, facts["m"]) < storage(cells[0], facts["m"])


def test_new_models_come_last_in_whatever_order_they_are_asked_for(tmp_path: Path) -> None:
    """Documents in batches follow the first model's prompts: another first model would be another study."""

    def study(*names: str) -> spec.Study:
        models = [{"source": name, "name": name} for name in names]
        evaluate = [{"task": "word_problems", "decodings": ["short"], "batches": 2, "samples": 4}]
        decodings = {"short": {"llada": {"length": 8}}}
        return spec.from_data(
            {"name": "s", "models": models, "decodings": decodings, "evaluate": evaluate}, names=False
        )

    store = Store(tmp_path)
    store.write_study(study("a", "b"))
    assert [model.name for model in store.resolved(study("c", "b", "a")).models] == ["a", "b", "c"]


def test_a_study_in_batches_needs_its_first_model(tmp_path: Path) -> None:
    batches = BLOCKS.replace("samples = 2\npolicies", "samples = 2\nbatches = 2\npolicies")
    study = spec.read(small.write_blocks(tmp_path / "models", ("llada",), batches))
    facts = Store(tmp_path / "out").facts(study, "cpu")
    outline(study, facts)
    shutil.rmtree(tmp_path / "models" / "llada")
    documents._LENGTHS.clear()
    outline(study, facts, exact=False)
    with pytest.raises(InputError, match="chosen by the lengths of llada's prompts"):
        outline(study, facts)


def test_damaged_facts_are_told(tmp_path: Path) -> None:
    (tmp_path / "models.json").write_text("[]")
    with pytest.raises(InputError, match="is damaged"):
        Store(tmp_path).facts(spec.read("organisms"), "cpu")
