"""All measures at once: the table of many prompts, and rules that tell a carrier from a drain and say "not shown"."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from tests.inspection import planted

import sinkscope as ss
from sinkscope.inspection.inspect import inspect_run, rows_of
from sinkscope.inspection.survey import probe_names, survey
from sinkscope.report.figures.holdings import plot_holdings
from sinkscope.verdicts import Reason, Status, Verdict, wording
from sinkscope.verdicts.holdings import KIND, measures_of
from sinkscope.verdicts.questions import HOLDINGS, held

ROWS = 24


def inspected(model: ss.Model) -> tuple[pd.DataFrame, dict[str, Verdict]]:
    labels = {"task": [f"message {row % planted.MESSAGES}" for row in range(ROWS)]}
    found = inspect_run(model, planted.run_of(model, ROWS), labels=labels, tuned=False)
    return found.table, {holding.question: holding for holding in found.holdings}


@pytest.fixture(scope="module")
def carrier() -> tuple[pd.DataFrame, dict[str, Verdict]]:
    return inspected(planted.carrier())


@pytest.fixture(scope="module")
def drain() -> tuple[pd.DataFrame, dict[str, Verdict]]:
    return inspected(planted.drain())


@pytest.mark.slow
def test_the_rules_tell_the_two_apart(
    carrier: tuple[pd.DataFrame, dict[str, Verdict]], drain: tuple[pd.DataFrame, dict[str, Verdict]]
) -> None:
    full, empty = carrier[1], drain[1]
    assert (full[KIND].answer, empty[KIND].answer) == ("content", "drains")
    assert wording.held(full[KIND]) == "they hold content: what is read there is not the same everywhere"
    expected = {
        "Is content read there?": ("yes", "no"),
        "Is any value read there?": ("yes", "no"),
        "Must attention go there?": ("no", "yes"),
        "Does their score come from the angle?": ("yes", "no"),
        "Do sinks hold: masks left?": ("", "no"),  # every place of the carrier tells it
        "Do sinks hold: task?": ("yes", "no"),
    }
    for question, answers in expected.items():
        assert (full[question].answer, empty[question].answer) == answers, question
    assert full["Do they move more than other places?"].answer == "yes"
    assert empty["Do they move more than other places?"].status == Status.UNDECIDED
    assert full["Is content read at mask tokens?"].reason == Reason.NOT_MEASURED


def test_few_prompts_show_nothing_and_void_is_said(carrier: tuple[pd.DataFrame, dict[str, Verdict]]) -> None:
    few = held(measures_of(carrier[0].assign(n=19), {}), probe_names())
    assert {verdict.status for verdict in few} == {Status.UNDECIDED}
    assert Reason.TOO_FEW in {verdict.reason for verdict in few}
    flagged = {v.question: v for v in held(measures_of(carrier[0], {"movement": "x"}), probe_names())}
    assert flagged["Do they move more than other places?"].reason == Reason.CANNOT_MOVE
    nothing = held(measures_of(carrier[0].iloc[:0], {}), probe_names())
    assert len(nothing) == len(HOLDINGS) + 1
    assert {verdict.status for verdict in nothing} == {Status.UNDECIDED}


def test_every_difference_is_paired_and_every_row_has_an_interval(
    carrier: tuple[pd.DataFrame, dict[str, Verdict]],
) -> None:
    table = carrier[0]
    assert list(table.columns) == ["section", "measure", "place", "layer", "value", "low", "high", "n"]
    patch = table[(table["measure"] == "value of another run: flipped")].set_index("place")["value"]
    assert patch["difference"] == pytest.approx(patch["sinks"] - patch["others"])
    assert not table.duplicated(["section", "measure", "place", "layer"]).any()


def test_a_row_alone_gives_what_it_gives_in_a_batch() -> None:
    model = planted.carrier()
    run = planted.run_of(model, 3)
    together = survey(model, run, steps=1)
    alone = survey(model, rows_of(run, [1]), rows_of(run, [2]), steps=1)[0]
    assert together[1].keys() == alone.keys()
    for name, value in alone.items():
        assert np.allclose(together[1][name], value, rtol=1e-3, atol=1e-5, equal_nan=True), name
    with pytest.raises(ss.InputError, match="needs another run"):
        survey(model, rows_of(run, [0]))


@pytest.mark.slow
def test_the_picture_shows_the_table(carrier: tuple[pd.DataFrame, dict[str, Verdict]]) -> None:
    drawn = plot_holdings(carrier[0])
    assert set(drawn.table["section"]) == {"patch", "lens", "probe", "movement"}
    assert "24 prompts" in drawn.caption
