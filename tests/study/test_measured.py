"""Tables of a study become the measures that verdicts are made of, and no rule asks for one that nothing produces."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
from tests.inspection.planted import carrier, run_of
from tests.sinks import heads, synthetic

from sinkscope.inspection.survey import LABEL, LAYER_WORDS, VECTOR, Name, probe_names, survey, survey_table, void_flags
from sinkscope.sinks import compare_traces, mechanisms, summary
from sinkscope.sinks.categories import CATEGORIES
from sinkscope.sinks.compare import BEYOND, LESS
from sinkscope.statistics import Estimate
from sinkscope.study.measured import Studied, collect, diagnoses, needs
from sinkscope.verdicts import Measure, Reason, Status
from sinkscope.verdicts.diagnosis import QUESTIONS, WINDOW, WINDOW_FIRST
from sinkscope.verdicts.holdings import measures_of
from sinkscope.verdicts.measures import Kind, Measures
from sinkscope.verdicts.questions import CLAIMS, HOLDINGS, held, judge


def records(models: str, tasks: tuple[str, ...], policies: tuple[str, ...]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"model": model, "task": task, "decoding_name": "short", "policy": policy, "document": f"d{i}", "passed": i % 2 == 0}
            for model in models for task in tasks for policy in policies for i in range(4)
        ]
    )  # fmt: skip


def test_who_guesses_in_the_battery_has_nothing_to_lose() -> None:
    """One in four right is less than guessing gives where three people have a thing; where answers are computed it is more."""
    answers = records("a", ("battery",), ("none", "top:1", "random(top:1)")).assign(
        passed=lambda rows: rows["document"] == "d0"
    )
    asked = {"state": (1 / 3, False), "arithmetic": (0.0, True), "retrieval": (1.0, False)}
    for skill, (guess, able) in asked.items():
        level = {"retrieval": 1}.get(skill, 2)
        frame = answers.assign(document=answers["document"].str.replace("d", f"{skill}@{level}/test-"))
        (measured,) = collect({"records": frame}, {"a": Studied("llada")})
        assert (measured.guess, measured.able) == (pytest.approx(guess), able)
        assert measured.lost("top:1") is not None
        assert judge([measured])["robust-1"]["a"][0].status == Status.UNDECIDED


def test_all_tasks_and_sets_of_traces_of_a_study_are_measured() -> None:
    """Two tasks, two sets of traces and pairs: each is judged, models beside each other."""
    answers = records(
        "ab",
        ("gsm8k", "blimp"),
        ("none", "top:1", "random(top:1)", "random(top:1),seed=1", "window:8", "window:8,first=4"),
    )
    setting = {"model": "a", "task": "blimp", "decoding_name": "short", "policy": "top:1"}
    results = pd.DataFrame([{**setting, "sinks_hit": 0.7, "strongest_hit": None, "hidden_share": 0.1}])
    sinks = pd.DataFrame(
        [
            {"model": "a", "policy": "none", "cell": cell, "traces": name, "task": "gsm8k", "measure": measure.named(),
             "value": value, "low": value - 0.1, "high": value + 0.1}
            for cell, name in (("1", "generations"), ("2", "sequences"))
            for measure, value in ((Measure.PROMPTS, 5), (Measure.WITHOUT, 0.3))
        ]
    )  # fmt: skip
    pairs = pd.DataFrame(
        [
            {"model": "a", "decoding_name": "short", "policy": policy, "document": f"d{i}", "measure": measure.named(LESS),
             "value": value + 0.01 * i}
            for policy, shift, damage in (
                ("top:1", 1.0, -0.1), ("random(top:1)", 0.0, 0.0), ("random(top:5)", 0.2, -0.08), ("random(top:10)", 0.4, -0.12)
            )
            for i in range(6)
            for measure, value in (
                (Measure.CONFIDENCE_OF, -0.2 * shift), (Measure.DELAY_OF, 2.0 * shift), (Measure.CONFIDENCE_CHANGE, damage)
            )
        ]
    )  # fmt: skip
    frames = {"records": answers, "results": results, "sinks": sinks, "pairs": pairs}
    found = collect(frames, {"a": Studied("llada"), "b": Studied("causal")})
    assert not any(one.bears for one in found)
    published = collect(frames, {"a": Studied("llada", "", True), "b": Studied("causal", "", True)})
    assert {one.about for one in published if not one.bears} == {"blimp"}  # a task that is not in the paper
    assert all(one.bears for one in published if one.about != "blimp")
    graded = [one for one in found if one.kind == Kind.ACCURACIES]
    assert [(one.subject, one.about, one.guess) for one in graded] == [
        ("a", "gsm8k", 0.0), ("a", "blimp", 0.5), ("b", "gsm8k", 0.0), ("b", "blimp", 0.5)
    ]  # fmt: skip
    assert set(graded[0].runs) == {
        "none", "top:1", "random(top:1)", "window:8", "window:8,first=4", WINDOW, WINDOW_FIRST
    }  # fmt: skip
    assert [one.runs["top:1"].hits for one in graded[1:2]] == [0.7]
    assert graded[0].other("causal").about == "gsm8k"
    assert [(one.about, one.n) for one in found if one.kind == Kind.TRACES] == [
        ("generations, gsm8k", 5), ("sequences, gsm8k", 5)
    ]  # fmt: skip
    judged = judge(found)
    assert len(judged["robust-1"]["a"]) == len(judged["present"]["a"]) == 2
    (sure,) = judged["confidence"]["a"]
    assert sure.status == Status.SUPPORTED
    assert sure.about == "top:1 beside random(top:5) and random(top:10), short"
    assert [sure.number(Measure.DAMAGE, of).value for of in BEYOND] == pytest.approx([11 / 15, 19 / 15])
    assert sure.estimate.value == pytest.approx(-0.2 * (1 - 0.3))  # half way between them
    one = collect(
        frames | {"pairs": pairs[pairs["policy"] != "random(top:10)"]}, {"a": Studied("llada"), "b": Studied("causal")}
    )
    assert judge(one)["confidence"]["a"][0].reason == Reason.UNDAMAGED
    assert judged["collapse"]["b"][0].about == "gsm8k"
    assert judged["start"]["b"][0].reason == Reason.NOT_MEASURED
    assert {model: len(verdicts) for model, verdicts in diagnoses(found).items()} == {"a": 8, "b": 8}
    assert diagnoses(found)["a"][0].answer == "present"
    assert {model: verdict.of for model, verdict in needs(found).items()} == {"a": "top:1", "b": "top:1"}


@pytest.mark.parametrize(
    ("controls", "shift", "about", "reason"),
    [
        ((0.8, 1.25), 0, "random(top:1) and random(top:2)", None),
        ((1.0,), 0, "none", Reason.UNDAMAGED),  # one control cannot have done both less and more
        ((0.8,), 0, "none", Reason.UNDAMAGED),
        ((1.0, 1.25), 0, "random(top:1) and random(top:2)", None),
        ((0.8, 1.25), 9, "random(top:1) and random(top:2)", Reason.NOT_MEASURED),  # no document in common
    ],
)
def test_pairs_stand_beside_two_controls(
    controls: tuple[float, ...], shift: int, about: str, reason: Reason | None
) -> None:
    """Controls with these damages, of the policy's; shift: their documents begin so much later than its."""
    masks = {"top:1": (1.0, -0.3, 0)} | {f"random(top:{k})": (size, -0.1, shift) for k, size in enumerate(controls, 1)}
    rows = [
        {"model": "m", "decoding_name": "short", "policy": policy, "document": i + begins, "measure": name, "value": value}
        for policy, (damage, loss, begins) in masks.items()
        for i in range(6)
        for name, value in (
            (Measure.CONFIDENCE_CHANGE.named(), -0.1 * damage), (Measure.CONFIDENCE_OF.named(LESS), loss + 0.001 * i),
            (Measure.DELAY_OF.named(LESS), -10 * loss + 0.01 * i),
        )
    ]  # fmt: skip
    found = collect({"pairs": pd.DataFrame(rows)}, {"m": Studied("llada")})
    (verdict,) = judge(found)["confidence"]["m"]
    assert (verdict.about, verdict.reason) == (f"top:1 beside {about}, short", reason)
    if reason == Reason.UNDAMAGED:
        assert verdict.estimate.value == pytest.approx(-0.3, abs=0.01)  # the change itself


