"""Evaluation: the records are the same whatever the batch, the limit, the moment of a kill."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.byte_tokenizer import TURNS, checkpoint_with_tokenizer
from tests.helpers.forked import forked
from tests.tasks.parity_task import Parity

import sinkscope as ss
from sinkscope.base.errors import InputError
from sinkscope.statistics import standard_error, wilson
from sinkscope.study.comparison import compare_runs
from sinkscope.tasks import answer, get, sandbox
from sinkscope.tasks.evaluate import decoding_for
from sinkscope.tasks.evaluation import collect, open_evaluation
from sinkscope.tasks.experiment import Experiment, ModelIdentity
from sinkscope.tasks.grading import grade_run
from sinkscope.tasks.records import RunFolder
from sinkscope.tasks.task import Document, Mark, Prompt, Scheme, Task, Turn

TASK = Parity()
DECODINGS = {
    "llada": ss.LladaDecoding(length=8, steps=4, block=4, temperature=0.5),
    "dream": ss.DreamDecoding(length=8, steps=4, temperature=0.3, top_p=0.9),
    "mmada": ss.MmadaDecoding(length=8, steps=4, block=4, cfg=0.5, temperature=0.5),
    # ids from 300 on end an answer, so that rows of a batch end at different steps
    "llama": ss.SamplingDecoding(length=8, temperature=0.8, eos=tuple(range(300, 512))),
}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ss.Model]:
    """The golden checkpoints with a byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return {
        family: ss.load(checkpoint_with_tokenizer(family, folder / family, TURNS), device="cpu") for family in DECODINGS
    }


@pytest.mark.slow
@pytest.mark.parametrize("family", DECODINGS)
def test_the_same_records_whatever_the_batch_size(models: dict[str, ss.Model], family: str) -> None:
    policy = ss.parse_policy("random(top:3)") if family == "llama" else ss.parse_policy("above:1.5")
    found = {
        size: ss.evaluate(models[family], TASK, DECODINGS[family], policy, limit=6, batch_size=size, seeds=[0, 7])
        for size in (1, 3, "auto")
    }
    alone = found[1]
    assert alone.records == found[3].records == found["auto"].records
    assert len(alone.records) == 12
    assert len({record.output for record in alone.records}) > 6  # the documents and seeds are not all alike
    for record in alone.records:  # a policy that looks at scores begins at the second step
        assert record.steps == 1 or 0 < (record.hidden_share or 0) < 1
    if family == "llama":
        assert len({record.steps for record in alone.records}) > 2
        assert all(record.forwards == record.steps for record in alone.records)
    if family == "mmada":
        assert all(record.forwards == 2 * record.steps for record in alone.records)


def test_rows_that_stop_early_do_not_depend_on_the_batch(models: dict[str, ss.Model]) -> None:
    model, decoding = models["mmada"], ss.MmadaDecoding(length=8, steps=4, block=4, temperature=0.5)
    first = ss.evaluate(model, TASK, decoding, limit=6).records[0]
    ids = torch.tensor([list(first.prompt.encode())])
    end = int(ss.generate(model, ids, decoding, seed=[first.stream]).sequences[0, len(first.prompt) + 3])
    stopping = replace(decoding, stop_at=end)
    alone, together = (ss.evaluate(model, TASK, stopping, "top:2", limit=6, batch_size=size) for size in (1, 6))
    assert alone.records == together.records
    without = ss.evaluate(model, TASK, stopping, limit=6)
    assert without.records[0].steps == without.records[0].forwards == 2  # one block of two
    assert {record.steps for record in without.records} == {2, 4}


