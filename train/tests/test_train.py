"""Training on a CPU: every recipe a few steps, saved, loaded, generating; killed and resumed as if nothing had happened."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.helpers.tokenizers import golden_with_tokenizer

from sinkscope import DreamDecoding, GreedyDecoding, LladaDecoding, MmadaDecoding, SdarDecoding
from sinkscope.base.errors import InputError
from sinkscope.generation.generate import generate
from sinkscope.models.load import load
from sinkscope_train import corpus, emergence
from sinkscope_train import train as trainer
from sinkscope_train.emergence import log_spaced
from sinkscope_train.loop import learning_rate
from sinkscope_train.options import TrainingOptions
from sinkscope_train.parallel import World
from sinkscope_train.recipe import CONTROLS, MIXES, RECIPES, recipe
from sinkscope_train.train import train, train_recipe
from sinkscope_train.variant import variant_of
from sinkscope_train.vocabulary import shipped

DECODINGS = {
    "causal": GreedyDecoding(length=4),
    "llada": LladaDecoding(length=4, steps=4, block=4),
    "dream": DreamDecoding(length=4, steps=4),
    "mmada": MmadaDecoding(length=4, steps=4, block=4),
    "sdar": SdarDecoding(length=4, top_k=1),
}


@pytest.fixture(autouse=True)
def _a_small_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emergence, "probe", partial(emergence.probe, each=1))


def smoke(name: str, out: Path, steps: int = 4, **options: Any) -> TrainingOptions:
    settings = {"device": "cpu", "report_every": 2, "check_every": 0, "final_count": 2, "quiet": True, **options}
    # Plain documents: for the recipes' own, which test_documents.py is about, all of Python's library is read first.
    chosen = recipe(name, size="smoke", steps=steps, batch=4, mix="plain")
    return TrainingOptions(recipe=chosen, out=out, **settings)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bases")
    for name in ("causal", "scratch"):
        train(smoke(name, folder / name, probe=False))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", [*RECIPES, *CONTROLS])
def test_every_recipe_trains_saves_loads_and_generates(name: str, bases: Path, tmp_path: Path) -> None:
    base = recipe(name).starts_from
    about = train(smoke(name, tmp_path, init=None if base is None else bases / base))
    assert about == json.loads((tmp_path / "training.json").read_text())
    assert about["tokens"] == 4 * 4 * 128
    assert set(about["monitor"]["accuracy"]) >= {"word_problems", "small_code"}
    model = load(tmp_path, device="cpu")
    run = generate(model, ["Tom has 3 pens."], DECODINGS[model.family])
    assert run.sequences.shape[0] == 1
    points = json.loads((tmp_path / "emergence.json").read_text())["points"]
    assert [point["step"] for point in points] == list(log_spaced(4))
    assert set(points[0]["levels"]) == ({"0"} if name == "causal" else {"0.25", "0.5", "0.75", "1"})
    assert about.get("pictures") == (8 if name == "multimodal" else None), "half of 4 · 4 documents"
    if name == "adapted":
        biases = [tensor for key, tensor in load_file(tmp_path / "model.safetensors").items() if key.endswith("bias")]
        assert len(biases) == 6
        assert not any(bias.any() for bias in biases), "frozen at zero"


@pytest.mark.slow
def test_interventions_train_save_load_and_are_inherited(tmp_path: Path) -> None:
    """All at once: a causal run, a diffusion run that continues it, and one from random weights in packed rows."""
    changes: dict[str, Any] = {
        "extra_sink": "alone", "softmax": "learned", "gate": True, "qk_norm": True, "plain_first": True,
    }  # fmt: skip
    starts = {"causal": None, "adapted": tmp_path / "causal", "scratch": None}
    for name, init in starts.items():
        options = smoke(name, tmp_path / name, init=init)
        packed = {"packed": 2} if name == "scratch" else {}
        about = train(replace(options, recipe=replace(options.recipe, **changes, **packed)))
        assert {key: about["recipe"][key] for key in changes} == changes
        model = load(tmp_path / name, device="cpu")
        assert variant_of(model.network) == replace(options.recipe, **changes).variant
        assert generate(model, ["Tom has 3 pens."], DECODINGS[model.family]).sequences.shape[0] == 1
        before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("causal", name))
        sinks = [key for key in after if key.endswith("sinks")]
        assert len(sinks) == 2
        if name == "adapted":
            assert all(not after[key].equal(before[key]) for key in sinks), "trained on"
    with pytest.raises(InputError, match="go on with the attention that they were trained with"):
        train(smoke("adapted", tmp_path / "other", init=tmp_path / "causal"))


def test_the_command_of_a_card_makes_as_many_documents_as_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another number of pictures they would come in another order."""
    asked: list[tuple[Any, ...]] = []

    def none_made(plan: corpus.CorpusPlan, **_: Any) -> None:
        asked.append((plan.documents, plan.pictures))
        raise InputError("enough")

    monkeypatch.setattr(corpus.CorpusPlan, "made", none_made)
    with pytest.raises(InputError, match="enough"):
        train_recipe("multimodal", tmp_path, "cpu", mix="plain", quiet=True)
    assert asked == [(corpus.MOST_DOCUMENTS, corpus.MOST_PICTURES)]