def test_a_table_of_passages_becomes_measures_of_texts() -> None:
    row = {"model": "m", "task": "text", "decoding_name": "reading", "document": "a"}
    passages = pd.DataFrame([{**row, "policy": "none", "nll": 3.0}, {**row, "policy": "top:1", "nll": 4.0}])
    likelihood = pd.DataFrame([{**row, "policy": "top:1", "sinks_hit": 0.8}])
    (found,) = collect({"passages": passages, "likelihood": likelihood}, {"m": Studied("dream", published=True)})
    assert not found.bears  # the paper speaks of accuracies
    assert (found.kind, found.unit, found.runs["top:1"].hits) == (Kind.TEXTS, "text", 0.8)
    assert {policy: run.scores for policy, run in found.runs.items()} == {"none": {"a": 3.0}, "top:1": {"a": 4.0}}


def test_a_model_is_compared_with_its_twin() -> None:
    """Of several causal models; without a twin, with the first."""
    models = {
        "a": Studied("sdar", "c"), "b": Studied("llada"), "d": Studied("causal"), "c": Studied("causal"),
    }  # fmt: skip
    found = collect({"records": records("abdc", ("word_problems",), ("none",))}, models)
    known = {one.subject: one for one in found}
    assert known["a"].other("causal").subject == "c"
    assert known["b"].other("causal").subject == "d"
    assert [one.subject for one in known["a"].others] == ["b", "c"]