def test_a_record_is_a_generation_of_its_own(models: dict[str, ss.Model]) -> None:
    model, decoding, policy = models["dream"], DECODINGS["dream"], ss.MaskTop(2)
    found = ss.evaluate(model, TASK, decoding, policy, limit=3)
    for record, document in zip(found.records, TASK.documents(3), strict=True):
        run = ss.generate(model, document.question, decoding, policy=policy, seed=[record.stream])
        assert run.texts == [record.output]
        assert record.prompt == f"u:{document.question}\na:"
        assert record.prompt_tokens == run.prompt == len(record.prompt)
        assert (record.steps, record.forwards) == (len(run), run.forwards[0])
        assert record.ties == int(run.ties.sum())
        assert record.hidden_share == pytest.approx(float(run.hidden_share[0]), abs=1e-5)
        assert record.sinks_hit == pytest.approx(float(run.sinks_hit[0]), abs=1e-5)
        assert record.key_share == pytest.approx(2 / (run.prompt + 8), abs=1e-6)
        assert record.passed == TASK.grade(document, record.output).passed
        assert record.extracted == TASK.grade(document, record.output).extracted
        assert record.settings["policy"] == "top:2"
        assert record.settings["decoding"] == json.loads(decoding.to_json())


def test_the_result_and_its_words(models: dict[str, ss.Model]) -> None:
    found = ss.evaluate(models["llada"], TASK, DECODINGS["llada"], limit=16)
    scores = [float(record.passed) for record in found.records]
    assert 0 < sum(scores) < 16
    assert found.accuracy == sum(scores) / 16
    assert found.stderr == standard_error(scores)
    assert found.interval == wilson(sum(scores), 16)
    text = repr(found)
    for words in ("parity (parity/", "length=8", "policy     none", f"{found.accuracy:.4f}", "documents  16"):
        assert words in text
    assert list(found.table()["passed"]) == [record.passed for record in found.records]
    assert all(record.hidden_share is None and record.key_share is None for record in found.records)


def test_seeds_are_averaged_per_document(models: dict[str, ss.Model]) -> None:
    found = ss.evaluate(models["llada"], TASK, DECODINGS["llada"], limit=6, seeds=[0, 1, 2])
    scores = found.scores()
    assert len(scores) == found.n == 6
    assert found.seeds == (0, 1, 2)
    assert set(scores.values()) - {0.0, 1.0}
    assert found.accuracy == pytest.approx(sum(scores.values()) / 6)
    with pytest.raises(InputError, match="draws nothing"):
        ss.evaluate(models["llada"], TASK, ss.LladaDecoding(8, 4, 4), limit=2, seeds=[0, 1])
    with pytest.raises(InputError, match="twice"):
        ss.evaluate(models["llada"], TASK, DECODINGS["llada"], limit=2, seeds=[1, 1])


def test_a_folder_goes_on_and_grows(models: dict[str, ss.Model], tmp_path: Path) -> None:
    told: list[tuple[int, int, int]] = []
    model, decoding = models["dream"], DECODINGS["dream"]
    few = ss.evaluate(model, TASK, decoding, limit=5, out=tmp_path / "run")
    before = (tmp_path / "run" / "generations.jsonl").read_bytes()
    more = ss.evaluate(model, TASK, decoding, limit=9, out=tmp_path / "run", progress=lambda *now: told.append(now))
    assert (tmp_path / "run" / "generations.jsonl").read_bytes().startswith(before)
    assert more.records[:5] == few.records
    assert told[0][0] == 5
    assert told[-1] == (9, sum(record.passed for record in more.records), 9)
    assert ss.evaluate(model, TASK, decoding, limit=5, out=tmp_path / "run").records == few.records
    assert open_evaluation(tmp_path / "run").records == more.records
    with pytest.raises(InputError, match=r"decoding\.temperature is 0\.3 there and 0\.2 here"):
        ss.evaluate(model, TASK, replace(decoding, temperature=0.2), limit=5, out=tmp_path / "run")
    with pytest.raises(InputError, match="policy is None there and 'top:1' here"):
        ss.evaluate(model, TASK, decoding, "top:1", limit=5, out=tmp_path / "run")
    with pytest.raises(InputError, match="another question under the id test-0"):
        ss.evaluate(model, Parity(word="add"), decoding, limit=5, out=tmp_path / "run")


