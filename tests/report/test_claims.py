"""The rules that decide on the paper's claims: noise is never support, missing controls and a floor decide nothing."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pandas as pd
import pytest
from tests.sinks import synthetic

from sinkscope.report.study import masking_rules, trace_rules
from sinkscope.report.study.claims import CLAIMS, judge, overall, tally
from sinkscope.report.study.evidence import (
    ACCURACIES,
    LEAST_TEXTS,
    PAIRS,
    TRACES,
    ModelEvidence,
    TextEvidence,
    collect,
)
from sinkscope.report.study.masking_rules import LEAST_DOCUMENTS
from sinkscope.report.study.rules import CONTRADICTED, NOT_MEASURED, OPEN, SUPPORTED, Judgement, side
from sinkscope.report.study.source import StudySource
from sinkscope.sinks import summary
from sinkscope.sinks.diagnosis import POINTS_LOST
from sinkscope.statistics import Estimate, paired_interval
from sinkscope.study import spec
from sinkscope.study.estimate import DIFFUSION, concerns

N = 100


def scores(right: int, n: int = N) -> dict[str, float]:
    """The first `right` of n documents are right: easy ones stay easy."""
    return {f"d{i}": float(i < right) for i in range(n)}


def evidence(family: str = "llada", model: str = "m", **changes: object) -> ModelEvidence:
    return ModelEvidence(model=model, family=family, **changes)  # type: ignore[arg-type]


def traced(family: str = "llada", **measures: Estimate) -> ModelEvidence:
    return evidence(
        family, kind=TRACES, measures={name.replace("_", " "): value for name, value in measures.items()}
    )


NAMES = {
    "none": "none", "top": "top:1", "count": "random(top:1)", "mass": "random(top:1),match=mass",
    "silence": "top:1,effect=silence",
}  # fmt: skip


def masked(
    hits: float = 0.9, n: int = N, family: str = "llada", model: str = "m", **right: int
) -> ModelEvidence:
    """Accuracies by policy, in documents. Names: none, top, count, mass, silence."""
    return evidence(
        family,
        model,
        scores={NAMES[key]: scores(value, n) for key, value in right.items()},
        hits={"top:1": hits},
        removed=dict.fromkeys(NAMES.values(), 0.05),
    )


def interval(low: float, high: float) -> Estimate:
    return Estimate((low + high) / 2, low, high)


@pytest.mark.parametrize(
    ("low", "high", "status"), [(0.55, 0.7, SUPPORTED), (0.2, 0.45, CONTRADICTED), (0.4, 0.6, OPEN)]
)
def test_the_whole_interval_decides(low, high, status):
    assert side(interval(low, high), 0.5, True, "said").status == status
    opposite = {SUPPORTED: CONTRADICTED, CONTRADICTED: SUPPORTED, OPEN: OPEN}
    assert side(interval(low, high), 0.5, False, "said").status == opposite[status]


def test_what_was_not_measured_or_has_no_interval_decides_nothing():
    assert side(None, 0.5, True, "") == NOT_MEASURED
    assert side(Estimate(0.9, math.nan, math.nan), 0.5, True, "0.9").status == OPEN
    for family in (*DIFFUSION, "causal"):
        for row in judge([evidence(family), traced(family), evidence(family, kind=PAIRS)]).values():
            assert all(one.status == OPEN for judgements in row.values() for one in judgements)


# ---- masking -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "status"),
    [
        ({"none": 95, "top": 95, "count": 95}, SUPPORTED),
        ({"none": 95, "top": 40, "count": 94}, CONTRADICTED),
        ({"none": 95, "top": 40, "count": 42}, OPEN),  # random keys cost as much
        ({"none": 95, "top": 40}, OPEN),  # no control
        ({"none": 95, "top": 88, "count": 95}, OPEN),  # around the limit
        ({"none": 15, "top": 15, "count": 15}, OPEN),  # nothing to lose
    ],
)
def test_robustness(right, status):
    assert masking_rules.keeps("top:1")(masked(**right)).status == status


def test_an_effect_within_noise_is_never_support_and_the_least_n_is_said():
    same = {"none": 16, "top": 16, "count": 16}
    found = masking_rules.keeps("top:1")(masked(n=16, **same))
    assert found.status == OPEN
    assert "not testable at n = 16" in found.evidence
    assert f"under {LEAST_DOCUMENTS} documents it cannot be supported" in found.evidence
    for n, status in ((LEAST_DOCUMENTS - 1, OPEN), (LEAST_DOCUMENTS, SUPPORTED)):
        assert masking_rules.keeps("top:1")(masked(n=n, none=n, top=n)).status == status
        assert paired_interval([1.0] * n, [1.0] * n).below(POINTS_LOST) == (status == SUPPORTED)


def read(
    hits: float = 0.9, family: str = "llada", model: str = "m", texts: int = 20, **nats: float
) -> TextEvidence:
    """Nats per token by policy, of texts that differ much from each other and little between policies."""
    noise = [0.02 * ((7 * i) % 5 - 2) for i in range(texts)]
    by_policy = {
        NAMES[key]: {
            f"t{i}": value + 0.3 * (i % 4) + small * (key != "none") for i, small in enumerate(noise)
        }
        for key, value in nats.items()
    }
    removed = dict.fromkeys(NAMES.values(), 0.05)
    return TextEvidence(model=model, family=family, scores=by_policy, hits={"top:1": hits}, removed=removed)


@pytest.mark.parametrize(
    ("nats", "status"),
    [
        ({"none": 3.0, "top": 3.01, "count": 3.0}, SUPPORTED),
        ({"none": 3.0, "top": 3.9, "count": 3.01}, CONTRADICTED),
        ({"none": 3.0, "top": 3.9, "count": 3.9}, OPEN),  # random keys cost as much
        ({"none": 3.0, "top": 3.9}, OPEN),  # no control
        ({"none": 3.0, "top": 3.05, "count": 3.0}, OPEN),  # around the limit, a perplexity 5 % higher
        ({"none": 7.0, "top": 7.0, "count": 7.0}, OPEN),  # nothing to lose
    ],
)
def test_texts_are_judged_by_the_same_rules(nats, status):
    assert masking_rules.keeps("top:1")(read(**nats)).status == status


def test_too_few_texts_decide_nothing():
    rule = masking_rules.keeps("top:1")
    for texts, status in ((LEAST_TEXTS, CONTRADICTED), (LEAST_TEXTS - 1, OPEN)):
        found = rule(read(none=3.0, top=3.9, count=3.01, texts=texts))
        assert found.status == status
    assert found.evidence == "15 texts, and a verdict needs at least 16"


def test_a_text_collapses_where_perplexity_doubles_and_models_are_compared_by_what_they_keep():
    collapses = masking_rules.collapses("top:1")
    found = collapses(read(none=3.0, top=3.0 + math.log(2) + 0.1, count=3.0))
    assert found.status == SUPPORTED
    assert "left of a token's probability (3.45 nats)" in found.evidence
    assert collapses(read(none=3.0, top=3.0 + math.log(2) - 0.1, count=3.0)).status == CONTRADICTED
    causal = read(family="causal", model="c", none=3.0, top=4.0, count=3.01)
    for top, status in ((3.3, SUPPORTED), (4.5, CONTRADICTED), (4.0, OPEN)):
        twin = read(family="dream", none=3.0, top=top, count=3.01)
        assert masking_rules.loses_more(causal, twin, "top:1").status == status
    explained = read(none=3.0, top=4.0, count=3.01, mass=3.2, silence=3.9)
    assert masking_rules.due_to_sinks("top:1")(explained).status == SUPPORTED


def test_a_table_of_passages_becomes_evidence_of_its_own():
    row = {"model": "m", "task": "text", "decoding_name": "reading", "document": "a"}
    frames = {
        "passages": pd.DataFrame(
            [{**row, "policy": "none", "nll": 3.0}, {**row, "policy": "top:1", "nll": 4.0}]
        ),
        "likelihood": pd.DataFrame([{**row, "policy": "top:1", "sinks_hit": 0.8}]),
    }
    study = spec.from_data({"name": "s", "models": ["m"], "evaluate": [{"task": "text"}]})
    found = collect(StudySource(Path(), study, frames, {"models": {"m": {"family": "dream"}}}))
    assert [type(one) for one in found] == [TextEvidence]
    assert found[0].kind == ACCURACIES
    assert found[0].scores == {"none": {"a": 3.0}, "top:1": {"a": 4.0}}
    assert found[0].hits == {"top:1": 0.8}


def test_robustness_needs_a_mask_that_hit_the_sinks():
    right = {"none": 95, "top": 95}
    assert masking_rules.keeps("top:1")(masked(hits=0.9, **right)).status == SUPPORTED
    missed = masking_rules.keeps("top:1")(masked(hits=0.1, **right))
    assert missed.status == OPEN
    assert "only 10% of the sinks were hidden" in missed.evidence
    unknown = evidence(scores={"none": scores(95), "top:1": scores(95)})
    assert "unknown share" in masking_rules.keeps("top:1")(unknown).evidence


@pytest.mark.parametrize(
    ("right", "status"),
    [
        ({"none": 95, "top": 3, "count": 90}, SUPPORTED),
        ({"none": 95, "top": 3, "count": 4}, OPEN),
        ({"none": 95, "top": 3}, OPEN),
        ({"none": 95, "top": 85, "count": 90}, CONTRADICTED),
        ({"none": 95, "top": 48, "count": 90}, OPEN),
        ({"none": 12, "top": 0, "count": 12}, OPEN),
    ],
)
def test_collapse(right, status):
    assert masking_rules.collapses("top:1")(masked(family="causal", **right)).status == status


def test_choices_cannot_collapse_below_guessing():
    """Of two choices guessing leaves more than half of any accuracy; of four it leaves room."""
    collapses, left = (
        masking_rules.collapses("top:1"),
        masked(family="causal", none=79, top=60, count=75, hits=0.9),
    )
    assert collapses(left).status == CONTRADICTED
    found = collapses(ModelEvidence(**{**vars(left), "about": "blimp, grammar"}))
    assert found.status == OPEN
    assert "guessing" in found.evidence
    assert collapses(ModelEvidence(**{**vars(left), "about": "sciq"})).status == CONTRADICTED


@pytest.mark.parametrize("reached", [None, 0.01, 0.04, 0.06, 0.2])
def test_a_control_that_removes_other_attention_decides_nothing_about_sinks(reached: float | None) -> None:
    """Harm in proportion to the attention that is removed, from whatever keys: a control with less of it loses less."""
    rule = masking_rules.due_to_sinks("top:1")
    removed = {"top:1": 0.05} | ({} if reached is None else {NAMES["mass"]: reached})
    kinder, crueller = (
        ModelEvidence(
            **{**vars(masked(none=95, top=30, count=93, mass=mass, silence=35)), "removed": removed}
        )
        for mass in (80, 28)
    )
    more = reached is not None and reached > 0.05
    assert rule(kinder).status == (SUPPORTED if more else OPEN)
    assert rule(crueller).status == (OPEN if more or reached is None else CONTRADICTED)


def test_a_collapse_is_one_of_sinks_only_where_the_strongest_one_was_masked():
    """Random keys with as much attention break the model more: that stands beside the verdict."""
    collapses, known = masking_rules.collapses("top:1"), masked(hits=0.23, none=95, top=20, count=90, mass=5)
    missed = collapses(known)
    assert missed.status == OPEN
    assert "only 23%" in missed.evidence
    unknown = collapses(ModelEvidence(**{**vars(known), "hits": {}}))
    assert (unknown.status, "an unknown share" in unknown.evidence) == (OPEN, True)
    found = collapses(ModelEvidence(**{**vars(known), "strongest": {"top:1": 0.9}}))
    assert found.status == SUPPORTED
    assert "masked in 90% of heads" in found.evidence
    assert "−15 points" in found.evidence
    assert "random keys with as much attention" in found.evidence


@pytest.mark.parametrize(
    ("right", "status", "word"),
    [
        ({"none": 95, "top": 30, "count": 93, "mass": 80, "silence": 35}, SUPPORTED, "silence"),
        ({"none": 95, "top": 30, "count": 93, "silence": 35}, OPEN, "match=mass"),
        ({"none": 95, "top": 30, "count": 93, "mass": 30, "silence": 35}, CONTRADICTED, "loses as much"),
        ({"none": 95, "top": 2, "count": 93, "mass": 2, "silence": 35}, OPEN, "too little to lose more"),
        ({"none": 95, "top": 30, "count": 93, "mass": 80, "silence": 95}, OPEN, "silence disagrees"),
        ({"none": 95, "top": 94, "count": 93, "mass": 93, "silence": 95}, OPEN, "no loss is certain"),
    ],
)
def test_a_loss_is_the_sinks_only_when_both_controls_and_silence_agree(right, status, word):
    found = masking_rules.due_to_sinks("top:1")(masked(**right))
    assert found.status == status
    assert word in found.evidence


@pytest.mark.parametrize(
    ("one", "many", "control", "status"),
    [
        (90, 40, 85, SUPPORTED),
        (90, 40, 41, OPEN),  # the control of top:10 loses as much
        (90, 90, 90, CONTRADICTED),
        (90, 82, 90, OPEN),
        (0, 0, 80, OPEN),  # nothing is left under top:1, so nothing more can be lost
        (4, 4, 80, OPEN),
    ],
)
def test_ten_against_one(one, many, control, status):
    right = {"none": 95, "top:1": one, "top:10": many, "random(top:10)": control}
    found = evidence(scores={k: scores(v) for k, v in right.items()}, hits={"top:10": 0.9})
    assert masking_rules.worse("top:10", "top:1")(found).status == status


def rival(own: ModelEvidence, causal: ModelEvidence) -> tuple[str, str]:
    found = masking_rules.loses_less_than_causal("top:1")(
        ModelEvidence(**{**vars(own), "others": (causal,)})  # frozen: a copy with its rival
    )
    return found.status, found.evidence


def test_two_models_are_compared_relative_to_their_bases_with_both_gates():
    causal = masked(family="causal", model="c", none=95, top=3, count=90)
    robust = masked(none=93, top=90, count=92)
    assert rival(robust, causal)[0] == SUPPORTED
    assert (
        rival(
            masked(none=93, top=2, count=90), masked(family="causal", model="c", none=95, top=93, count=95)
        )[0]
        == CONTRADICTED
    )
    # Floor: a base of 30 and one of 95, both to nothing. In points one loses three times as much; it is the same loss.
    floor = masked(none=30, top=0, count=28)
    assert rival(floor, masked(family="causal", model="c", none=95, top=0, count=90))[0] == OPEN
    # Both lose a third of what they had.
    assert (
        rival(
            masked(none=30, top=20, count=30), masked(family="causal", model="c", none=96, top=64, count=96)
        )[0]
        == OPEN
    )
    for changed, word in (
        (masked(hits=0.05, none=93, top=90, count=92), "only 5%"),
        (masked(none=93, top=90), "no random(top:1)"),
        (masked(none=10, top=9, count=9), "nothing to lose"),
    ):
        status, said = rival(changed, causal)
        assert (status, word in said) == (OPEN, True), said
        status, said = rival(robust, ModelEvidence(**{**vars(changed), "family": "causal", "model": "c"}))
        assert (status, word in said) == (OPEN, True), said
    # A causal model that loses as much under random keys does not lose because of its sinks.
    assert rival(robust, masked(family="causal", model="c", none=95, top=3, count=4))[0] == OPEN
    alone = masking_rules.loses_less_than_causal("top:1")(robust)
    assert alone.status == OPEN
    assert "no causal model" in alone.evidence


def test_mostly_in_one_model():
    def study(own: tuple[int, int], *others: tuple[int, int]) -> str:
        models = [
            evidence(
                family, family, hits={"top:10": 0.8},
                scores={"none": scores(base, 400), "top:10": scores(left, 400), "random(top:10)": scores(base, 400)},
            )
            for family, (base, left) in zip(("mmada", "llada", "dream"), (own, *others), strict=False)
        ]  # fmt: skip
        first = ModelEvidence(**{**vars(models[0]), "others": tuple(models[1:])})
        return masking_rules.loses_most("top:10", DIFFUSION)(first).status

    assert study((220, 60), (300, 280), (320, 300)) == SUPPORTED
    # The paper's own table: LLaDA .76 to .55 and MMaDA .54 to .37 lose about as much of what they had.
    assert study((216, 148), (304, 220), (328, 300)) == OPEN
    assert study((216, 210), (304, 100), (328, 300)) == CONTRADICTED
    assert study((216, 60)) == OPEN


# ---- traces --------------------------------------------------------------------------------------


def test_drift_has_a_direction_a_size_an_event_and_no_ties():
    def drift(low: float, high: float, ties: float = 0.0, p: float = 0.01) -> ModelEvidence:
        return evidence(
            kind=TRACES,
            measures={
                "drift against position": interval(low, high),
                "tied selections": Estimate(ties, math.nan, math.nan),
                "moves as a block ends: p": Estimate(p, math.nan, math.nan),
            },
        )

    left = trace_rules.drifts(-1)
    assert left(drift(-0.4, -0.2)).status == SUPPORTED
    assert left(drift(0.2, 0.4)).status == CONTRADICTED
    assert left(drift(-0.05, 0.05)).status == CONTRADICTED
    assert left(drift(-0.3, 0.06)).status == OPEN
    assert left(drift(-0.3, -0.02)).status == OPEN  # certainly to the left, not certainly by a tenth
    assert left(drift(-0.4, -0.2, ties=0.37)).status == OPEN
    right = trace_rules.drifts(+1, "moves as a block ends")
    assert right(drift(0.2, 0.4)).status == SUPPORTED
    assert right(drift(0.2, 0.4, p=0.4)).status == OPEN  # it drifts, but not as blocks are finished
    assert right(drift(0.2, 0.4, p=math.nan)).status == OPEN
    assert right(drift(-0.2, 0.0, p=0.4)).status == CONTRADICTED


@pytest.mark.parametrize(
    ("moved", "static", "status"),
    [
        ((0.6, 0.8), (0.0, 0.1), SUPPORTED),
        ((0.0, 0.1), (0.6, 0.8), CONTRADICTED),
        ((0.0, 0.1), (0.0, 0.1), OPEN),  # noise flickers: neither moving nor static
        ((0.4, 0.6), (0.2, 0.4), OPEN),
    ],
)
def test_not_static_is_not_moving(moved, static, status):
    measures = {"moving or vanishing heads": interval(*moved), "static heads": interval(*static)}
    one = evidence(kind=TRACES, measures=measures)
    assert trace_rules.kinds(moving=True)(one).status == status
    opposite = {SUPPORTED: CONTRADICTED, CONTRADICTED: SUPPORTED, OPEN: OPEN}
    assert trace_rules.kinds(moving=False)(one).status == opposite[status]


def test_without_sinks_there_is_nothing_to_describe():
    """A last layer without any sink does not have "one or two"; a model without sinks is not described at all."""
    claim = next(claim for claim in CLAIMS if claim.name == "few")
    name = "one or two positions in the deepest layers"
    assert claim.decide(evidence(kind=TRACES, measures={name: interval(0.0, 0.1)})).status == CONTRADICTED
    none = {name: interval(0.0, 0.1), "heads without": interval(0.995, 1.0)}
    found = claim.decide(evidence(kind=TRACES, measures=none))
    assert (found.status, found.evidence) == (OPEN, "it has no sinks to describe")
    present = next(claim for claim in CLAIMS if claim.name == "present")
    assert present.decide(evidence(kind=TRACES, measures=none)).status == CONTRADICTED


def test_masks_are_judged_by_enrichment():
    """A third of the sinks on masks means nothing where a third of the text is masks."""
    claim = next(claim for claim in CLAIMS if claim.name == "masks")
    measures = {"mask: frequency": interval(0.31, 0.35), "mask: enrichment": interval(0.95, 1.05)}
    assert claim.decide(evidence(kind=TRACES, measures=measures)).status == OPEN
    measures["mask: enrichment"] = interval(1.4, 1.8)
    found = claim.decide(evidence(kind=TRACES, measures=measures))
    assert found.status == SUPPORTED
    assert "33 % (31 to 35) of detections" in found.evidence


def test_rarer_than_the_other_model():
    def one(family: str, low: float, high: float) -> ModelEvidence:
        return evidence(family, family, kind=TRACES, measures={"sinks per head": interval(low, high)})

    def status(own: ModelEvidence, *others: ModelEvidence) -> str:
        return trace_rules.rarer("llada")(ModelEvidence(**{**vars(own), "others": others})).status

    assert status(one("mmada", 0.1, 0.2), one("llada", 0.5, 0.8)) == SUPPORTED
    assert status(one("mmada", 0.5, 0.8), one("llada", 0.1, 0.2)) == CONTRADICTED
    assert status(one("mmada", 0.4, 0.6), one("llada", 0.45, 0.7)) == OPEN
    assert status(one("mmada", 0.1, 0.2), one("dream", 0.5, 0.8)) == OPEN


def test_semantic_or_positional_by_intervals():
    def lead(semantic: tuple[float, float], positional: tuple[float, float]) -> str:
        measures = {
            "gain: category − 2 × position": interval(*semantic),
            "gain: position − 2 × category": interval(*positional),
        }
        return trace_rules.leads("semantic", "positional")(evidence(kind=TRACES, measures=measures)).status

    assert lead((0.1, 0.2), (-0.5, -0.3)) == SUPPORTED
    assert lead((-0.5, -0.3), (0.1, 0.2)) == CONTRADICTED
    assert lead((-0.1, 0.2), (-0.5, -0.3)) == OPEN
    assert lead((math.nan, math.nan), (math.nan, math.nan)) == OPEN


def test_dependent_tokens():
    def pairs(confidence: tuple[float, float], delay: tuple[float, float]) -> str:
        tail = "of dependent less other tokens"
        measures = {f"confidence change {tail}": interval(*confidence), f"delay {tail}": interval(*delay)}
        return trace_rules.later_and_less_sure()(evidence(kind=PAIRS, measures=measures)).status

    assert pairs((-0.2, -0.1), (1.0, 3.0)) == SUPPORTED
    assert pairs((0.1, 0.2), (1.0, 3.0)) == CONTRADICTED
    assert pairs((-0.2, 0.1), (1.0, 3.0)) == OPEN


# ---- the list ------------------------------------------------------------------------------------


def test_every_claim_is_about_a_known_family_and_says_how_it_is_decided():
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)
    assert {"rarer", "rightmost", "mostly", "split", "late", "confidence"} <= {claim.name for claim in CLAIMS}
    for claim in CLAIMS:
        assert set(claim.families) <= {"llada", "dream", "mmada", "causal"}
        assert claim.kind in (ACCURACIES, TRACES, PAIRS)
        assert claim.rule
        assert claim.measured
        assert re.search(r"sec|tab|fig|app|abstract|paper", claim.where), claim.name
        assert "not tabulated" not in claim.measured + claim.rule
    found = judge([evidence("causal"), ModelEvidence(model="n", family="dream")])
    assert found["collapse"]["m"]
    assert found["collapse"]["n"] == ()
    assert found["left"]["m"] == ()


def test_every_task_is_judged():
    """HumanEval's half of table 1 counts as well as GSM8K's."""
    tasks = [
        ModelEvidence(**{**vars(masked(none=95, top=top, count=94)), "about": task})
        for task, top in (("gsm8k", 95), ("humaneval", 40))
    ]
    found = judge(tasks)["robust-1"]["m"]
    assert [(one.about, one.status) for one in found] == [("gsm8k", SUPPORTED), ("humaneval", CONTRADICTED)]


class Asked(dict):  # type: ignore[type-arg]
    """Scores that remember which policies were asked for."""

    def __init__(self, known: dict[str, dict[str, float]]) -> None:
        super().__init__(known)
        self.names: set[str] = set()

    def get(self, name, default=None):  # type: ignore[no-untyped-def]
        self.names.add(name)
        return super().get(name, default)

    def __getitem__(self, name):  # type: ignore[no-untyped-def]
        self.names.add(name)
        return super().__getitem__(name)


@pytest.mark.parametrize(
    "claim", [claim for claim in CLAIMS if claim.kind == ACCURACIES], ids=lambda claim: claim.name
)
def test_a_claim_names_all_policies_that_its_rule_compares(claim):
    """Its verdict says how many documents ran here under all of these."""
    for top in (95, 40, 0):
        known = {
            policy: scores(95 if policy == "none" or "random" in policy else top) for policy in claim.policies
        }
        asked = Asked(known)
        others = (evidence("causal", "c", scores=known, hits=dict.fromkeys(known, 0.9)),)
        others += tuple(
            evidence(family, family, scores=known, hits=dict.fromkeys(known, 0.9)) for family in DIFFUSION
        )
        claim.decide(evidence(claim.families[0], scores=asked, hits=dict.fromkeys(known, 0.9), others=others))
        assert asked.names <= set(claim.policies)


def test_a_verdict_says_how_many_documents_it_rests_on():
    """Run here counts only documents that ran under every policy that the rule compares."""
    plain = masked(none=95, top=40, count=94)
    assert judge([plain])["robust-1"]["m"][0].rests == "100 documents"
    here = frozenset(f"d{i}" for i in range(16))
    mixed = ModelEvidence(**{**vars(plain), "ran": {"none": here, "top:1": here}})
    said = "100 documents, 16 of them run here, but not under random(top:1)"
    assert judge([mixed])["robust-1"]["m"][0].rests == said
    never = ModelEvidence(**{**vars(plain), "ran": {"top:5": here}, "aside": "; checked elsewhere"})
    assert (
        judge([never])["robust-1"]["m"][0].rests == "100 documents, none of them run here; checked elsewhere"
    )
    mixed = ModelEvidence(**{**vars(plain), "ran": dict.fromkeys(("none", "top:1", "random(top:1)"), here)})
    assert judge([mixed])["robust-1"]["m"][0].rests == "100 documents, 16 of them run here"
    assert judge([mixed])["robust-5"]["m"][0].rests == ""
    causal = masked(none=95, top=40, count=94, n=120, family="causal", model="c")
    pair = ModelEvidence(**{**vars(mixed), "others": (causal,)})
    assert judge([pair])["rival"]["m"][0].rests == "100 documents, 16 of them run here; c: 120 documents"


def test_fewer_documents_under_a_policy_that_a_claim_does_not_compare_take_none_away():
    few = ModelEvidence(**{**vars(masked(none=95, top=40, count=94)), "ran": {}})
    few = ModelEvidence(**{**vars(few), "scores": {**few.scores, "top:5": scores(3, 4)}})
    judged = judge([few])
    assert judged["robust-1"]["m"][0].rests.startswith("100 documents")
    assert judged["robust-5"]["m"][0].rests.startswith("4 documents")


def test_a_claim_on_a_model_is_decided_when_no_task_says_the_opposite():
    one, other = Judgement(SUPPORTED, ""), Judgement(CONTRADICTED, "")
    assert overall([one, NOT_MEASURED]) == SUPPORTED
    assert overall([other, other]) == CONTRADICTED
    assert overall([one, other]) == overall([NOT_MEASURED]) == OPEN
    found = tally({"x": {"m": (one, other), "n": (one, one), "o": ()}, "y": {"m": (NOT_MEASURED,)}})
    assert (found.decided, found.claims.total(), found.verdicts.total()) == (1, 3, 5)
    assert found.sentence.startswith("1 of 3 claims are decided (1 supported, 0 contradicted)")
    assert found.sentence.endswith("task by task these are 5 verdicts, 4 of them decided")
    assert tally({}).sentence == ""


def test_all_tasks_and_sets_of_traces_of_a_study_become_evidence(tmp_path):
    """The tables of a study with two tasks, two sets of traces and pairs: each is judged, models beside each other."""
    study = spec.from_data(
        {"name": "s", "models": [{"source": name, "name": name} for name in ("a", "b")],
         "evaluate": [{"task": "gsm8k", "samples": 2}]}
    )  # fmt: skip
    records = pd.DataFrame(
        [
            {"model": model, "task": task, "decoding_name": "short", "policy": policy, "document": f"d{i}", "passed": i % 2 == 0}
            for model in ("a", "b") for task in ("gsm8k", "humaneval")
            for policy in ("none", "top:1", "random(top:1)", "random(top:1),seed=1") for i in range(4)
        ]
    )  # fmt: skip
    results = pd.DataFrame(
        [{"model": "a", "task": "humaneval", "decoding_name": "short", "policy": "top:1", "sinks_hit": 0.7}]
    )
    sinks = pd.DataFrame(
        [
            {"model": "a", "policy": "none", "cell": cell, "traces": name, "task": "gsm8k", "measure": "heads without",
             "value": 0.3, "low": 0.2, "high": 0.4, "note": "", "unit": "share of head-steps"}
            for cell, name in (("1", "generations"), ("2", "sequences"))
        ]
    )  # fmt: skip
    tail = "of dependent less other tokens"
    pairs = pd.DataFrame(
        [
            {"model": "a", "decoding_name": "short", "policy": policy, "document": f"d{i}", "measure": f"{title} {tail}",
             "value": value + 0.01 * i}
            for policy, shift in (("top:1", 1.0), ("random(top:1)", 0.0)) for i in range(6)
            for title, value in (("confidence change", -0.2 * shift), ("delay", 2.0 * shift))
        ]
    )  # fmt: skip
    frames = {"records": records, "results": results, "sinks": sinks, "pairs": pairs}
    families = {"a": {"family": "llada"}, "b": {"family": "causal"}}
    found = collect(StudySource(tmp_path, study, frames, {"models": families}))
    answered = [one for one in found if one.kind == ACCURACIES]
    assert [(one.model, one.about) for one in answered] == [
        ("a", "gsm8k"),
        ("a", "humaneval"),
        ("b", "gsm8k"),
        ("b", "humaneval"),
    ]
    assert set(answered[0].scores) == {"none", "top:1", "random(top:1)"}
    assert [one.hits for one in answered[:2]] == [{}, {"top:1": 0.7}]
    assert answered[0].other("causal") is not None
    assert answered[0].other("causal").about == "gsm8k"
    assert [one.about for one in found if one.kind == TRACES] == ["generations, gsm8k", "sequences, gsm8k"]
    judged = judge(found)
    assert len(judged["robust-1"]["a"]) == len(judged["present"]["a"]) == 2
    assert judged["confidence"]["a"][0].status == SUPPORTED
    assert judged["collapse"]["b"][0].about == "gsm8k"
    assert judged["start"]["b"] == (NOT_MEASURED,)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.8, 1.5])
def test_noise_supports_nothing_about_movement_or_matter(sigma):
    """Traces of independent noise through the whole analysis: it has sinks by the rule, and nothing else is said of them."""
    lengths = (17, 23, 30, 41, 26, 35, 20, 28)
    table = summary(synthetic.trace("none", sigma=sigma, lengths=lengths, layers=4, heads=4))
    measures = {
        row["measure"]: Estimate(row["value"], row["low"], row["high"]) for row in table.to_dict("records")
    }
    for family in DIFFUSION:
        judged = judge([evidence(family, kind=TRACES, measures=measures)])
        found = {name: row["m"][0].status for name, row in judged.items() if row["m"]}
        for name in ("moving", "static", "semantic", "positional"):
            assert found.get(name, OPEN) == OPEN, name
        for name in (
            "right",
            "left",
            "rightmost",
            "start",
            "lasting",
            "newline",
            "punctuation",
            "masks",
            "early",
            "late",
        ):
            assert found.get(name, OPEN) != SUPPORTED, name
        assert found["present"] == SUPPORTED


def test_a_model_is_compared_with_its_twin() -> None:
    """Of several causal models; without a twin, with the first."""
    models = [
        {"source": "organism/scratch", "name": "a", "twin": "c"}, {"source": "organism/scratch", "name": "b"},
        {"source": "organism/causal", "name": "d"}, {"source": "organism/causal", "name": "c"},
    ]  # fmt: skip
    study = spec.from_data(
        {"name": "s", "models": models, "evaluate": [{"task": "word_problems", "samples": 4}]}
    )
    row = {"task": "word_problems", "decoding_name": "x", "policy": "none", "document": "1", "passed": True}
    frame = pd.DataFrame([{"model": model["name"], **row} for model in models])
    families = {"a": "sdar", "b": "llada", "c": "causal", "d": "causal"}
    manifest = {"models": {name: {"family": family} for name, family in families.items()}}
    known = {one.model: one for one in collect(StudySource(Path(), study, {"records": frame}, manifest))}
    assert known["a"].other("causal").model == "c"
    assert known["b"].other("causal").model == "d"
    assert [one.model for one in known["a"].others] == ["b", "c"]


def test_claims_on_all_diffusion_models_are_about_every_such_family() -> None:
    claims = {claim.name: claim.families for claim in CLAIMS}
    for family in ("sdar", "llada2", "a2d", "llada"):
        assert concerns(claims["robust-1"], family)
        assert concerns(claims["rival"], family)
    assert not concerns(claims["rarer"], "sdar")
    assert not concerns(claims["robust-1"], "causal")
