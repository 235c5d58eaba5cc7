"""What a study can decide is asked of the rules: nothing is promised that its cells leave open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sinkscope.study import spec
from sinkscope.study.cells import outline
from sinkscope.study.deciding import CONDITION, MEASURED, deciding
from sinkscope.study.facts import facts_of
from sinkscope.study.names import SINK

FROZEN = Path(__file__).parents[1] / "frozen" / "verdicts.json"
MASKS = ["none", "top:1", "random(top:1)", "random(top:1),match=mass", "top:10", "random(top:10)"]
SHORT = {"length": 32, "steps": 32}
DECODINGS = {"short": {"llada": {**SHORT, "block": 16}, "mmada": {**SHORT, "block": 32}, "causal": {"length": 32}}}


def plan(
    models: tuple[str, ...] = ("scratch", "causal"), task: str = "word_problems", **sections: Any
) -> dict[str, dict[str, str]]:
    """Part → claim → "support", "contradict", or both."""
    made = {
        kind: [{"task": task, "decodings": ["short"] if task == "word_problems" else ["scheme"], **section}]
        for kind, section in sections.items()
    }
    data = {"name": "s", "models": [f"organism/{name}" for name in models], "decodings": DECODINGS, **made}
    return read(spec.from_data(data))


def read(study: spec.Study, samples: int | None = None) -> dict[str, dict[str, str]]:
    facts = {model.name: facts_of(model, "cpu", fetch=False) for model in study.models}
    parts: dict[str, dict[str, str]] = {}
    for line in deciding(outline(study, facts, samples, exact=False)):
        if line == CONDITION:
            continue
        part, _, said = line.partition(": ")
        parts[part] = {}
        for group in said.split("; "):
            for words, what in (
                ("can support or contradict ", "both"), ("only support ", "support"), ("only contradict ", "contradict")
            ):  # fmt: skip
                if group.startswith(words):
                    parts[part] |= dict.fromkeys(group.removeprefix(words).split(", "), what)
    return parts


def test_masks_need_controls_documents_and_rivals() -> None:
    def of(*policies: str, models: tuple[str, ...] = ("scratch", "causal"), samples: int = 100) -> dict[str, str]:
        return plan(models, evaluate={"policies": list(policies), "samples": samples})["[[evaluate]] word_problems"]

    assert of(*MASKS) == {
        "robust-1": "both", "dose": "contradict", "collapse": "contradict", "rival": "contradict"
    }  # fmt: skip
    assert of(*MASKS, "random(top:10),match=mass")["dose"] == "both"
    assert "sinks" not in of(*MASKS, "top:1,effect=silence", samples=64)  # the halves of the mask are missing
    halves = ("top:1,effect=silence", "top:1,epsilon=3", "top:1,epsilon=3,among=others")
    assert of(*MASKS, *halves)["sinks"] == "contradict"  # none of our controls removed as much within a tenth
    reach = {kind: {name: mask._replace(reached=1.0) for name, mask in row.items()} for kind, row in MEASURED.items()}
    with mock.patch.dict(MEASURED, reach):
        assert of(*MASKS, *halves)["sinks"] == "both"
    assert of(*MASKS, samples=64)["robust-1"] == "contradict"  # "hardly hurts" needs 93 documents
    assert "rival" not in of(*MASKS, models=("scratch",))
    assert of(*MASKS[:3]) == {"robust-1": "both", "collapse": "contradict"}  # no control of equal attention
    assert of("none", "top:1") == {"robust-1": "support", "collapse": "contradict"}
    assert of("top:1", "random(top:1)") == {}
    assert of(*MASKS, samples=2) == {}


def test_texts_need_sixteen() -> None:
    for samples, expected in ((16, "contradict"), (15, None)):
        found = plan(task="text", evaluate={"policies": MASKS, "samples": samples})["[[evaluate]] text"]
        assert found.get("rival") == expected


def test_traces_decide_what_they_record() -> None:
    def of(**section: Any) -> dict[str, str]:
        return plan(("scratch", "multimodal"), trace={"samples": 4, "name": "t"} | section)["[[trace]] t"]

    capture = {"by_query": True}
    found = of(capture=capture)
    assert {found[name] for name in ("moving", "static", "rarer", "split", "right", "semantic")} == {"both"}
    assert "confidence" not in found
    assert "split" not in of()
    assert of(capture=capture, samples=1) == {}  # one prompt has no interval
    assert of(policies=["top:1"]) == {}
    maps = {"capture": {"level": "maps"}}
    assert of(policies=["none", "top:1", "random(top:1)", "random(top:5)"], **maps)["confidence"] == "both"
    assert "confidence" not in of(policies=["none", "top:1", "random(top:5)"], **maps)  # one control has one damage
    assert "confidence" not in of(policies=["none", "top:1", "random(top:1)", "random(top:5)"])
    lone = plan(("multimodal",), trace={"samples": 4, "name": "t"})["[[trace]] t"]
    assert "rarer" not in lone  # there is no LLaDA model beside it
    assert "right" not in lone


def test_nothing_is_decided_that_was_not_promised() -> None:
    """The default study: every claim that its results decided, and how."""
    promised = read(spec.read("organisms"), 16)
    decided = [one for one in json.loads(FROZEN.read_text(encoding="utf-8"))["claims"] if one["status"] != "undecided"]
    assert len(decided) > 10
    for one in decided:
        kind = "trace" if one["about"].startswith("generations") else "evaluate"
        name = one["about"].split(", ")[0]
        can = promised[f"[[{kind}]] {name}"][one["question"]]
        assert can == "both" or one["status"].startswith(can), one


def test_the_paper_s_central_claim_can_be_decided() -> None:
    """By the default study; not where masks and controls do what they did in models of natural text."""
    rivals = "rival", "rival-model", "rival-sink"

    def of(study: str, part: str, samples: int | None = None) -> dict[str, str]:
        found = read(spec.read(study), samples)[f"[[evaluate]] {part}"]
        return {name: found[name] for name in rivals if name in found}

    assert of("organisms", "word_problems", 16) == {"rival": "contradict", "rival-sink": "both"}
    for study, part in (("paper", "gsm8k"), ("pairs", "gsm8k"), ("pairs", "humaneval"), ("pairs", "text")):
        assert of(study, part) == {}
    for less in ({"reached": 0.8}, {"hits": 0.1, "strongest": 0.3, "sinks_removed": 0.2}):
        row = {kind: {name: mask._replace(**less) for name, mask in row.items()} for kind, row in MEASURED.items()}
        with mock.patch.dict(MEASURED, row):
            assert of("organisms", "word_problems", 16) == {}


def test_what_is_planned_is_what_was_measured() -> None:
    """Of the default study: the attention that its controls removed, and whether the strongest sinks were hit."""
    measured = json.loads(FROZEN.read_text(encoding="utf-8"))["measures"]
    for about, numbers in measured.items():
        if "accuracies" in about:
            for policy in ("top:1", SINK):
                mask = MEASURED[True, about.startswith("organism/causal")][policy]
                names = f"random({policy}),match=mass", policy
                control, own = (float(numbers[f"removed {name}"]) for name in names)
                assert mask.reached == pytest.approx(control / own, rel=0.05), (about, policy)
                assert mask.strongest == pytest.approx(float(numbers[f"strongest {policy}"]), abs=0.06), (about, policy)
