"""What sinks hold, in sentences: rules over a survey's table that can say "not shown".

A rule asks whether an estimate lies above its limit. "yes": its 95 % interval, widened by the clearance of every verdict, lies
above; "no": it lies below; "not shown": neither, or fewer than 20 prompts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sinkscope.statistics import Estimate

if TYPE_CHECKING:
    import pandas

Answer = Literal["yes", "no", "not shown", "void"]
LEAST = 20
NATS = 0.01
"""A patch matters when it moves predictions by so much (KL, nats) more than its control does."""

SKILL = 0.02
"""A probe tells something when it saves so much of the squared error."""


@dataclass(frozen=True)
class Rule:
    """A question to one row of a survey: yes when its value lies above the limit."""

    question: str
    section: str
    measure: str
    limit: float
    unit: str
    yes: str
    no: str
    void: str = ""
    place: str = "difference"


RULES = (
    Rule("Is content of this run read there?", "patch", "value of another run: kl", NATS, "nats beyond the control",
         "another run's values at the sinks change predictions: what is read there belongs to the run",
         "values of another run's sinks do as well: nothing that belongs to the run is read there"),
    Rule("Is any value read there?", "patch", "no value: kl", NATS, "nats beyond the control",
         "without their values predictions change", "without their values predictions stay: they give nothing back"),
    Rule("Must attention go there?", "patch", "key of an ordinary place: kl", NATS, "nats beyond the control",
         "with an ordinary key in their place, and attention elsewhere, predictions change",
         "attention can go elsewhere without harm"),
    Rule("Is content of this run read at mask tokens?", "patch", "value of another run, at masks: kl", NATS,
         "nats beyond the control", "another run's values at sinks that are masks change predictions: the future holds content",
         "values of another run's masks do as well: nothing that belongs to the run is read at future positions", "masks"),
    Rule("Is any value read at mask tokens?", "patch", "no value, at masks: kl", NATS, "nats beyond the control",
         "without the values of the sinks that are masks predictions change",
         "without the values of the sinks that are masks predictions stay", "masks"),
    Rule("Can the answer be read off them?", "lens", "a token due elsewhere", 0.0, "more often than at other places",
         "the lens reads tokens there that are still to be written elsewhere",
         "the lens reads tokens of the rest of the answer no more often there than at other places"),
    Rule("Do they move more than other places?", "movement", "drift of the value", 0.0, "1 − cosine, less that of others",
         "their values move more than others from step to step", "their values move less than others from step to step",
         "movement"),
    Rule("Does the first look find the block's keys?", "foresight", "from the block's first step", 0.5, "of the top keys",
         "a block's first step finds most keys that matter later in it",
         "a block's first step misses most keys that matter later in it", "foresight over time", "recall"),
    Rule("Does their score come from the angle?", "scores", "angle's part", 0.5, "of the gap in scores",
         "sinks are attended to for the angle of their keys", "sinks are attended to for the length of their keys", "", "all"),
)  # fmt: skip


@dataclass(frozen=True)
class Holding:
    """The answer to a question, with the number that it rests on."""

    question: str
    answer: Answer
    sentence: str
    value: float
    low: float
    high: float
    n: int


def holdings(table: pandas.DataFrame, void: Mapping[str, str] | None = None) -> list[Holding]:
    """The answers of all rules, what can be read off by probes, and what kind of sinks these are."""
    made = [_answer(rule, table, void or {}) for rule in RULES]
    return [_kind(made), *made, *_probed(table)]


def _answer(rule: Rule, table: pandas.DataFrame, void: Mapping[str, str]) -> Holding:
    reason = void.get(rule.void) or void.get("sinks")
    rows = table[
        (table["section"] == rule.section) & (table["measure"] == rule.measure)
        & (table["place"] == rule.place) & (table["layer"] == -1)
    ]  # fmt: skip
    nan = float("nan")
    if reason or rows.empty:
        return Holding(
            rule.question,
            "void" if reason else "not shown",
            reason or "it was not measured",
            nan,
            nan,
            nan,
            0,
        )
    row = rows.iloc[0]
    found, n = Estimate(float(row["value"]), float(row["low"]), float(row["high"])), int(row["n"])
    numbers = f"({found.value:.3g} {rule.unit}, 95 % {found.low:.3g} to {found.high:.3g}, {n} prompts)"
    answer: Answer = "not shown"
    if n >= LEAST and found.above(rule.limit):
        answer = "yes"
    elif n >= LEAST and found.below(rule.limit):
        answer = "no"
    words = {"yes": rule.yes, "no": rule.no}.get(answer, "the interval does not decide it")
    if not n:
        words, numbers = "there was nothing to measure it on", ""
    return Holding(rule.question, answer, f"{words} {numbers}".strip(), *found, n)


def _kind(made: list[Holding]) -> Holding:
    """Content, the same in every run, or a drain: from the first three rules."""
    content, value, key = (holding.answer for holding in made[:3])
    nan = float("nan")
    if content == "void":
        return Holding("What kind of sinks are they?", "void", made[0].sentence, nan, nan, nan, 0)
    if content == "yes":
        words = "they hold content of their run"
    elif content == "no" and value == "yes":
        words = (
            "they hold the same in every run: a constant that the network reads, and nothing about the text"
        )
    elif content == "no" and value == "no" and key == "yes":
        words = "they are drains: a place for attention, from which nothing is read"
    elif content == "no" and value == "no" and key == "no":
        words = "they can be changed without effect"
    else:
        return Holding(
            "What kind of sinks are they?",
            "not shown",
            "the patches do not decide it",
            nan,
            nan,
            nan,
            made[0].n,
        )
    return Holding("What kind of sinks are they?", "yes", words, nan, nan, nan, made[0].n)


def _probed(table: pandas.DataFrame) -> list[Holding]:
    """For each label the vector at sinks that tells most of it, and whether other places tell as much."""
    probes = table[table["section"] == "probe"]
    made = []
    for label in dict.fromkeys(measure.partition(" from the ")[0] for measure in probes["measure"]):
        mine = probes[probes["measure"].str.startswith(f"{label} from the ")]
        at = mine[mine["place"] == "sinks"].sort_values("value", ascending=False, kind="stable").iloc[0]
        sides = {str(row["place"]): row for _, row in mine[mine["measure"] == at["measure"]].iterrows()}
        known, gain = (
            Estimate(float(row["value"]), float(row["low"]), float(row["high"]))
            for row in (at, sides["difference"])
        )
        chance = sides["shuffled"]
        numbers = (
            f"({at['measure'].partition(' from the ')[2]}: skill {known.value:.2f}, 95 % {known.low:.2f} to {known.high:.2f}; "
            f"random places {sides['others']['value']:.2f}, shuffled {chance['value']:.2f}; {int(at['n'])} prompts)"
        )
        answer: Answer = "not shown"
        words = "no probe tells it for certain"
        if known.above(SKILL) and gain.above(0.0):
            answer, words = "yes", "sinks tell it, and more of it than random places of their kind"
        elif known.above(SKILL):
            words = "sinks tell it; that they tell more than random places is not shown"
        elif known.below(SKILL):
            answer, words = "no", "sinks do not tell it to a linear probe"
        made.append(Holding(f"Do sinks hold: {label}?", answer, f"{words} {numbers}", *known, int(at["n"])))
    return made
