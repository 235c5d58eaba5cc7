"""What a policy changes step by step: replays of recorded runs, and pairs of traces with and without it."""

from __future__ import annotations

from typing import Any

from sinkscope.report.study.markup import Safe, details, join, link, section, table, tag
from sinkscope.report.study.numbers import cited, missing, number
from sinkscope.report.study.source import Source

SETTINGS = (
    "family", "dtype", "weights", "task", "task_version", "scheme", "decoding", "seeds", "cell", "model", "policy",
    "decoding_name",
)  # fmt: skip
MOST = 200
"""Rows that the page shows of a table; the file has all."""

REPLAY = (
    "Replay: single steps of a run that was made without a policy, computed again under it. kl: divergence of the predictions "
    "without and with the policy, in nats; confidence_change: of the best candidate; flipped: share of the predictions whose "
    "best candidate is another one; changed: share of the selections that differ. Means over documents"
)
PAIRS = "Pairs: what changed between the traces of a document without and with a policy (ss.compare_traces)"


def mechanisms(source: Source) -> Safe | None:
    """The section; None for studies without replays and pairs."""
    parts: list[Any] = []
    if "replay" in source.frames:
        parts.append(_table(source, "replay", REPLAY))
    if "pairs" in source.frames:
        many = len(source.frames["pairs"])
        parts.append(details(f"pairs of traces, {many} rows", _table(source, "pairs", PAIRS)))
    if not parts:
        return None
    note = (
        "A replay follows the states of the unmasked run, so what it shows is the direct effect of a policy in one step, not "
        "what comes of it over a generation; a changed prediction is not a wrong one."
    )
    return section("mechanisms", "Single steps and pairs", tag("p", note), *parts)


def _table(source: Source, name: str, caption: str) -> Safe:
    frame = source.frames[name]
    columns = [column for column in map(str, frame.columns) if column not in SETTINGS]
    body = []
    for at, row in list(source.rows(name))[:MOST]:
        who = tag("span", row["model"], tag("small", f"{row['decoding_name']} · {row['policy']}"))
        body.append([who, *(_cell(name, at, column, row.get(column)) for column in columns)])
    cut = f"; the first {MOST} of {len(frame)} rows" if len(frame) > MOST else ""
    said = join([f"{caption}{cut}. Data: ", link(f"tables/{name}.csv")])
    return table(said, ("model", *columns), body)


def _cell(name: str, at: int, column: str, value: Any) -> Safe | str:
    if missing(value):
        return "–"
    text = number(value, ".3g") if isinstance(value, float) else str(value)
    return cited(text, name, at, column) if isinstance(value, (int, float)) else text
