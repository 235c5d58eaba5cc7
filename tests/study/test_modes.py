"""One checkpoint in both modes as a matched pair: the causal mode counts as a causal model, and both are run and compared."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.helpers.byte_tokenizer import checkpoint_with_tokenizer

import sinkscope as ss
from sinkscope.base.errors import InputError
from sinkscope.study.facts import facts_of
from sinkscope.study.spec import StudyModel, changed
from sinkscope.tasks.likelihood import masked


def test_a_model_is_named_with_its_mode(tmp_path: Path) -> None:
    study = changed("quick", ["some/model", "some/model@causal"], None, None, None, {}, None, None, None)
    assert [(one.source, one.mode, one.name) for one in study.models] == [
        ("some/model", "", "some/model"),
        ("some/model", "causal", "some/model@causal"),
    ]
    with pytest.raises(InputError, match="mode"):
        StudyModel("some/model", mode="other")


def test_the_causal_mode_is_a_causal_model(tmp_path: Path) -> None:
    folder = checkpoint_with_tokenizer("nemotron_diffusion", tmp_path / "nemotron")
    plain, causal = StudyModel(str(folder)), StudyModel(str(folder), mode="causal")
    assert (facts_of(plain, "cpu").family, facts_of(causal, "cpu").family) == ("nemotron", "causal")
    other = checkpoint_with_tokenizer("llada", tmp_path / "llada")
    with pytest.raises(InputError, match="no causal mode"):
        facts_of(StudyModel(str(other), mode="causal"), "cpu")


def test_causal_decodings_fit_the_causal_mode(tmp_path: Path) -> None:
    folder = checkpoint_with_tokenizer("nemotron_diffusion", tmp_path / "nemotron")
    model = ss.load(folder, device="cpu", dtype="float32")
    one = ss.generate(model.mode(causal=True), [[5, 6, 7]], ss.GreedyDecoding(5, eos=None), capture=True)
    two = ss.generate(model, [[5, 6, 7]], ss.NemotronCausalDecoding(5, eos=None), capture=True)
    assert one.answers == two.answers
    assert one.trace.dataset["received_all"].equals(two.trace.dataset["received_all"])
    ids = torch.arange(12)[None]
    with pytest.raises(InputError, match="causally"):
        masked(model, ids, ids > 6, 4, None, [0])