def test_what_takes_long_is_said_before_it_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(smoke("causal", tmp_path, probe=False, quiet=False))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "making 16 documents"
    asked = [lines.index(f"causal: answers 2 held-out questions of {task}") for task in ("word_problems", "small_code")]
    told = next(place for place, line in enumerate(lines) if line.startswith("causal 4/4 accuracy word_problems="))
    assert asked[0] < asked[1] < told
    kept = (tmp_path / "log.jsonl").read_text()
    assert "answers 2" not in kept, "shown, not kept"


@pytest.mark.slow
def test_training_learns(tmp_path: Path) -> None:
    train(smoke("causal", tmp_path, steps=40, probe=False))
    losses = [json.loads(line)["loss"] for line in (tmp_path / "log.jsonl").read_text().splitlines() if "loss" in line]
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scratch", "causal"])
def test_killed_and_resumed_is_bit_for_bit_the_same(name: str, tmp_path: Path) -> None:
    whole, broken = smoke(name, tmp_path / "whole", steps=6), smoke(name, tmp_path / "broken", steps=6)
    train(whole)
    train(replace(broken, stop_after=3))
    assert not (tmp_path / "broken" / "model.safetensors").exists()
    train(broken)
    for file in ("model.safetensors", "emergence.json"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "broken" / file).read_bytes(), file
    losses = [
        [json.loads(line).get("loss") for line in (tmp_path / run / "log.jsonl").read_text().splitlines()]
        for run in ("whole", "broken")
    ]
    assert losses[0][-2:] == losses[1][-2:]


def test_another_recipe_does_not_go_on_in_the_same_folder(tmp_path: Path) -> None:
    train(smoke("scratch", tmp_path, probe=False, stop_after=2))
    with pytest.raises(InputError, match="another recipe"):
        train(smoke("scratch", tmp_path, steps=5, probe=False))


