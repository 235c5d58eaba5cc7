"""Sweeps: the runs that a file means, what each waits for, and a run whose own line gives the same weights."""

from __future__ import annotations

import json
import math
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from sinkscope.base.errors import InputError
from sinkscope_train import sweep as sweeps
from sinkscope_train.cli import train
from sinkscope_train.options import OF_A_RUN
from sinkscope_train.sweep import SweepOutcome, cost, read_sweep, run_sweep, sweep_of
from sinkscope_train.train import train_recipe
from sinkscope_train.trained_runs import trained_runs


def run_train(*words: str) -> None:
    get_command(train)(list(words), standalone_mode=False)


LADDER: dict[str, Any] = {
    "name": "ladder",
    "seeds": [0, 1],
    "base": {"steps": 3, "batch": 4, "mix": "plain"},
    "axes": [
        {"recipe": ["causal", "scratch"], "size": ["smoke", "1m"]},
        {"recipe": "adapted", "size": ["smoke", "1m"], "init": "causal"},
        {"recipe": ["causal", "scratch"], "size": "smoke", "gate": True},
    ],
}


def test_axes_are_crossed_with_one_another_and_with_seeds() -> None:
    made = sweep_of(LADDER)
    names = [run.name for run in made.runs]
    assert len(set(names)) == len(names) == 2 * (4 + 2 + 2)
    assert names[:3] == ["causal-smoke-seed0", "causal-smoke-seed1", "causal-1m-seed0"]
    runs = {run.name: run for run in made.runs}
    assert runs["adapted-1m-seed1"].needs == "causal-1m-seed1"
    assert runs["scratch-smoke-gate-seed0"].settings.variant.gate
    assert {run.settings.tokens for run in made.runs} == {3 * 4 * 128}


