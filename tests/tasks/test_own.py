"""A task from a JSON-lines file: graded answers, choices, identity, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sinkscope as ss
from sinkscope.study import spec
from sinkscope.tasks.choices import ChoiceTask
from sinkscope.tasks.grading import grade_folders, task_of
from sinkscope.tasks.records import RunFolder
from sinkscope.tasks.registry import get

ASKED = [
    {"question": "Ann has 3 pens. How many?", "answer": 3},
    {"question": "Say hi.", "answer": "Hi", "id": "greeting"},
]
CHOSEN = [
    {"question": "The cat sat on the", "choices": [" mat", " dog"], "answer": " mat"},
    {"context": "One and one is", "choices": [" three", " two"], "label": 1},
]


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("answer", "output", "right"),
    [
        ("18", "5+13=18. The answer is 18.", True),
        ("1,000", "so 1000", True),
        ("$4", "it costs $4.00", True),
        ("18", "18 and then 19", False),
        ("18", "eighteen", False),
        ("She has 2+3=5.\n#### 5", "5", True),
        ("Paris", "Let me think.\n  paris. ", True),
        ("Paris", "It is Paris", False),
        ("Paris", "", False),
    ],
)  # fmt: skip
def test_the_last_number_or_the_last_line_is_compared(answer: str, output: str, right: bool, tmp_path: Path) -> None:
    task = get(str(write(tmp_path / "one.jsonl", [{"question": "?", "answer": answer}])), "llada")
    assert task.grade(task.documents()[0], output).passed == right


def test_its_name_is_the_file_s_and_its_content_is_its_identity(tmp_path: Path) -> None:
    one, two = (write(tmp_path / name / "mine.jsonl", ASKED) for name in ("a", "b") if not (tmp_path / name).mkdir())
    tasks = [get(str(path), "llada") for path in (one, two)]
    assert tasks[0].name == "mine"
    assert [document.id for document in tasks[0].documents()] == ["0", "greeting"]
    assert tasks[0].settings() == tasks[1].settings()
    write(two, ASKED[:1])
    assert get(str(two), "llada").settings() != tasks[0].settings()
    assert get(str(one), "causal").scheme.decoding["length"] == 64


@pytest.mark.slow
def test_it_is_evaluated_and_graded_again_with_its_file(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", ASKED)
    result = ss.evaluate("organism/causal", str(path), ss.GreedyDecoding(length=4), out=tmp_path / "run")
    assert len(result.records) == 2
    settings = RunFolder.read(tmp_path / "run").settings
    with pytest.raises(ss.InputError, match=r"mine\.jsonl: give it with --data"):
        task_of(settings)
    assert len(grade_folders(tmp_path / "run", again=True, data=path)[tmp_path / "run"]) == 2
    with pytest.raises(ss.InputError, match="another task"):
        grade_folders(tmp_path / "run", again=True, data=write(tmp_path / "other.jsonl", ASKED[1:]))


@pytest.mark.slow
@pytest.mark.parametrize("organism", ["causal", "scratch"])
def test_choices_are_made_by_likelihood(organism: str, tmp_path: Path) -> None:
    path = write(tmp_path / "which.jsonl", CHOSEN)
    task = get(f"{path}:raw", ss.load(f"organism/{organism}").family)
    assert isinstance(task, ChoiceTask)
    assert [document.answer for document in task.documents()] == [" mat", " two"]
    decoding = None if organism == "causal" else ss.MaskedReading(masks=2)
    result = ss.evaluate(f"organism/{organism}", str(path), decoding)
    assert {record.output for record in result.records} <= {" mat", " dog", " two", " three"}


def test_a_study_takes_it(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", ASKED)
    study = spec.changed("quick", ["organism/scratch"], task=str(path))
    assert str(path) in {grid.task for grid in study.evaluate}
    with pytest.raises(ss.InputError, match="unknown task"):
        spec.changed("quick", ["organism/scratch"], task="mine.json")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"question": "?", "answer": "1", "tests": "assert f()"}], "tests are not run"),
        ([{"question": "?"}], "expected question and answer"),
        ([{"question": " ", "answer": "1"}], "expected question and answer"),
        ([{"question": "?", "answer": True}], "expected question and answer"),
        ([{"question": "?", "answer": "1", "id": 1}] * 2, "is there twice"),
        ([{"question": "?", "choices": ["a"], "answer": 0}], "at least two choices"),
        ([{"question": "?", "choices": ["a", "b"], "answer": "c"}], "expected context, choices and label"),
    ],
)  # fmt: skip
def test_what_is_no_question_is_said_with_its_line(rows: list[dict[str, object]], words: str, tmp_path: Path) -> None:
    task = get(str(write(tmp_path / "bad.jsonl", rows)), "causal")
    with pytest.raises(ss.InputError, match=words) as said:
        task.documents()
    assert "line" in str(said.value)
