"""Cards: written from measured files alone, for these weights alone; grades and rows against numbers computed by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from lab.cells import VERSION, append

from lab import card, cards, masking, profile, results
from sinkscope.errors import InputError
from sinkscope.models.load import ORGANISMS as WEIGHTS
from sinkscope.organisms.recipe import RECIPES
from sinkscope.study import shipped
from sinkscope.tasks import registry, sandbox

N = 4
LOADED = (
    "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
)  # fmt: skip
COUNT, MASS = "random(top:1)", "random(top:1),match=mass"


def cell(task_name: str, policy: str, right: str, **changes: Any) -> dict[str, Any]:
    """A cell of scratch whose answers are right where `right` has a 1."""
    task = registry.get(task_name, "llada")
    documents = task.documents(N)
    wrong = "return None" if task_name == "small_code" else "I do not know."
    acted = policy != "none"
    made = {
        "version": VERSION, "task": task_name, "task_settings": task.settings(), "policy": policy,
        "decoding": {"kind": "llada", "length": 64, "steps": 32}, "count": N, "batch": N, "prompt_tokens": [30] * N,
        "unfinished": 0, "digest": "abc", "family": "llada", "dtype": "bfloat16", "machine": "a GPU", "torch": "2",
        "date": "2026-01-02", "seconds": 1.0,
        "answers": [one.answer if mark == "1" else wrong for one, mark in zip(documents, right, strict=True)],
        "hidden": [0.1, 0.2, 0.3, None] if acted else [None] * N, "hit": [0.5] * N if acted else [None] * N,
        "forwards": [32] * N, "ties": [0] * N,
    }  # fmt: skip
    return {"model": "scratch", **made, **changes}


CELLS = [
    cell("word_problems", "none", "1111"),
    cell("word_problems", "top:1", "1000"),
    cell("word_problems", COUNT, "1111"),
    cell("word_problems", f"{COUNT},seed=1", "1101"),
    cell("word_problems", f"{COUNT},seed=2", "1111"),
    cell("word_problems", MASS, "0000", hidden=[0.3] * N),
    cell("word_problems", f"{MASS},seed=1", "1000", hidden=[0.3] * N),
    cell("small_code", "none", "1011"),
]


def file(folder: Path, cells: list[dict[str, Any]]) -> Path:
    for one in cells:
        append(folder / "scratch.jsonl.gz", one)
    return folder / "scratch.jsonl.gz"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if sandbox.available() is None:
        pytest.skip(sandbox.reason())
    path = file(tmp_path_factory.mktemp("masking"), CELLS)
    return results.table(path, "scratch", "abc", "some GPU", "2026-01-03")


def row(table: dict[str, Any], task: str, policy: str) -> dict[str, Any]:
    (found,) = [one for one in shipped.whole_rows(table) if (one["task"], one["policy"]) == (task, policy)]
    return found


def test_answers_are_graded_and_rows_are_what_a_hand_computes(table: dict[str, Any]) -> None:
    assert [(one["task"], one["policy"]) for one in table["rows"]] == [
        ("word_problems", "none"), ("word_problems", "top:1"), ("word_problems", COUNT), ("word_problems", MASS),
        ("small_code", "none"),
    ]  # fmt: skip
    assert row(table, "small_code", "none")["accuracy"] == 0.75, "the programs ran"
    top = row(table, "word_problems", "top:1")
    assert (top["n"], top["draws"], top["accuracy"], top["difference"]) == (4, 1, 0.25, -0.75)
    # Wilson for 1 of 4, z = 1.96: centre (.25 + z²/8) / (1 + z²/4) = .3725, half .3269
    assert (top["low"], top["high"]) == pytest.approx((0.0456, 0.6994), abs=1e-4)
    assert -1 <= top["difference_low"] <= -0.75 <= top["difference_high"] <= 0.2  # four documents
    assert top["effect_count"] == pytest.approx(0.25 - 11 / 12, abs=1e-4), "over the mean of three draws"
    assert "effect_mass" not in top, "two draws are too few"
    assert top["hidden_share"] == pytest.approx(0.2)
    assert (top["sinks_hit"], top["scope"], top["effect"], top["dtype"]) == (0.5, "head", "hide", "bfloat16")
    control = row(table, "word_problems", COUNT)
    assert (control["draws"], control["seeds"], control["control_of"]) == (3, [0, 1, 2], "top:1")
    assert control["accuracy"] == pytest.approx(11 / 12, abs=1e-4)
    assert row(table, "word_problems", MASS)["seeds"] == [0, 1]


def test_missing_cells_are_named(table: dict[str, Any]) -> None:
    missing = table["missing"]
    assert f"{MASS},seed=2" in missing["word_problems"]
    assert "top:1" not in missing["word_problems"]
    assert len(missing["word_problems"]) == 127 - 7
    assert missing["small_code"] == masking.policies()[1:]
    whole = [{"task": task, "policy": name} for task in masking.TASKS for name in masking.policies()]
    assert results.missing_cells(whole) == {}


def test_a_table_is_shipped_as_reports_read_it(table: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    text = results.lines(table)
    assert json.loads(text) == table
    (tmp_path / "scratch" / "results.json").write_text(text, encoding="utf-8")
    (found,) = shipped.read(["organism/scratch"], {"organism/scratch": "abc"}, tmp_path)
    assert found.label == "shipped result of 2026-01-03, some GPU, masking table"
    assert [one["policy"] for one in found.rows] == [one["policy"] for one in table["rows"]]
    assert {one["model"] for one in found.rows} == {"organism/scratch"}
    assert all(json.loads(one["decoding"])["length"] == 64 for one in found.rows)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([cell("word_problems", "none", "1111", version="masking/0")], "masking/1 is expected"),
        ([cell("word_problems", "none", "1111", digest="def")], "answered by weights def"),
        ([CELLS[0], cell("word_problems", "top:1", "1000", dtype="float32")], "differ in dtype"),
        ([cell("word_problems", "none", "1111", task_settings={"version": "old"})], "other settings"),
        ([], "there is no"),
    ],
)
def test_answers_of_something_else_are_refused(
    cells: list[dict[str, Any]], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        results.table(file(tmp_path, cells), "scratch", "abc", None, None)


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
    digest = results.digest_of(WEIGHTS / name)
    for file_name in ("accuracy.json", "profile.json", "results.json"):
        path = WEIGHTS / name / file_name
        if file_name == "results.json" and not path.is_file():
            continue  # the card says so
        data = json.loads(path.read_text(encoding="utf-8"))
        assert data["digest"] == digest
        assert data["date"].startswith("20")
        assert data["where"]
        assert path.stat().st_size < 150_000


def test_a_card_says_what_is_missing(table: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    for file_name in (*LOADED, *card.NEEDED):
        shutil.copy(WEIGHTS / "scratch" / file_name, folder)
    text = card.card("scratch", folder)
    assert "Not measured: there is no profile.json." in text
    assert "- The masking table was not measured." in text
    digest = results.digest_of(folder)
    (folder / "results.json").write_text(results.lines({**table, "digest": digest}), encoding="utf-8")
    text = card.card("scratch", folder)
    assert card.NO_PROOF in text
    assert "| `top:1` | head | hide | 4 | 0.250 [0.046, 0.699] |" in text
    assert "0.917 [0.431, 0.994] (3×)" in text, "the control beside it"
    assert (
        "- word_problems: 120 of 127 cells of the masking table were not run: `random(top:1),match=mass,seed=2`; "
        in text
    )
    assert "; `top:10` with its 6 controls; " in text
    assert "silencing was not run beside `top:1`" in text
    assert "no match, for `top:1` (30.0% against 20.0%)" in text, "mass-matched in name only"
    assert "- The masking table has 4 documents per task, fewer than 500." in text
    (folder / "results.json").write_text(results.lines(table), encoding="utf-8")
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
        (["results", "{}"], "has no NAME.jsonl.gz"),
        (["results", "{}", "--date", "yesterday"], "expected YYYY-MM-DD"),
        (["write", "--models", "scrach"], "there is no organism"),
        (["profile", "--models", "causal", "--prompts", "1"], "at least 2"),
    ],
)
def test_bad_input_ends_in_a_sentence(given: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        cards.main([one.format(tmp_path) for one in given])
    assert str(ended.value).startswith("error: ")
    assert said in str(ended.value)
