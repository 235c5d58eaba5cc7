"""Pictures of what verdicts rest on: thresholds, and confidence against right tokens."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from tests.sinks import synthetic
from tests.sinks.test_calibration import pair

from sinkscope.report.figures.calibration import plot_calibration
from sinkscope.report.figures.sensitivity import plot_sensitivity
from sinkscope.report.study.tables import calibrated
from sinkscope.sinks import calibration, compare_traces, sink_statistics
from sinkscope.sinks.sink_statistics import OTHER_SETTINGS, PARTS, SETTINGS
from sinkscope.sinks.summary_table import settings_table, summary
from sinkscope.verdicts import wording
from sinkscope.verdicts.measures import Kind, Measures, estimates_of
from sinkscope.verdicts.questions import sensitivity


@pytest.mark.slow
def test_verdicts_by_threshold_from_traces_to_the_picture(tmp_path: Path) -> None:
    data = synthetic.trace("moving", sigma=0.4, lengths=(9, 12, 15, 11), answer=16, layers=1, heads=2)
    statistics = sink_statistics(data, parts=(*PARTS, SETTINGS))
    settings = settings_table(statistics).groupby(["epsilon", "rule"])
    elsewhere = {(float(epsilon), str(rule)): estimates_of(part) for (epsilon, rule), part in settings}
    own = Measures(
        "m", "llada", Kind.TRACES, prompts=4, estimates=estimates_of(summary(statistics)), elsewhere=elsewhere
    )
    rows = [
        wording.row(verdict) | {"model": verdict.subject, "epsilon": epsilon, "rule": rule}
        for epsilon, rule, verdict in sensitivity([own])
    ]
    table = pd.DataFrame(rows)
    assert set(zip(table["epsilon"], table["rule"], strict=True)) == {*OTHER_SETTINGS, (3.0, "sum")} - {(3.0, "auto")}
    counts = table.groupby("question").size()
    assert set(counts) == {len(OTHER_SETTINGS)}
    drawn = plot_sensitivity(table)
    assert [label.get_text() for label in drawn.figure.axes[0].get_xticklabels()] == [
        "1", "2", "3", "4", "6", "10", "percent", "zscore"
    ]  # fmt: skip
    assert all(path.stat().st_size > 0 for path in drawn.save(tmp_path))


def test_confidence_and_right_tokens_are_drawn(tmp_path: Path) -> None:
    table = calibration(compare_traces(*pair(0.4, 0.05)))
    told = table.assign(model="organism/m", decoding_name="short", policy="top:1")
    (sentence,) = calibrated(told)
    ((masked, without),) = [
        [table[(table["run"] == run) & table["low_edge"].isna()].iloc[0] for run in ("masked", "without")]
    ]
    assert sentence.startswith(f"organism/m, short, under top:1: {100 * masked['right']:.0f} %")
    assert sentence.endswith(f"are right at a mean confidence of {without['confidence']:.0%}.")
    assert calibrated(told.assign(confidence=-0.5)) == []  # Dream's is an entropy
    drawn = plot_calibration(told)
    axes = drawn.figure.axes[0]
    assert axes.get_title("left") == "m, top:1"
    assert len(axes.containers) == 2
    course = drawn.figure.axes[1]
    assert [list(line.get_xdata()) for line in course.lines[:1]] == [[1, 2, 3]]
    old = plot_calibration(told[told["third"].isna()].drop(columns="third"))  # a study of before
    assert len(old.figure.axes[0].containers) == 2
    assert all(path.stat().st_size > 0 for path in drawn.save(tmp_path))