def test_a_task_of_ones_own_needs_three_methods(models: dict[str, ss.Model], tmp_path: Path) -> None:
    class Own(Task):
        name = "own"

        def documents(self, limit: int | None = None) -> list[Document]:
            return [Document("a", "A?", "x"), Document("b", "B?", "y")][:limit]

        def prompt(self, document: Document) -> Prompt:
            return Prompt((Turn("user", document.question),))

        def grade(self, document: Document, output: str) -> Mark:
            return Mark(document.answer in output, output)

    evaluation = ss.evaluate(models["dream"], Own(), DECODINGS["dream"], out=tmp_path / "own")
    assert evaluation.n == 2
    assert "own (own/1)" in repr(evaluation)
    assert open_evaluation(tmp_path / "own") == evaluation
    compared = compare_runs([evaluation])
    assert compared["scheme"].tolist() == ["plain"]


def test_a_task_without_a_scheme_in_its_settings_is_printed(models: dict[str, ss.Model]) -> None:
    class Bare(Parity):
        def settings(self) -> dict[str, object]:
            return {"task": "bare"}

    evaluation = ss.evaluate(models["dream"], Bare(), DECODINGS["dream"], limit=2)
    assert "bare (no version)" in repr(evaluation)
    assert "scheme" not in repr(evaluation)
    assert compare_runs([evaluation])["scheme"].tolist() == [""]