def test_a_start_that_is_not_one_run_of_the_sweep_is_refused_or_a_folder() -> None:
    alone = {**LADDER, "axes": [{"recipe": "adapted", "size": "1m", "init": "runs/causal"}]}
    (first, _) = sweep_of(alone).runs
    assert (first.needs, first.options["init"]) == (None, "runs/causal")
    lacking = {
        **LADDER,
        "axes": [{"recipe": "causal", "size": "smoke"}, {"recipe": "adapted", "size": "1m", "init": "causal"}],
    }
    with pytest.raises(InputError, match="has 0 such runs"):
        sweep_of(lacking)
    with pytest.raises(InputError, match="has 0 such runs"):
        sweep_of({"axes": [{"recipe": "scratch", "init": "scratch"}]})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"axis": []}, "the sweep has no 'axis'"),
        ({"seeds": 3}, "seeds should be a list"),
        ({"base": {"stepz": 3}}, "no option 'stepz'"),
        ({"axes": [{"recipe": "scrach"}]}, "recipe 'scrach' is not known"),
        ({"axes": [{"recipe": "scratch", "softmax": "two"}]}, "softmax 'two' is not known"),
        ({"axes": [{"recipe": "scratch", "init": ["runs/x", "old/x"]}]}, "two different runs"),
        ({"axes": [1]}, r"axes\[0\] should be a table"),
        ({"axes": []}, "axes is empty"),
        ({"axes": [{"recipe": "causal", "size": []}]}, "the list of size is empty"),
        ({"base": {"seed": 7}}, "seeds = "),
        ({"axes": [{"recipe": "causal", "seed": [5, 6]}]}, "seeds = "),
        ({"base": {"batch": "x"}}, "batch should be a whole number, got 'x'"),
        ({"base": {"steps": True}}, "steps should be a whole number, got True"),
        ({"base": {"learning_rate": "x"}}, "learning_rate should be a finite number"),
        ({"axes": [{"recipe": "causal", "size": {"layers": 2}}]}, "size should be a text"),
        ({"base": {"gate": "yes"}}, "gate should be true or false"),
        ({"base": {"init": {"a": 1}}}, "init should be a text"),
        ({"base": {"final_count": -1}}, "final_count should be a whole number of at least 0"),
        ({"base": {"save_every": -1}}, "save_every should be a whole number of at least 0"),
        ({"base": {"learning_rate": math.inf}}, "learning_rate should be a finite number"),
        ({"base": {"warmup": 5}}, "no option 'warmup'"),  # which the run's own command does not take
        ({"axes": [{"recipe": "causal"}, {"recipe": "causal", "softmax": "plain"}]}, "the same model twice"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        sweep_of({**LADDER, **change})


def test_names_are_plain_and_say_what_a_run_continues() -> None:
    sweep = {
        "axes": [
            {"recipe": ["causal", "scratch"]},
            {"recipe": "scratch", "init": "causal"},
            {"recipe": "scratch", "mix": ["plain", "skills"], "window": 8},
        ]
    }
    runs = {run.name: run for run in sweep_of(sweep).runs}
    assert list(runs) == [
        "causal-seed0",
        "scratch-seed0",
        "scratch-from-causal-seed0",
        "scratch-mix-plain-window-8-seed0",
        "scratch-mix-skills-window-8-seed0",
    ]
    assert runs["scratch-from-causal-seed0"].needs == "causal-seed0"


def test_a_sweep_takes_what_a_runs_own_command_takes() -> None:
    given = {parameter.name for parameter in get_command(train).commands["causal"].params}  # type: ignore[attr-defined]
    assert set(OF_A_RUN) == given - {"out", "device", "help"}


@pytest.mark.parametrize("name", ["ladder", "interventions"])
def test_the_sweeps_of_the_laboratory_can_be_run(name: str) -> None:
    made = read_sweep(Path(__file__).parents[2] / "lab" / "sweeps" / f"{name}.toml")
    assert len({cost(run)[1] for run in made.runs}) == 1, "equal tokens"
    seeds = {run.options["seed"] for run in made.runs}
    assert len(made.runs) % len(seeds) == 0
    assert len(seeds) >= 3


def test_a_file_that_is_no_sweep(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("seeds = [")
    with pytest.raises(InputError, match="should be a TOML file"):
        read_sweep(tmp_path / "bad.toml")
    with pytest.raises(InputError, match="not the folder of a sweep"):
        trained_runs(tmp_path)


class _Instant:
    """A process that has trained a run, or failed, by the time it is started."""

    def __init__(self, words: list[str], env: dict[str, str], **options: Any) -> None:
        self.folder = Path(words[words.index("--out") + 1])
        self.returncode = int("1m" in self.folder.name and "causal" in self.folder.name)
        if self.returncode:
            (self.folder / "output.txt").write_text("error: no memory\n\n")
        else:
            settings = next(run.settings for run in sweep_of(LADDER).runs if run.name == self.folder.name)
            (self.folder / "training.json").write_text(json.dumps({"recipe": settings.as_dict()}))
        STARTED.append(shlex.join(words[words.index("train") + 1 :]))

    def poll(self) -> int:
        return self.returncode


STARTED: list[str] = []


def test_runs_wait_for_their_start_and_go_on_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", _Instant)
    monkeypatch.setattr(sweeps.time, "sleep", lambda seconds: None)
    STARTED.clear()
    said: list[str] = []
    made = sweep_of(LADDER)
    outcome = run_sweep(made, tmp_path, "cpu", 3, said.append)
    assert isinstance(outcome, SweepOutcome)
    assert len(outcome.finished) == 12
    assert outcome.failed["causal-1m-seed0"] == "error: no memory"
    assert outcome.failed["adapted-1m-seed0"] == "causal-1m-seed0, from which it starts, failed"
    assert len(STARTED) == 14
    started = next(line for line in STARTED if line.startswith("adapted") and "seed1" in line)
    assert f"--init {tmp_path}/causal-smoke-seed1" in started
    assert "--documents" in started
    about = json.loads((tmp_path / "sweep.json").read_text())
    lines = {run["name"]: run["command"] for run in about["runs"]}
    assert set(lines.values()) >= {line for line in said if line.startswith("sinkscope train")}
    assert not any("--documents" in line for line in lines.values())
    assert (tmp_path / "causal-smoke-seed0" / "command.txt").read_text() == lines["causal-smoke-seed0"] + "\n"
    assert list(trained_runs(tmp_path)) == [run.name for run in made.runs if run.name in outcome.finished]
    STARTED.clear()
    run_sweep(made, tmp_path, "cpu", 1, said.append)
    assert len(STARTED) == 2, "what is finished stays; what failed is tried again"
    longer = sweep_of({**LADDER, "base": {**LADDER["base"], "steps": 9}})
    with pytest.raises(InputError, match=r"causal-smoke-seed0 holds .* \(steps 3, not 9\)"):
        run_sweep(longer, tmp_path, "cpu", 1, said.append)
    assert json.loads((tmp_path / "sweep.json").read_text()) == about
    (tmp_path / "sweep.json").write_text(json.dumps({"runs": [{"name": "../elsewhere"}]}))
    with pytest.raises(InputError, match="no folder in it"):
        trained_runs(tmp_path)


def test_the_command_plans_a_sweep_and_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(subprocess, "Popen", _Instant)
    monkeypatch.setattr(sweeps.time, "sleep", lambda seconds: None)
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    file = tmp_path / "sweep.toml"
    file.write_text(
        'seeds = [0]\nbase = { steps = 3, batch = 4, mix = "plain" }\naxes = [{ recipe = "scratch", size = "smoke" }]'
    )
    words = ["sweep", str(file), "--out", str(tmp_path / "out"), "--device", "cpu", "--at-once", "2"]
    run_train(*words, "--plan")
    planned = capsys.readouterr().out
    assert "scratch-smoke-seed0  135,328     1,536" in planned
    assert not (tmp_path / "out").exists()
    run_train(*words)
    assert "all 1 runs are finished" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"no\.toml"):
        run_train("sweep", str(tmp_path / "no.toml"), "--out", "out")


@pytest.mark.slow
def test_a_run_alone_by_its_own_line_has_the_same_weights(tmp_path: Path) -> None:
    options = {"steps": 2, "batch": 4, "mix": "plain", "size": "smoke", "final_count": 1, "check_every": 0}
    made = sweep_of({"base": options, "axes": [{"recipe": "scratch", "extra_sink": "alone", "gate": True}]})
    assert not run_sweep(made, tmp_path / "sweep", "cpu", 1, lambda text: None).failed
    (run,) = made.runs
    words = shlex.split((tmp_path / "sweep" / run.name / "command.txt").read_text())
    words[words.index("--out") + 1] = str(tmp_path / "again")
    run_train(*words[2:])
    first, again = (
        (folder / "model.safetensors").read_bytes() for folder in (tmp_path / "sweep" / run.name, tmp_path / "again")
    )
    assert first == again
    finished = train_recipe("scratch", tmp_path / "again", "cpu", **run.options)
    assert finished["recipe"]["extra_sink"] == "alone"
