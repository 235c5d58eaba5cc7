"""The plain report: complete, and nothing in it can become markup."""

from __future__ import annotations

from html.parser import HTMLParser

import pandas as pd

from sinkscope.study import plain_report, spec
from sinkscope.study.shipped import Shipped

HOSTILE = "</script><img src=x onerror=alert(1)>"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def study() -> spec.Study:
    return spec.from_data(
        {
            "name": HOSTILE,
            "about": HOSTILE,
            "models": [{"source": "x", "name": HOSTILE}],
            "evaluate": [{"task": "word_problems"}],
        }
    )


def row(**changes: object) -> dict[str, object]:
    base: dict[str, object] = {
        "task": "word_problems", "model": HOSTILE, "decoding_name": "short", "family": "llada", "dtype": "float32",
        "weights": "abc", "task_version": "1", "scheme": "plain", "decoding": "{}", "seeds": "[0]", "detectable": 0.25,
        "policy": "top:1", "n": 16, "accuracy": 0.5, "low": 0.28, "high": 0.72, "difference": -0.5, "difference_low": -0.75,
        "difference_high": -0.25, "hidden_share": 0.043, "control_accuracy": 0.9375, "control_draws": 1, "sinks_hit": None,
    }  # fmt: skip
    return {**base, **changes}


def test_texts_stay_texts() -> None:
    tables = {
        "results": pd.DataFrame([row(), row(policy="none", difference=None, difference_low=None)]),
        "diagnosis": pd.DataFrame(
            [{"model": HOSTILE, "question": "sinks", "verdict": HOSTILE, "evidence": "e", "thresholds": "t"}]
        ),
    }
    shipped = [
        Shipped(HOSTILE, ({"model": HOSTILE, "task": HOSTILE, "policy": "none", "n": 5, "accuracy": 0.1},))
    ]
    page = plain_report.report(
        study(), tables, [HOSTILE], shipped, {"note": HOSTILE}, [("figures/a.svg", HOSTILE)]
    )
    parsed = Tags()
    parsed.feed(page)
    assert "script" not in parsed.found
    assert parsed.found.count("img") == 1  # the figure
    assert parsed.text.count(HOSTILE) >= 8


def test_numbers_are_shown_as_they_are() -> None:
    shown = {name: plain_report.shown(row(), name) for name, _ in plain_report.SHOWN}
    assert shown["accuracy"] == "0.500"
    assert shown["interval"] == "0.28 to 0.72"
    assert shown["difference"] == "-0.500"
    assert shown["difference_interval"] == "-0.75 to -0.25"
    assert shown["hidden_share"] == "4.3%"
    assert shown["control_accuracy"] == "0.938 (1×)"
    assert shown["sinks_hit"] == ""
    assert "0.25" in plain_report.setting(row())


def test_a_study_without_shipped_results_says_so() -> None:
    assert "No full-size results ship" in plain_report.report(study(), {}, [], [], {})
