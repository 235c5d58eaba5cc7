"""The benchmark suite and `sinkscope bench`: tables say what was measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.device import forward_flops
from bench.shapes import SHAPES, RandomCheckpoint, model_of
from tests.helpers import golden
from typer.testing import CliRunner

from bench import __main__ as suite
from bench import job, reuse, rivals, steps, table
from sinkscope.base.errors import InputError, SinkscopeError
from sinkscope.cli import app
from sinkscope.cli import bench as command
from sinkscope.decoding.llada import LladaDecoding
from sinkscope.generation import timing
from sinkscope.policies import parse_policy

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """One turn instead of three, and one measurement of the device for all runs: what is compared is of one run anyway."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (command, steps):
            patch.setattr(module, "TURNS", 1)
        patch.setattr(suite, "limits", cache(suite.limits))
        yield


def run(shape: str, grid: str, count: int, *options: str) -> dict[str, Any]:
    """What `python -m bench` measures on a CPU."""
    return suite.run([shape, "--device", "cpu", "--grid", grid, "--steps", str(count), *options])


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    """A run on the small shape."""
    return run("llada-small", "2x96", 4)


def test_everything_is_measured(result: dict) -> None:
    """Five timings, limits, and where and when."""
    (case,) = result["cases"]
    assert set(case["timings"]) == {"untraced", "traced", "masked", "official", "eager"}
    assert all(found["seconds"] > 0 for found in case["timings"].values())
    assert case["compute_limit"] > 0
    assert result["versions"]["torch"] == torch.__version__


def test_the_table_holds_ratios_of_the_same_run(result: dict) -> None:
    """Recomputed by hand from the timings."""
    (cells,) = table.rows(result)
    time = {name: found["seconds"] for name, found in result["cases"][0]["timings"].items()}
    assert cells["batch × length"] == "2 × 96"
    assert cells["traced / untraced"] == f"{time['traced'] / time['untraced']:.2f}×"
    assert cells["official / traced, per prompt"] == f"{2 * time['official'] / time['traced']:.2f}×"


def test_causal_models_are_measured_beside_transformers_generate() -> None:
    found = run("llama-small", "2x80", 4)
    (case,) = found["cases"]
    assert set(case["timings"]) == {"untraced", "traced", "masked", "transformers"}
    (cells,) = table.rows(found)
    time = {name: timing["seconds"] for name, timing in case["timings"].items()}
    assert cells["transformers / untraced"] == f"{time['transformers'] / time['untraced']:.2f}×"
    assert cells["transformers, static and compiled"] == "–"


