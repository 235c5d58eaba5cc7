"""What a study says about its size; who gets which job; what must be installed."""

from __future__ import annotations

from pathlib import Path

from sinkscope.statistics import minimal_detectable_effect
from sinkscope.study import estimate, spec
from sinkscope.study.store import Store

SPEEDS = {
    "organism/scratch": estimate.Speed(0.0204, 0.0311, 0.07),
    "organism/causal": estimate.Speed(0.002, 0.006, 0.01),
}


def test_the_default_study_says_number_rule_and_smallest_effect() -> None:
    asked = spec.read("organisms")
    number, rule, effect = estimate.sentences(asked, spec.with_samples(asked, 24), SPEEDS)
    assert number.startswith("24 documents per cell: as many as fit in 250 s on all workers, 16 to 64.")
    assert "organism/scratch 20/31 ms, organism/causal 2/6 ms" in number
    assert "batches of 8 equally long prompts (in tokens of organism/causal)" in rule
    assert f"from {minimal_detectable_effect(24):.2f} on (at an accuracy of 0.5" in effect
    assert "Documents of word_problems: the first of the task that fill batches of 8" in rule


def test_a_study_with_a_number_says_it_without_a_measurement() -> None:
    full = spec.read("full")
    number, effect = estimate.sentences(full, full, {})
    assert number == "200 documents per cell, as the study says."
    assert "200 documents detect" in effect
    assert estimate.smallest_effect(1) == "One document detects no difference."


def test_the_measurement_is_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert estimate.load_speeds(store.speed_file) == {}
    estimate.save_speeds(store.speed_file, SPEEDS)
    assert estimate.load_speeds(store.speed_file) == SPEEDS
    store.check_new()  # a kill before study.toml leaves it, and the folder is still new
    store.speed_file.write_text("{", encoding="utf-8")
    assert estimate.load_speeds(store.speed_file) == {}


def test_a_study_of_four_documents_does_not_speak_of_a_measurement() -> None:
    """--plan measures speed for the time that it prints, also where nothing depends on it."""
    data = {"name": "s", "models": ["organism/scratch"], "evaluate": [{"task": "word_problems", "samples": 4}]}
    study = spec.from_data(data)
    number, effect = estimate.sentences(study, study, SPEEDS)
    assert number == "4 documents per cell, as the study says."
    assert effect.startswith("4 documents detect a difference of two accuracies from 0.99 on")
