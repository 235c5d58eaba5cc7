"""Choices by likelihood: values are those of `likelihoods`, and lm-eval's bridge chooses the same."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.smollm2 import fetched_smollm2

import sinkscope as ss
from sinkscope.base.errors import InputError
from sinkscope.decoding.reading import MaskedReading
from sinkscope.statistics import wilson
from sinkscope.study.comparison import compare_runs
from sinkscope.tasks import registry
from sinkscope.tasks.evaluation import Evaluation, Record
from sinkscope.tasks.likelihood import likelihoods
from sinkscope.tasks.reading import encode_pair

QUESTIONS = [
    {"context": "Tom has 3 pens.", "choices": [" He buys 4 more.", " Xylophone."], "label": 0},
    {"context": "Ann has 5 apples. She", "choices": [" apples", " eats 2 of them.", " ."], "label": 1},
    {"context": "How many pens does Tom have? ", "choices": ["He has 7", "seven pens"], "label": 1},
    {"context": "", "choices": ["There are 4 boxes.", "Boxes 4 are there."], "label": 0},
]


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("choices") / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS), encoding="utf-8")
    return path


BOTH = ("arc_easy", "piqa")
"""By the sum over a choice's tokens, and by the mean over its letters."""


@pytest.mark.parametrize(
    ("source", "policy", "tasks"),
    [
        # Every model, policy and task in `make test`, every combination in `make soak`.
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("organism/causal", None, BOTH),
                ("organism/causal", "random(top:1)", BOTH[:1]),
                ("organism/scratch", "top:1", BOTH[1:]),
                ("organism/adapted", None, BOTH[:1]),
            )
        ),
        *(
            pytest.param(f"organism/{name}", policy, BOTH, marks=pytest.mark.soak)
            for name in ("causal", "scratch", "adapted")
            for policy in (None, "top:1", "random(top:1)")
            if (name, policy) != ("causal", None)
        ),
    ],
)
def test_the_likeliest_continuation_is_chosen(
    source: str, policy: str | None, tasks: tuple[str, ...], questions: Path
) -> None:
    model = ss.load(source, device="cpu")
    parsed = None if policy is None else ss.parse_policy(policy)
    sums = []  # log-likelihoods of each question's choices
    for row in QUESTIONS:
        pairs = [encode_pair(model, row["context"], text) for text in row["choices"]]
        sums.append([likelihoods(model, [pair], parsed, 32, greedy=False)[0].value for pair in pairs])
    for name in tasks:
        found = ss.evaluate(model, name, policy=policy, data=questions)
        for record, row, values in zip(found.records, QUESTIONS, sums, strict=True):
            if name == "piqa":
                values = [v / len(t.removeprefix(" ")) for v, t in zip(values, row["choices"], strict=True)]
            chosen = values.index(max(values))
            assert record.extracted == row["choices"][chosen].strip()
            assert record.passed == (chosen == row["label"])
        assert found.accuracy == pytest.approx(sum(record.passed for record in found.records) / 4)
        assert (found.mean("hidden_share") is None) == (policy is None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "policy"),
    [
        ("organism/causal", "top:1"),
        ("organism/scratch", None),
        pytest.param("organism/causal", None, marks=pytest.mark.soak),
        pytest.param("organism/scratch", "top:1", marks=pytest.mark.soak),
    ],
)
def test_the_bridge_to_lm_eval_gives_the_same(source: str, policy: str | None, questions: Path) -> None:
    """The same items as lm-eval's requests: every value, and so every choice."""
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance

    from sinkscope.tasks.lm_eval import SinkscopeLM

    bridge = SinkscopeLM(source, policy=policy, device="cpu", draws=32)
    model = bridge.model
    found = ss.evaluate(model, "arc_easy", policy=policy, data=questions)
    blimp = ss.evaluate(model, "blimp", policy=policy, limit=2)
    documents = [*registry.get("arc_easy", model.family, questions).documents(), *registry.get("blimp").documents(2)]
    for record, document in zip([*found.records, *blimp.records], documents, strict=True):
        texts = json.loads(document.extra["choices"])
        requests = [
            Instance("loglikelihood", {}, (document.question, text), number) for number, text in enumerate(texts)
        ]
        values = [value for value, _ in bridge.loglikelihood(requests, disable_tqdm=True)]
        assert texts[values.index(max(values))].strip() == record.extracted


