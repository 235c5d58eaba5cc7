"""One tidy row per detected sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from sinkscope.sink_rule import EPSILON
from sinkscope.sinks.categories import CATEGORIES, category_codes
from sinkscope.sinks.dataset import (
    ANSWER,
    HEAD_MEANS_NOTE,
    PROMPT,
    Array,
    blocks,
    dataset_of,
    head_means,
    labels,
    mass_weight,
    run_of,
    scores_name,
)
from sinkscope.sinks.detection import check_rule, thresholds
from sinkscope.sinks.scan import DRAIN_RATIO, key_median, kv_heads

STATES = (PROMPT, "masked", "decided")
SINK_KINDS = ("drain", "hub", "unknown")


def sink_table(
    trace: Any,
    epsilon: float = EPSILON,
    rule: str = "sum",
    *,
    scores: str = "auto",
    tokenizer: Any = None,
    categories: Mapping[int, str] | None = None,
    top: int | None = None,
) -> pd.DataFrame:
    """One row per detected sink (sample, step, layer, head, key).

    Columns: sample, step, layer, head, key (column of the trace), position (from the first real token),
    region, state (prompt, masked, decided), token (id), category, received (uniform = 1), excess (above the
    threshold), share (of all attention of that head and step), rank (1 = strongest of its head and step),
    kind (drain, hub, or unknown without anatomy), value_ratio (value norm / median of its head). top: only
    ranks up to this. Units are in `table.attrs`.

    On a trace of head means, head is −1, sink_heads says how many heads call the key a sink by themselves,
    and attrs["note"] says so. Limits: a large trace has millions of rows; slice it first
    (`trace.dataset.sel(layer=31)`), or use `top=1`.
    """
    data = dataset_of(trace)
    name = scores_name(data, scores)
    note = check_rule(rule, epsilon)
    means = head_means(data, name)
    names = [name] + (["value_norm"] if "value_norm" in data else [])
    head_names = np.array([-1]) if means else labels(data, "head")
    total = int(data.attrs["n_heads"]) if "n_heads" in data.attrs else None
    layer_names, step_names, sample_names = (labels(data, d) for d in ("layer", "step", "sample"))
    cache: dict[int, tuple[Any, Array]] = {}
    parts: list[dict[str, Array]] = []
    for block in blocks(data, names):
        for i, sample in enumerate(block.samples):
            if sample not in cache:
                run = run_of(data, sample)
                cache = {k: v for k, v in cache.items() if k in block.samples}
                cache[sample] = (run, category_codes(data, run, tokenizer, categories))
            run, codes = cache[sample]
            state = np.where(run.region == PROMPT, 0, np.where(run.masked & (run.region == ANSWER), 1, 2))
            for j, step in enumerate(block.steps):
                received = block.values[name][i, j].astype(np.float32)
                limit = thresholds(received, epsilon, rule)
                filled = np.where(np.isnan(received), -np.inf, received)
                sinks = filled > limit
                layer, head, key = np.nonzero(sinks)
                if not len(key):
                    continue
                order = np.argsort(-filled[layer, head, key], kind="stable")
                order = order[np.lexsort((head[order], layer[order]))]
                layer, head, key = layer[order], head[order], key[order]
                value = filled[layer, head, key]
                rank = _ranks(layer * filled.shape[1] + head)
                ratio = np.full(len(key), np.nan, dtype=np.float32)
                if "value_norm" in block.values:
                    norms = block.values["value_norm"][i, j].astype(np.float32)
                    norms = norms / key_median(norms)
                    norms = (
                        norms.mean(axis=1, keepdims=True)
                        if means
                        else norms[:, kv_heads(head_names, norms.shape[1], total)]
                    )
                    ratio = norms[layer, head, key]
                use = slice(None) if top is None else rank <= top
                columns = {
                    "sample": np.full(len(key), sample_names[sample]),
                    "step": np.full(len(key), step_names[step]),
                    "layer": layer_names[layer + block.layers.start],
                    "head": head_names[head],
                    "key": key.astype(np.int32),
                    "position": run.position[key].astype(np.int32),
                    "region": np.where(run.region[key] == PROMPT, 0, 1).astype(np.int8),
                    "state": state[step, key].astype(np.int8),
                    "token": run.tokens[step, key],
                    "category": codes[step, key],
                    "received": value.astype(np.float32),
                    "excess": (value - limit[layer, head, 0]).astype(np.float32),
                    "share": (value * mass_weight(run, step, name)[key]).astype(np.float32),
                    "rank": rank.astype(np.int32),
                    "kind": np.where(np.isnan(ratio), 2, np.where(ratio < DRAIN_RATIO, 0, 1)).astype(np.int8),
                    "value_ratio": ratio,
                }
                if means and "sink_heads" in data:
                    called = (
                        data["sink_heads"].isel(sample=sample, step=step).transpose("layer", "key").values
                    )
                    columns["sink_heads"] = called[layer + block.layers.start, key]
                parts.append({column: values[use] for column, values in columns.items()})
    table = pd.DataFrame(
        {c: np.concatenate([p[c] for p in parts]) for c in parts[0]}
        if parts
        else dict.fromkeys(_COLUMNS, np.zeros(0, int))
    )
    for column, words in (
        ("region", (PROMPT, ANSWER)),
        ("state", STATES),
        ("category", CATEGORIES),
        ("kind", SINK_KINDS),
    ):
        table[column] = pd.Categorical.from_codes(
            table[column].to_numpy(dtype=np.int8), categories=pd.Index(list(words))
        )
    table.attrs = {
        "rule": rule,
        "epsilon": float(epsilon),
        "scores": name,
        "units": {
            "received": "received attention, uniform = 1",
            "excess": "received attention above the threshold",
            "share": "share of all attention of the head in that step",
            "position": "tokens from the first real one",
            "value_ratio": "value norm / median of the head",
        },
        "note": "; ".join(text for text in (note, HEAD_MEANS_NOTE if means else "") if text),
    }
    return table


_COLUMNS = (
    "sample", "step", "layer", "head", "key", "position", "region", "state", "token",
    "category", "received", "excess", "share", "rank", "kind", "value_ratio",
)  # fmt: skip


def _ranks(group: Array) -> Array:
    """1, 2, 3, … within each run of equal values of a sorted array."""
    index = np.arange(len(group))
    begins = np.concatenate([[True], group[1:] != group[:-1]])
    return np.asarray(index - np.maximum.accumulate(np.where(begins, index, 0)) + 1)
