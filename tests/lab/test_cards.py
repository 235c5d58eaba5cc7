"""Cards: written from measured files alone, for these weights alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from lab.ship import lines

from lab import card, cards, profile
from sinkscope.errors import InputError
from sinkscope.models.load import ORGANISMS as WEIGHTS
from sinkscope.models.load import find
from sinkscope.organisms.recipe import RECIPES

LOADED = (
    "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
)  # fmt: skip
ROWS = [
    {"policy": "none", "n": 4, "draws": 1, "accuracy": 1.0, "low": 0.5101, "high": 1.0},
    {"policy": "top:1", "scope": "head", "effect": "hide", "n": 4, "draws": 1, "accuracy": 0.25, "low": 0.0456,
     "high": 0.6994, "difference": -0.75, "difference_p_holm": 0.01, "hidden_share": 0.2},
    {"policy": "random(top:1)", "control_of": "top:1", "n": 4, "draws": 3, "accuracy": 0.9167, "low": 0.4312,
     "high": 0.9942, "hidden_share": 0.01},
    {"policy": "random(top:1),match=mass", "control_of": "top:1", "n": 4, "draws": 3, "accuracy": 0.1, "low": 0.01,
     "high": 0.5, "hidden_share": 0.3},
]  # fmt: skip


def results(digest: str) -> dict[str, Any]:
    """results.json of scratch, as `lab.ship` writes it."""
    shared = {"model": "organism/scratch", "dtype": "float32", "decoding": '{"kind": "llada", "length": 64}'}
    return {
        "made_by": "sinkscope study full", "date": "2026-01-03", "where": "some GPU", "digest": digest, "documents": 4,
        "shared": {"word_problems": shared}, "rows": [{"task": "word_problems", **row} for row in ROWS],
    }  # fmt: skip


def test_the_first_token_is_measured_at_each_rows_last_step() -> None:
    shape = (2, 3, 1, 2, 3)  # sample, step, layer, head, key
    received = np.full(shape, np.nan)
    received[..., :2, 0, :, 1] = 9.0
    received[0, 1, 0, :, 1], received[1, 2, 0, :, 1] = (2.0, 4.0), (1.0, 3.0)
    values = np.ones(shape)
    values[..., 1], values[..., 0] = 0.5, np.nan
    values[..., 2] = 1.5
    data = xr.Dataset(
        {
            "received_all": (("sample", "step", "layer", "head", "key"), received),
            "value_norm": (("sample", "step", "layer", "kv_head", "key"), values),
            "hidden_norm": (("sample", "step", "layer", "key"), values[:, :, :, 0] * 2),
            "position": (("sample", "key"), [[-1, 0, 1]] * 2),
        },
        coords={"layer": [0]},
    )
    layer, mean = profile.first_token(data)
    assert (layer["layer"], mean["layer"]) == (0, profile.MIDDLE)
    assert layer["received"] == 2.5, "mean over heads and prompts of the last scored step: (3 + 2) / 2"
    assert (layer["received_low"], layer["received_high"]) == pytest.approx(
        (2.5 - 6.3531, 2.5 + 6.3531), abs=1e-3
    )  # t(1) · ½
    assert layer["value_ratio"] == layer["hidden_ratio"] == 0.5, "of the median of the keys that there are"


# ---- what ships ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(RECIPES))
def test_the_shipped_card_is_what_the_program_writes(name: str, tmp_path: Path) -> None:
    for path in (WEIGHTS / name).iterdir():
        if path.name not in ("README.md", "emergence.svg"):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / path.name).symlink_to(path)
    cards.main(["write", "--models", name, "--root", str(tmp_path)])
    for file_name in ("README.md", "emergence.svg"):
        again = (tmp_path / name / file_name).read_text(encoding="utf-8")
        assert (WEIGHTS / name / file_name).read_text(encoding="utf-8") == again, "write the cards again"
    assert card.CAUTION in (WEIGHTS / name / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", list(RECIPES))
def test_measured_files_are_of_these_weights_and_say_when_and_where(name: str) -> None:
    digest = find(WEIGHTS / name).digest
    for file_name in ("accuracy.json", "profile.json", "results.json"):
        path = WEIGHTS / name / file_name
        data = json.loads(path.read_text(encoding="utf-8"))
        assert data["digest"] == digest
        assert data["date"].startswith("20")
        assert data["where"]
        assert path.stat().st_size < 150_000


def test_a_card_says_what_is_missing(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    for file_name in (*LOADED, *card.NEEDED):
        shutil.copy(WEIGHTS / "scratch" / file_name, folder)
    text = card.card("scratch", folder)
    assert "Not measured: there is no profile.json." in text
    assert "- The masking table was not measured." in text
    (folder / "results.json").write_text(lines(results(find(folder).digest)), encoding="utf-8")
    text = card.card("scratch", folder)
    assert card.NO_PROOF in text
    assert "| `top:1` | head | hide | 4 | 0.250 [0.046, 0.699] |" in text
    assert "0.917 [0.431, 0.994] (3×)" in text, "the control beside it"
    assert (
        "Measured on 2026-01-03, some GPU, `sinkscope study full`, float32; 4 held-out documents per task."
        in text
    )
    assert "silencing was not run beside `top:1`" in text
    assert "no match, for `top:1` (30.0% against 20.0%)" in text, "mass-matched in name only"
    assert "- The masking table has 4 documents per task, fewer than 500." in text
    (folder / "results.json").write_text(lines(results("abc")), encoding="utf-8")
    with pytest.raises(InputError, match="measured on weights abc"):
        card.card("scratch", folder)
    (folder / "training.json").unlink()
    with pytest.raises(InputError, match=r"no training\.json"):
        card.card("scratch", folder)


def test_a_card_says_what_was_read_and_how_it_was_packed(tmp_path: Path) -> None:
    folder = tmp_path / "causal"
    folder.mkdir()
    for file_name in (*LOADED, *card.NEEDED):
        shutil.copy(WEIGHTS / "causal" / file_name, folder)
    about = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    about |= {"mix": {"docstrings": 0.4, "prose": 0.6}, "docstrings": 1234, "python": "3.99"}
    about["recipe"] |= {"packed": 4}
    (folder / "training.json").write_text(json.dumps(about), encoding="utf-8")
    text = card.card("causal", folder)
    assert "40% docstrings (1,234 paragraphs, the library of Python 3.99), 60% prose" in text
    assert "4 of them in a row" in text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["write", "--models", "scrach"], "there is no organism"),
        (["profile", "--models", "causal", "--prompts", "1"], "at least 2"),
    ],
)
def test_bad_input_ends_in_a_sentence(given: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        cards.main([one.format(tmp_path) for one in given])
    assert str(ended.value).startswith("error: ")
    assert said in str(ended.value)
