"""Cards: written from measured files alone, for these weights alone."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from lab import card, cards, profile
from sinkscope.base.errors import InputError
from sinkscope.models.load import ORGANISMS as WEIGHTS
from sinkscope.models.load import find
from sinkscope_train.recipe import RECIPES

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


def results(digest: str, path: Path) -> Path:
    """A masking table of scratch."""
    shared = {
        "model": "organism/scratch", "weights": digest, "dtype": "float32", "date": "2026-01-03", "where": "some GPU",
        "decoding": '{"kind": "llada", "length": 64}', "task": "word_problems",
    }  # fmt: skip
    pd.DataFrame([{**shared, **row} for row in ROWS]).to_csv(path, index=False)
    return path


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
    again = (tmp_path / name / "README.md").read_text(encoding="utf-8")
    assert (WEIGHTS / name / "README.md").read_text(encoding="utf-8") == again, "write the cards again"
    # Its bytes depend on the version of matplotlib, its words do not.
    drawn, shipped = ((root / name / "emergence.svg").read_text(encoding="utf-8") for root in (tmp_path, WEIGHTS))
    assert re.findall(r">([^<]+)</text>", drawn) == re.findall(r">([^<]+)</text>", shipped)


@pytest.mark.parametrize("name", list(RECIPES))
def test_measured_files_are_of_these_weights_and_say_when_and_where(name: str) -> None:
    digest = find(WEIGHTS / name).digest
    for file_name in ("accuracy.json", "profile.json"):
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
    text = card.card("scratch", folder, results("abc", tmp_path / "full.csv"))
    assert "Not measured: there is no profile.json." in text
    assert "- The masking table was not measured." in text
    text = card.card("scratch", folder, results(find(folder).digest, tmp_path / "full.csv"))
    assert "A loss under hiding proves nothing about sinks" in text
    assert "| `top:1` | head | hide | 4 | 0.250 [0.046, 0.699] |" in text
    assert "0.917 [0.431, 0.994] (3×)" in text, "the control beside it"
    assert "Measured on 2026-01-03, some GPU, `sinkscope study full`, float32; 4 held-out documents per task." in text
    assert "silencing was not run beside `top:1`" in text
    assert "no match, for `top:1` (30.0% against 20.0%)" in text, "mass-matched in name only"
    assert "- The masking table has 4 documents per task, fewer than 500." in text
    (folder / "profile.json").write_text('{"digest": "abc"}', encoding="utf-8")
    with pytest.raises(InputError, match="measured on weights abc"):
        card.card("scratch", folder)
    (folder / "profile.json").unlink()
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
    ("words", "message"),
    [
        ("write --models scrach", "there is no organism"),
        ("profile --models causal --prompts 1", "at least 2"),
        ("write --models empty --root {0}", "has no weights"),
        ("profile --models empty --root {0}", "has no weights"),
        ("accuracy --models empty --root {0}", "has no weights"),
    ],
)
def test_bad_input_ends_in_one_line(words: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("config.json", "training.json", "emergence.json", "accuracy.json"):
        shutil.copy(WEIGHTS / "causal" / name, tmp_path / "empty")
    with pytest.raises(SystemExit) as ended:
        cards.main(words.format(tmp_path).split())
    text = str(ended.value)
    assert text.startswith("error: ")
    assert message in text
    assert "\n" not in text
