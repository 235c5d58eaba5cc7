"""`sinkscope bench`: what it measures is there, its table says what the JSON says, and the docs show the kept results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from sinkscope.bench import job, measure, reuse, rivals, table
from sinkscope.bench.clock import forward_flops
from sinkscope.bench.command import parse_grid
from sinkscope.bench.measure import run
from sinkscope.bench.shapes import SHAPES, RandomCheckpoint, model_of
from sinkscope.cli import app
from sinkscope.decoding import LladaDecoding
from sinkscope.errors import InputError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "bench" / "results").glob("*.json"))


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Two turns instead of three, and one measurement of the device for all runs: what is compared is of one run anyway."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "TURNS", 2)
        patch.setattr(measure, "limits", cache(measure.limits))
        yield


@pytest.fixture(scope="module")
def result() -> dict[str, object]:
    """A run on the small shape."""
    return run("llada-small", "cpu", "float32", ((2, 96),), steps=4)


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
    found = run("llama-small", "cpu", "float32", ((2, 80),), steps=4)
    (case,) = found["cases"]
    assert set(case["timings"]) == {"untraced", "traced", "masked", "transformers"}
    (cells,) = table.rows(found)
    time = {name: timing["seconds"] for name, timing in case["timings"].items()}
    assert cells["transformers / untraced"] == f"{time['transformers'] / time['untraced']:.2f}×"
    assert cells["transformers, static and compiled"] == "–"


def test_a_job_is_measured_beside_its_steady_speed_and_the_official_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every document is answered once, and the table's ratios are of one run."""
    monkeypatch.setattr(job, "SMALL", 64)
    model = model_of("llada-small", "cpu", "float32")
    lines: list[str] = []
    kept: list[int] = []
    decoding = LladaDecoding(length=16, steps=2, block=16)
    plain, masked = job.cases(model, decoding, lines.append, lambda cases: kept.append(len(cases)))
    assert kept == [1, 2]
    assert [case["policy"] for case in (plain, masked)] == ["none", "top:5"]
    assert [line.rpartition(": ")[0] for line in lines] == ["none", "none", "top:5", "top:5"]
    assert sum(plain["batches"]) == plain["documents"] == 64
    tokens = sum(length // job.SMALL + 16 for length in job.LENGTHS)
    assert plain["tokens_per_second"] * plain["seconds"] == pytest.approx(2 * tokens)
    (cells, _) = table.rows({"shape": "job", "cases": [plain, masked]})
    share = plain["tokens_per_second"] / plain["steady_tokens_per_second"]
    assert cells["of the steady throughput"] == f"{share:.0%}"
    assert cells["official / ours"] == f"{plain['official_seconds'] * 2 * 64 / plain['seconds']:.2f}×"


def test_rules_are_measured_over_whole_blocks_beside_the_exact_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work saved is that of the timed blocks, as a run counts it; the table's ratios are of one run."""
    rules = ("prefix:block", "prefix:block,fresh=rest", "sparse:0.25,by=received")
    monkeypatch.setattr(reuse, "RULES", rules)
    monkeypatch.setattr(measure, "BLOCK", 8)
    kept: list[int] = []
    found = run(
        "reuse", "cpu", "float32", ((2, 96),), 4, keep=lambda result: kept.append(len(result["cases"]))
    )
    block, rest, sparse = found["cases"]
    assert [case["rule"] for case in found["cases"]] == list(rules)
    assert kept == [3]
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
    found = run("reuse", "cpu", "float32", ((1, 256),), 4)
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
        "llada-8b": 8.02e9,
        "dream-7b": 7.62e9,
        "llama-8b": 8.03e9,
        "llada-small": 5.7e6,
        "llama-small": 5.7e6,
        "sdar-8b": 8.19e9,
        "llada2-mini": 16.26e9,
        "sdar-small": 127_360,
        "llada2-small": 164_744,
    }[name]
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
    assert parse_grid("1x384, 8×512") == ((1, 384), (8, 512))
    with pytest.raises(InputError, match="1x384,8x512"):
        parse_grid("384")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such-model"], "no-such-model"),
        (["--grid", "8"], "batch x length"),
        (["llada-small", "--grid", "1x8"], "1x8"),
        (["reuse", "--grid", "1x128"], "1x128"),
        (["llada-small", "--steps", "1"], "at least 2"),
        (["llada-small", "--out", "/no/such/folder/a.json"], "no folder"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], said: str) -> None:
    """No stack trace."""
    done = CliRunner().invoke(app, ["bench", *arguments])
    assert done.exit_code != 0
    text = str(done.exception) + done.output
    assert said in text
    assert "Traceback" not in done.output


def test_the_log_shows_the_kept_results() -> None:
    """lab/speed.md holds the tables that the program makes of bench/results."""
    assert RESULTS
    page = (ROOT / "lab" / "speed.md").read_text(encoding="utf-8")
    for path in RESULTS:
        assert table.markdown([json.loads(path.read_text(encoding="utf-8"))]).strip() in page, path.name


@pytest.mark.parametrize("shape", ["llada2-small", "sdar-small"])
def test_block_diffusion_is_measured_without_rivals(shape: str) -> None:
    found = run(shape, "cpu", "float32", ((2, 96),), steps=8)
    (case,) = found["cases"]
    assert set(case["timings"]) == {"untraced", "traced", "masked"}
    assert all(timing["seconds"] > 0 for timing in case["timings"].values())
    (cells,) = table.rows(found)
    time = {name: timing["seconds"] for name, timing in case["timings"].items()}
    assert cells["traced / untraced"] == f"{time['traced'] / time['untraced']:.2f}×"
    assert cells["masked / traced"] == f"{time['masked'] / time['traced']:.2f}×"
    assert shape in table.text(found)
