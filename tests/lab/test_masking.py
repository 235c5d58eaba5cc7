"""The masking tables' answers: the whole table in order, padded equals alone, resumed equals uninterrupted, nothing lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lab.cells import append, read, trimmed
from lab.masking import Job, answer, ask, policies, run

from lab import cells, masking
from sinkscope.errors import InputError
from sinkscope.generation.generate import generate
from sinkscope.models.load import load
from sinkscope.models.prompts import pad
from sinkscope.organisms.layout import save
from sinkscope.organisms.recipe import recipe
from sinkscope.organisms.start import start
from sinkscope.policies import parse_policy
from sinkscope.tasks import registry
from sinkscope.tasks.evaluate import decoding_for
from sinkscope.tasks.prompting import encode_prompt

FEW = ["none", "top:1", "random(top:1),match=mass,seed=1"]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untrained models of the smallest size."""
    folder = tmp_path_factory.mktemp("shelf")
    for name in ("causal", "scratch"):
        begin = start(recipe(name, size="smoke"))
        save(begin.network, recipe(name).layout, begin.vocabulary, folder / name)
    return folder


def test_the_table_is_whole_and_begins_with_what_matters_most() -> None:
    found = policies()
    assert len(found) == len(set(found)) == 1 + 3 * 3 * 2 * (1 + 3 + 3)
    assert found[0] == "none"
    assert {str(parse_policy(text)) for text in found[1:]} == set(found[1:]), "each is its own text form"
    assert [text for text in found if not text.startswith("random")][1:4] == [
        "top:1",
        "top:1@model",
        "top:1@layer",
    ]
    for text in found:
        if text.startswith("random("):
            assert found.index(text) > found.index(text[len("random(") : text.rindex(")")])


@pytest.mark.slow
@pytest.mark.parametrize("policy", FEW)
@pytest.mark.parametrize("name", ["causal", "scratch"])
def test_a_padded_row_equals_its_run_alone(name: str, policy: str, shelf: Path) -> None:
    # In float64, so that no tie of confidences is decided by rounding.
    model = load(shelf / name, device="cpu", dtype="float64")
    task = registry.get("word_problems", model.family)
    decoding = decoding_for(task, model.family)
    rows = pad(
        model, [list(encode_prompt(model, task.prompt(one), task.scheme).ids) for one in task.documents(5)]
    )
    assert rows.real is not None, "some of the prompts are padded"
    rule = parse_policy(policy)
    padded = generate(model, rows.ids, decoding, rule, seed=0, attention_mask=rows.real)
    alone = generate(model, rows.ids, decoding, rule, seed=list(range(5)), attention_mask=rows.real)
    assert padded.texts == alone.texts
    if rule is not None:
        assert padded.hidden_share is not None
        assert alone.hidden_share is not None
        torch.testing.assert_close(padded.hidden_share, alone.hidden_share, atol=1e-4, rtol=0)


def test_a_cell_says_what_it_is(shelf: Path) -> None:
    model = load(shelf / "scratch", device="cpu")
    asked = ask(model, "small_code", 3)
    cell = answer(model, asked, "random(top:5@layer,effect=silence),match=mass", 2)
    assert cell["digest"] == model.digest
    assert cell["decoding"]["length"] == 64
    assert cell["decoding"]["steps"] == 32
    assert cell["forwards"] == [32, 32, 32]
    assert all(len(cell[key]) == 3 for key in ("answers", "hidden", "hit", "ties", "prompt_tokens"))
    assert all(0 < share < 1 for share in cell["hidden"])
    assert answer(model, asked, "none", 3)["hidden"] == [None] * 3


@pytest.mark.slow
def test_run_resume_and_read(shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"tasks": ["word_problems"], "count": 2, "root": shelf, "device": "cpu", "processes": 1}
    assert run(tmp_path, ["causal", "scratch"], rows=FEW[:2], **options) == ([], [], [])  # type: ignore[arg-type]
    before = {name: list(read(tmp_path / f"{name}.jsonl.gz")) for name in ("causal", "scratch")}
    assert [cell["policy"] for cell in before["scratch"]] == FEW[:2]
    found = run(tmp_path, ["causal", "scratch"], rows=FEW, seconds=0.0, **options)  # type: ignore[arg-type]
    assert (found.failed, found.ended) == ([], []), "what the time did not reach has not failed"
    assert found.missing == [f"{name} word_problems {FEW[2]}" for name in ("causal", "scratch")]
    assert "2 cells to answer, 4 are there" in capsys.readouterr().out
    assert list(read(tmp_path / "scratch.jsonl.gz")) == before["scratch"]
    options["count"] = 3
    found = run(tmp_path, ["scratch"], rows=FEW[:1], seconds=0.0, **options)  # type: ignore[arg-type]
    assert found.missing == ["scratch word_problems none"], "answered for 2 documents, not for 3"