def test_documents_that_are_left_are_used_only_by_the_run_that_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was killed before its first checkpoint leaves nothing but its documents."""
    monkeypatch.setitem(MIXES, "stories", {"prose": 1.0})
    run = smoke("causal", tmp_path, probe=False)
    train(replace(run, stop_after=2))
    (tmp_path / "state.pt").unlink()
    with pytest.raises(InputError, match=r"holds a run of another recipe or other settings: .*their mix is"):
        train(replace(run, recipe=replace(run.recipe, mix="stories")))
    train(run)


def test_a_finished_run_is_not_trained_over(tmp_path: Path) -> None:
    run = smoke("causal", tmp_path, probe=False)
    about = train(run)
    weights = (tmp_path / "model.safetensors").read_bytes()
    assert train(run) == about
    with pytest.raises(InputError, match="finished run of another recipe"):
        train(replace(run, recipe=replace(run.recipe, seed=1)))
    assert (tmp_path / "model.safetensors").read_bytes() == weights


@pytest.mark.slow
def test_resuming_from_another_start_or_a_broken_file_is_refused(bases: Path, tmp_path: Path) -> None:
    run = smoke("adapted", tmp_path / "out", probe=False, init=bases / "causal")
    train(replace(run, stop_after=2))
    train(smoke("causal", tmp_path / "other", steps=2, probe=False))
    with pytest.raises(InputError, match="the start differ"):
        train(replace(run, init=tmp_path / "other"))
    (tmp_path / "out" / "state.pt").write_bytes(b"no such thing")
    with pytest.raises(InputError, match="cannot be read"):
        train(run)


def test_what_starts_from_weights_has_their_size(bases: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a recipe that starts from weights has their size"):
        train_recipe("adapted", tmp_path / "a", "cpu", init=str(bases / "causal"), size="1m", steps=1, batch=4)
    about = train_recipe(
        "adapted", tmp_path / "b", "cpu", init=str(bases / "causal"), steps=1, batch=4, mix="plain", check_every=0,
        final_count=1, quiet=True,
    )  # fmt: skip
    assert about["recipe"]["size"]["width"] == 32


def test_documents_of_another_layout_or_mix_or_without_pictures_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "documents"
    few_documents(folder, "mmada")
    options: dict[str, Any] = {"steps": 1, "batch": 4, "mix": "plain", "documents": folder}
    with pytest.raises(InputError, match="their tokenizer is"):
        train_recipe("scratch", tmp_path / "out", "cpu", size="smoke", **options)
    with pytest.raises(InputError, match="needs pictures"):
        train_recipe("multimodal", tmp_path / "out", "cpu", **options)
    with pytest.raises(InputError, match="their mix is"):
        train_recipe("multimodal", tmp_path / "out", "cpu", **{**options, "mix": "surprising"})


def few_documents(folder: Path, layout: str = "llada") -> None:
    """Eight plain ones without pictures, as several runs would share them."""
    corpus.CorpusPlan(8, 0, shipped(layout), "plain").make_in(folder)


def test_a_checkpoint_with_a_tokenizer_of_its_own_is_for_adapt(tmp_path: Path) -> None:
    folder = golden_with_tokenizer("llama", tmp_path / "foreign")
    with pytest.raises(InputError, match=f"sinkscope train adapt --from {folder}"):
        train(smoke("adapted", tmp_path / "out", init=folder))


def test_learning_rate_warms_up_and_ends_at_zero() -> None:
    chosen = recipe("scratch", steps=1000, warmup=100)
    rates = [learning_rate(chosen, step) for step in range(1000)]
    assert rates[0] == pytest.approx(chosen.learning_rate / 100)
    assert max(rates) == pytest.approx(chosen.learning_rate, rel=0.03)
    assert rates.index(max(rates)) == 99
    assert rates[-1] < chosen.learning_rate * 1e-4
    assert all(later < earlier for earlier, later in pairwise(rates[99:]))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"name": "scrach"}, "did you mean scratch"),
        ({"name": "scratch", "size": "7m"}, "size .7m. is not known"),
        ({"name": "scratch", "steps": 0}, "at least 1"),
        ({"name": "scratch", "future": 2}, "0 takes all keys ahead"),
        ({"name": "scratch", "window": 0}, "window should be a whole number of at least 1"),
        ({"name": "causal", "future": 0}, "sees nothing ahead"),
        ({"name": "scratch", "targets": "prompts"}, "did you mean|answers, all|all, answers"),
        ({"name": "scratch", "mix": "surprise"}, "did you mean surprising"),
        ({"name": "scratch", "weight_decay": -1.0}, "at least 0"),
        ({"name": "scratch", "learning_rate": -1.0}, "must be above 0"),
    ],
)
def test_bad_options_say_what_to_do(arguments: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=complaint):
        train_recipe(out=tmp_path, device="cpu", **arguments)


def test_documents_of_another_version_are_refused(tmp_path: Path) -> None:
    few_documents(tmp_path)
    (tmp_path / "drawn.npy").unlink()
    with pytest.raises(InputError, match=r"has no drawn: another version made it"):
        corpus.open_corpus(tmp_path)


def test_rows_of_several_documents_are_split_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 documents in 2 rows: enough for 2 processes, too few for 4."""

    @contextmanager
    def four(device: str) -> Iterator[World]:
        yield World(0, 4, torch.device("cpu"))

    run = smoke("causal", tmp_path)
    monkeypatch.setattr(trainer, "world", four)
    with pytest.raises(InputError, match="batch 4 in rows of 2 cannot be split over 4 processes"):
        train(replace(run, recipe=replace(run.recipe, packed=2)))


@pytest.mark.parametrize(
    "by_torchrun", [pytest.param(False, marks=pytest.mark.slow), pytest.param(True, marks=pytest.mark.soak)]
)
def test_two_processes_train_as_one(by_torchrun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """8 documents in 2 rows, one for each process, with different numbers of targets in them.

    torchrun starts both and tells them who they are; without it this process is the first of them.
    """
    import socket
    import subprocess
    import sys

    options = {"size": "smoke", "steps": 3, "batch": 8, "mix": "plain", "check_every": 0, "final_count": 1}
    train_recipe("causal", tmp_path / "one", "cpu", quiet=True, **options)
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = ["-m", "sinkscope", "train", "causal", "--device", "cpu", *words]
    command += ["--out", str(tmp_path / "two")]
    if by_torchrun:
        together = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        subprocess.run([*together, *command], check=True)
    else:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        for name, value in {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
            monkeypatch.setenv(name, str(value))
        with subprocess.Popen([sys.executable, *command], env={**os.environ, "RANK": "1"}) as second:
            try:
                monkeypatch.setenv("RANK", "0")
                train_recipe("causal", tmp_path / "two", "cpu", quiet=True, **options)
                assert second.wait(120) == 0
            finally:
                second.kill()
    one, two = (load_file(tmp_path / run / "model.safetensors") for run in ("one", "two"))
    assert all(torch.allclose(one[key].float(), two[key].float(), atol=2e-3) for key in one)
    losses = [json.loads((tmp_path / run / "training.json").read_text())["loss"] for run in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4), "of all rows, and not of the first process's"
