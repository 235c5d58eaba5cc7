"""The bridge: lm-eval gets what sinkscope computes, and never another model's or policy's answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.byte_tokenizer import TURNS, checkpoint_with_tokenizer

lm_eval = pytest.importorskip("lm_eval", reason="needs lm-eval: pip install 'sinkscope[eval]'")

import sinkscope as ss  # noqa: E402
from sinkscope.errors import InputError  # noqa: E402
from sinkscope.tasks.likelihood import bound, exact  # noqa: E402

GENERATE = """
task: local_generate
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: generate_until
test_split: test
doc_to_text: "Q: {{{{question}}}}\\nA:"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\x85", "7"], do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""
CHOOSE = """
task: local_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: multiple_choice
test_split: test
doc_to_text: "Q: {{{{question}}}}\\nA:"
doc_to_target: 0
doc_to_choice: ["yes", "no!"]
metric_list: [{{metric: acc}}]
"""
QUESTIONS = ["How many?", "What now?", "Why is it so long?", "How much?"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints with tokenizers, and two local tasks."""
    root = tmp_path_factory.mktemp("lm_eval")
    for family in ("llada", "llama"):
        checkpoint_with_tokenizer(family, root / family, TURNS)
    data = root / "test.jsonl"
    data.write_text("".join(json.dumps({"question": q, "answer": "x"}) + "\n" for q in QUESTIONS))
    (root / "tasks").mkdir()
    (root / "tasks" / "generate.yaml").write_text(GENERATE.format(data=data))
    (root / "tasks" / "choice.yaml").write_text(CHOOSE.format(data=data))
    unsafe = GENERATE.replace("local_generate", "local_program") + "unsafe_code: true\n"
    (root / "tasks" / "program.yaml").write_text(unsafe.format(data=data))
    return root


@pytest.fixture(scope="module", autouse=True)
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Data sets are cached in a folder of the test's own, and the bridge is registered."""
    import datasets

    import sinkscope_lm_eval

    sinkscope_lm_eval.wait()
    before = datasets.config.HF_DATASETS_CACHE
    datasets.config.HF_DATASETS_CACHE = tmp_path_factory.mktemp("datasets")
    yield
    datasets.config.HF_DATASETS_CACHE = before


def _evaluate(folder: Path, family: str, task: str, arguments: str = "", **more: Any) -> Any:
    from lm_eval.tasks import TaskManager

    return lm_eval.simple_evaluate(
        model="sinkscope",
        model_args=f"pretrained={folder / family},device=cpu{arguments}",
        tasks=[task],
        task_manager=TaskManager(include_path=str(folder / "tasks"), include_defaults=False),
        bootstrap_iters=0,
        log_samples=True,
        batch_size=3,
        **more,
    )


def _answers(results: Any, task: str = "local_generate") -> list[str]:
    samples = sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
    return [sample["resps"][0][0] for sample in samples]


@pytest.mark.parametrize(
    ("family", "options", "decoding"),
    [
        ("llada", ",length=8,steps=4,block=4", ss.LladaDecoding(8, 4, 4)),
        ("llama", ",length=8", ss.GreedyDecoding(8)),
    ],
)
@pytest.mark.parametrize("chat", [False, True])
def test_the_same_outputs_as_generate(
    folder: Path, family: str, options: str, decoding: Any, chat: bool
) -> None:
    results = _evaluate(folder, family, "local_generate", f"{options},policy=top:2", apply_chat_template=chat)
    model = ss.load(folder / family, device="cpu")
    for question, found in zip(QUESTIONS, _answers(results), strict=True):
        text = f"Q: {question}\nA:"
        prompt: Any = text if chat else torch.tensor([list(text.encode())])
        whole = ss.generate(model, prompt, decoding, ss.MaskTop(2), seed=[0]).texts[0]
        ends = [whole.index(stop) for stop in ("\x85", "7") if stop in whole]
        assert found == (whole[: min(ends)] if ends else whole)
    assert results["config"]["sinkscope"]["policy"] == "top:2"
    assert results["config"]["sinkscope"]["weights"] == model.digest


def test_the_cache_never_answers_for_another_policy(folder: Path, tmp_path: Path) -> None:
    options = ",length=8,steps=4,block=4"
    cache = {"use_cache": str(tmp_path / "cache")}
    plain = _answers(_evaluate(folder, "llada", "local_generate", options, **cache))
    masked = _answers(_evaluate(folder, "llada", "local_generate", f"{options},policy=top:3", **cache))
    assert plain != masked
    assert masked == _answers(_evaluate(folder, "llada", "local_generate", f"{options},policy=top:3"))
    # and for the same one it does
    import sinkscope.tasks.lm_eval as bridge

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bridge, "generate", lambda *_, **__: pytest.fail("the cache was not used"))
        assert (
            _answers(_evaluate(folder, "llada", "local_generate", f"{options},policy=top:3", **cache))
            == masked
        )
    # a file that another model has written its answers to
    from lm_eval.api.model import hash_args
    from sqlitedict import SqliteDict

    request = (f"Q: {QUESTIONS[0]}\nA:", {"until": ["\x85", "7"], "do_sample": False})
    with SqliteDict(f"{cache['use_cache']}_rank0.db", autocommit=True) as store:
        store[hash_args("generate_until", request)] = "a lie"
    assert _answers(_evaluate(folder, "llada", "local_generate", options, **cache)) == plain
    # answers that are drawn are never taken from a cache
    drawn = f"{options},temperature=1.0"
    first = _answers(_evaluate(folder, "llada", "local_generate", f"{drawn},seed=1", **cache))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            bridge, "generate", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("generated anew"))
        )
        with pytest.raises(RuntimeError, match="generated anew"):
            _evaluate(folder, "llada", "local_generate", f"{drawn},seed=1", **cache)
    assert first == _answers(_evaluate(folder, "llada", "local_generate", f"{drawn},seed=1", **cache))


