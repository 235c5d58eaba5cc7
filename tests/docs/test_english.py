"""The numbers in the tables of docs/english.md, and differences in its text, are those of the shipped tables."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from tests.helpers.pages import ROOT, tables

from sinkscope.report.study.claims import CLAIMS
from sinkscope.statistics import mean_difference
from sinkscope.statistics.interval import mean_interval

PAGE = "docs/english.md"
NUMBER = re.compile(r"−?\d*\.\d+|\d+(?= %)")
MASS, SILENT = "random(top:1),match=mass", "top:1,effect=silence"
MODELS = {
    "SmolLM2": ("smollm2",),
    "continued, LoRA": tuple(f"continued-lora-{seed}" for seed in range(3)),
    "continued, all weights": tuple(f"continued-full-{seed}" for seed in range(3)),
    "twin, LoRA": tuple(f"twin-lora-{seed}" for seed in range(3)),
    "twin, all weights": tuple(f"twin-full-{seed}" for seed in range(3)),
    "twin, random weights": tuple(f"twin-random-{seed}" for seed in range(3)),
}
FULL, CONTINUED = MODELS["twin, all weights"], MODELS["continued, all weights"]
READINGS = {
    "a tenth masked": "tenth",
    "a quarter masked": "quarter",
    "half masked": "half",
    "three quarters masked": "three-quarters",
    "nine tenths masked": "nine-tenths",
    "own order": "denoising",
    "bound": "bound",
}
Row = dict[str, str]
Cost = Callable[[str, str, str], float]


def rows(name: str) -> list[Row]:
    file = ROOT / "lab" / "english" / name
    text = gzip.decompress(file.read_bytes()).decode() if file.suffix == ".gz" else file.read_text("utf-8")
    return list(csv.DictReader(text.splitlines()))


def likelihoods(*files: str) -> dict[tuple[str, str, str], Row]:
    """Model, reading and policy → the row; the reading with half of the tokens masked has another name in the first table."""
    named = {"masked": "half"}
    found = [row for file in files for row in rows(file)]
    return {
        (row["model"], named.get(row["decoding_name"], row["decoding_name"]), row["policy"]): row
        for row in found
    }


def interval(row: Row, stem: str) -> list[float]:
    return [float(row[name]) for name in (stem, f"{stem}_low", f"{stem}_high")]


def over_seeds(values: Sequence[float]) -> list[float]:
    """Mean and Student's 95 % interval."""
    return list(mean_interval(values))


def same(text: str, expected: Sequence[float]) -> bool:
    """The numbers of a cell, each to the digits that it shows."""
    shown = NUMBER.findall(text)
    near = [0.51 * 10.0 ** -len(number.partition(".")[2]) for number in shown]
    values = [float(number.replace("−", "-")) for number in shown]
    return len(values) == len(expected) and all(
        abs(value - truth) < limit for value, truth, limit in zip(values, expected, near, strict=True)
    )


def over_mass(passages: list[Row]) -> list[float]:
    """What top:1 costs more than the mass-matched control, paired by passage; draws are averaged first."""
    draws = [name for name in passages[0] if name.startswith(MASS) and passages[0][name]]
    control = [sum(float(row[name]) for name in draws) / len(draws) for row in passages]
    return list(mean_difference([float(row["top:1"]) for row in passages], control))


def policy_of(words: str) -> str:
    """The policy that a row or a column of a table is about."""
    plain = {
        "without": "none",
        "the same number of random keys": "random(top:1)",
        "random keys with as much attention": MASS,
    }
    for start, policy in plain.items():
        if words.startswith(start):
            return policy
    found = re.findall(r"`(.+?)`", words)[0]
    return f"{found},effect=silence" if " silenced" in words else str(found)


# ---- tables ------------------------------------------------------------------------------------------


def test_costs() -> None:
    known = likelihoods("likelihood.csv", "weights/likelihood.csv")
    checked = 0
    for head, name, column, text in tables(PAGE):
        if head != "nats per token, lost":
            continue
        models, reading = MODELS[column], "half" if column.startswith("twin") else "reading"
        if name.endswith("less these"):
            gaps = [
                float(known[one, reading, "top:1"]["nll"]) - float(known[one, reading, MASS]["nll"])
                for one in models
            ]
            expected = over_seeds(gaps) if len(gaps) > 1 else gaps
        else:
            found = [known.get((one, reading, policy_of(name))) for one in models]
            own = [row for row in found if row]
            if not own:
                assert not text, (name, column)
                continue
            measure = "nll" if name.startswith("without") else "difference"
            values = [float(row[measure]) for row in own]
            one_model = values if measure == "nll" else interval(own[0], measure)
            expected = over_seeds(values) if len(models) > 1 else one_model
            if measure == "difference":
                expected += [100 * sum(float(row["hidden_share"]) for row in own) / len(own)]
        assert same(text, expected), (name, column, text, expected)
        checked += 1
    assert checked == 11 * 6 - 3


