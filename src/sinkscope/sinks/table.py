"""One tidy row per detected sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from sinkscope.base.sink_rule import EPSILON
from sinkscope.sinks.categories import CATEGORIES, category_codes
from sinkscope.sinks.dataset import ANSWER, PROMPT, Array, SampleState, all_heads, frame, head_means, labels
from sinkscope.sinks.detection import judged_steps
from sinkscope.sinks.judging import Judge
from sinkscope.sinks.scan import DRAIN_RATIO, key_median, per_query_head

STATES = (PROMPT, "masked", "decided")
SINK_KINDS = ("drain", "hub", "unknown")
WORDS = {"region": (PROMPT, ANSWER), "state": STATES, "category": CATEGORIES, "kind": SINK_KINDS}
"""Columns whose codes stand for words."""

COLUMNS = (
    "sample", "step", "layer", "head", "key", "position", "region", "state", "token",
    "category", "received", "excess", "share", "rank", "kind", "value_ratio",
)  # fmt: skip
UNITS = {
    "received": "received attention, uniform = 1",
    "excess": "received attention above the threshold",
    "share": "mean attention of a query (causal: of a distant one) to the key, in [0, 1]",
    "position": "tokens from the first real one",
    "value_ratio": "value norm / median of the head",
}


def sink_table(
    trace: Any,
    epsilon: float = EPSILON,
    rule: str = "auto",
    *,
    scores: str = "auto",
    tokenizer: Any = None,
    categories: Mapping[int, str] | None = None,
    top: int | None = None,
) -> pd.DataFrame:
    """One row per detected sink (sample, step, layer, head, key).

    Columns: sample, step, layer, head, key (column of the trace), position (from the first real token), region, state
    (prompt, masked, decided), token (id), category, received (uniform = 1), excess (above the threshold), share (mean
    attention of a query to it), rank (1 = strongest of its head and step), kind (drain, hub, or unknown without
    anatomy), value_ratio (value norm / median of its head). top: only ranks up to this. Units are in `table.attrs`.

    On a trace of head means, head is −1, sink_heads says in how many single heads the key is a sink, and attrs["note"]
    says so. Limits: a large trace has millions of rows; slice it first (`trace.dataset.sel(layer=31)`), or use `top=1`.

    >>> table = ss.sink_table(trace, top=1)
    >>> bool((table["rank"] == 1).all()), bool((table["received"] > 3).all())
    (True, True)
    """
    judge = Judge.of(trace, epsilon, rule, scores)
    data, name = judge.data, judge.name
    means = head_means(data, name)
    heads, total = np.array([-1]) if means else labels(data, "head"), all_heads(data)
    layer_names, step_names, sample_names = (labels(data, d) for d in ("layer", "step", "sample"))
    parts: list[dict[str, Array]] = []
    coded: SampleState | None = None  # the sample that `codes` is of
    for at in judged_steps(judge, *(["value_norm"] if "value_norm" in data else [])):
        state, judged, step, received = at.state, at.judged, at.step, at.values[name]
        if state is not coded:
            coded, codes = state, category_codes(data, state, tokenizer, categories)
        layer, head, key = np.nonzero(judged.sinks(epsilon))
        if not len(key):
            continue
        # Strongest first within each layer and head: the place in this order is the rank.
        order = np.lexsort((-judged.score[layer, head, key], head, layer))
        layer, head, key = layer[order], head[order], key[order]
        rank = _ranks(layer * received.shape[1] + head)
        limit, share = (
            np.broadcast_to(each, received.shape)[layer, head, key]
            for each in (judged.base + epsilon * judged.slope, judged.share)
        )
        value, score = received[layer, head, key], judged.score[layer, head, key]
        ratio = np.full(len(key), np.nan, dtype=np.float32)
        if "value_norm" in at.values:
            norms = at.values["value_norm"] / key_median(at.values["value_norm"])
            ratio = per_query_head(norms, heads, total, means)[layer, head, key]
        decided = np.where(state.masked[step, key] & (state.region[key] == ANSWER), 1, 2)
        prompt = state.region[key] == PROMPT
        columns = {
            "sample": np.full(len(key), sample_names[at.sample]),
            "step": np.full(len(key), step_names[step]),
            "layer": layer_names[layer + at.layers.start],
            "head": heads[head],
            "key": key.astype(np.int32),
            "position": state.position[key].astype(np.int32),
            "region": np.where(prompt, 0, 1).astype(np.int8),
            "state": np.where(prompt, 0, decided).astype(np.int8),
            "token": state.tokens[step, key],
            "category": codes[step, key],
            "received": value.astype(np.float32),
            "excess": (value * (1 - limit / score)).astype(np.float32),
            "share": (score * share).astype(np.float32),
            "rank": rank.astype(np.int32),
            "kind": np.where(np.isnan(ratio), 2, np.where(ratio < DRAIN_RATIO, 0, 1)).astype(np.int8),
            "value_ratio": ratio,
        }
        if means and "sink_heads" in data:
            called = data["sink_heads"].isel(sample=at.sample, step=step).transpose("layer", "key").values
            columns["sink_heads"] = called[layer + at.layers.start, key]
        use = slice(None) if top is None else rank <= top
        parts.append({column: cells[use] for column, cells in columns.items()})
    parts = parts or [dict.fromkeys(COLUMNS, np.zeros(0, int))]
    table = pd.DataFrame({c: np.concatenate([p[c] for p in parts]) for c in parts[0]})
    for column, words in WORDS.items():
        numbers = table[column].to_numpy(dtype=np.int8)
        table[column] = pd.Categorical.from_codes(numbers, categories=pd.Index(list(words)))
    return frame(table, units=dict(UNITS), **judge.attrs(epsilon))


def _ranks(group: Array) -> Array:
    """1, 2, 3, … within each run of equal values of a sorted array."""
    index = np.arange(len(group))
    begins = np.concatenate([[True], group[1:] != group[:-1]])
    return np.asarray(index - np.maximum.accumulate(np.where(begins, index, 0)) + 1)
