"""One checkpoint in both modes as a matched pair: the causal mode counts as a causal model, and both are run and compared."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.helpers import golden
from tests.helpers.byte_tokenizer import checkpoint_with_tokenizer

import sinkscope as ss
from sinkscope.base.errors import CheckpointError, InputError
from sinkscope.study.cells import identify, outline
from sinkscope.study.facts import facts_of
from sinkscope.study.spec import StudyModel, changed
from sinkscope.study.worker import check_identity
from sinkscope.tasks.experiment import ModelIdentity
from sinkscope.tasks.likelihood import masked


def test_the_causal_mode_is_a_causal_model(tmp_path: Path) -> None:
    folder = str(checkpoint_with_tokenizer("nemotron_diffusion", tmp_path / "nemotron"))
    plain, causal = StudyModel(folder), StudyModel(f"{folder}@causal")
    assert (facts_of(plain, "cpu").family, facts_of(causal, "cpu").family) == ("nemotron", "causal")
    model = ss.load(causal.source, device="cpu", dtype="float32")
    assert (model.family, model.source) == ("nemotron_causal", causal.source)
    assert (model.mode(causal=False).family, model.mode(causal=False).source) == ("nemotron", folder)
    assert ModelIdentity.of(model).numbers == facts_of(causal, "cpu").numbers
    released = StudyModel("nvidia/Nemotron-Labs-Diffusion-3B@causal")
    assert facts_of(released, "cpu", fetch=False).family == "causal"


def test_sizes_for_plans_are_those_of_the_text_network() -> None:
    """Query heads, not those of keys and values; of a folder as of a name."""
    sizes = {
        "google/diffusiongemma-26B-A4B-it": (30, 16), "Dream-org/Dream-v0-Instruct-7B": (28, 28),
        "google-bert/bert-base-uncased": (12, 12), str(golden.checkpoint("diffusion_gemma")): (3, 4),
    }  # fmt: skip
    for source, size in sizes.items():
        facts = facts_of(StudyModel(source), "cpu", fetch=False)
        assert (facts.layers, facts.heads) == size, source


def test_a_model_without_modes(tmp_path: Path) -> None:
    folder = checkpoint_with_tokenizer("llada", tmp_path / "llada")
    for source in (f"{folder}@causal", "GSAI-ML/LLaDA-8B-Instruct@causal"):
        with pytest.raises(InputError, match="one mode"):
            facts_of(StudyModel(source), "cpu", fetch=False)
    (tmp_path / "run@causal").mkdir()
    with pytest.raises(CheckpointError, match=r"config\.json"):  # a folder of that name is itself
        ss.load(tmp_path / "run@causal")


def test_causal_decodings_fit_the_causal_mode(tmp_path: Path) -> None:
    folder = checkpoint_with_tokenizer("nemotron_diffusion", tmp_path / "nemotron")
    model = ss.load(folder, device="cpu", dtype="float32")
    one = ss.generate(model.mode(causal=True), [[5, 6, 7]], ss.GreedyDecoding(5, eos=None), capture=True)
    two = ss.generate(model, [[5, 6, 7]], ss.NemotronCausalDecoding(5, eos=None), capture=True)
    assert one.answers == two.answers
    assert one.trace.dataset["received_all"].equals(two.trace.dataset["received_all"])


def test_a_masked_text_is_read_both_ways(tmp_path: Path) -> None:
    folder = checkpoint_with_tokenizer("nemotron_diffusion", tmp_path / "nemotron")
    model = ss.load(folder, device="cpu", dtype="float32")
    ids = torch.arange(12)[None]
    where = (ids > 6) & (ids % 2 == 0)
    logits = model.logits(torch.where(where, model.ids.mask, ids))
    expected = -logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0][where]
    torch.testing.assert_close(masked(model, ids, where, 4, None, [0]).values.float(), expected)
    with pytest.raises(InputError, match="causal model"):
        masked(model.mode(causal=True), ids, where, 4, None, [0])


@pytest.mark.parametrize("name", ["pairs", "protocol", "quick"])
def test_built_in_studies_take_both_modes(name: str, tmp_path: Path) -> None:
    folder = str(checkpoint_with_tokenizer("nemotron_diffusion", tmp_path / "nemotron"))
    study = changed(name, [folder, f"{folder}@causal"])
    facts = {model.name: facts_of(model, "cpu") for model in study.models}
    cells = outline(study, facts, samples=2, exact=False)
    ways = {(cell.model.name, cell.experiment.decoding.generates) for cell in cells}
    assert ways == {(model, generates) for model in facts for generates in (True, False)}
    for cell in {cell.model.name: cell for cell in identify(cells)}.values():
        check_identity(cell, ss.load(cell.model.source, device="cpu", dtype=cell.model.dtype))