def test_two_policies_of_ones_own_never_share_a_record(models: dict[str, ss.Model], tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class MaskColumn(ss.FixedRule):
        """Hide one column."""

        rank: int
        word = "column"

        def columns(self, layer: int, visibility: Any, device: Any) -> Any:
            return (torch.arange(visibility.keys, device=device) == self.rank)[None, None]

    model, decoding = models["dream"], DECODINGS["dream"]
    first = ss.evaluate(model, TASK, decoding, MaskColumn(1), limit=4, out=tmp_path / "run")
    with pytest.raises(InputError, match=r"policy is 'column:1 of .* there and 'column:2 of .* here"):
        ss.evaluate(model, TASK, decoding, MaskColumn(2), limit=4, out=tmp_path / "run")
    assert ss.evaluate(model, TASK, decoding, MaskColumn(1), limit=4, out=tmp_path / "run") == first


def test_models_and_policies_may_be_given_by_name(tmp_path: Path) -> None:
    folder = checkpoint_with_tokenizer("dream", tmp_path / "dream", TURNS)
    named = ss.evaluate(folder, TASK, DECODINGS["dream"], "top:1", limit=2)
    given = ss.evaluate(ss.load(folder), TASK, DECODINGS["dream"], ss.MaskTop(1), limit=2)
    assert named.records == given.records


def test_a_folder_of_something_else_is_not_filled(models: dict[str, ss.Model], tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match=r"is no folder of a run and holds thesis.tex"):
        ss.evaluate(models["dream"], TASK, DECODINGS["dream"], limit=2, out=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thesis.tex"]
    with pytest.raises(InputError, match="is a file"):
        ss.evaluate(models["dream"], TASK, DECODINGS["dream"], limit=2, out=tmp_path / "thesis.tex")


def test_answers_are_saved_before_they_are_graded(models: dict[str, ss.Model], tmp_path: Path) -> None:
    class Dies(Parity):
        def grade_many(self, pairs):  # type: ignore[no-untyped-def]
            raise KeyboardInterrupt("the grader died")

    model, decoding = models["dream"], DECODINGS["dream"]
    with pytest.raises(KeyboardInterrupt, match="the grader died"):
        ss.evaluate(model, Dies(), decoding, limit=6, batch_size=2, out=tmp_path / "run")
    run = RunFolder.read(tmp_path / "run")
    assert len(list(run.generations)) == 2
    assert not list(run.grades)
    with pytest.raises(InputError, match="2 answers without a grade"):
        collect(run)
    resumed = ss.evaluate(model, TASK, decoding, limit=6, out=tmp_path / "run")
    assert resumed.records == ss.evaluate(model, TASK, decoding, limit=6).records


def test_generate_here_grade_there(models: dict[str, ss.Model], tmp_path: Path) -> None:
    model, decoding = models["dream"], DECODINGS["dream"]
    whole = ss.evaluate(model, TASK, decoding, limit=6)
    wanted = answer.items(TASK, 6)
    experiment = Experiment(ModelIdentity.of(model), TASK, decoding)
    for part in (wanted[4:], wanted[:4]):  # shards, in any order
        with RunFolder.write(tmp_path / "run", whole.settings) as run:
            answer.answer(model, experiment, part, run, grade=False)
    with RunFolder.write(tmp_path / "run", whole.settings) as run:
        grade_run(run, TASK)
    assert open_evaluation(tmp_path / "run").records == whole.records


def test_decodings_come_from_the_scheme() -> None:
    task = get("gsm8k:paper-llada")
    assert decoding_for(task, "llada") == ss.LladaDecoding(256, 256, 32)
    assert decoding_for(get("gsm8k", "dream"), "dream") == ss.DreamDecoding(256, 256, temperature=0.1, top_p=0.9)
    # a wording made for another family goes with the decoding of the model's own default scheme
    assert decoding_for(task, "mmada") == ss.MmadaDecoding(256, 256, 64)
    assert decoding_for(get("word_problems"), "causal") == ss.GreedyDecoding(64)
    assert decoding_for(Parity(), "causal") == ss.GreedyDecoding()


def test_options_take_the_place_of_the_scheme_s(models: dict[str, ss.Model]) -> None:
    found = ss.evaluate(models["llada"], TASK, limit=2, length=8, steps=4, block=4)
    assert found.settings["decoding"] == ss.LladaDecoding(8, 4, 4).as_dict()
    assert decoding_for(get("gsm8k:paper-llada"), "llada", steps=128) == ss.LladaDecoding(256, 128, 32)
    with pytest.raises(InputError, match="length: options are given to LladaDecoding itself"):
        ss.evaluate(models["llada"], TASK, DECODINGS["llada"], limit=2, length=8)
    with pytest.raises(InputError, match="did you mean length"):
        ss.evaluate(models["llada"], TASK, limit=2, lenght=8)


def test_prompts_follow_the_scheme(models: dict[str, ss.Model]) -> None:
    from sinkscope.tasks.prompting import decode_answer, encode_prompt

    model = models["llama"]
    turns = (Turn("user", "one"), Turn("assistant", "two"), Turn("user", "three"))
    plain = Scheme("s", "causal", "a test")
    assert encode_prompt(model, Prompt(turns), plain).text == "u:one\na:two\nu:three\na:"
    assert encode_prompt(model, Prompt(turns[:1], "It is"), plain).text == "u:one\na:It is"
    base = encode_prompt(model, Prompt(turns[:1], chat=False), replace(plain, bos=True))
    assert base.ids == (model.ids.bos, *b"one")
    assert encode_prompt(model, Prompt(turns[:1], chat=False), replace(plain, prompt_tokens=2)).ids == tuple(b"ne")
    end = model.ids.eos[0]
    assert decode_answer(model, [*b"yes", end, *b"no"], plain) == "yesno"
    assert decode_answer(model, [*b"yes", end, *b"no"], replace(plain, keep_special=True)) == f"yes<|{end}|>no"


def test_what_cannot_work_is_said_first(
    models: dict[str, ss.Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models["llada"]
    with pytest.raises(InputError, match="limit should be"):
        ss.evaluate(model, TASK, limit=0)
    with pytest.raises(InputError, match="batch_size should be"):
        ss.evaluate(model, TASK, DECODINGS["llada"], limit=2, batch_size=0)
    with pytest.raises(InputError, match="unknown task 'gsm9k'"):
        ss.evaluate(model, "gsm9k")
    with pytest.raises(InputError, match="give a limit"):
        ss.evaluate(model, "word_problems")
    with pytest.raises(InputError, match="DreamDecoding is for dream"):
        ss.evaluate(model, TASK, ss.DreamDecoding(8, 4), limit=2)
    with pytest.raises(InputError, match="has only"):
        ss.evaluate(model, TASK, DECODINGS["llada"], "top:1000", limit=2)
    bare = ss.load(checkpoint_with_tokenizer("llama", tmp_path / "bare"), device="cpu")
    with pytest.raises(InputError, match="no chat template"):
        ss.evaluate(bare, get("gsm8k:llama-cot", data=_gsm8k(tmp_path)))

    def refuse(name: str) -> str:
        raise InputError("there is no sandbox here")

    monkeypatch.setattr(sandbox, "check", refuse)
    monkeypatch.setattr("sinkscope.models.load.load", lambda *_: pytest.fail("the model was loaded first"))
    with pytest.raises(InputError, match="there is no sandbox here"):
        ss.evaluate(model.source, "small_code", limit=2)


def _gsm8k(folder: Path) -> Path:
    path = folder / "test.jsonl"
    path.write_text(json.dumps({"question": "How many?", "answer": "Three.\n#### 3"}) + "\n")
    return path


@pytest.mark.slow
def test_killed_at_random_moments_and_resumed(models: dict[str, ss.Model], tmp_path: Path) -> None:
    """SINKSCOPE_KILLS: how many runs are killed, each up to twice."""
    rounds = int(os.environ.get("SINKSCOPE_KILLS", "3"))
    decoding = ss.DreamDecoding(length=16, steps=4, temperature=0.3)

    def start(out: Path) -> BaseProcess:
        return forked(
            lambda: ss.evaluate(models["dream"], "word_problems", decoding, "top:2", limit=12, batch_size=2, out=out)
        )

    begin = time.monotonic()
    process = start(tmp_path / "whole")
    process.join()
    assert process.exitcode == 0
    needed = time.monotonic() - begin
    rng = random.Random(rounds)
    landed: list[int] = []  # answers that were written down at each kill

    def in_the_middle() -> bool:
        return any(0 < count < 12 for count in landed)

    for number in range(rounds + 6):
        if number >= rounds and in_the_middle():  # on a busy machine the first kills may all come too early or too late
            break
        out = tmp_path / f"killed-{number}"
        for last in (False, False, True):
            process = start(out)
            if not last:
                time.sleep(rng.uniform(0, needed * 0.7))
                process.kill()
            process.join()
            if process.exitcode == 0:
                break
            assert process.exitcode == -signal.SIGKILL
            file = out / "generations.jsonl"
            landed.append(file.read_bytes().count(b"\n") if file.exists() else 0)
        assert process.exitcode == 0
    whole = open_evaluation(tmp_path / "whole")
    assert len(whole.records) == 12
    for killed in tmp_path.glob("killed-*"):
        assert open_evaluation(killed).records == whole.records
        lines = (killed / "generations.jsonl").read_text().splitlines()
        assert len(lines) == 12  # nothing twice
    assert in_the_middle(), landed


@pytest.mark.gpu
def test_the_same_records_on_a_gpu_whatever_the_batch_size(models: dict[str, ss.Model]) -> None:
    model = ss.load(models["llada"].source, device="cuda", dtype="float32")
    found = [
        ss.evaluate(model, TASK, DECODINGS["llada"], "top:2", limit=12, batch_size=size) for size in (1, 5, "auto")
    ]
    outputs = [[record.output for record in one.records] for one in found]
    assert outputs[0] == outputs[1] == outputs[2]
    assert torch.cuda.memory_allocated() > 0
