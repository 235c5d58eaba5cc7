"""Evaluations under reuse rules: no record depends on the batch, random rules differ by seed, traces say what is stale."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.helpers.tokenizers import golden_with_tokenizer
from typer.testing import CliRunner

import sinkscope as ss
from sinkscope import cli
from sinkscope.generation.maps import with_maps


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ss.Model:
    folder = tmp_path_factory.mktemp("checkpoint") / "llada"
    golden_with_tokenizer("llada", folder)
    return ss.load(folder, device="cpu")


@pytest.mark.parametrize(
    ("rule", "threshold"),
    [
        # Every rule with one kind of steps in `make test`, with both in `make soak`.
        pytest.param(rule, threshold, marks=pytest.mark.soak if (number + turn) % 2 else pytest.mark.slow)
        for number, rule in enumerate(("prefix:block", "sparse:0.3,by=random", "drift:0.99"))
        for turn, threshold in enumerate((None, 0.2))
    ],
)
def test_records_do_not_depend_on_the_batch(model: ss.Model, rule: str, threshold: float | None) -> None:
    decoding = ss.LladaDecoding(8, block=4, threshold=threshold)
    one, many = (ss.evaluate(model, "word_problems", decoding, limit=6, batch_size=size, reuse=rule) for size in (1, 6))
    assert one.records == many.records
    assert one.settings["reuse"] == rule
    assert all(record.extras["reuse"] == rule for record in one.records)


def test_seeds_of_random_rules_and_of_none(model: ss.Model) -> None:
    decoding = ss.LladaDecoding(8, block=4)
    found = ss.evaluate(model, "word_problems", decoding, limit=3, seeds=[0, 1], reuse="sparse:2,by=random")
    texts = {seed: [row.output for row in found.records if row.seed == seed] for seed in (0, 1)}
    assert texts[0] != texts[1]
    with pytest.raises(ss.InputError, match="same answers"):
        ss.evaluate(model, "word_problems", decoding, limit=3, seeds=[0, 1], reuse="sparse:2")


def test_an_exact_rule_gives_the_records_of_none(model: ss.Model) -> None:
    decoding = ss.LladaDecoding(8, block=4)
    plain, exact = (ss.evaluate(model, "word_problems", decoding, limit=3, reuse=rule) for rule in (None, "prefix:1"))
    same = [replace(row, extras={}, settings=plain.settings) for row in exact.records]
    assert tuple(same) == plain.records
    assert "prefix:1, exact" in repr(exact)


def test_a_text_that_is_read_has_no_steps(model: ss.Model) -> None:
    with pytest.raises(ss.InputError, match="leave it out"):
        ss.evaluate(model, "text", limit=1, reuse="prefix:2")


def test_the_trace_command_says_it(model: ss.Model, tmp_path: Path) -> None:
    out = tmp_path / "run.zarr.zip"
    words = [
        "trace", str(model.source), "--prompt", "hello", "--decoding", "length=8,block=4", "--reuse", "prefix:2",
    ]  # fmt: skip
    done = CliRunner().invoke(cli.app, [*words, "--device", "cpu", "--out", str(out)], catch_exceptions=False)
    assert "reuse prefix:2, approximate steps: " in done.stdout
    made = ss.Trace.open(out)
    assert made.attributes["reuse"] == "prefix:2"
    assert 0 < float(made.dataset["fresh"].mean()) < 1
    with pytest.raises(ss.InputError, match="cannot be computed again"):
        with_maps(model, made, [1])
