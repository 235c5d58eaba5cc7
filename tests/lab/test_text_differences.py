"""What real texts do under masks: the kept numbers are those of the models that ship, and the table is right."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lab import simulated_texts, text_differences
from sinkscope.models.load import load
from sinkscope.organisms.documents import held_out_prose


def test_moments_by_hand():
    assert text_differences.moments([0.0, 0.0, 0.0, 4.0]) == pytest.approx(
        (1.0, 3**0.5, 6 / 27**0.5 * 1.0, 21 / 9 - 3)
    )


def test_what_was_measured_is_whole_and_printed(capsys):
    found = text_differences.populations()
    assert [name for name in found if name.startswith("organism/")] == [
        f"{name}, prose" for name in text_differences.ORGANISMS
    ]
    for policies in found.values():
        assert list(policies) == ["none", *text_differences.POLICIES]
        assert {len(values) for values in policies.values()} == {32}
    text_differences.main(["--show"])
    assert "| organism/causal, prose | top:1 | 32 | 0.51 |" in capsys.readouterr().out


def test_it_is_written_as_it_is_read(tmp_path, monkeypatch):
    found = text_differences.populations()
    monkeypatch.setattr(text_differences, "PATH", tmp_path / "kept.json")
    text_differences.save(found)
    assert text_differences.populations() == found


def test_the_kept_numbers_are_those_of_the_shipped_model(tmp_path, monkeypatch):
    """Two of the texts again."""
    monkeypatch.setattr(text_differences, "POLICIES", ("top:1",))
    (tmp_path / "prose.jsonl").write_text(
        "\n".join(json.dumps({"text": text}) for text in held_out_prose(2)), encoding="utf-8"
    )
    again = text_differences.differences(load("organism/causal"), tmp_path / "prose.jsonl", 2, 64, 24)
    kept = text_differences.populations()["organism/causal, prose"]
    for policy in ("none", "top:1"):
        for value in again[policy]:
            assert min(abs(value - one) for one in kept[policy]) < 1e-3


def test_simulated_texts_have_the_mean_that_was_asked_for():
    rng = np.random.default_rng(0)
    assert len(simulated_texts.by_model()) >= 4
    drawn = [simulated_texts.measured(64, {"top:1": 0.5, "random(top:5)": 0.0}, rng) for _ in range(300)]
    assert np.mean([one["top:1"].mean() for one in drawn]) == pytest.approx(0.5, abs=0.02)
    assert np.mean([one["random(top:5)"].mean() for one in drawn]) == pytest.approx(0.0, abs=0.005)
