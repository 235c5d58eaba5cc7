"""What is wrong is said in one line, with exit code 2, before anything is computed or written: over all commands."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.helpers import golden
from tests.helpers.byte_tokenizer import TURNS, checkpoint_with_tokenizer

import sinkscope as ss
from sinkscope import cli

IDS = "--prompt-ids ids.txt"
SMALL = "--decoding length=8,steps=4,block=4 --device cpu"
TASK = "--task word_problems --limit 2 --decoding length=8,block=8 --device cpu"
READ_ONLY = "/proc"  # a file system on which nothing can be made, root or not

WRONG = {
    # what there is no such thing of
    "sumary t.zarr.zip": "No such command 'sumary'. See sinkscope --help",
    "tarce MODEL": "Did you mean 'trace'?",
    "trace MODEL --lenght 8": "--length). See sinkscope trace --help",
    "show": "Missing argument 'TRACE'. See sinkscope show --help",
    "models MODEL again": "unexpected extra argument",
    "trace MODEL --every some": "Invalid value for '--every'",
    "show t.zarr.zip --view": "'--view' requires an argument",
    "models nowhere": "neither a folder here",
    "models MODEL --dtype float33": "float32",
    f"trace MODEL {IDS} {SMALL} --family llama --out x.zarr.zip": "did you mean causal",
    f"trace MODEL {IDS} {SMALL} --policy tpo:5 --out x.zarr.zip": "did you mean top",
    f"trace MODEL {IDS} {SMALL} --reuse prefx:8 --out x.zarr.zip": "prefix",
    "evaluate MODEL --task gsm9k": "did you mean gsm8k",
    "study quik --model MODEL": "did you mean quick",
    "study quick --model MODEL --task texts": "did you mean text",
    "fetch smollm3": "did you mean smollm2",
    # prompts
    f"trace MODEL {SMALL} --out x.zarr.zip": "exactly one way",
    f"trace MODEL {IDS} --prompt hi {SMALL} --out x.zarr.zip": "exactly one way",
    f"trace MODEL --prompts nowhere.txt {SMALL} --out x.zarr.zip": "no file at nowhere.txt",
    f"trace MODEL --prompts fine.txt --prompts latin.txt {SMALL} --out x.zarr.zip": "latin.txt is not UTF-8 text",
    f"trace MODEL --prompts folder {SMALL} --out x.zarr.zip": "no file at folder",
    f"trace MODEL --prompts empty.txt {SMALL} --out x.zarr.zip": "empty.txt is empty",
    f"trace MODEL --prompts bad.jsonl {SMALL} --out x.zarr.zip": "bad.jsonl, line 2: not JSON",
    f"trace MODEL --prompts odd.jsonl {SMALL} --out x.zarr.zip": "odd.jsonl, line 1: expected prompt or text",
    f"trace MODEL --prompts turns.jsonl --raw {SMALL} --out x.zarr.zip": "--raw leaves it out",
    f"trace MODEL --prompt-ids fine.txt {SMALL} --out x.zarr.zip": "should hold token ids",
    "trace MODEL --text latin.txt --device cpu --out x.zarr.zip": "latin.txt is not UTF-8 text",
    "trace MODEL --text fine.txt --length 8 --device cpu --out x.zarr.zip": "leave out --decoding",
    "trace MODEL --text long.txt --device cpu --out x.zarr.zip": "the context of",
    f"trace MODEL {IDS} --length 100000 --device cpu --out x.zarr.zip": "pass the context of 256",
    # files and folders that cannot be written
    f"trace MODEL {IDS} {SMALL}": "--out is missing",
    f"trace MODEL {IDS} {SMALL} --out {READ_ONLY}/x.zarr.zip": "cannot be written",
    f"trace MODEL {IDS} {SMALL} --out t.zarr.zip": "exists already",
    f"trace MODEL {IDS} {SMALL} --out t.zarr.zip/x.zarr.zip": "cannot be written",
    f"show t.zarr.zip --view {READ_ONLY}/x.html": "cannot be written",
    "show t.zarr.zip --view fine.txt": "fine.txt exists already",
    "show t.zarr.zip --view folder": "exists already",
    "show t.zarr.zip --view folder --force": "folder is a folder",
    "show t.zarr.zip --figures fine.txt": "fine.txt is a file",
    f"show t.zarr.zip --figures {READ_ONLY}/figures": "cannot be written",
    f"evaluate MODEL {TASK} --out fine.txt": "fine.txt is a file",
    f"evaluate MODEL {TASK} --out {READ_ONLY}/run": "cannot be written",
    f"evaluate MODEL {TASK} --out folder": "holds",
    f"compare folder --csv {READ_ONLY}/x.csv": "cannot be written",
    "compare folder --csv fine.txt": "fine.txt exists already",
    "inspect t.zarr.zip --out fine.txt --device cpu": "fine.txt is a file",
    f"inspect t.zarr.zip --out {READ_ONLY}/inside --device cpu": "cannot be written",
    f"study quick --model MODEL --samples 1 --device cpu --out {READ_ONLY}/study": "cannot be written",
    "study quick --model MODEL --samples 1 --device cpu --out fine.txt": "fine.txt",
    # numbers, lists, combinations
    f"trace MODEL {IDS} --decoding length=8,block=3 --device cpu --out x.zarr.zip": "block 3",
    f"trace MODEL {IDS} --decoding blok=4 --device cpu --out x.zarr.zip": "did you mean block? known are block, cfg, ",
    "trace organism/causal --prompt hi --decoding block=8 --device cpu --out x.zarr.zip": (
        "organism/causal; known are eos, length, scored, temperature, top_p\n"
    ),
    f"trace MODEL {IDS} {SMALL} --out x.zarr.zip --maps-at last": "numbers of steps",
    "trace t.zarr.zip": "say of which steps",
    "show t.zarr.zip --view x.html --heads 3": "layer:head",
    "show t.zarr.zip --view x.html --samples first": "numbers",
    "show t.zarr.zip t.zarr.zip": "OTHER is of the viewer: with --view",
    "show t.zarr.zip --rule most": "rule",
    "show t.zarr.zip --epsilon -1": "epsilon",
    "show nowhere.zarr.zip": "nowhere.zarr.zip",
    "show fine.txt": "fine.txt",
    "show folder": "folder is a folder",
    "show folder --figures x": "holds no trace",
    "show t.zarr.zip --figures x --only figure_99": "figure_99",
    "evaluate": "--grade FOLDER",
    f"evaluate MODEL {TASK} --batch-size many": "--batch-size",
    f"evaluate MODEL {TASK} --no-grade": "say where with --out",
    f"evaluate MODEL {TASK} --seed 0 --seed 1": "draws nothing",
    "evaluate MODEL --task word_problems": "give a limit",
    "evaluate MODEL --task gsm8k --data latin.txt": "latin.txt is not UTF-8 text",
    "evaluate MODEL --task gsm8k --data bad.jsonl": "bad.jsonl, line 2: not JSON",
    "evaluate MODEL --task gsm8k --data odd.jsonl": "odd.jsonl, line 1: question, answer is missing",
    "evaluate MODEL --task piqa --data latin.txt": "not UTF-8 text",
    "evaluate MODEL --task nowhere.jsonl": "no file at nowhere.jsonl",
    "evaluate MODEL --task bad.jsonl": "bad.jsonl, line 1: expected question and answer",
    "evaluate --grade folder": "holds no answers",
    "compare folder": "is not the folder of an evaluation",
    "inspect MODEL --limit 1 --device cpu": "--limit should be at least 2",
    "study --status": "of which study",
    "study --status folder": "no folder of a study",
    "study quick": "--model",
    "study quick --model MODEL --data word_problems": "--data",
    "bench MODEL --grid 2by96": "batch x length",
    "bench MODEL --steps 1": "at least 2",
    "models MODEL --nonsense": "No such option",
    "models MODEL --device gpu": "cpu",
    "models MODEL --revision main": "revision",
    "models MODEL --check --dtype float33": "float32",
    f"trace nowhere {IDS} --out x.zarr.zip": "nowhere",
    f"trace MODEL {IDS} --prompts fine.txt {SMALL} --out x.zarr.zip": "exactly one way",
    f"trace MODEL --prompt-ids odd.txt {SMALL} --out x.zarr.zip": "odd.txt should hold token ids",
    f"trace MODEL --prompt-ids ragged.txt {SMALL} --out x.zarr.zip": "ragged.txt holds rows of different lengths",
    f"trace MODEL --prompt-ids long.ids {SMALL} --out x.zarr.zip": "shorten it",
    f"trace MODEL {IDS} {SMALL} --out x": "ends in .zarr.zip, got x; try x.zarr.zip",
    f"trace MODEL {IDS} {SMALL} --out x.zip": "try x.zarr.zip",
    f"trace MODEL {IDS} {SMALL} --out in/x.npz": "try in/x.npz.zarr.zip",
    "evaluate MODEL --task word_problems:other --limit 2": "one scheme, 'plain'",
    "evaluate MODEL --task gsm8k --data nowhere.jsonl": "no file at nowhere.jsonl",
    f"evaluate MODEL {TASK} --policy tip:5": "tip",
    f"evaluate MODEL {TASK} --reuse prefix:2 --policy top:1": "together",
    "evaluate --grade theirs": "the run's task 'theirs' is not known here",
    "inspect nowhere.zarr.zip --device cpu": "nowhere.zarr.zip",
    # what would wait for ever, or do nothing
    "study quick --model MODEL --workers -1 --plan --out q": "workers should be a whole number of at least 1",
    "study quick --model MODEL --workers 0 --device cpu --out q": "workers should be a whole number of at least 1",
    "study quick --model MODEL --shard 0 --device cpu --out q": "shard should be a whole number of at least 1",
    "study quick --model MODEL --samples 0 --plan --out q": "samples should be a whole number of at least 1",
    "inspect MODEL --looks 0 --device cpu": "--looks should be a whole number of at least 1",
    "inspect MODEL --task blimp --limit 2 --device cpu": "--task blimp has choices, which no answer is generated for",
    "inspect t.zarr.zip --task text --device cpu": "--task is not for a trace",
    "study --plan": "--plan of which study?",
    "study --status folder --plan": "--plan does not go with --status",
    "show t.zarr.zip --heads 0:1": "--heads is of the viewer: with --view",
    "show t.zarr.zip --samples 0": "--samples is of the viewer: with --view",
    "show t.zarr.zip --open": "--open is of the viewer: with --view",
    "show t.zarr.zip --only figure_1": "--only is of the figures: with --figures",
    "show t.zarr.zip --view x.html --only figure_1": "--only is of the figures",
    "show t.zarr.zip --figures figures --heads 0:0": "--heads is of the viewer",
    "show t.zarr.zip --view x.html --epsilon 2": "--epsilon is of the table",
    "show t.zarr.zip --view x.html --heads 99:0": "layer 99 is not in this trace",
    "show t.zarr.zip --view x.html --samples 99": "sample [99] is not in this trace",
    "trace t.zarr.zip --maps-at 1 --policy top:1": "--policy is not for a trace that is there",
    "trace t.zarr.zip --maps-at 99 --device cpu": "step [99] was not recorded",
    f"trace MODEL {IDS} {SMALL} --maps-at 99 --out x.zarr.zip": "has the steps 0 to 3",
    f"evaluate MODEL {TASK} --grade folder": "MODEL is not for answers that are saved",
    f"evaluate MODEL {TASK} --again": "with --grade FOLDER",
    f"evaluate MODEL {TASK} --sandbox castle": "--sandbox 'castle' is not known",
    "study quick --model MODEL --sandbox castle --plan": "--sandbox 'castle' is not known",
    # data of another shape, before anything is computed
    "study quick --model MODEL --plan --task bad.jsonl --out q": "bad.jsonl, line 1: expected question and answer",
    "study quick --model MODEL --plan --task gsm8k --data gsm8k=odd.jsonl --out q": "question, answer is missing",
    "study quick --model MODEL --plan --task gsm8k --data gsm8k=nowhere.jsonl --out q": "no file at nowhere.jsonl",
    "study quick --model MODEL --plan --data sums=bad.jsonl --out q": "task 'sums' is not known",
    "study bad.toml": "bad.toml is damaged",
    "study odd.toml": "did you mean task?",
    "evaluate MODEL --task array.jsonl --limit 1": "array.jsonl, line 1: expected an object",
    f"trace MODEL --prompts array.jsonl {SMALL} --out x.zarr.zip": "array.jsonl, line 1: expected an object",
    f"trace MODEL --prompts nothing.txt {SMALL} --out x.zarr.zip": "nothing.txt is empty",
    f"trace MODEL --prompt-ids high.txt {SMALL} --out x.zarr.zip": "was another tokenizer used?",
    "models half": "config.json is damaged",
    "models folder": "is not a checkpoint in the Hugging Face layout",
    "models fine.txt": "fine.txt is a file",
    # texts of policies and decodings
    f"trace MODEL {IDS} {SMALL} --policy top --out x.zarr.zip": "top is written top:K",
    f"trace MODEL {IDS} {SMALL} --policy top:x --out x.zarr.zip": "k should be a whole number",
    f"trace MODEL {IDS} {SMALL} --policy top:1@galaxy --out x.zarr.zip": "scope 'galaxy' is not known",
    f"trace MODEL {IDS} {SMALL} --policy random(top:1 --out x.zarr.zip": "it does not parse",
    f"trace MODEL {IDS} {SMALL} --policy keys:99=1 --out x.zarr.zip": "of layer 99, but the model has layers 0 to 2",
    f"trace MODEL {IDS} {SMALL} --level deep --out x.zarr.zip": "capture level 'deep' is not known",
    f"trace MODEL {IDS} {SMALL} --every 0 --out x.zarr.zip": "every should be a whole number",
    f"trace MODEL {IDS} {SMALL} --seed -1 --out x.zarr.zip": "from 0 on, got -1",
    f"trace MODEL {IDS} --decoding length --device cpu --out x.zarr.zip": "--decoding begins with 'length'",
    f"trace MODEL {IDS} --decoding length= --device cpu --out x.zarr.zip": "written as name=value, got 'length='",
    f"trace MODEL {IDS} --decoding length=many --device cpu --out x.zarr.zip": "got 'many'",
    f"trace MODEL {IDS} --decoding length=8 --length 16 --device cpu --out x.zarr.zip": "give length once",
    f"trace MODEL --prompts numbers.json {SMALL} --out x.zarr.zip": "numbers.json, entry 1: expected prompt or text",
    f"trace MODEL {IDS} --length 0 --device cpu --out x.zarr.zip": "length should be a whole number",
    # lm-eval's own
    "lm-eval --tasks no_such_task --model_args pretrained=MODEL": "Tasks not found: no_such_task",
    "lm-eval --tasks arc_easy --model_args policy=top:1": "which model?",
}
"""Command → a part of what it says. MODEL: a small checkpoint with a tokenizer."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands speak of."""
    folder = tmp_path_factory.mktemp("wrong")
    checkpoint_with_tokenizer("llada", folder / "model", TURNS)
    (folder / "ids.txt").write_text("5 9 2 30 41 7")
    (folder / "fine.txt").write_text("A text.\nAnother.\n")
    (folder / "latin.txt").write_bytes("Grüße\n".encode("latin-1"))
    (folder / "empty.txt").write_text("\n \n")
    (folder / "long.txt").write_text("a " * 300)
    (folder / "bad.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n')
    (folder / "odd.jsonl").write_text('{"prompt": ["a"]}\n')
    (folder / "turns.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "Hi"}]}))
    (folder / "odd.txt").write_text("1 2 x")
    (folder / "ragged.txt").write_text("1 2\n3")
    (folder / "long.ids").write_text(" ".join(["1"] * 300))
    (folder / "nothing.txt").touch()
    (folder / "array.jsonl").write_text("[1, 2]\n")
    (folder / "numbers.json").write_text("[1, 2]")
    (folder / "high.txt").write_text("5 9 99999")
    (folder / "bad.toml").write_text("name = [")
    (folder / "odd.toml").write_text('name = "x"\nmodels = ["a"]\n[[evaluate]]\ntusk = "text"\n')
    (folder / "half").mkdir()
    (folder / "half" / "config.json").write_text("{")
    (folder / "theirs").mkdir()
    (folder / "theirs" / "settings.json").write_text('{"task": {"task": "theirs", "scheme": {"name": "x"}}}')
    (folder / "theirs" / "generations.jsonl").touch()
    (folder / "folder").mkdir()
    (folder / "folder" / "note").touch()
    ids = torch.arange(5, 29).view(2, 12)
    ss.generate(
        golden.model("llada"), ids, ss.LladaDecoding(8, 4, 8), capture=True, out=folder / "t.zarr.zip", seed=[0, 1],
    )  # fmt: skip
    return folder


def contents(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*") if "__pycache__" not in path.parts}


@pytest.fixture
def unchanged(made: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Works in that folder, which is as it was afterwards."""
    monkeypatch.chdir(made)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = contents(made)
    yield
    assert contents(made) == before


@pytest.mark.slow
@pytest.mark.parametrize("line", WRONG)
def test_one_line_and_exit_code_2(
    line: str, made: Path, unchanged: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [str(made / "model") if word == "MODEL" else word for word in line.split()]
    monkeypatch.setattr(sys, "argv", ["sinkscope", *words])
    monkeypatch.setattr(logging, "raiseExceptions", False)  # lm-eval's log keeps the stream of the test before
    with pytest.raises(SystemExit) as ended:
        cli.main()
    error = capfd.readouterr().err
    assert ended.value.code == 2, error
    assert "Traceback" not in error
    assert WRONG[line] in " ".join(error.split()) + "\n", error
    assert [said.startswith("error: ") for said in error.strip().splitlines()].count(True) == 1, error


def test_enough_of_them() -> None:
    assert len(WRONG) >= 150
    commands = {line.split()[0] for line in WRONG}
    assert commands >= {
        "models",
        "trace",
        "show",
        "evaluate",
        "compare",
        "inspect",
        "study",
        "bench",
        "fetch",
        "lm-eval",
    }


@pytest.mark.parametrize(
    ("number", "advice"), [(28, "make room"), (122, "make room"), (30, "give another place"), (2, "give another place")]
)
def test_a_full_disk_and_a_read_only_one_get_other_advice(
    number: int, advice: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, "No", "some/file")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    error = capsys.readouterr().err
    assert (ended.value.code, error.count("\n")) == (2, 1)
    assert "some/file" in error
    assert advice in error
