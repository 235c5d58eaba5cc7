"""GSM8K: the prompts of the official evaluations, and grades like their own filters."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.tasks.shared_data import shared_file

from sinkscope.base.errors import InputError
from sinkscope.tasks import get
from sinkscope.tasks.extraction import EXTRACTORS, extract, is_right
from sinkscope.tasks.gsm8k import SCHEMES
from sinkscope.tasks.sources import read_examples
from sinkscope.tasks.task import Document

EXPECTED: dict[str, Any] = json.loads(Path(__file__).with_name("gsm8k_extraction.json").read_text(encoding="utf-8"))
DOCUMENT = Document("test-0", "How many?", "It is 9 * 2 = <<9*2=18>>18.\n#### 18")


@pytest.mark.parametrize("row", EXPECTED["table"], ids=lambda row: repr(row["output"]))
def test_tricky_outputs_grade_like_the_originals(row: dict[str, Any]) -> None:
    gold = f"Worked.\n#### {row['gold']}"
    for name in EXTRACTORS:
        found = extract(name, row["output"])
        assert found == row["found"][name], name
        assert is_right(name, found, gold) == (name in row["right"]), name


def test_the_table_has_every_extractor_on_both_sides() -> None:
    for name in EXTRACTORS:
        right = sum(name in row["right"] for row in EXPECTED["table"])
        assert 4 <= right <= len(EXPECTED["table"]) - 4


def test_unknown_extraction_answers_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean gsm8k-strict"):
        extract("gsm8k-stict", "1")


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_grading_by_every_scheme(scheme: Any) -> None:
    task = get(f"gsm8k:{scheme.name}")
    form = EXTRACTORS[scheme.extraction].form
    assert task.grade(DOCUMENT, DOCUMENT.answer).passed
    assert task.grade(DOCUMENT, f"Nine times two. {form.format(18)}").passed
    assert not task.grade(DOCUMENT, f"Nine times two. {form.format(17)}").passed
    assert not task.grade(DOCUMENT, "").passed
    for stop in scheme.until:  # what comes after a stop string is not part of the answer
        assert task.grade(DOCUMENT, f"{form.format(18)}{stop} 99 {form.format(99)}").passed


def test_prompt_of_llada() -> None:
    prompt = get("gsm8k", family="llada").prompt(DOCUMENT)
    assert prompt.chat
    assert [turn.role for turn in prompt.turns] == ["user", "assistant"] * 4 + ["user"]
    assert prompt.turns[0].content.startswith("Question: Angelo and Melanie want to plan")
    assert prompt.turns[1].content.endswith("The answer is 4\n")
    assert prompt.turns[7].content.endswith("The answer is 146\n")
    assert prompt.turns[-1].content == "Question: How many?\nLet's think step by step\nAnswer:"
    assert prompt.messages()[-1] == {"role": "user", "content": prompt.turns[-1].content}


def test_prompts_of_the_other_families() -> None:
    assert get("gsm8k", family="dream").prompt(DOCUMENT).messages() == [{"role": "user", "content": "Q: How many?\nA:"}]
    base = get("gsm8k:dream-base").prompt(DOCUMENT)
    assert not base.chat
    assert base.text().startswith("Q: There are 15 trees in the grove.")
    assert "How many trees did the grove workers plant today?\nA: There are 15 trees originally." in base.text()
    assert base.text().endswith("The answer is 8.\n\nQ: How many?\nA:")
    llama = get("gsm8k", family="causal").prompt(DOCUMENT)
    assert len(llama.turns) == 17
    assert llama.turns[1].content.endswith("The final answer is 6")
    assert llama.turns[16].content.startswith("Given the following problem, reason and give a final answer")
    example = {"examples": json.dumps([["A?", "B"], ["C?", "D"]])}
    mmada = get("gsm8k", family="mmada").prompt(Document("0", "E?", "F", example))
    assert len(mmada.turns) == 1
    assert mmada.text().startswith("You should first think about the reasoning process in the mind")
    assert mmada.text().endswith(
        "answer here\nQuestion: A?\nAnswer: B\n\nQuestion: C?\nAnswer: D\n\nQuestion: E?\nAnswer:"
    )


def test_braces_in_a_question_are_harmless() -> None:
    prompt = get("gsm8k", family="dream").prompt(Document("0", "What is {x}?", "#### 1"))
    assert prompt.text() == "Q: What is {x}?\nA:"


def test_example_files_name_source_and_licence() -> None:
    folder = Path(sys.modules["sinkscope.tasks"].__file__ or "").parent / "data"
    files = sorted(folder.glob("*.json"))
    assert [len(read_examples(path.stem)) for path in files] == [4, 8, 8]
    for path in files:
        data = json.loads(path.read_text(encoding="utf-8"))
        assert "github.com" in data["source"]
        assert data["licence"].startswith(("MIT", "Apache-2.0"))


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_documents_from_a_file(tmp_path: Path) -> None:
    rows = [{"question": f"{i}?", "answer": f"#### {i}"} for i in range(30)]
    _write(tmp_path / "test.jsonl", rows)
    task = get("gsm8k", family="llada", data=tmp_path / "test.jsonl")
    assert [document.id for document in task.documents(2)] == ["test-0", "test-1"]
    assert len(task.documents()) == 30
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress((tmp_path / "test.jsonl").read_bytes()))
    assert get("gsm8k", family="llada", data=packed).documents() == task.documents()
    # examples drawn from the training set come from the file beside it, the same whatever the limit
    drawing = get("gsm8k", family="mmada", data=tmp_path / "test.jsonl")
    with pytest.raises(InputError, match=r"no train\.jsonl beside"):
        drawing.documents()
    _write(tmp_path / "train.jsonl", [{"question": f"T{i}?", "answer": f"#### {i}"} for i in range(50)])
    assert drawing.documents(3) == drawing.documents()[:3]
    assert drawing.documents()[0].extra != drawing.documents()[1].extra


def test_bad_files_say_what_is_wrong(tmp_path: Path) -> None:
    def documents(text: str) -> None:
        (tmp_path / "x.jsonl").write_text(text, encoding="utf-8")
        get("gsm8k", family="llada", data=tmp_path / "x.jsonl").documents()

    with pytest.raises(InputError, match=r"line 2: not JSON"):
        documents('{"question": "", "answer": ""}\nnot json')
    with pytest.raises(InputError, match=r"line 1: question, answer is missing"):
        documents('{"prompt": 1}')
    with pytest.raises(InputError, match="is empty"):
        documents("\n")
    with pytest.raises(InputError, match=r"no file at .*GSM8K's test\.jsonl"):
        get("gsm8k", family="llada", data=tmp_path / "missing.jsonl").documents()


def test_offline_without_a_file_it_says_which_file(monkeypatch: pytest.MonkeyPatch) -> None:
    task = get("gsm8k", family="llada")
    monkeypatch.setitem(sys.modules, "datasets", None)  # not installed
    with pytest.raises(InputError, match=r"sinkscope\[eval\].*GSM8K's test\.jsonl.*--data PATH"):
        task.documents()

    class Offline:
        config = SimpleNamespace(HF_HUB_OFFLINE=False)

        @staticmethod
        def load_dataset(*arguments: object, **options: object) -> object:
            assert Offline.config.HF_HUB_OFFLINE, "without a network nothing is asked again and again"
            raise ConnectionError("no network")

    monkeypatch.setitem(sys.modules, "datasets", Offline)
    monkeypatch.setattr("huggingface_hub.get_session", lambda: None)  # it cannot be asked
    with pytest.raises(InputError, match=r"ConnectionError: no network.*GSM8K's test\.jsonl"):
        task.documents()
    assert not Offline.config.HF_HUB_OFFLINE


def test_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hub:
        config = SimpleNamespace(HF_HUB_OFFLINE=False)

        @staticmethod
        def load_dataset(name: str, configuration: str, split: str, revision: str) -> list[dict[str, str]]:
            assert (name, configuration, split) == ("openai/gsm8k", "main", "test")
            assert len(revision) == 40  # a commit, not a branch
            return [{"question": "Q?", "answer": "#### 1"}]

    monkeypatch.setitem(sys.modules, "datasets", Hub)
    assert get("gsm8k", family="llada").documents() == [Document("test-0", "Q?", "#### 1")]


def test_all_gold_answers_grade_as_right() -> None:
    path = shared_file("gsm8k_test.jsonl")
    documents = get("gsm8k:llada-blocks", data=path).documents()
    assert len(documents) == 1319
    for scheme in SCHEMES:
        task = get(f"gsm8k:{scheme.name}", data=path)
        assert all(task.grade(document, document.answer).passed for document in documents), scheme.name
    for name, rule in EXTRACTORS.items():
        for document in documents:
            number = document.answer.split("#### ")[1]
            said = f"So it is. {rule.form.format(number.replace(',', '') if rule.by_value else number)}"
            assert is_right(name, extract(name, said), document.answer), (name, said)
            wrong = f"So it is. {rule.form.format(int(number.replace(',', '')) + 1)}"
            assert not is_right(name, extract(name, wrong), document.answer), (name, wrong)


def test_five_examples_are_those_of_lm_eval() -> None:
    path = shared_file("gsm8k_test.jsonl")
    train = [json.loads(line) for line in shared_file("gsm8k_train.jsonl").read_text(encoding="utf-8").splitlines()]
    documents = get("gsm8k:causal-base", data=path).documents(4)
    for document, rows in zip(documents, EXPECTED["five_shot_rows"], strict=True):
        wanted = [[train[row]["question"], train[row]["answer"]] for row in rows]
        assert json.loads(document.extra["examples"]) == wanted
