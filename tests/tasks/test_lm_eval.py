"""The bridge: lm-eval gets what sinkscope computes, and never another model's or policy's answer."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.byte_tokenizer import TURNS, checkpoint_with_tokenizer

lm_eval = pytest.importorskip("lm_eval", reason="needs lm-eval: pip install 'sinkscope[eval]'")

import sinkscope as ss  # noqa: E402
from sinkscope.base.errors import InputError  # noqa: E402
from sinkscope.cli.lm_eval import handed_over  # noqa: E402
from sinkscope.cli.lm_eval import run as main  # noqa: E402
from sinkscope.tasks.likelihood import likelihoods  # noqa: E402

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
    """Data sets are cached in a folder of the test's own, and the model is registered.

    lm-eval does not ask a dozen programs about the machine, which it does at the end of every evaluation.
    """
    import datasets
    from lm_eval import evaluator

    import sinkscope.tasks.lm_eval  # noqa: F401 (registers the model)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        patch.setattr(evaluator, "add_env_info", lambda results: None)
        yield


def _evaluate(folder: Path, family: str, task: str, arguments: str = "", **more: Any) -> Any:
    from lm_eval.tasks import TaskManager

    return lm_eval.simple_evaluate(
        model="sinkscope", model_args=f"pretrained={folder / family},device=cpu{arguments}", tasks=[task],
        task_manager=TaskManager(include_path=str(folder / "tasks"), include_defaults=False), bootstrap_iters=0,
        log_samples=True, batch_size=3, **more,
    )  # fmt: skip


def _answers(results: Any, task: str = "local_generate") -> list[str]:
    samples = sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
    return [sample["resps"][0][0] for sample in samples]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "options", "decoding"),
    [("llada", ",length=8,steps=4,block=4", ss.LladaDecoding(8, 4, 4)), ("llama", ",length=8", ss.GreedyDecoding(8))],
)
@pytest.mark.parametrize("chat", [False, True])
def test_the_same_outputs_as_generate(folder: Path, family: str, options: str, decoding: Any, chat: bool) -> None:
    results = _evaluate(folder, family, "local_generate", f"{options},policy=top:2", apply_chat_template=chat)
    model = ss.load(folder / family, device="cpu")
    for question, found in zip(QUESTIONS, _answers(results), strict=True):
        text = f"Q: {question}\nA:"
        prompt: Any = text if chat else torch.tensor([list(text.encode())])
        whole = ss.generate(model, prompt, decoding, policy=ss.MaskTop(2), seed=[0]).texts[0]
        ends = [whole.index(stop) for stop in ("\x85", "7") if stop in whole]
        assert found == (whole[: min(ends)] if ends else whole)
    assert results["config"]["sinkscope"]["policy"] == "top:2"
    assert results["config"]["sinkscope"]["model"]["weights"] == model.digest


@pytest.mark.slow
def test_approximate_steps(folder: Path) -> None:
    options = ",length=8,steps=8,block=8"
    results = _evaluate(folder, "llada", "local_generate", f"{options},reuse=sparse:4;by=recent")
    model = ss.load(folder / "llada", device="cpu")
    rule = ss.SparseReuse(4, by="recent")
    for question, found in zip(QUESTIONS, _answers(results), strict=True):
        prompt = torch.tensor([list(f"Q: {question}\nA:".encode())])
        whole = ss.generate(model, prompt, ss.LladaDecoding(8, 8, 8), seed=[0], reuse=rule).texts[0]
        ends = [whole.index(stop) for stop in ("\x85", "7") if stop in whole]
        assert found == (whole[: min(ends)] if ends else whole)
    assert results["config"]["sinkscope"]["reuse"] == "sparse:4,by=recent"
    assert "reuse" not in _evaluate(folder, "llada", "local_generate", options)["config"]["sinkscope"]
    from sinkscope.tasks.lm_eval import SinkscopeLM

    with pytest.raises(ss.InputError, match="diffusion models"):
        SinkscopeLM(str(folder / "llama"), device="cpu", reuse="prefix:2")
    lm = SinkscopeLM(str(folder / "llada"), device="cpu", length=8, block=8, reuse="prefix:2")
    with pytest.raises(ss.InputError, match="leave it out"):
        lm._likelihoods([([1, 2], [3])], True)


@pytest.mark.slow
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
        assert _answers(_evaluate(folder, "llada", "local_generate", f"{options},policy=top:3", **cache)) == masked
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
        patch.setattr(bridge, "generate", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("generated anew")))
        with pytest.raises(RuntimeError, match="generated anew"):
            _evaluate(folder, "llada", "local_generate", f"{drawn},seed=1", **cache)
    assert first == _answers(_evaluate(folder, "llada", "local_generate", f"{drawn},seed=1", **cache))


@pytest.mark.slow
def test_likelihoods(folder: Path) -> None:
    results = _evaluate(folder, "llama", "local_choice")
    model = ss.load(folder / "llama", device="cpu")
    for question, sample in zip(QUESTIONS, results["samples"]["local_choice"], strict=True):
        context = list(f"Q: {question}\nA:".encode())
        expected = likelihoods(model, [(context, list(text.encode())) for text in (" yes", " no!")])
        for one, (value, _) in zip(expected, sample["filtered_resps"], strict=True):
            assert value == pytest.approx(one.value, abs=1e-3)
    assert results["config"]["sinkscope_likelihood"] == "exact"


@pytest.mark.slow
def test_bounds_say_what_they_are(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    results = _evaluate(folder, "llada", "local_choice", ",draws=8", limit=2)
    model = ss.load(folder / "llada", device="cpu")
    for question, sample in zip(QUESTIONS, results["samples"]["local_choice"], strict=False):
        context = list(f"Q: {question}\nA:".encode())
        for text, (value, _) in zip((" yes", " no!"), sample["filtered_resps"], strict=True):
            assert value == pytest.approx(
                likelihoods(model, [(context, list(text.encode()))], draws=8)[0].value, abs=1e-3
            )
    about = results["config"]["sinkscope_likelihood"]
    assert "not comparable" in about["what"]
    assert about["draws"] == 8
    assert about["values"] == 4
    assert 0 < about["error_median"] <= about["error_largest"]
    masked = _evaluate(folder, "llada", "local_choice", ",draws=8,policy=top:1", limit=1)
    value = masked["samples"]["local_choice"][0]["filtered_resps"][0][0]
    pair = (list(f"Q: {QUESTIONS[0]}\nA:".encode()), list(b" yes"))
    assert value == pytest.approx(likelihoods(model, [pair], ss.MaskTop(1), draws=8)[0].value, abs=1e-3)
    same = _evaluate(folder, "llada", "local_choice", ",draws=8,policy=top:1;when=same", limit=1)
    assert same["config"]["sinkscope"]["policy"] == "top:1,when=same"


def test_rolling_likelihoods_predict_each_token_once(folder: Path) -> None:
    from lm_eval.api.instance import Instance

    from sinkscope.tasks.lm_eval import SinkscopeLM

    lm = SinkscopeLM(str(folder / "llama"), device="cpu")
    text = "a short text"
    found = lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0)], disable_tqdm=True)
    assert found == [
        pytest.approx(likelihoods(lm.model, [([lm.model.ids.bos], list(text.encode()))])[0].value, abs=1e-3)
    ]
    long = "x" * 700  # longer than the context of 512
    assert lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (long,), 0)], disable_tqdm=True)[0] < 0


@pytest.mark.slow
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
    with pytest.raises(InputError, match="option 'lenght' is not known; did you mean length"):
        SinkscopeLM(source, device="cpu", lenght=8)
    with pytest.raises(InputError, match="not a multiple of block"):
        SinkscopeLM(source, device="cpu", length=10, block=4)
    with pytest.raises(InputError, match="batch_size should be"):
        SinkscopeLM(source, device="cpu", batch_size="some")


def test_a_typo_names_the_right_option_and_a_missing_gpu_the_cpu(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sinkscope.tasks.lm_eval import SinkscopeLM

    source = str(folder / "llada")
    with pytest.raises(InputError, match="option 'polcy' is not known; did you mean policy"):
        SinkscopeLM(source, device="cpu", polcy="top:5")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert SinkscopeLM(source, device="cuda:0").model.device.type == "cpu"  # what lm-eval asks for by default
    assert "no CUDA device here" in caplog.text
    assert SinkscopeLM(source, device=None).model.device.type == "cpu"


def test_the_model_is_registered() -> None:
    from lm_eval.api import registry

    from sinkscope.tasks.lm_eval import SinkscopeLM

    assert registry.get_model("sinkscope") is SinkscopeLM


def test_what_is_handed_over() -> None:
    own = ["--model", "sinkscope", "--device", "auto"]
    assert handed_over(["--tasks", "a", "b"]) == ["--tasks", "a", "b", *own]
    assert handed_over(["run", "--tasks", "a"]) == ["run", "--tasks", "a", *own]
    assert handed_over(["--model", "hf", "--device=cpu"]) == ["--model", "hf", "--device=cpu"]
    assert handed_over(["-M", "hf", "--model_args", "x=1"])[-2:] == ["--device", "auto"]
    assert handed_over(["ls", "tasks"]) == ["ls", "tasks"]
    assert handed_over([]) == ["--help"]
    assert handed_over(["run", "--help"]) == ["run", "--help"]


def words(folder: Path, out: Path, policy: str) -> list[str]:
    """What follows `sinkscope lm-eval` on a command line."""
    model = f"pretrained={folder / 'llada'},length=8,steps=4,block=4,{policy}"
    tasks = ["--include_path", str(folder / "tasks"), "--tasks", "local_generate", "--limit", "2"]
    return ["--model_args", model, *tasks, "--output_path", str(out)]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line runs in this process, and looks for tasks in the given folder alone."""
    from lm_eval import tasks

    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(tasks, "TaskManager", partial(tasks.TaskManager, include_defaults=False))


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_the_command_line(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    main(words(folder, tmp_path / "out", "policy=top:2"))
    assert "local_generate" in capfd.readouterr().out
    [file] = (tmp_path / "out").rglob("results*.json")
    assert json.loads(file.read_text())["config"]["sinkscope"]["policy"] == "top:2"


@pytest.mark.soak
def test_the_command_line_in_a_fresh_process(folder: Path, tmp_path: Path) -> None:
    """As a user has it; no GPU is asked for where there is none."""
    environment = {**os.environ, "HF_DATASETS_CACHE": str(tmp_path / "datasets"), "CUDA_VISIBLE_DEVICES": ""}
    for policy, code in (("policy=top:2", 0), ("polcy=top:2", 2)):
        done = subprocess.run(
            [sys.executable, "-m", "sinkscope", "lm-eval", *words(folder, tmp_path / "out", policy)],
            capture_output=True, text=True, env=environment, timeout=200, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in done.stderr
    [file] = (tmp_path / "out").rglob("results*.json")
    assert json.loads(file.read_text())["config"]["sinkscope"]["policy"] == "top:2"


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_a_mistake_on_the_command_line_ends_in_one_line(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean policy"):
        main(words(folder, tmp_path / "out", "polcy=top:2"))


def test_without_lm_eval_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    main(["--help"])
    assert "pip install 'sinkscope[eval]'" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"pip install 'sinkscope\[eval\]'"):
        main(["--tasks=gsm8k"])


def test_python_starts_without_sinkscope() -> None:
    """No file of the package runs when Python starts, and lm-eval's own list of models is its own."""
    code = (
        "import sys\n"
        "assert not any(name.startswith('sinkscope') for name in sys.modules)\n"
        "import lm_eval.models\n"
        "assert not any(name.startswith('sinkscope') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
