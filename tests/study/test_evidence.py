"""Evidence of earlier studies: checked by what a study computes itself, and used for its claims when it agrees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.study import small

from sinkscope.errors import InputError
from sinkscope.report.study import evidence as claims_evidence
from sinkscope.report.study import source
from sinkscope.study import evidence, run, spec
from sinkscope.study.cells import identify, outline
from sinkscope.study.facts import facts_of
from sinkscope.study.store import Store

pytestmark = pytest.mark.timeout(900)


def study_of(folder: Path, samples: int, traces: int) -> spec.Study:
    path = small.write_study(folder, models=("llada",), samples=samples)
    text = path.read_text().replace("samples = 2\ncapture", f"samples = {traces}\ncapture")
    path.write_text(text.partition("[[replay]]")[0].replace("maps = 1", "maps = 0"))
    return spec.read(path)


def compute(study: spec.Study, out: Path) -> run.Outcome:
    """The study in this process."""
    return run.run_study(study, out, on="here", device="cpu")


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> evidence.Evidence:
    """Six answers a cell and four traces."""
    folder = tmp_path_factory.mktemp("earlier")
    study = study_of(folder, 6, 4)
    compute(study, folder / "out")
    facts = {model.name: facts_of(model, "cpu") for model in study.models}
    cells = identify(outline(study, facts), facts)
    return evidence.from_study(Store(folder / "out"), cells, "2026-01-02, a machine")["llada"]


@pytest.fixture
def again(tmp_path: Path) -> Callable[[evidence.Evidence], run.Outcome]:
    """A study of four answers a cell and two traces, beside this evidence."""

    def do(known: evidence.Evidence) -> run.Outcome:
        evidence.save(known, tmp_path / "known.zip")
        study = replace(study_of(tmp_path, 4, 2), evidence=(str(tmp_path / "known.zip"),))
        return compute(study, tmp_path / "out")

    return do


def test_what_agrees_is_used_and_says_how_much_of_it_ran_here(
    earlier: evidence.Evidence, again: Callable[[evidence.Evidence], run.Outcome]
) -> None:
    outcome = again(earlier)
    checks = outcome.frames["evidence"].set_index("kind")
    assert checks.loc["answers", ["items", "checked", "same", "alike", "used"]].tolist() == [
        18,
        12,
        12,
        12,
        True,
    ]
    assert checks.loc["traces", ["items", "checked", "same", "alike", "used"]].tolist() == [4, 2, 2, 2, True]
    assert "12 of its 18 answers were computed here as well, 12 are the same word for word" in " ".join(
        outcome.notes
    )
    sinks = outcome.frames["sinks"]
    assert set(zip(sinks["samples"], sinks["here"], strict=True)) == {(4, 2)}
    collected = claims_evidence.collect(source.read(outcome.root))
    answers = next(one for one in collected if one.kind == claims_evidence.ACCURACIES)
    assert {len(scores) for scores in answers.scores.values()} == {6}
    assert answers.rests == "6 documents, 4 of them run here"
    traces = next(one for one in collected if one.kind == claims_evidence.TRACES)
    assert traces.rests == "4 prompts, 2 of them run here"
    ran = outcome.frames["records"].query("policy == 'top:1'").set_index("document")["passed"]
    assert all(answers.scores["top:1"][name] == float(right) for name, right in ran.items())


def test_a_machine_that_disagrees_is_told_and_nothing_is_used(
    earlier: evidence.Evidence, again: Callable[[evidence.Evidence], run.Outcome]
) -> None:
    wrong = tuple(
        replace(cell, passed={name: not right for name, right in cell.passed.items()})
        for cell in earlier.answers
    )
    traces = {
        name: (ids, data.assign(detections=data["detections"] * 2))
        for name, (ids, data) in earlier.traces.items()
    }
    outcome = again(replace(earlier, answers=wrong, traces=traces))
    assert outcome.frames["evidence"]["used"].tolist() == [False, False]
    assert "this machine does not reproduce it" in " ".join(outcome.notes)
    assert "earlier_records" not in outcome.frames
    assert set(outcome.frames["sinks"]["samples"]) == {2}


def test_evidence_on_other_weights_is_left_out(
    earlier: evidence.Evidence, again: Callable[[evidence.Evidence], run.Outcome]
) -> None:
    outcome = again(replace(earlier, weights="other"))
    assert "evidence" not in outcome.frames
    assert set(outcome.frames["sinks"]["samples"]) == {2}


def test_the_folder_of_a_study_is_evidence_too(tmp_path: Path) -> None:
    compute(study_of(tmp_path / "first", 4, 2), tmp_path / "earlier")
    study = replace(study_of(tmp_path / "first", 2, 2), evidence=(str(tmp_path / "earlier"),))
    outcome = compute(study, tmp_path / "out")
    checks = outcome.frames["evidence"].set_index("kind")
    assert checks.loc["answers", ["items", "checked", "same", "used"]].tolist() == [12, 6, 6, True]
    with pytest.raises(InputError, match="no finished study"):
        evidence.of_folder(tmp_path / "first")


def test_a_file_holds_all_of_it(earlier: evidence.Evidence, tmp_path: Path) -> None:
    path = tmp_path / "known.zip"
    evidence.save(earlier, path)
    read = evidence.load(path, earlier.weights)
    assert read is not None
    assert read.answers == earlier.answers
    ((ids, statistics),) = read.traces.values()
    assert ids == next(iter(earlier.traces.values()))[0]
    assert statistics.equals(next(iter(earlier.traces.values()))[1])
    path.write_bytes(b"no zip")
    with pytest.raises(InputError, match="cannot be read as evidence"):
        evidence.load(path, earlier.weights)


def test_only_tasks_and_decodings_of_the_study_are_taken(earlier: evidence.Evidence) -> None:
    known = evidence.Known({"llada": earlier})
    assert evidence.tables(known, []) == {}
