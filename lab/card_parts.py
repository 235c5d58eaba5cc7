"""Tables of a card, as Markdown: pure functions from measured data to text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from lab.profile import MIDDLE
from sinkscope.report.study.numbers import missing, number

EVERY = 4
"""Of the steps of the probe, every so many stand in a card's table; the picture has all."""
MOST_VALUE, LEAST_HIDDEN = 0.5, 3.0
"""A first-token sink in the sense of the literature: value norm at most, hidden norm at least, so many times the median."""
SMALL = 0.05
WITHIN = 0.25
"""A mass-matched control that takes so much more or less attention than its policy, relatively, is called no match."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; text is kept from ending its cell."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def bullets(items: Iterable[str]) -> str:
    """A list."""
    return "\n".join(f"- {item}" for item in items)


def count(value: int) -> str:
    """A whole number with its thousands apart."""
    return f"{value:,}"


def measured(data: dict[str, Any]) -> str:
    """When and where a file was made."""
    parts = [
        f"Measured on {data.get('date') or 'an unknown date'}",
        data.get("where") or "an unknown machine",
    ]
    if "dtype" in data and data["dtype"] not in parts[1]:
        parts.append(data["dtype"])
    return ", ".join(parts)


def between(row: dict[str, Any], stem: str, form: str = ".2f", names: tuple[str, str] | None = None) -> str:
    """A number with its interval, 0.19 [0.07, 0.43]."""
    low, high = (row.get(name) for name in names or (f"{stem}_low", f"{stem}_high"))
    if missing(row.get(stem)):
        return "–"
    value = number(row[stem], form)
    return value if missing(low) else f"{value} [{number(low, form)}, {number(high, form)}]"


# ---- profile -------------------------------------------------------------------------------------


def profile_tables(profile: dict[str, Any]) -> list[str]:
    """Verdicts, numbers and anatomy by layer."""
    verdicts = [[one["question"], f"**{one['verdict']}**", one["evidence"]] for one in profile["diagnosis"]]
    numbers = [
        [
            row["section"],
            row["measure"],
            between(row, "value", ".3g", ("low", "high")),
            row["unit"] + (f"; {row['note']}" if row["note"] else ""),
        ]
        for row in profile["summary"]
    ]
    layers = [
        [
            str(row["layer"]),
            *(between(row, name) for name in ("value_ratio", "key_ratio", "hidden_ratio")),
            number(row["drains"], ".1%") or "–",
            number(row["massive"], ".1%") or "–",
            count(row["sinks"]),
        ]
        for row in profile["anatomy"]
    ]
    return [
        table(["question", "verdict", "evidence"], verdicts),
        table(["", "measure", "value [95 %]", "unit"], numbers),
        "Anatomy: norms at sinks over the median of the keys that are not sinks, by layer.",
        table(["layer", "value", "key", "hidden", "drains", "on a massive activation", "detections"], layers),
    ]


def first_tables(rows: list[dict[str, Any]]) -> list[str]:
    """The first token of a causal model, and whether it is a sink in the sense of the literature."""
    mean = next(row for row in rows if row["layer"] == MIDDLE)
    met = mean["value_ratio_high"] <= MOST_VALUE and mean["hidden_ratio_low"] >= LEAST_HIDDEN
    found = [
        [str(row["layer"]), *(between(row, name) for name in ("received", "value_ratio", "hidden_ratio"))]
        for row in rows
    ]
    return [
        "The first token (BOS) in finished texts: attention received (uniform = 1), value norm and hidden norm over the median "
        "of all keys.",
        table(["layer", "received", "value ratio", "hidden ratio"], found),
        f"A sink of the literature at the first token (value ratio ≤ {MOST_VALUE:g} and hidden ratio ≥ {LEAST_HIDDEN:g} on "
        f"average over layers, intervals included): **{'yes' if met else 'no'}**.",
    ]


# ---- emergence -----------------------------------------------------------------------------------


def emergence_tables(points: list[dict[str, Any]]) -> list[str]:
    """Some steps at t = .5 (causal models: the whole text), and the last step at every t."""
    steps = [*range(0, len(points) - 1, EVERY), len(points) - 1]
    level = "0.5" if "0.5" in points[0]["levels"] else next(iter(points[0]["levels"]))
    causal = len(points[0]["levels"]) == 1
    rows = [
        [
            count(points[at]["step"]),
            f"{points[at]['tokens'] / 1e6:.1f}M",
            number(points[at]["loss"]) or "–",
            *_level(points[at]["levels"][level]),
        ]
        for at in steps
    ]
    head = ["heads with a sink", "strongest key", "value ratio", "hidden ratio", "Gu, first", "Gu, any",
            "first token: received", "its value ratio", "its hidden ratio"]  # fmt: skip
    where = "the whole text" if causal else f"t = {level}"
    found = [
        f"On {where}:" if causal else f"At {where}:",
        table(["step", "tokens", "loss", *head, "most enriched"], rows),
    ]
    if not causal:
        last = [[f"{float(t):g}", *_level(one)] for t, one in points[-1]["levels"].items()]
        found += [
            "After the last step, by share of masked targets:",
            table(["t", *head, "most enriched"], last),
        ]
    return found


def _level(one: dict[str, Any]) -> list[str]:
    ratios = {name: each["ratio"] for name, each in one.get("enrichment", {}).items() if each["share"]}
    best = max(ratios, key=lambda name: ratios[name] or 0.0) if ratios else None
    names = ("sink_heads", "max_received", "value_ratio", "hidden_ratio", "gu_first", "gu_any",
             "first_received", "first_value_ratio", "first_hidden_ratio")  # fmt: skip
    return [
        *(number(one.get(name), ".2f") or "–" for name in names),
        "–" if best is None else f"{best}, {number(ratios[best], '.1f')}×",
    ]


# ---- masking -------------------------------------------------------------------------------------


def masking_tables(rows: list[dict[str, Any]]) -> list[str]:
    """One table per task: every policy in a line, with its two controls beside it."""
    found = []
    for task in dict.fromkeys(row["task"] for row in rows):
        own = {row["policy"]: row for row in rows if row["task"] == task}
        plain = [row for row in own.values() if row.get("control_of") is None]
        controls = {
            (row["control_of"], "mass" in row["policy"]): row for row in own.values() if row.get("control_of")
        }
        lines = [_line(row, controls) for row in plain]
        head = [
            "policy", "scope", "effect", "n", "accuracy", "− none", "count control", "effect over it", "mass control",
            "effect over it", "attention taken: policy / count / mass", "sinks hit: policy / count / mass",
        ]  # fmt: skip
        decoding = ", ".join(
            f"{name} {value}" for name, value in json.loads(plain[0]["decoding"]).items() if value is not None
        )
        found += [f"### {task}", f"Decoding: {decoding}.", table(head, lines)]
    return found


def masking_notes(rows: list[dict[str, Any]]) -> list[str]:
    """Reservations about a table: controls that missed their match, silencing that was not run."""
    notes = []
    for task in dict.fromkeys(row["task"] for row in rows):
        own = {row["policy"]: row for row in rows if row["task"] == task}
        pairs = [
            (own[row["control_of"]], row)
            for row in own.values()
            if "match=mass" in row["policy"] and row["control_of"] in own
        ]
        missed = [
            f"`{policy['policy']}` ({number(control['hidden_share'], '.1%')} against {number(policy['hidden_share'], '.1%')})"
            for policy, control in pairs
            if abs(control["hidden_share"] / policy["hidden_share"] - 1) > WITHIN
        ]
        if missed:
            notes.append(
                f"{task}: the mass-matched control took a share of attention that is more than {WITHIN:.0%} off its policy's, so "
                f"that it is no match, for {', '.join(missed)}."
            )
        bare = [f"`{name}`" for name, row in own.items() if row.get("effect") == "hide" and not row.get("control_of")
                and f"{name},effect=silence" not in own]  # fmt: skip
        if bare:
            notes.append(
                f"{task}: silencing was not run beside {', '.join(bare)}: what is lost there is not laid to sinks."
            )
    return notes


def _line(row: dict[str, Any], controls: dict[tuple[str, bool], dict[str, Any]]) -> list[str]:
    beside = [controls.get((row["policy"], mass)) for mass in (False, True)]
    taken = [row, *beside]
    return [
        f"`{row['policy']}`",
        row.get("scope", "–"),
        row.get("effect", "–"),
        str(row["n"]),
        _accuracy(row),
        _starred(row, "difference"),
        *(
            cell
            for one, name in zip(beside, ("effect_count", "effect_mass"), strict=True)
            for cell in (_accuracy(one), _starred(row, name))
        ),
        *(_shares(taken, name) for name in ("hidden_share", "sinks_hit")),
    ]


def _accuracy(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    draws = f" ({row['draws']}×)" if row["draws"] > 1 else ""
    return between(row, "accuracy", ".3f", ("low", "high")) + draws


def _starred(row: dict[str, Any], stem: str) -> str:
    p = row.get(f"{stem}_p_holm")
    return between(row, stem, "+.3f") + (" *" if p is not None and p < SMALL else "")


def _shares(rows: list[dict[str, Any] | None], name: str) -> str:
    values = [None if row is None else row.get(name) for row in rows]
    return (
        "–"
        if all(missing(one) for one in values)
        else " / ".join(number(one, ".1%") or "–" for one in values)
    )
