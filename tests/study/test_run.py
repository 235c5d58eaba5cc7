"""A whole small study: outputs, resuming, refusing, stopping. The study is run once, and other tests start from copies."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.study import small
from typer.testing import CliRunner

from sinkscope import cli
from sinkscope.base.errors import InputError, SinkscopeError
from sinkscope.base.locks import locked
from sinkscope.study import executors, run, spec, status, tables
from sinkscope.study.store import Store
from sinkscope.tasks.records import RunFolder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
]  # they take seconds, but wait for processes on machines that may be busy


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.write_study(tmp_path_factory.mktemp("study"), models=("llada",))


@pytest.fixture(scope="module")
def said(study: Path) -> list[str]:
    """What the command prints that computes, and the same command after it, which draws."""
    out = study.parent / "finished"
    first = small.run_here(study, out, "--no-report")
    assert not (out / "report.html").exists()
    return [first, small.run_here(study, out)]


@pytest.fixture(scope="module")
def finished(study: Path, said: list[str]) -> Path:
    return study.parent / "finished"


def test_figures_and_report_are_made_later(finished: Path, said: list[str]) -> None:
    assert "the same command without --no-report makes it" in said[0]
    assert "nothing was left to compute" in said[1]
    assert "report:" in said[1]
    assert (finished / "report.html").is_file()


def test_all_outputs_are_there(finished: Path) -> None:
    for name in ("study.toml", "manifest.json", "report.html", *(f"tables/{table}.parquet" for table in small.TABLES)):
        assert (finished / name).stat().st_size > 0, name
        assert not name.endswith("parquet") or (finished / name).with_suffix(".csv").is_file()
    manifest = json.loads((finished / "manifest.json").read_text())
    assert manifest["versions"]["torch"]
    assert manifest["calls"][0]["answers_computed"] == 3 * 4 + 2 + 2 + 1  # and an exemplar's maps
    assert manifest["calls"][0]["seconds"]["whole run"] > 0
    assert not list(finished.rglob("*.part")) + list(finished.rglob("*.partial"))
    kinds = [data["identity"]["kind"] for data in Store(finished).known_cells().values()]
    assert sorted(set(kinds)) == ["evaluate", "maps", "replay", "trace"]


def test_every_row_carries_n_interval_control_hidden_share_and_settings(finished: Path) -> None:
    table = pd.read_parquet(finished / "tables" / "results.parquet")
    assert len(table) == 3
    for name in (
        "n",
        "accuracy",
        "low",
        "high",
        "weights",
        "dtype",
        "task_version",
        "scheme",
        "decoding",
        "policy",
        "seeds",
        "cell",
    ):
        assert table[name].notna().all(), name
    masked = table[table["policy"] == "top:1"]
    for name in (
        "difference",
        "difference_low",
        "control",
        "control_accuracy",
        "over_control",
        "hidden_share",
        "detectable",
    ):
        assert masked[name].notna().all(), name
    assert (masked["hidden_share"] > 0).all()
    assert (masked["control"] == "random(top:1)").all()


def test_the_numbers_of_the_report_are_those_of_the_tables(finished: Path) -> None:
    page = (finished / "report.html").read_text(encoding="utf-8")
    for row in pd.read_parquet(finished / "tables" / "results.parquet").to_dict("records"):
        assert f"{row['accuracy']:.3f}" in page
        if row["hidden_share"] == row["hidden_share"] and row["hidden_share"] is not None:
            assert f"{row['hidden_share']:.1%}" in page
    assert page.count("<script") == 3  # the recorded generations as data, the viewer's own script, and the page's
    assert "default-src 'none'" in page


class Heard(run.Progress):
    """The shares of the work that were done, as a bar would show them."""

    def __init__(self) -> None:
        self.shares: list[float] = []
        self.totals: list[float] = []

    def begin(self, work: float, done: float) -> None:
        self.totals.append(work)
        self.shares.append(done / work)

    def advance(self, done: float, cell: str) -> None:
        self.shares.append(done / self.totals[-1])


def test_progress_never_goes_back(study: Path, tmp_path: Path) -> None:
    """What others wait for is a first pass, whose work counts from the start."""
    wanted = spec.read(study)
    floors = tuple(replace(grid, floor=0.1) for grid in wanted.evaluate)
    heard = Heard()
    outcome = run.run_study(replace(wanted, evaluate=floors), tmp_path / "out", on="here", device="cpu", progress=heard)
    assert len(heard.totals) == 2
    assert heard.totals[1] < heard.totals[0], "it answers nothing right, so nothing is asked under a policy"
    assert set(outcome.frames["results"]["policy"]) == {"none"}
    assert heard.shares == sorted(heard.shares)
    assert heard.shares[-1] == pytest.approx(1.0)


def written(folder: Path) -> dict[str, int]:
    """Every file of a study, and when it was last written."""
    return {
        str(path.relative_to(folder)): path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock"
    }


def test_a_second_run_computes_and_writes_nothing(study: Path, finished: Path) -> None:
    before = written(finished)
    begun = time.monotonic()
    said = small.run_here(study, finished)
    assert "nothing was left to compute" in said
    assert "report:" in said
    assert time.monotonic() - begun < 60
    after = written(finished)
    assert {name for name in before | after if before.get(name) != after.get(name)} == set()


def test_other_grades_make_other_tables(study: Path, finished: Path, tmp_path: Path) -> None:
    """As after `evaluate --grade FOLDER --again` with another rule: nothing is computed, and nothing stays as it was."""
    out = tmp_path / "copy"
    shutil.copytree(finished, out)
    failed = '"passed":false'
    file = next(path for path in out.glob("cells/*/shards/*/grades.jsonl") if failed in path.read_text())
    file.write_text(file.read_text().replace(failed, '"passed":true', 1))
    assert "nothing was left to compute" in small.run_here(study, out, "--no-report")
    assert not (out / "report.html").exists()  # it was of other tables
    accuracies = pd.read_parquet(out / "tables" / "results.parquet")["accuracy"]
    assert sorted(accuracies) == [0.0, 0.0, 0.25]


def test_another_study_in_the_same_folder_is_refused_by_name(study: Path, finished: Path) -> None:
    other = study.parent / "other.toml"
    other.write_text(study.read_text().replace("samples = 4", "samples = 5"), encoding="utf-8")
    with pytest.raises(InputError, match=r"documents\.count is 4 there and 5 here"):
        run.run_study(spec.read(other), finished)
    other.write_text(study.read_text().replace("steps = 4", "steps = 8"), encoding="utf-8")
    with pytest.raises(InputError, match=r"steps is 4 there and 8 here"):
        run.run_study(spec.read(other), finished)


def test_a_folder_of_something_else_is_refused(study: Path, tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / ".study.toml.123.part").write_text("name")  # a kill at the very start leaves these
    Store(tmp_path).check_new()
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"holds thesis\.tex"):
        run.run_study(spec.read(study), tmp_path)


def test_foreign_results_are_refused_with_the_difference(study: Path, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    shutil.copytree(finished, out)
    cell = next(
        file for file in out.glob("cells/*/cell.json") if json.loads(file.read_text())["identity"]["kind"] == "evaluate"
    )
    data = json.loads(cell.read_text())
    data["id"], data["identity"]["model"]["weights"] = "0123456789abcdef", "0" * 64
    foreign = out / "cells" / "0123456789abcdef"
    foreign.mkdir()
    (foreign / "cell.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"foreign results: model\.weights is '0000"):
        run.run_study(spec.read(study), out)


def test_weights_that_changed_under_a_study_are_refused(study: Path, finished: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    out, model = tmp_path / "copy", study.parent / "llada" / "model-00001-of-00003.safetensors"
    shutil.copytree(finished, out)
    kept = model.read_bytes()
    try:
        tensors = load_file(model)
        name = sorted(tensors)[0]
        tensors[name] = tensors[name] * 1.5
        save_file(tensors, model, metadata={"format": "pt"})
        with pytest.raises(InputError, match=r"foreign results: model\.weights"):
            run.run_study(spec.read(study), out)
    finally:
        model.write_bytes(kept)


def test_answers_that_disagree_between_shards_are_refused(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    shutil.copytree(finished, out)
    store = Store(out)
    name = next(name for name, data in store.known_cells().items() if data["identity"]["kind"] == "evaluate")
    shard = store.runs(name)[0].path
    shutil.copytree(shard, shard.with_name("000000-000001"))
    assert len(store.answers(name)) == 4
    file = shard.with_name("000000-000001") / "generations.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[0]["output"] += "?"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match="different answers"):
        store.answers(name)


def test_status_reads_a_study_that_is_running_or_done(finished: Path) -> None:
    found = status.read(finished)
    assert found.done == found.wanted == 3 * 4 + 2 + 2 + 1
    assert found.running == ""
    assert found.report is not None
    with locked(finished / "lock"):
        assert "process" in status.read(finished).running
    with pytest.raises(InputError, match=r"no study\.toml"):
        status.read(finished / "tables")


def invoke(*words: object) -> str:
    done = CliRunner().invoke(cli.app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_terminal_ends_with_accuracies_a_line_for_each_model_and_the_report(study: Path, finished: Path) -> None:
    lines = small.run_here(study, finished).splitlines()
    assert lines[0] == "word_problems, 4 documents: right answers, % (95 % interval)"
    assert [line.split("  ")[0] for line in lines[2:5]] == ["no mask", "strongest key", ""]
    assert "as many random keys" in lines[4]
    assert all("0 (0–49)" in line for line in lines[2:5])
    (at,) = (at for at, line in enumerate(lines) if line.startswith("llada: Sinks in "))
    assert "costs is undecided: 4 documents are too few." in " ".join(map(str.strip, lines[at : at + 2]))
    assert sum("one seed" in line for line in lines) == 1
    assert lines[-1] == f"report: {finished}/report.html"
    assert len(lines) <= 30
    assert all(len(line) <= 100 for line in lines[:-2])
    shown = json.loads(small.run_here(study, finished, "--json"))
    assert {row["question"] for row in shown["diagnosis"]} >= {"sinks", "moving"}
    assert len(shown["claims"]) > 10
    assert [row["policy"] for row in shown["results"]] == ["none", "top:1", "random(top:1)"]
    assert shown["report"].endswith("report.html")


def test_status_shows_what_is_missing_and_ends_with_one_line(finished: Path, tmp_path: Path) -> None:
    lines = invoke("study", "--status", finished).splitlines()
    assert lines[-2:] == ["study small: 17 of 17 answers (100%)", f"report: {finished / 'report.html'}"]
    assert len(lines) == 3  # no table of finished cells
    out = tmp_path / "copy"
    shutil.copytree(finished, out)
    (out / "report.html").unlink()
    answers = [path.with_name("generations.jsonl") for path in out.glob("cells/*/shards/*/grades.jsonl")]
    file = max(answers, key=lambda path: len(path.read_text().splitlines()))
    file.write_text(file.read_text().splitlines(keepends=True)[0])
    lines = invoke("study", "--status", out).splitlines()
    assert lines[-1] == "study small: 14 of 17 answers (82%); nobody is running it: the same command as before goes on"
    assert sum("1/4" in line for line in lines) == 1
    shown = json.loads(invoke("study", "--status", out, "--json"))
    assert (shown["answers"], shown["wanted"], len(shown["cells"])) == (14, 17, 6)


def test_a_second_command_on_one_folder_is_told_who_is_at_work(study: Path, finished: Path) -> None:
    with locked(finished / "lock"), pytest.raises(InputError, match=r"another command .* is running the study"):
        run.run_study(spec.read(study), finished)


@pytest.mark.parametrize("drawn", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_fewer_or_more_shards_give_the_same_tables(drawn: bool, study: Path, finished: Path, tmp_path: Path) -> None:
    """Half of the records are taken away, and the rest is done in other shards."""
    out = tmp_path / "copy"
    shutil.copytree(finished, out)
    for file in out.glob("cells/*/shards/*/generations.jsonl"):
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(lines[: len(lines) // 2]) + lines[-1][:9])  # and a line that a kill cut short
        grades = file.with_name("grades.jsonl")
        if grades.exists():
            grades.write_text("".join(grades.read_text().splitlines(keepends=True)[: len(lines) // 2]))
    said = small.run_here(study, out, "--shard", "1", "--no-report")
    small.assert_same(out, finished)
    assert len(list(out.glob("cells/*/shards/000000-000001/settings.json"))) > 0
    assert "the same command without --no-report makes it" in said
    assert not (out / "report.html").exists()
    if not drawn:
        return
    said = small.run_here(study, out)
    assert "nothing was left to compute" in said
    assert "report:" in said
    small.assert_same(out, finished)


def test_a_full_disk_is_an_error_that_loses_nothing(study: Path, finished: Path, tmp_path: Path) -> None:
    out, said = tmp_path / "out", tmp_path / "said"

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (24 * 1024, 24 * 1024))

    process = small.start(study, out, "--on", "here", "--no-report", said=said, first=small_files)
    process.join(250)
    assert process.exitcode == 2
    assert "Traceback" not in said.read_text().split("error:")[0]
    small.run_here(study, out, "--no-report")
    small.assert_same(out, finished)


def test_ctrl_c_stops_within_seconds_and_says_how_to_go_on(study: Path, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen(
        small.command(study, out, "--workers", "1", "--no-report"), stderr=subprocess.PIPE, text=True,
        env=small.environment(), cwd=small.ROOT,
    )  # fmt: skip
    until = time.monotonic() + 200
    while not list(out.glob("cells/*/shards/*/generations.jsonl")) and time.monotonic() < until:
        time.sleep(0.05)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert time.monotonic() - begun < 20
    assert process.returncode == 130
    assert "answers are done and safe" in error
    assert "the same command goes on" in error
    small.run_here(study, out, "--no-report")
    small.assert_same(out, finished)


@pytest.mark.parametrize("on", ["here", pytest.param("local", marks=pytest.mark.soak)])
def test_a_plan_prints_and_writes_nothing(
    on: str, study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The speed of this machine is measured by workers, in the soak in processes of their own."""
    if on == "here":
        monkeypatch.setattr(executors, "LocalExecutor", executors.HereExecutor)
    said = small.run_here(study, tmp_path / "out", "--plan")
    assert "forward passes" in said
    assert "nothing was computed or written" in said
    assert not (tmp_path / "out").exists()


