"""Sections that are tables of the study, each with its picture or a sentence before it.

Skills, likelihood of texts, approximate steps, training runs; and measurements that some studies have: replays of recorded runs,
and pairs of traces with and without a policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sinkscope.report.study.exemplars import tinted
from sinkscope.report.study.markup import Safe, details, join, link, table, tag
from sinkscope.report.study.numbers import cited, missing, number, valued
from sinkscope.report.study.source import Row, StudySource
from sinkscope.report.study.words import note, policy_words, section
from sinkscope.study.ladder import UNITS

Column = tuple[str, str | Callable[[Row], Any], str]
"""Heading; column of the table, or what makes a cell of a row; format of the number, "" for text."""

SKILLS: tuple[Column, ...] = (
    ("skill", "skill", ""), ("difficulties", "difficulties", ""), ("unmasked", "accuracy", ".3f"),
    ("right answers", "n", ".0f"), ("kept", "kept", ".3f"), ("kept with random keys", "control_kept", ".3f"),
    ("lost beyond them (95 %)", "beyond", "+.3f"), ("apart from other skills", "apart", "+.3f"),
)  # fmt: skip
LIKELIHOOD: tuple[Column, ...] = (
    ("policy", lambda row: tag("span", row["policy"], tag("small", policy_words(str(row["policy"])))), ""),
    ("nats per token (95 %)", "nll", ".3f"), ("− none (paired 95 %)", "difference", "+.3f"),
    ("control", "control_nll", ".3f"), ("− control (paired 95 %)", "over_control", "+.3f"),
    ("attention removed", "hidden_share", ".1%"), ("strongest sink masked", "strongest_hit", ".0%"),
    ("of the attention on sinks removed", "sink_removed", ".0%"),
)  # fmt: skip
REUSE: tuple[Column, ...] = (
    ("rule", lambda row: tag("span", row["reuse"], tag("small", "exact" if row["reuse"] == "none" else "approximate")), ""),
    ("accuracy (95 %)", "accuracy", ".3f"), ("− exact (paired 95 %)", "difference", "+.3f"),
    ("− random keys", "over_random", "+.3f"), ("− nearest keys", "over_recent", "+.3f"), ("work saved", "work_saved", ".1%"),
    ("time saved", "time_saved", ".1%"), ("tokens equal", "tokens_equal", ".3f"),
    ("− random keys", "tokens_equal_over_random", "+.3f"), ("first step that differs", "first_step", ".0f"),
    ("KL, nats", "kl", ".3g"),
)  # fmt: skip
LADDER: tuple[Column, ...] = (
    ("objective", "objective", ""), ("parameters", lambda row: f"{row['parameters']:,}", ""),
    ("intervention", lambda row: str(row["intervention"]) or "–", ""), ("task", "task", ""), ("policy", "policy", ""),
    ("seeds", "seeds", ""), ("measure", lambda row: UNITS[row["measure"]], ""), ("without", "unmasked", ".3f"),
    ("lost", "damage", "+.3f"), ("− random keys", "beyond_count", "+.3f"),
    ("− random keys, as much attention", "beyond_mass", "+.3f"), ("concluded", "conclusion", ""),
)  # fmt: skip
CHANGES: tuple[Column, ...] = (
    ("objective", "objective", ""), ("layers × width", "size", ""), ("intervention", "intervention", ""),
    ("measure", "measure", ""), ("seeds", "seeds", ""), ("change", "difference", "+.3g"), ("concluded", "conclusion", ""),
)  # fmt: skip
SETTINGS = (
    "family", "dtype", "weights", "task", "task_version", "scheme", "decoding", "seeds", "cell", "model", "policy",
    "decoding_name",
)  # fmt: skip
MOST = 200
"""Rows that the page shows of a table; the file has all."""


def _shown(name: str, columns: Sequence[Column], caption: str, rows: Sequence[tuple[int, Row]]) -> Safe:
    """Rows of a table of the study."""

    def cell(at: int, row: Row, what: str | Callable[[Row], Any], form: str) -> Any:
        if not isinstance(what, str):
            return what(row)
        return valued(row, name, at, form, what) if form else str(row[what])

    body = [[cell(at, row, what, form) for _, what, form in columns] for at, row in rows]
    words = tag("span", caption, link(f"tables/{name}.csv"))
    return table(words, [heading for heading, *_ in columns], body)


def skills(source: StudySource) -> Safe | None:
    """What masking costs each skill of the battery beyond random keys; None without the battery, or without enough controls."""
    if "skill_losses" not in source.frames:
        return None
    parts = []
    for rows in source.groups("skill_losses", "decoding_name", "scheme", "policy", "match"):
        first = rows[0][1]
        left_out = f" Not compared: {first['left_out']}." if first["left_out"] else ""
        caption = note("skills_table", **{**first, "left_out": left_out})
        parts.append(_shown("skill_losses", SKILLS, caption, [(at, row) for at, row in rows if row["skill"]]))
    return section("skills", tag("p", note("skills")), *parts)


def likelihood(source: StudySource) -> Safe | None:
    """Texts that were read: nats per token under each policy, beside its controls; None for a study without texts."""
    if "likelihood" not in source.frames:
        return None
    parts = []
    for rows in source.groups("likelihood", "task", "decoding_name"):
        caption = note("likelihood_table", **rows[0][1], texts=max(int(row["n"]) for _, row in rows))
        parts.append(_shown("likelihood", LIKELIHOOD, caption, rows))
    return section("likelihood", tag("p", note("likelihood")), *parts)


def approximate_steps(source: StudySource) -> Safe | None:
    """What each reuse rule saves and loses, and whether the keys that it keeps are the reason; None without rules."""
    if "reuse" not in source.frames:
        return None
    parts = []
    for rows in source.groups("reuse", "task", "decoding_name"):
        counts = [
            f"{max(found):.0f} {words}"
            for name, words in (("n", "answers graded"), ("agreement_n", "runs compared with the exact one"))
            if (found := [row[name] for _, row in rows if not missing(row.get(name))])
        ]
        caption = note("reuse_table", **rows[0][1], counts=" and ".join(counts))
        parts.append(_shown("reuse", REUSE, caption, rows))
    alt = "accuracy and agreement against work saved"
    picture = tinted(source, "frontier", alt, "the frontier was not drawn")
    return section("reuse", tag("p", note("reuse")), picture, *parts)


def training_runs(source: StudySource) -> Safe | None:
    """What masking costs by objective, size and scope, and what interventions change, over seeds; None without training runs."""
    if "ladder" not in source.frames:
        return None
    parts = [tinted(source, "ladder", "what masking costs against size", "the ladder was not drawn")]
    for name, columns in (("ladder", LADDER), ("ladder_interventions", CHANGES)):
        rows = list(source.rows(name))
        if rows and name == "ladder_interventions":
            parts.append(
                tinted(
                    source, "interventions", "what interventions change", "the interventions were not drawn"
                )
            )
        if rows or name == "ladder":
            parts.append(_shown(name, columns, note(f"{name}_table"), rows))
    return section("ladder", tag("p", note("ladder")), *parts)


def mechanisms(source: StudySource) -> Safe | None:
    """Replays, and pairs of traces; None for studies without them."""
    parts = {
        name: plain_table(source, name, note(name)) for name in ("replay", "pairs") if name in source.frames
    }
    if not parts:
        return None
    if "pairs" in parts:
        parts["pairs"] = details(f"pairs of traces, {len(source.frames['pairs'])} rows", parts["pairs"])
    return section("mechanisms", tag("p", note("single_steps")), *parts.values())


def plain_table(source: StudySource, name: str, caption: str) -> Safe:
    """A table of the study as it is, without the columns that only repeat settings; the first rows of a long one."""
    frame = source.frames[name]
    columns = [column for column in map(str, frame.columns) if column not in SETTINGS]
    body = []
    for at, row in list(source.rows(name))[:MOST]:
        setting = " · ".join(str(row[column]) for column in ("decoding_name", "policy") if column in row)
        who = tag("span", row["model"], tag("small", setting))
        body.append([who, *(_plain(name, at, column, row.get(column)) for column in columns)])
    cut = f"; the first {MOST} of {len(frame)} rows" if len(frame) > MOST else ""
    words = join([f"{caption}{cut}. Data: ", link(f"tables/{name}.csv")])
    return table(words, ("model", *columns), body)


def _plain(name: str, at: int, column: str, value: Any) -> Safe | str:
    if missing(value):
        return "–"
    text = number(value, ".3g") if isinstance(value, float) else str(value)
    return cited(text, name, at, column) if isinstance(value, (int, float)) else text