@pytest.mark.soak
def test_processes_share_the_work(shelf: Path, tmp_path: Path) -> None:
    options = {
        "tasks": ["word_problems", "small_code"],
        "count": 1,
        "root": shelf,
        "device": "cpu",
        "processes": 2,
    }
    assert run(tmp_path, ["causal", "scratch"], rows=FEW, **options) == ([], [], [])  # type: ignore[arg-type]
    for name in ("causal", "scratch"):
        cells = list(read(tmp_path / f"{name}.jsonl.gz"))
        assert sorted((cell["task"], cell["policy"]) for cell in cells) == sorted(
            (task, policy)
            for task in options["tasks"]
            for policy in FEW  # type: ignore[attr-defined]
        )


def test_a_cell_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "scratch.jsonl.gz"
    for number in range(3):
        append(path, {"number": number, "text": "some words " * 20})
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert [cell["number"] for cell in read(path)] == [0, 1]
    assert [cell["number"] for cell in trimmed(path)] == [0, 1]
    append(path, {"number": 3})
    assert [cell["number"] for cell in read(path)] == [0, 1, 3]


def test_an_unknown_model_is_named(shelf: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="scratch"):
        run(tmp_path, ["scrach"], root=shelf)


def test_a_failure_does_not_stop_the_others(
    shelf: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = masking.Settings(
        tmp_path,
        {"scratch": str(shelf / "scratch")},
        {"scratch": [Job("word_problems", "top:100000"), Job("word_problems", "none")]},
        count=1,
        batch=1,
        device="cpu",
        until=float("inf"),
    )
    import multiprocessing

    taken, failed = multiprocessing.Array("i", 1), multiprocessing.Array("i", 1)
    masking.work(settings, 0, taken, failed)
    assert failed[0] == 1
    assert "use a smaller number" in capfd.readouterr().out
    assert [cell["policy"] for cell in read(tmp_path / "scratch.jsonl.gz")] == ["none"]


def test_cells_of_other_weights_are_not_counted_as_done(shelf: Path, tmp_path: Path) -> None:
    cell = {
        "version": cells.VERSION,
        "digest": "0123456789abcdef",
        "task": "word_problems",
        "policy": "none",
    }
    append(tmp_path / "scratch.jsonl.gz", {**cell, "count": 1})
    before = (tmp_path / "scratch.jsonl.gz").read_bytes()
    with pytest.raises(InputError, match=r"answered by weights 0123456789ab, .* into another folder"):
        run(tmp_path, ["scratch"], ["word_problems"], ["none"], 1, 1, root=shelf, device="cpu")
    assert (tmp_path / "scratch.jsonl.gz").read_bytes() == before


def test_a_failed_cell_is_an_exit_status_and_one_that_was_not_reached_is_not(
    shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(tmp_path), "--root", str(shelf), "--models", "scratch", "--tasks", "word_problems"]
    words += ["--policies", "top:100000; none", "--count", "1", "--processes", "1", "--device", "cpu"]
    with pytest.raises(SystemExit) as ended:
        masking.main(words)
    assert ended.value.code == "error: 1 cell failed; the lines above say why", "a text is exit status 1"
    assert "failed: scratch word_problems top:100000\n1 cell is missing" in capsys.readouterr().out
    masking.main([*words, "--seconds", "0"])
    assert "missing: scratch word_problems top:100000\n1 cell is missing" in capsys.readouterr().out


def test_a_process_that_died_is_an_exit_status(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking, "_share_out", lambda *_: ({"scratch": 1}, [-9]))
    words = ["--root", str(shelf), "--models", "scratch", "--tasks", "word_problems", "--policies", "none"]
    with pytest.raises(SystemExit, match="1 cell failed; processes ended with status -9"):
        masking.main([str(tmp_path), *words])