def test_likelihoods(folder: Path) -> None:
    results = _evaluate(folder, "llama", "local_choice")
    model = ss.load(folder / "llama", device="cpu")
    for question, sample in zip(QUESTIONS, results["samples"]["local_choice"], strict=True):
        context = list(f"Q: {question}\nA:".encode())
        expected = exact(model, [(context, list(text.encode())) for text in (" yes", " no!")])
        for one, (value, _) in zip(expected, sample["filtered_resps"], strict=True):
            assert value == pytest.approx(one.value, abs=1e-3)
    assert results["config"]["sinkscope_likelihood"] == "exact"


def test_bounds_say_what_they_are(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    results = _evaluate(folder, "llada", "local_choice", ",draws=8", limit=2)
    model = ss.load(folder / "llada", device="cpu")
    for question, sample in zip(QUESTIONS, results["samples"]["local_choice"], strict=False):
        context = list(f"Q: {question}\nA:".encode())
        for text, (value, _) in zip((" yes", " no!"), sample["filtered_resps"], strict=True):
            assert value == pytest.approx(
                bound(model, (context, list(text.encode())), draws=8).value, abs=1e-3
            )
    about = results["config"]["sinkscope_likelihood"]
    assert "not comparable" in about["what"]
    assert about["draws"] == 8
    assert about["values"] == 4
    assert 0 < about["error_median"] <= about["error_largest"]
    with pytest.raises(InputError, match="decides from the step before"):
        _evaluate(folder, "llada", "local_choice", ",draws=8,policy=top:1", limit=1)
    same = _evaluate(folder, "llada", "local_choice", ",draws=8,policy=top:1;when=same", limit=1)
    assert same["config"]["sinkscope"]["policy"] == "top:1,when=same"


def test_rolling_likelihoods_predict_each_token_once(folder: Path) -> None:
    from lm_eval.api.instance import Instance

    from sinkscope.tasks.lm_eval import SinkscopeLM

    lm = SinkscopeLM(str(folder / "llama"), device="cpu")
    text = "a short text"
    found = lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0)], disable_tqdm=True)
    assert found == [
        pytest.approx(exact(lm.model, [([lm.model.ids.bos], list(text.encode()))])[0].value, abs=1e-3)
    ]
    long = "x" * 700  # longer than the context of 512
    assert (
        lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (long,), 0)], disable_tqdm=True)[0]
        < 0
    )


def test_repeats_and_stop_tokens(folder: Path) -> None:
    from lm_eval.api.instance import Instance

    from sinkscope.tasks.lm_eval import SinkscopeLM

    lm = SinkscopeLM(str(folder / "llada"), device="cpu", length=8, steps=8, block=8, temperature=1.0)
    request = Instance("generate_until", {}, ("Q: one\nA:", {"until": []}), 0)
    one, two = lm.generate_until([request, request], disable_tqdm=True)
    assert one != two
    assert lm.generate_until([request, request], disable_tqdm=True) == [one, two]
    end = lm.model.ids.eos[0]
    assert lm._text([*b"ab", end, *b"cd"], {"until": [f"<|{end}|>"]}) == "ab"
    assert lm._text([*b"ab", end, *b"cd"], {"until": "c"}) == "ab"
    assert lm._text([*b"ab", end, *b"cd"], {}) == "abcd"


def test_programs_are_not_run_without_our_sandbox(folder: Path) -> None:
    with pytest.raises(InputError, match="without a sandbox"):
        _evaluate(folder, "llada", "local_program", ",length=8,steps=4,block=4", confirm_run_unsafe_code=True)


def test_wrong_arguments(folder: Path) -> None:
    from sinkscope.tasks.lm_eval import SinkscopeLM

    source = str(folder / "llada")
    with pytest.raises(InputError, match="no option 'lenght': did you mean length"):
        SinkscopeLM(source, device="cpu", lenght=8)
    with pytest.raises(InputError, match="not a multiple of block"):
        SinkscopeLM(source, device="cpu", length=10, block=4)
    with pytest.raises(InputError, match="batch_size should be"):
        SinkscopeLM(source, device="cpu", batch_size="some")


def test_lm_eval_finds_the_model_by_name() -> None:
    """What the .pth file does when Python starts, in a fresh process, before and after lm-eval is imported."""
    code = (
        "import sys, sinkscope_lm_eval\n"
        "assert not any(name.split('.')[0] in ('sinkscope', 'torch', 'lm_eval') for name in sys.modules)\n"
        "import lm_eval.models\n"
        "from lm_eval.api.registry import model_registry\n"
        "assert 'sinkscope' in model_registry and 'hf' in model_registry\n"
        "assert 'sinkscope.tasks' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    late = "import lm_eval.models, sinkscope_lm_eval\nfrom lm_eval.api.registry import model_registry\nassert 'sinkscope' in model_registry\n"  # noqa: E501
    subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{late}"], check=True
    )