SINKS = {
    "sinks per head": "sinks per head",
    "main sink of a head, × uniform": "main sink of a head",
    "share of sink attention on the first 4 positions": "on the first 4 positions",
    "drains (value norm under half the median)": "drains",
    "sinks in heads whose sink stays": "static heads",
    "the strongest sink of a head moves, per step": "strongest sink moves",
    "attention that sinks absorb, last layer less first": "absorbed: change with depth",
    "masks among the sinks, × chance": "mask: enrichment",
}


def test_sinks_of_traces() -> None:
    known = {(row["model"], row["measure"]): row for row in rows("sinks.csv") + rows("weights/sinks.csv")}
    checked = 0
    for head, name, column, text in tables(PAGE):
        if not head.startswith("sinks while"):
            continue
        found = [known.get((one, SINKS[name])) for one in MODELS[column]]
        own = [row for row in found if row]
        if not own:
            assert not text, (name, column)
            continue
        values = [float(row["value"]) for row in own]
        expected = (
            over_seeds(values) if len(own) > 1 else [*values, float(own[0]["low"]), float(own[0]["high"])]
        )
        assert same(text, expected), (name, column, text, expected)
        checked += 1
    assert checked == 3 * len(SINKS)  # those of causal models were told by another definition


EMERGED = {
    "attention on the first token, × uniform": (0.5, "first_received"),
    "sinks per head": (0.5, "sinks_per_head"),
    "value norm of a head's main sink, × median": (0.5, "value_ratio"),
    "heads with a sink, all tokens masked": (1.0, "sink_heads"),
}
WAYS = {"LoRA": "lora", "all weights": "full", "random weights": "random"}


def emerged() -> dict[tuple[str, int, float, str], float]:
    """Run, step, share of masks and measure → value."""
    found = rows("emergence.csv.gz") + rows("weights/emergence.csv.gz")
    return {
        (row["run"], int(row["step"]), float(row["masked share"]), row["measure"]): float(row["value"])
        for row in found
        if row["value"]
    }


def test_sinks_by_training_step() -> None:
    known, checked = emerged(), 0
    for head, name, step, text in tables(PAGE):
        if not head.endswith("by training step"):
            continue
        what, _, way = name.rpartition(": ")
        places = [(f"twin-{WAYS[way]}-{seed}", int(step), *EMERGED[what]) for seed in range(3)]
        if not text:
            assert not any(place in known for place in places)
            continue
        values = [known[place] for place in places]
        expected = over_seeds(values) if step == "420" else [sum(values) / 3]
        assert same(text, expected), (name, step, text, expected)
        checked += 1
    assert checked == 5 * len(EMERGED) * len(WAYS) - 2


def test_how_soon_sinks_come_without_content() -> None:
    known = emerged()
    full, lora = (
        [known[f"twin-{way}-{seed}", 64, 1.0, "sink_heads"] for seed in range(3)] for way in ("full", "lora")
    )
    shown = "(.35 to .79 of the heads at step 64 with all weights, .74 to .89 with LoRA)"
    assert same(shown, [min(full), max(full), min(lora), max(lora)])
    assert says(shown)


def test_sinks_by_share_of_masks() -> None:
    known = emerged()

    def sinks(way: str, share: float, step: int = 420) -> list[float]:
        return [known[f"twin-{way}-{seed}", step, share, "sinks_per_head"] for seed in range(3)]

    def more(way: str) -> list[float]:
        pairs = zip(sinks(way, 0.75), sinks(way, 0.25), strict=True)
        return over_seeds([many - few for many, few in pairs])

    lora, full = (
        [number for share in (0.25, 0.5, 0.75) for number in over_seeds(sinks(way, share))]
        for way in ("lora", "full")
    )
    before = [*sinks("lora", 0.75, step=0), *sinks("full", 0.75, step=0)]
    before_few = [*sinks("lora", 0.25, step=0), *sinks("full", 0.25, step=0)]
    value, low, high = more("random")
    for shown, expected in (
        ("per head 7.4 [7.2, 7.7] at a quarter, 8.5 [8.2, 8.7] at a half and 9.8 [9.5, 10.1] at three quarters with LoRA", lora),
        ("with LoRA, 7.8 [7.6, 7.9], 8.7 [8.6, 8.8] and 10.1 [9.9, 10.3] with all weights", full),
        ("three quarters have 2.4 [2.1, 2.7] and 2.3 [2.1, 2.5] more than a quarter", [*more("lora"), *more("full")]),
        ("before training they had fewer (11.7 and 13.3)", [sum(before) / 6, sum(before_few) / 6]),
        ("from random weights they have 3.6 [2.3, 4.9] fewer", [-value, -high, -low]),
    ):  # fmt: skip
        assert same(shown, expected), (shown, expected)
        assert says(shown)