def test_a_job_is_measured_beside_its_steady_speed_and_the_official_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every document is answered once, and the table's ratios are of one run."""
    monkeypatch.setattr(job, "SMALL", 64)
    model = model_of("llada-small", "cpu", "float32")
    plain, masked = job.cases(model, LladaDecoding(length=16, steps=2, block=16))
    assert [case["policy"] for case in (plain, masked)] == ["none", "top:5"]
    # What it measures is an experiment as a study's cell has it.
    assert [case["experiment"]["policy"] for case in (plain, masked)] == ["none", parse_policy("top:5").identity()]
    assert plain["experiment"]["task"]["task"] == "gsm8k"
    assert sum(plain["batches"]) == plain["documents"] == 64
    tokens = sum(length // job.SMALL + 16 for length in job.LENGTHS)
    assert plain["tokens_per_second"] * plain["seconds"] == pytest.approx(2 * tokens)
    (cells, _) = table.rows({"shape": "job", "cases": [plain, masked]})
    share = plain["tokens_per_second"] / plain["steady_tokens_per_second"]
    assert cells["of the steady throughput"] == f"{share:.0%}"
    assert cells["official / ours"] == f"{plain['official_seconds'] * 2 * 64 / plain['seconds']:.2f}×"


def test_rules_are_measured_over_whole_blocks_beside_the_exact_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The work saved is that of the timed blocks, as a run counts it; the table's ratios are of one run, and `--out` keeps it."""
    rules = ("prefix:block", "prefix:block,fresh=rest", "sparse:0.25,by=received")
    monkeypatch.setattr(reuse, "RULES", rules)
    monkeypatch.setattr(suite, "BLOCK", 8)
    found = run("reuse", "2x96", 4, "--out", str(tmp_path / "reuse.json"))
    block, rest, sparse = found["cases"]
    assert [case["rule"] for case in found["cases"]] == list(rules)
    assert json.loads((tmp_path / "reuse.json").read_text(encoding="utf-8")) == found
    assert (block["steps"], block["full_steps"], block["exact_steps"]) == (16, 2, 4)
    # A step over q columns and k keys: q times the weights, and q·k scores of two products in each of 8 layers.
    weights, pair = 8 * (4 * 256 * 256 + 3 * 256 * 432), 2 * 8 * 256

    def work(columns: float, keys: float) -> float:
        return columns * (weights + keys * pair)

    full = work(96, 96)
    assert block["work_saved"] == pytest.approx(7 / 8 * (1 - work(8, 96) / full))
    # An answer of 48 has 6 blocks: the third and fourth are timed, with 32 and 24 columns from the block on.
    assert rest["work_saved"] == pytest.approx(7 / 8 * (1 - work(28, 96) / full))
    assert sparse["work_saved"] == pytest.approx(7 / 8 * (1 - work(8, 22 + 8) / full))
    cells = table.rows(found)[0]
    saved = 1 - block["seconds"] / block["exact_seconds"]
    assert cells["exact / rule"] == f"{block['exact_seconds'] / block['seconds']:.2f}×"
    assert cells["time saved / work saved"] == f"{saved / block['work_saved']:.2f}"
    assert "2 whole blocks" in table.title(found)


def test_a_rule_without_memory_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(reuse, "_measure", full)
    found = run("reuse", "1x256", 4)
    assert {cells["step, mean of whole blocks"] for cells in table.rows(found)} == {"out of memory"}
    assert "reuse" in table.text(found)


def test_rivals_compute_what_we_compute() -> None:
    """Otherwise a ratio would compare different work; and afterwards the model is as it was."""
    model = model_of("llada-small", "cpu", "float32")
    ids = torch.randint(0, 900, (2, 40), generator=torch.Generator().manual_seed(0))
    ours = model.hidden(ids)
    for name in ("official", "eager"):
        with rivals.attention(model, name), torch.no_grad():
            assert torch.allclose(model.hidden(ids), ours, atol=1e-4)
    assert torch.equal(model.hidden(ids), ours)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_named_shapes_have_the_sizes_of_the_models(name: str) -> None:
    """Parameters as published: 8.0, 7.6, 8.0, 8.2 and 16 billion."""
    total = sum(torch.Size(shape).numel() for shape in RandomCheckpoint(Path(), name).shapes.values())
    wanted = {
        "llada-8b": 8.02e9, "dream-7b": 7.62e9, "llama-8b": 8.03e9, "llada-small": 5.7e6, "llama-small": 5.7e6,
        "sdar-8b": 8.19e9, "llada2-mini": 16.26e9, "sdar-small": 127_360, "llada2-small": 164_744,
    }[name]  # fmt: skip
    assert abs(total / wanted - 1) < 0.02


def test_operations_are_counted() -> None:
    """Two per weight and token, four per score and width of a head."""
    model = model_of("llada-small", "cpu", "float32")
    one, two = (forward_flops(model, batch, 64, 0) for batch in (1, 2))
    assert two == 2 * one
    per_token = 8 * (4 * 256 * 256 + 3 * 256 * 432)
    norms = 17 * 256
    assert one == pytest.approx(64 * 2 * (per_token + norms) + 4 * 8 * 256 * 64 * 64)


def test_grids() -> None:
    """Pairs, or a clear error."""
    assert command.parse_grid("1x384, 8×512") == ((1, 384), (8, 512))
    for wrong in ("384", "0x384", "1x8"):
        with pytest.raises(InputError, match=wrong):
            command.parse_grid(wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-model"], "no-such-model"),
        (["reuse", "--grid", "1x128"], "1x128"),
        (["llada-small", "--steps", "1"], "at least 2"),
        (["llada-small", "--out", "/no/such/folder/a.json"], "no folder"),
    ],
)
def test_bad_input_of_the_suite_is_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(SinkscopeError, match=message):
        suite.run(arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-model"], "no-such-model"),
        (["organism/scratch", "--grid", "8"], "batch x length"),
        (["organism/scratch", "--steps", "1"], "at least 2"),
    ],
)
def test_bad_input_of_the_command_is_one_line(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["bench", *arguments])
    assert isinstance(done.exception, SinkscopeError)
    assert message in str(done.exception)


@pytest.mark.parametrize("name", [*golden.FAMILIES, *golden.LATER])
def test_the_command_measures_every_kind_of_loop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ratios of the JSON are those of its own times."""
    model = golden.model(name)
    monkeypatch.setattr("sinkscope.load", lambda *_, **__: model)
    done = CliRunner().invoke(app, ["bench", name, "--grid", "2x96", "--steps", "4", "--json"])
    assert done.exit_code == 0, done.output
    (case,) = json.loads(done.stdout)["cases"]
    untraced, traced, masked = (case[name]["seconds"] for name in ("untraced", "traced", "masked"))
    assert case["traced / untraced"] == pytest.approx(traced / untraced)
    assert case["masked / traced"] == pytest.approx(masked / traced)
    assert case["untraced"]["steps"] > 0


def test_the_command_prints_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that ran out is a result too."""

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError

    whole = timing.generate
    monkeypatch.setattr(timing, "generate", lambda *a, **k: full() if "policy" in k else whole(*a, **k))
    done = CliRunner().invoke(app, ["bench", "organism/scratch", "--grid", "1x96", "--steps", "2", "--device", "cpu"])
    assert done.exit_code == 0, done.output
    row = next(line for line in done.stdout.splitlines() if "1 × 96" in line).split("│")
    assert [cell.strip() for cell in row].count("out of memory") == 2  # masked, and masked / traced
    assert " ms" in row[2]


def test_block_diffusion_is_measured_without_rivals() -> None:
    found = run("sdar-small", "2x96", 8)
    assert set(found["cases"][0]["timings"]) == {"untraced", "traced", "masked"}
    assert "sdar-small" in table.text(found)
