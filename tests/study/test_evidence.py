"""Evidence of earlier studies: checked by what a study computes itself, and used for its claims when it agrees."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.study import small

import sinkscope
from sinkscope.errors import InputError
from sinkscope.report.study import evidence as claims_evidence
from sinkscope.report.study import source
from sinkscope.study import draw, evidence, evidence_check, run, spec
from sinkscope.study.cells import Cell, identify, outline
from sinkscope.study.facts import facts_of
from sinkscope.study.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


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
    columns = ["model", "task", "items", "checked", "same", "alike", "seed", "used"]
    assert checks.loc["answers", columns].tolist() == ["llada", "word_problems", 18, 12, 12, 12, 0, True]
    assert checks.loc["traces", columns].tolist() == ["llada", "word_problems", 4, 2, 2, 2, 0, True]
    notes = " ".join(outcome.notes)
    drawn = "12 of its 18 answers, drawn at random (seed 0), were computed here as well"
    assert f"{drawn}, 12 are the same word for word; graded alike: llada 12 of 12 in word_problems" in notes
    assert (
        "2 of its 4 traces, drawn at random (seed 0), were computed here as well, 2 have as many sinks"
        in notes
    )
    sinks = outcome.frames["sinks"]
    assert set(zip(sinks["samples"], sinks["here"], strict=True)) == {(4, 2)}
    collected = claims_evidence.collect(source.read(outcome.root))
    answers = next(one for one in collected if one.kind == claims_evidence.ACCURACIES)
    assert {len(scores) for scores in answers.scores.values()} == {6}
    assert answers.on(["none", "top:1"]).rests == "6 documents, 4 of them run here"
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
        name: one._replace(statistics=one.statistics.assign(detections=one.statistics["detections"] * 2))
        for name, one in earlier.traces.items()
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
    (one,), (other,) = read.traces.values(), earlier.traces.values()
    assert (one.documents, one.made) == (other.documents, "2026-01-02, a machine, float32")
    assert one.statistics.equals(other.statistics)
    assert read.digest == earlier.digest
    with zipfile.ZipFile(path) as file:
        about, arrays = json.loads(file.read("evidence.json")), file.read("0.npz")
    del about["traces"][0]["made"]
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("evidence.json", json.dumps(about))
        file.writestr("0.npz", arrays)
    with pytest.raises(InputError, match="'made' is missing"):
        evidence.load(path, earlier.weights)
    path.write_bytes(b"no zip")
    with pytest.raises(InputError, match="should be evidence of a study"):
        evidence.load(path, earlier.weights)


def test_sinks_that_the_old_rule_told_are_no_evidence() -> None:
    """Of the causal organism: its answers count, its traces, pairs and hits do not; those of diffusion models do."""
    for name, told in (("causal", False), ("scratch", True)):
        folder = Path(sinkscope.__file__).parent / "organisms" / "weights" / name
        digest = json.loads((folder / "results.json").read_text(encoding="utf-8"))["digest"]
        found = evidence.load(folder / evidence.NAME, digest)
        assert found is not None
        assert found.answers
        assert [bool(found.traces), bool(found.pairs), any(a.hits is not None for a in found.answers)] == [
            told
        ] * 3


def test_only_tasks_and_decodings_of_the_study_are_taken(earlier: evidence.Evidence) -> None:
    known = evidence_check.Known({"llada": earlier})
    assert evidence_check.tables(known, []) == {}


# ---- which documents -----------------------------------------------------------------------------


def test_the_documents_are_drawn_once_from_those_of_the_evidence(
    earlier: evidence.Evidence, tmp_path: Path
) -> None:
    """Not the first ones; the draw stays when the evidence is gone, and another seed draws others."""
    evidence.save(earlier, tmp_path / "known.zip")
    plain = study_of(tmp_path, 2, 2)
    known = replace(plain, evidence=(str(tmp_path / "known.zip"),))
    facts = {model.name: facts_of(model, "cpu") for model in plain.models}
    seeds = {draw.with_draws(replace(known, draw=seed), facts).evaluate[0].drawn for seed in range(8)}
    assert len(seeds) > 1
    assert all(len(set(places)) == 2 and max(places) < 6 for places in seeds)
    assert draw.with_draws(plain, facts) == plain
    assert draw.with_draws(study_of(tmp_path, 7, 5), facts).evaluate[0].drawn == ()
    assert (
        draw.with_draws(replace(study_of(tmp_path, 7, 5), evidence=known.evidence), facts).evaluate[0].drawn
        == ()
    )

    seed = next(
        n for n in range(8) if draw.with_draws(replace(known, draw=n), facts).evaluate[0].drawn != (0, 1)
    )
    first = compute(replace(known, draw=seed), tmp_path / "out")
    assert first.study.evaluate[0].drawn in seeds
    assert f"drawn at random (seed {seed}) from the documents of the evidence" in " ".join(
        first.manifest["samples"]
    )
    again = compute(replace(plain, draw=seed), tmp_path / "out")
    assert again.computed == 0
    assert again.frames["records"]["index"].equals(first.frames["records"]["index"])


def test_a_study_that_was_begun_before_keeps_its_documents(
    earlier: evidence.Evidence, tmp_path: Path
) -> None:
    evidence.save(earlier, tmp_path / "known.zip")
    plain = study_of(tmp_path, 2, 2)
    assert set(compute(plain, tmp_path / "out").frames["records"]["index"]) == {0, 1}
    outcome = compute(replace(plain, evidence=(str(tmp_path / "known.zip"),)), tmp_path / "out")
    assert outcome.computed == 0
    assert "evidence" in outcome.frames
    assert "drawn at random" not in " ".join(outcome.notes)


def test_every_document_of_the_evidence_has_the_same_chance() -> None:
    """Also one whose prompt has a rare length: the first batches to fill up would be the common ones."""
    places = [(length, place) for place, length in enumerate([5] * 64 + [9] * 8)]
    batches = [draw.in_batches(places, 8, 8, seed) for seed in range(300)]
    assert all(len({places[place][0] for place in batch}) == 1 for batch in batches)
    rare = sum(batch[0] >= 64 for batch in batches)
    assert 300 / 9 * 0.5 < rare < 300 / 9 * 1.6
    few = [(length, place) for place, length in enumerate([5] * 8 + [9] * 3)]
    assert len(draw.in_batches(few, 10, 8, 0)) == 10


# ---- model by model ------------------------------------------------------------------------------


GPU, CPU = "2026-01-02, a GPU", "2026-01-02, a CPU"


def cell_of(model: str, task: str) -> Cell:
    identity = {"model": {"weights": model, "family": "llada"}, "task": {"task": task}, "decoding": {"kind": "llada"},
                "policy": "none", "seeds": [0]}  # fmt: skip
    return Cell(
        "evaluate",
        spec.StudyModel(model),
        "llada",
        task,
        "{}",
        "short",
        "none",
        (0,),
        (0,),
        identity=identity,
    )


def checked(ran: dict[tuple[str, str], bool], held: list[tuple[str, str, str]]) -> evidence_check.Known:
    """ran: (model, task) that ran here → whether its answers agree; held: (model, task, made) of the evidence."""
    documents = [f"d{i}" for i in range(10)]
    cells = {pair: cell_of(*pair) for pair in ran}
    answers = {
        cells[pair].id: {
            (name, 0): (SimpleNamespace(document=name, output="1"), SimpleNamespace(passed=agrees))
            for name in documents
        }
        for pair, agrees in ran.items()
    }
    known: dict[str, evidence.Evidence] = {}
    for model, task, made in held:
        cell = cell_of(model, task)
        one = evidence.Answers(
            evidence.key_of(cell),
            made,
            task,
            evidence.canonical({"kind": "llada"}),
            "none",
            dict.fromkeys(documents, True),
            dict.fromkeys(documents, evidence.answer_digest("1")),
        )
        before = known.get(model, evidence.Evidence(model))
        known[model] = replace(before, answers=(*before.answers, one))
    store = SimpleNamespace(answers=lambda cell_id: answers[cell_id])
    return evidence_check.check(store, list(cells.values()), known)  # type: ignore[arg-type]


HELD = [("a", "sums", CPU), ("b", "sums", CPU), ("a", "code", GPU), ("b", "code", GPU)]


def used(known: evidence_check.Known) -> set[tuple[str, str]]:
    tasks = {(model, one.task) for model, held in known.by_model.items() for one in held.answers}
    assert tasks == {(row.model, row.task) for row in known.checks if row.used}
    return tasks


def test_one_model_that_disagrees_takes_only_its_own_evidence_away() -> None:
    """Pooled over both models 90 % would agree."""
    known = checked({("a", "sums"): True, ("b", "sums"): False}, HELD[:2])
    assert used(known) == {("a", "sums")}
    (line,) = known.sentences()
    assert "graded alike: a 10 of 10 and b 0 of 10 in sums" in line
    assert line.endswith("not used: b in sums, because this machine does not reproduce it")


def test_a_task_that_did_not_run_here_needs_its_run_and_its_model_to_agree() -> None:
    both = checked({("a", "sums"): True, ("b", "sums"): True, ("a", "code"): True}, HELD)
    assert used(both) == {("a", "sums"), ("b", "sums"), ("a", "code"), ("b", "code")}
    assert (
        "also used: b in code, because it did not run here, but the same run agrees on a, and the model in its answers of sums"
        in (" ".join(both.sentences()))
    )
    for ran in (
        {
            ("a", "sums"): True,
            ("b", "sums"): True,
            ("a", "code"): False,
        },  # the run is not reproduced on the other model
        {("a", "sums"): True, ("b", "sums"): False, ("a", "code"): True},  # nor the model on its other task
        {("a", "sums"): True, ("a", "code"): True, ("b", "other"): True},  # nothing of its evidence ran here
    ):
        known = checked(ran, HELD)
        assert ("b", "code") not in used(known)
        assert "not used: b in" in " ".join(known.sentences())


def test_tasks_that_the_study_does_not_have_are_no_matter() -> None:
    assert [row.task for row in checked({("a", "sums"): True}, HELD).checks if row.model == "a"] == ["sums"]