def test_readings() -> None:
    known = likelihoods("weights/likelihood.csv")
    shipped = likelihoods("shares/likelihood.csv", "denoising/likelihood.csv")
    passages = rows("shares/passages.csv") + rows("denoising/passages.csv")
    checked = 0
    for head, name, column, text in tables(PAGE):
        if head != "reading":
            continue
        reading = READINGS[name]
        policies = [policy for model, read, policy in known if (model, read) == (FULL[0], reading)]
        mine = {policy: [known[one, reading, policy] for one in FULL] for policy in policies}
        if column.startswith("attention hidden"):
            shown = [policy for policy in ("top:1", MASS, SILENT, "first:1") if policy in mine]
            shares = [[float(row["hidden_share"]) for row in mine[policy]] for policy in shown]
            expected = [100 * sum(each) / len(each) for each in shares]
        elif column.startswith("shipped twin"):
            own = [row for row in passages if row["decoding_name"] == reading]
            costs = interval(shipped["smollm2-twin", reading, "top:1"], "difference")
            expected = over_mass(own) if " less " in column else costs
        elif " less " in column:
            expected = over_seeds([float(row["effect_mass"]) for row in mine["top:1"]])
        elif policy_of(column) not in mine:
            assert not text, (name, column)
            continue
        else:
            policy = policy_of(column)
            values = [float(row["nll" if policy == "none" else "difference"]) for row in mine[policy]]
            expected = over_seeds(values)
        assert same(text, expected), (name, column, text, expected)
        checked += 1
    assert checked == 10 * len(READINGS) - 2


GRAMMAR = {
    "SmolLM2": ("smollm2",),
    "continued, all weights": CONTINUED,
    "shipped twin (LoRA)": ("smollm2-twin",),
    "twin, all weights": FULL,
}


def answers() -> dict[tuple[str, str], Row]:
    """Model and policy → its row on BLiMP."""
    found = rows("grammar/results.csv") + rows("weights/results.csv")
    return {(row["model"], row["policy"]): row for row in found}


def test_grammar() -> None:
    known, checked = answers(), 0
    for head, name, column, text in tables(PAGE):
        if not head.startswith("BLiMP"):
            continue
        policy, *other = re.findall(r"`(.+?)`", name)
        found = [known[model, policy] for model in GRAMMAR[column]]
        if name.startswith("attention hidden"):
            hidden = [[known[model, each] for model in GRAMMAR[column]] for each in (policy, *other)]
            expected = [100 * sum(float(row["hidden_share"]) for row in each) / len(each) for each in hidden]
        else:
            stem = "accuracy" if not other else "difference" if other == ["none"] else "over_control"
            ends = ("low", "high") if stem == "accuracy" else (f"{stem}_low", f"{stem}_high")
            one = [float(found[0][each]) for each in (stem, *ends)]
            expected = one if len(found) == 1 else over_seeds([float(row[stem]) for row in found])
        assert same(text, expected), (name, column, text, expected)
        checked += 1
    assert checked == 7 * len(GRAMMAR)


TAKEN_DOWN = ("static", "start", "collapse", "sinks")
"""Claims on the sinks of causal models, which were told by another definition then; and two whose rules ask for more now."""


def decided() -> dict[tuple[str, str], str]:
    """Claim and model → supported, contradicted, or not testable where no task decides or tasks disagree."""
    statuses: dict[tuple[str, str], set[str]] = {}
    for row in rows("weights/claims.csv"):
        if row["claim"] in TAKEN_DOWN:
            continue
        statuses.setdefault((row["claim"], row["model"]), set()).add(row["status"])
    each = {place: found - {"not testable"} for place, found in statuses.items()}
    return {place: found.pop() if len(found) == 1 else "not testable" for place, found in each.items()}


def test_claims() -> None:
    known, marks = decided(), {"supported": "+", "contradicted": "−"}
    names = {claim.text.replace("’", "'"): claim.name for claim in CLAIMS}
    listed = set()
    for head, text, column, shown in tables(PAGE):
        if head != "claim of the paper":
            continue
        claim = names[text]
        listed.add(claim)
        found = [known[claim, model] for model in MODELS[column] if (claim, model) in known]
        count = Counter(marks[status] for status in found if status in marks)
        words = ", ".join(f"{number}{mark}" for mark, number in sorted(count.items()))
        assert shown == (words or ("0" if found else "")), (text, column, shown, found)
    assert listed == {claim for (claim, _), status in known.items() if status in marks} | {"rival"}