def test_files_of_other_makers(tmp_path: Path) -> None:
    requests = [
        {"request": {"context": context, "continuation": f" {text}"}, "doc_id": doc, "idx": idx, "label": 1}
        for doc in (0, 1)
        for context in (f"Q{doc}", "Unconditional answer:")
        for idx, text in enumerate(("one", "two"))
    ]
    path = tmp_path / "requests.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, requests)).encode()))
    documents = registry.get("piqa", "causal", path).documents()
    assert [(one.question, json.loads(one.extra["choices"]), one.answer) for one in documents] == [
        (f"Q{doc}", [" one", " two"], " two") for doc in (0, 1)
    ]
    pairs = [
        {"sentence_good": f"good {uid} {n}", "sentence_bad": "bad", "UID": uid, "pairID": str(n)}
        for uid in ("a", "b")
        for n in range(11)
    ]
    with zipfile.ZipFile(tmp_path / "blimp.zip", "w") as archive:
        for uid in ("a", "b"):
            lines = (json.dumps(row) for row in pairs if row["UID"] == uid)
            archive.writestr(f"data/{uid}.jsonl", "\n".join(lines))
    documents = registry.get("blimp", "causal", tmp_path / "blimp.zip").documents(4)
    assert [one.id for one in documents] == ["a-0", "b-0", "a-1", "b-1"], "every paradigm from the start"


def test_bad_files_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    for content, message in {
        '{"context": "a", "choices": ["b"], "label": 0}': "line 1: expected context, choices and label",
        '{"context": "a", "choices": ["b", "c"], "label": 2}': "label 2 of 2 choices",
        '{"choices": ["b", "c"]}': "KeyError",
        "[]": "expected an object",
        "{": "not JSON",
        "": "bad.jsonl is empty",
        '{"request": {"context": "a", "continuation": "b"}, "doc_id": 0, "idx": 0, "label": 0}': "not complete",
    }.items():
        path.write_text(content)
        with pytest.raises(InputError, match=message):
            registry.get("piqa", "causal", path).documents()
    with pytest.raises(InputError, match="does not come with sinkscope"):
        registry.get("piqa", "causal").documents()
    with pytest.raises(InputError, match="no file at"):
        registry.get("piqa", "causal", tmp_path / "missing")
    with pytest.raises(InputError, match="scheme 'words' is not known"):
        registry.get("piqa:words", "causal")
    with pytest.raises(InputError, match="measured by the bound"):
        ss.evaluate("organism/scratch", "blimp", MaskedReading(share=0.5), limit=1)


def test_the_sample_of_blimp() -> None:
    documents = registry.get("blimp").documents()
    assert len(documents) == 67 * 15
    assert len({document.extra["paradigm"] for document in documents[:67]}) == 67
    ids = [document.id for document in documents]
    assert registry.clusters("blimp:raw", ids) == [document.extra["paradigm"] for document in documents]
    assert registry.clusters("piqa", ids) == ids
    about = json.loads(
        gzip.decompress(
            Path(registry.__file__).parent.joinpath("data", "blimp_sample.jsonl.gz").read_bytes()
        ).splitlines()[0]
    )
    assert about["license"] == "CC BY 4.0"
    assert "Warstadt" in about["source"]


def test_pairs_of_a_paradigm_say_less_than_pairs_of_others() -> None:
    """Right in half of the paradigms altogether: as sure as from one pair of each. A table of runs says the same."""
    ids = [document.id for document in registry.get("blimp").documents(67 * 4)]
    easy = set(registry.clusters("blimp", ids)[:34])
    settings = {
        "model": {"source": "m", "family": "causal", "dtype": "float32", "weights": ""}, "policy": None,
        "decoding": json.loads(ss.GreedyDecoding().to_json()), "task": {"task": "blimp"},
    }  # fmt: skip
    run = Evaluation(
        tuple(
            Record(
                document=name, index=i, seed=0, prompt="", output="", extracted="", passed=name.rpartition("-")[0] in easy,
                reason="", steps=1, forwards=1, settings=settings,
            )
            for i, name in enumerate(ids)
        ),
        settings,
    )  # fmt: skip
    assert run.interval == pytest.approx(wilson(34, 67), abs=0.002)
    assert compare_runs([run])[["low", "high"]].to_numpy()[0].tolist() == list(run.interval)


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [20, pytest.param(67, marks=pytest.mark.soak)])
def test_smollm2_knows_english_grammar(pairs: int, pytestconfig: pytest.Config) -> None:
    model: Any = ss.load(fetched_smollm2(pytestconfig), device="cpu")
    found = ss.evaluate(model, "blimp", limit=pairs)
    assert found.accuracy > 0.65, "0.79 over many pairs, 0.5 by chance"
