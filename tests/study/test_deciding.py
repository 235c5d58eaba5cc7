"""What a study can decide is asked of the claims' data and rules: nothing is promised that its cells leave open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sinkscope.study import spec
from sinkscope.study.cells import outline
from sinkscope.study.deciding import CONDITION, LEAST_PROMPTS, Decides, deciding, sentences
from sinkscope.study.facts import facts_of

FROZEN = Path(__file__).parents[1] / "frozen" / "verdicts.json"
MASKS = ["none", "top:1", "random(top:1)", "random(top:1),match=mass", "top:10", "random(top:10)"]
SHORT = {"length": 32, "steps": 32}
DECODINGS = {"short": {"llada": {**SHORT, "block": 16}, "mmada": {**SHORT, "block": 32}, "causal": {"length": 32}}}


def plan(
    models: tuple[str, ...] = ("scratch", "causal"), task: str = "word_problems", **sections: Any
) -> dict[str, Decides]:
    """Claim → from when on the study's only part decides it."""
    made = {
        kind: [{"task": task, "decodings": ["short"] if task == "word_problems" else ["scheme"], **section}]
        for kind, section in sections.items()
    }
    data = {"name": "s", "models": [f"organism/{name}" for name in models], "decodings": DECODINGS, **made}
    return {decided.claim: decided for decided in asked(spec.from_data(data))}


def asked(study: spec.Study, samples: int | None = None) -> list[Decides]:
    facts = {model.name: facts_of(model, "cpu", fetch=False) for model in study.models}
    return deciding(outline(study, facts, samples, exact=False))


def test_masks_need_controls_documents_and_rivals() -> None:
    def of(*policies: str, models: tuple[str, ...] = ("scratch", "causal")) -> dict[str, str]:
        found = plan(models, evaluate={"policies": list(policies), "samples": 100})
        ends = {name: (decided.supported, decided.contradicted) for name, decided in found.items()}
        return {
            name: {(1, 1): "both", (1, 0): "support", (0, 1): "contradict"}[bool(a), bool(b)]
            for name, (a, b) in ends.items()
        }

    assert of(*MASKS) == {"robust-1": "both", "dose": "contradict", "collapse": "both", "rival": "both"}
    assert of(*MASKS, "random(top:10),match=mass")["dose"] == "both"
    assert "sinks" not in of(*MASKS)
    assert of(*MASKS, "top:1,effect=silence")["sinks"] == "contradict"  # the halves of the mask are missing
    halves = ("top:1,effect=silence", "top:1,epsilon=3", "top:1,epsilon=3,among=others")
    assert of(*MASKS, *halves)["sinks"] == "both"
    assert "rival" not in of(*MASKS, models=("scratch",))
    assert of(*MASKS[:3]) == {"robust-1": "both", "collapse": "contradict"}  # no control of equal attention
    assert of("none", "top:1") == {"robust-1": "support", "collapse": "contradict"}
    assert of("top:1", "random(top:1)") == {}


def test_the_least_that_a_rule_asks_for_is_named() -> None:
    robust = plan(evaluate={"policies": MASKS, "samples": 64})["robust-1"]
    assert (robust.documents, robust.supported) == (64, 93)  # "hardly hurts" needs 93 documents
    assert robust.contradicted in range(3, 16)
    for decided in plan(task="text", evaluate={"policies": MASKS, "samples": 4}).values():
        assert {decided.supported, decided.contradicted} <= {16, None}
    said = list(sentences([robust]))
    assert said[0] == "[[evaluate]] word_problems, 64 documents, can decide"
    assert said[1:] == [f"  robust-1: supported from 93 on, contradicted from {robust.contradicted} on", CONDITION]


def test_traces_decide_what_they_record() -> None:
    def of(models: tuple[str, ...] = ("scratch", "multimodal"), **section: Any) -> dict[str, Decides]:
        return plan(models, trace={"samples": 4, "name": "t"} | section)

    capture = {"by_query": True}
    found = of(capture=capture)
    assert {"moving", "static", "rarer", "split", "right", "semantic"} <= set(found)
    assert {(decided.supported, decided.contradicted) for decided in found.values()} == {(LEAST_PROMPTS, LEAST_PROMPTS)}
    assert CONDITION not in sentences(list(found.values()))
    assert "confidence" not in found
    assert "split" not in of()
    assert of(policies=["top:1"]) == {}
    maps = {"capture": {"level": "maps"}}
    assert "confidence" in of(policies=["none", "top:1", "random(top:1)", "random(top:5)"], **maps)
    assert "confidence" not in of(policies=["none", "top:1", "random(top:5)"], **maps)  # one control has one damage
    assert "confidence" not in of(policies=["none", "top:1", "random(top:1)", "random(top:5)"])
    assert "rarer" not in of(("multimodal",))  # there is no LLaDA model beside it
    assert "right" not in of(("multimodal",))  # its decoding has one block


def test_nothing_is_decided_that_was_not_promised() -> None:
    """The default study: every claim that its results decided, how, and on how many documents."""
    promised = {(each.part, each.claim): each for each in asked(spec.read("organisms"), 16)}
    decided = [one for one in json.loads(FROZEN.read_text(encoding="utf-8"))["claims"] if one["status"] != "undecided"]
    assert len(decided) > 10
    for one in decided:
        kind = "trace" if one["about"].startswith("generations") else "evaluate"
        name = one["about"].split(", ")[0]
        least = getattr(promised[f"[[{kind}]] {name}", one["question"]], one["status"])
        assert least in range(one["n"] + 1), one


def test_the_paper_s_central_claim_can_be_decided() -> None:
    """By the default study; the others ask for it where their masks and controls do what a rule asks for."""
    parts = {"organisms": "word_problems", "paper": "gsm8k", "pairs": "text"}
    for study, task in parts.items():
        least = {each.claim: each for each in asked(spec.read(study), 16) if each.part == f"[[evaluate]] {task}"}
        asked_for = range(least["rival"].documents + 1)
        assert least["rival"].supported in asked_for, study
        assert least["rival"].contradicted in asked_for, study
    results = json.loads(FROZEN.read_text(encoding="utf-8"))["claims"]
    assert any(one["question"] == "rival-sink" and one["status"] != "undecided" for one in results)