# ---- numbers in the text -----------------------------------------------------------------------------


def says(words: str) -> bool:
    """Whether the page has these words, across lines."""
    return words in re.sub(r"\s+", " ", (ROOT / PAGE).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def cost() -> Cost:
    """Nats that a model loses in a reading under a policy."""
    known = likelihoods("likelihood.csv", "weights/likelihood.csv")
    return lambda model, reading, policy: float(known[model, reading, policy]["difference"])


@pytest.mark.parametrize(
    ("models", "one", "other", "shown"),
    [
        (FULL, ("tenth", "top:1"), ("nine-tenths", "top:1"), "0.30 nats [0.28, 0.32]"),
        (FULL, ("tenth", SILENT), ("nine-tenths", SILENT), "0.02 [−0.10, 0.14]"),
        (FULL, ("tenth", "top:1"), ("tenth", SILENT), "0.19 [0.16, 0.23]"),
        (FULL, ("nine-tenths", SILENT), ("nine-tenths", "top:1"), "0.08 [−0.02, 0.19]"),
    ],
)
def test_differences_between_shares_and_policies(
    cost: Cost, models: tuple[str, ...], one: tuple[str, str], other: tuple[str, str], shown: str
) -> None:
    assert same(shown, over_seeds([cost(model, *one) - cost(model, *other) for model in models]))
    assert says(shown)


@pytest.mark.parametrize(
    ("one", "other", "policy", "shown"),
    [
        ("twin, all weights", "twin, LoRA", "top:1", "0.05 [−0.06, 0.17]"),
        ("twin, all weights", "twin, LoRA", "first:1", "0.07 [−0.03, 0.17]"),
        ("continued, LoRA", "continued, all weights", "top:1", "0.09 [0.07, 0.12]"),
    ],
)
def test_all_weights_and_lora(cost: Cost, one: str, other: str, policy: str, shown: str) -> None:
    reading = "half" if one.startswith("twin") else "reading"
    pairs = zip(MODELS[one], MODELS[other], strict=True)
    assert same(
        shown,
        over_seeds([cost(first, reading, policy) - cost(second, reading, policy) for first, second in pairs]),
    )
    assert says(shown)


@pytest.mark.parametrize(
    ("column", "one", "other", "measure", "shown"),
    [
        (None, ("half", "first:1"), ("half", "first:1"), "difference", "it costs 0.49 and 0.57 nats"),
        ("twin, all weights", ("tenth", "top:1"), ("tenth", "first:1"), "difference", "(0.65 and 0.65)"),
        ("twin, all weights", ("nine-tenths", "first:1"), ("nine-tenths", "top:1"), "difference", "(0.25 of 0.35"),
        ("twin, all weights", ("half", MASS), ("half", "top:1"), "hidden_share", "hides 33 % where `top:1` hides 56 %"),
        ("twin, random weights", ("half", MASS), ("half", "top:1"), "hidden_share", "(11 % instead of 8 %)"),
    ],
)  # fmt: skip
def test_repeated_from_the_tables(
    column: str | None, one: tuple[str, str], other: tuple[str, str], measure: str, shown: str
) -> None:
    known = likelihoods("likelihood.csv", "weights/likelihood.csv")
    places = (
        [(column, one), (column, other)] if column else [("twin, LoRA", one), ("twin, all weights", other)]
    )
    values = [
        sum(float(known[model, *place][measure]) for model in MODELS[kind]) / 3 for kind, place in places
    ]
    plain = re.sub(r"`.+?`", "", shown)
    assert same(plain, [100 * value if measure == "hidden_share" else value for value in values])
    assert says(shown)


def test_no_claim_goes_both_ways_among_seeds() -> None:
    for names in (FULL, CONTINUED, MODELS["twin, random weights"]):
        for claim in {claim for claim, _ in decided()}:
            found = {decided().get((claim, model)) for model in names}
            assert not {"supported", "contradicted"} <= found, (claim, names)
    assert says("No claim is supported for one and contradicted for another of the three seeds")


def test_random_weights(cost: Cost) -> None:
    models, known = MODELS["twin, random weights"], emerged()
    for policy, shown in (
        ("top:1", "`top:1` costs 0.09, 0.08 and 0.35 nats"),
        ("first:1", "(0.08, 0.08, 0.34)"),
        (MASS, "(1.35, 0.35 and 1.57 nats)"),
    ):
        values = [cost(model, "half", policy) for model in models]
        assert same(shown.partition("costs")[2] or shown, values)
        assert says(shown)
    first = [[known[model, 420, 0.5, f"gu_first: layer {layer}"] for layer in range(30)] for model in models]
    assert [max(each[1:]) for each in first] == [0.0, 0.0, 0.0]
    assert [round(100 * each[0]) for each in first] == [25, 10, 30]
    assert says("(25, 10 and 30 % of its heads, counted row by row)")
    heads = over_seeds([known[model, 420, 0.5, "sink_heads"] for model in models])
    assert [round(100 * value) for value in heads] == [94, 91, 97]
    assert says("94 % [91, 97] of the heads")


def test_sinks_against_mass_matched_keys() -> None:
    known = [row for row in rows("weights/likelihood.csv") if row["model"] in FULL]
    corrected: dict[str, list[float]] = {}
    for row in known:
        if row["effect_mass_p_holm"]:
            corrected.setdefault(row["decoding_name"], []).append(float(row["effect_mass_p_holm"]))
    assert [round(value, 2) for value in corrected.pop("three-quarters")] == [0.02] * 3
    assert len(corrected) == len(READINGS) - 1
    assert round(min(min(values) for values in corrected.values()), 2) == 0.35
    assert says("(p = .02 in each of the three models; elsewhere .35 and more)")
    shares = [row for row in known if row["decoding_name"] not in ("denoising", "bound")]
    control, top = (
        [round(100 * float(row["sinks_hit"])) for row in shares if row["policy"] == policy]
        for policy in (MASS, "top:1")
    )
    assert says(f"(it hides {min(control)} to {max(control)} % of them, `top:1` {min(top)} to {max(top)} %)")
    supported = Counter(
        row["about"].partition(", ")[2]
        for row in rows("weights/claims.csv")
        if (row["claim"], row["status"]) == ("sinks", "supported") and row["model"] in FULL
    )
    assert supported == {"three-quarters": 3, "half": 1, "nine-tenths": 1}


def test_kept_grammar() -> None:
    known = answers()

    def kept(model: str, chance: float) -> float:
        masked, plain = (float(known[model, policy]["accuracy"]) - chance for policy in ("top:1", "none"))
        return masked / plain

    for chance, twin, causal, more in (
        (0.0, "88 % [76, 100]", "75 % [72, 79]", ".13 [.04, .22]"),
        (0.5, "49 % [9, 89]", "35 % [25, 45]", ".14 [−.21, .49]"),
    ):
        mine, others = ([kept(one, chance) for one in models] for models in (FULL, CONTINUED))
        for shown, values in ((twin, mine), (causal, others)):
            numbers = [round(100 * value) for value in over_seeds(values)]
            assert shown == f"{numbers[0]} % [{numbers[1]}, {numbers[2]}]"
            assert says(shown)
        assert same(more, over_seeds([first - second for first, second in zip(mine, others, strict=True)]))
        assert says(more)
    points = [-100 * float(known[model, "top:1"]["difference"]) for model in FULL]
    assert says("({:.1f}, {:.1f} and {:.1f} points with all weights)".format(*points))
    row = known["twin-full-1", "top:1"]
    ends = sorted(-100 * float(row[name]) for name in ("difference_low", "difference_high"))
    assert says(f"({points[1]:.1f} points [{ends[0]:.1f}, {ends[1]:.1f}])")


def test_held_out_losses() -> None:
    files = [ROOT / "lab" / "english" / name for name in ("training.json", "weights/training.json")]
    lora, others = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    runs = lora | others
    assert len(runs) == 15
    for way, words in (("lora", "(LoRA)"), ("full", "(all weights)"), ("random", "(random weights)")):
        nats = [runs[f"twin-{way}-{seed}"]["held_out"]["0.5"] for seed in range(3)]
        assert says(f"{min(nats):.2f} to {max(nats):.2f} {words}")
    for way, shown in (("lora", 3.06), ("full", 3.03)):
        causal = [runs[f"causal-{way}-{seed}"]["held_out"]["nats"] for seed in range(3)]
        assert [round(value, 2) for value in causal] == [shown] * 3
    assert says("of the continued models 3.06 and 3.03")
    rates = [
        runs[name]["adaptation"]["learning_rate"] for name in ("twin-lora-0", "twin-full-0", "twin-random-0")
    ]
    assert says("learning rates of {}, {} and {}".format(*rates))
    assert {run["tokens"] for run in runs.values()} == {420 * 32 * 512}
