"""Evidence of several runs on one model becomes one file: the most documents, and the hits of the run that counted them."""

from __future__ import annotations

from pathlib import Path

import pytest
import xarray as xr
from lab.evidence import main, together

from sinkscope.study import evidence
from sinkscope.study.evidence import Answers, Evidence, Traces

GPU, CPU = "a GPU, bfloat16", "two CPU cores, float32"


def answers(many: int, made: str, hits: float | None, key: str = "k") -> Answers:
    names = [f"d{i}" for i in range(many)]
    return Answers(
        key, made, "sums", "{}", "top:1", dict.fromkeys(names, True), dict.fromkeys(names, "0" * 8), hits
    )


@pytest.mark.parametrize("turned", [False, True])
def test_answers_come_from_the_larger_cell_and_hits_from_the_one_that_knows_them(turned: bool) -> None:
    parts = [
        Evidence("w", (answers(48, CPU, 0.7), answers(9, CPU, 0.2, "other"))),
        Evidence("w", (answers(500, GPU, None),)),
    ]
    whole = together(parts[::-1] if turned else parts)
    cell, other = sorted(whole.answers, key=lambda one: one.key)
    assert (len(cell.passed), cell.made, cell.hits) == (500, GPU, 0.7)
    assert cell.hits_made == f"{CPU}, 48 documents"
    assert (len(other.passed), other.made, other.hits, other.hits_made) == (9, CPU, 0.2, "")


def test_a_run_that_knows_its_own_hits_keeps_them() -> None:
    (cell,) = together(
        [Evidence("w", (answers(500, GPU, 0.6),)), Evidence("w", (answers(48, CPU, 0.7),))]
    ).answers
    assert (cell.hits, cell.hits_made) == (0.6, "")


def test_traces_and_pairs_say_how_each_was_made() -> None:
    def traced(many: int, made: str) -> Traces:
        return Traces(tuple(f"d{i}" for i in range(many)), xr.Dataset(), made)

    row = {"document": "d0", "made": GPU}
    parts = [
        Evidence("w", traces={"k": traced(32, CPU)}),
        Evidence("w", traces={"k": traced(200, GPU)}, pairs=(row,)),
    ]
    whole = together(parts)
    assert (len(whole.traces["k"].documents), whole.traces["k"].made) == (200, GPU)
    assert whole.pairs == (row,)


def test_what_ships_is_kept_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"organism/toy": Evidence("w", (answers(96, CPU, 0.7), answers(9, CPU, 0.2, "other")))}
    monkeypatch.setattr(evidence, "of_folder", lambda folder, where: found)
    path = tmp_path / "toy" / evidence.NAME
    for keep, many in (([], 96), (["--keep"], 500)):
        path.parent.mkdir(exist_ok=True)
        evidence.save(Evidence("w", (answers(500, GPU, None),)), path)
        main(["--studies", "study", "--out", str(tmp_path), *keep])
        whole = evidence.load(path, "w")
        assert whole is not None
        assert {len(cell.passed) for cell in whole.answers} == {many, 9}
