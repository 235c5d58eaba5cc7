"""What sinks hold, in sentences: rules over a survey's table that can say "not shown".

A rule asks whether an estimate lies above its limit. "yes": its 95 % interval, widened by the clearance of every verdict, lies
above; "no": it lies below; "not shown": neither, or fewer than 20 prompts.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sinkscope.statistics import Estimate

if TYPE_CHECKING:
    import pandas

Answer = Literal["yes", "no", "not shown", "void"]
LEAST = 20
SKILL = 0.02
"""A probe tells something when it saves so much of the squared error."""


@dataclass(frozen=True)
class HoldingRule:
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


_TEXT = (Path(__file__).parent / "data" / "rules.toml").read_text(encoding="utf-8")
RULES = tuple(HoldingRule(**fields) for fields in tomllib.loads(_TEXT)["rules"])
"""A patch matters when it moves predictions by 0.01 nats (KL) more than its control does."""

NAN = float("nan")


@dataclass(frozen=True)
class Holding:
    """The answer to a question, with the number that it rests on."""

    question: str
    answer: Answer
    sentence: str
    value: float = NAN
    low: float = NAN
    high: float = NAN
    n: int = 0


def holdings(table: pandas.DataFrame, void: Mapping[str, str] | None = None) -> list[Holding]:
    """The answers of all rules, what can be read off by probes, and what kind of sinks these are."""
    made = [_answer(rule, table, void or {}) for rule in RULES]
    return [_kind(made), *made, *_probed(table)]


def _answer(rule: HoldingRule, table: pandas.DataFrame, void: Mapping[str, str]) -> Holding:
    reason = void.get(rule.void) or void.get("sinks")
    rows = table[
        (table["section"] == rule.section) & (table["measure"] == rule.measure)
        & (table["place"] == rule.place) & (table["layer"] == -1)
    ]  # fmt: skip
    if reason or rows.empty:
        return Holding(rule.question, "void" if reason else "not shown", reason or "it was not measured")
    row = rows.iloc[0]
    found, n = _estimate(row), int(row["n"])
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
    """Content, the same in every run, or a drain: from the first three rules.

    The first rule's patch puts one vector, another run's strongest sink, at all sinks. That predictions change says that what
    is read there differs; whether from run to run or from sink to sink, it does not say.
    """
    question = "What kind of sinks are they?"
    content, value, key = (holding.answer for holding in made[:3])
    if content == "void":
        return Holding(question, "void", made[0].sentence)
    words = ""
    if content == "yes":
        words = "they hold content: what is read there is not the same everywhere"
    elif content == "no" and value == "yes":
        words = (
            "they hold the same in every run: a constant that the network reads, and nothing about the text"
        )
    elif content == "no" and value == "no" and key == "yes":
        words = "they are drains: a place for attention, from which nothing is read"
    elif content == "no" and value == "no" and key == "no":
        words = "they can be changed without effect"
    answer: Answer = "yes" if words else "not shown"
    return Holding(question, answer, words or "the patches do not decide it", n=made[0].n)


def _estimate(row: Any) -> Estimate:
    return Estimate(float(row["value"]), float(row["low"]), float(row["high"]))


def _probed(table: pandas.DataFrame) -> list[Holding]:
    """For each label the vector at sinks that tells most of it, and whether other places tell as much."""
    probes = table[table["section"] == "probe"]
    made = []
    for label in dict.fromkeys(measure.partition(" from the ")[0] for measure in probes["measure"]):
        mine = probes[probes["measure"].str.startswith(f"{label} from the ")]
        at = mine[mine["place"] == "sinks"].sort_values("value", ascending=False, kind="stable").iloc[0]
        sides = {str(row["place"]): row for _, row in mine[mine["measure"] == at["measure"]].iterrows()}
        known, gain, chance = _estimate(at), _estimate(sides["difference"]), sides["shuffled"]
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