def test_what_a_link_points_to_is_neither_read_nor_written(finished: Path, tmp_path: Path) -> None:
    out, outside = tmp_path / "copy", tmp_path / "outside"
    shutil.copytree(finished, out)
    store = Store(out)
    name = next(name for name, data in store.known_cells().items() if data["identity"]["kind"] == "evaluate")
    file = store.runs(name)[0].path / "generations.jsonl"
    file.replace(outside)
    file.symlink_to(outside)
    with pytest.raises(InputError, match="is a link"):
        status.read(out)
    with pytest.raises(InputError, match="cannot be opened for writing"):
        RunFolder.write(file.parent, Store(finished).runs(name)[0].settings)
    shutil.move(out / "tables", outside.with_name("tables"))
    (out / "tables").symlink_to(outside.with_name("tables"))
    with pytest.raises(InputError, match="is a link"):
        tables.write(store, {})
    assert outside.read_text().count("\n") == 4
    assert list(outside.with_name("tables").glob("*.parquet"))


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ({"modules": ["no_such_module"]}, {}, "no_such_module.* cannot be imported"),
        ({"data": {"gsm8k": "nowhere.jsonl"}, "evaluate": [{"task": "gsm8k", "samples": 2}]}, {}, "nowhere"),
        ({"models": ["organism/none"]}, {}, "organism/none"),
        ({}, {"on": "kubernetes"}, "did you mean|known are"),
        ({}, {"options": {"adress": "auto"}}, "--option adress=… is not known"),
        pytest.param(
            {}, {"on": "slurm", "options": {"timeout_min": "soon"}}, "submitit", marks=small.without_extra("submitit"),
        ),
        pytest.param(
            {}, {"on": "ray", "options": {"adress": "auto"}}, "did you mean address", marks=small.without_extra("ray"),
        ),
    ],
)  # fmt: skip
def test_a_refused_start_leaves_no_folder(
    study: Path, tmp_path: Path, change: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    out = tmp_path / "out"
    with pytest.raises(SinkscopeError, match=said):
        run.run_study(spec.from_data({**spec.read_data(study), **change}), out, device="cpu", **options)
    assert not out.exists()


def test_a_folder_that_cannot_be_written_is_refused_first(study: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="make this one writable"):
        run.run_study(spec.read(study), tmp_path / "file" / "out")