class Asked(dict[str, Estimate]):
    """Estimates that remember what was asked for; everything is there, with an interval."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def get(self, name: str, default: object = None) -> Estimate:  # type: ignore[override]
        self.names.add(name)
        return Estimate(0.5, 0.4, 0.6)


def asked() -> Iterator[str]:
    """The name of every measure that a claim, a question of the diagnosis, or one about the inside asks for."""
    for question in (*CLAIMS, *QUESTIONS, *HOLDINGS):
        if question.kind != Kind.ACCURACIES:
            names = Asked()
            other = Measures("o", question.options.get("family", ""), estimates=names)
            question.verdict(Measures("m", kind=question.kind, prompts=9, estimates=names, others=(other,)))
            yield from names.names
    names = Asked()
    held(Measures("m", kind=Kind.INSIDE, estimates=names), probe_names())
    yield from names.names


def probed() -> Iterator[str]:
    """The names of all measures of an inspection: with labels that differ from run to run, and for every number of layers."""
    model = carrier()
    labels = {"task": ["a", "b"] * 12, "right": [0.0, 0.0, 1.0, 1.0] * 6}
    run = run_of(model, 24)
    parts = list(survey(model, run, labels=labels))
    for number, part in enumerate(parts):  # which in so small a model are the same in every run
        for label in ("answer length", "block"):
            part[Name(LABEL, label)] = part[Name(LABEL, label)] + number % 3
    for layers in range(1, len(LAYER_WORDS) + 1):
        of_layers = [
            {
                name: np.repeat(value[:, -1:], layers, 1) if name.section == VECTOR else value
                for name, value in part.items()
            }
            for part in parts
        ]
        yield from measures_of(survey_table(of_layers), void_flags(model, run)).estimates


@pytest.mark.slow
def test_no_rule_asks_for_a_measure_that_nothing_produces() -> None:
    lengths = (17, 23, 30, 41, 26, 20)
    traces = [
        synthetic.trace("newline", lengths=lengths, anatomy="hub", sigma=0.4), synthetic.trace("moving", lengths=lengths),
        synthetic.split_trace(), synthetic.trace("static", lengths=lengths).isel(step=slice(2)),
        heads.causal_trace([heads.planted(64, 0.6, [0], name, np.random.default_rng(0)) for name in heads.BACKGROUNDS]),
    ]  # fmt: skip
    learned = synthetic.trace("static", lengths=lengths)
    traces.append(learned.assign(learned_sink=learned["received"].isel(key=0).fillna(0.0) * 0 + 0.3))
    made = {str(name) for trace in traces for name in summary(trace)["measure"]}
    # Tokens of every kind, whatever their texts.
    kinds = {int(token): CATEGORIES[token % len(CATEGORIES)] for token in np.unique(traces[0]["tokens"])}
    made |= set(map(str, summary(traces[0], categories=kinds)["measure"]))
    changes = mechanisms(compare_traces(traces[0], traces[0])).assign(model="a", decoding_name="d")
    pairs = [
        changes.assign(policy=policy, document=f"d{i}", value=changes["value"].fillna(0.0) + damage + 0.01 * i)
        for policy, damage in (("top:1", -0.3), ("random(top:1)", -0.2), ("random(top:5)", -0.4)) for i in range(3)
    ]  # fmt: skip
    (paired,) = collect({"pairs": pd.concat(pairs)}, {"a": Studied("llada")})
    made |= {*changes["measure"], *paired.estimates, *probed()}
    assert sorted(set(asked()) - made) == []
