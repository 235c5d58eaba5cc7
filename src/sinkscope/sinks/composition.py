"""What sinks are made of: how often each kind of token is one, and how much more often than chance.

A third of all positions of a generation are masks, averaged over its steps, so a third of all sinks on
masks means nothing. Frequency and enrichment over the base rate of the same step and region therefore
always stand together (table 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sinkscope.errors import InputError
from sinkscope.sink_rule import EPSILON
from sinkscope.sinks.categories import CATEGORIES, category_codes, token_texts
from sinkscope.sinks.dataset import ANSWER, PROMPT, Array, Run, dataset_of
from sinkscope.sinks.intervals import ratio_interval

REGIONS = (PROMPT, ANSWER)


class Composition(NamedTuple):
    """Counts of one sample, float [region, label]: detections, drains among them (NaN without anatomy),
    expected (detections that chance would give), cells (key-steps with that label)."""

    detections: Array
    drains: Array
    expected: Array
    cells: Array


def compose(run: Run, counts: Array, codes: Array, labels: int, drains: Array | None = None) -> Composition:
    """Observed and expected detections per region and label.

    In step t and region g let D be the detections and n the real keys. Were sinks spread over the keys of
    that step and region by chance, each key would get D/n of them: `expected_c = Σ_t Σ_{k in c} D(t, g) /
    n(t, g)`, and the enrichment is detections_c / expected_c. counts int [T, K]: heads (over all layers)
    that call the key a sink; codes int [T, K] in 0 … labels − 1, −1 = no key.
    """
    shape = (len(REGIONS), labels)
    found, drained, expected, cells = (np.zeros(shape) for _ in range(4))
    for g, name in enumerate(REGIONS):
        keys = run.region == name
        here = (codes >= 0) & keys[None, :]
        total = np.where(here, counts, 0).sum(axis=1)
        n = here.sum(axis=1)
        chance = np.divide(total, n, out=np.zeros(len(n)), where=n > 0)
        code = codes[here]
        found[g] = np.bincount(code, weights=counts[here], minlength=labels)
        expected[g] = np.bincount(code, weights=np.repeat(chance, n), minlength=labels)
        cells[g] = np.bincount(code, minlength=labels)
        if drains is not None:
            drained[g] = np.bincount(code, weights=drains[here], minlength=labels)
    return Composition(found, drained if drains is not None else np.full(shape, np.nan), expected, cells)


def composition_table(counts: Composition, names: list[str], prompts: Array) -> pd.DataFrame:
    """The table of `composition` from counts with [N, region, label] arrays, regions pooled. prompts [N]."""
    observed, chance = counts.detections.sum(axis=1), counts.expected.sum(axis=1)
    drained, there = counts.drains.sum(axis=1), counts.cells.sum(axis=1)
    total = observed.sum(axis=1, keepdims=True)
    frequency = ratio_interval(observed, np.broadcast_to(total, observed.shape), prompts)
    enrichment = ratio_interval(observed, chance, prompts)
    base = ratio_interval(there, np.broadcast_to(there.sum(axis=1, keepdims=True), there.shape), prompts)
    with np.errstate(invalid="ignore", divide="ignore"):
        expected_share = chance.sum(axis=0) / total.sum()
    table = pd.DataFrame(
        {
            "label": names,
            "frequency": frequency.value,
            "frequency_low": frequency.low,
            "frequency_high": frequency.high,
            "enrichment": enrichment.value,
            "enrichment_low": enrichment.low,
            "enrichment_high": enrichment.high,
            "expected": expected_share,
            "base_rate": base.value,
            "detections": observed.sum(axis=0).astype(np.int64),
            "drains": drained.sum(axis=0),
            "hubs": observed.sum(axis=0) - drained.sum(axis=0),
            "prompts": len(np.unique(prompts)),
        }
    )
    table.attrs = {
        "units": {
            "frequency": "share of detections (step, layer, head, key)",
            "expected": "share of detections that chance gives in the same steps and regions",
            "enrichment": "frequency / expected",
            "base_rate": "share of key-steps",
        },
        "interval": "95 %, bootstrap over prompts",
    }
    return table


def composition(
    trace: Any,
    tokenizer: Any = None,
    *,
    by: str = "category",
    categories: Mapping[int, str] | None = None,
    epsilon: float = EPSILON,
    rule: str = "sum",
    scores: str = "auto",
    top: int | None = None,
) -> pd.DataFrame:
    """What sinks are made of (table 2): one row per token category, or per token with `by="token"`.

    Columns: category or token and text; frequency (share of all detections) and enrichment (over the base
    rate of the same step and region: 1 = as often as chance), each with a 95 % interval by bootstrap over
    prompts; expected, base_rate, detections, drains and hubs (NaN without anatomy), prompts. Most frequent
    first; top: only that many rows.

    tokenizer: anything with convert_ids_to_tokens or decode; default: the trace's own `token_texts`.
    categories: {id: category} overrides. Source: table 2 of arXiv 2510.15731, which gives frequencies
    alone.

    Limits: enrichment compares with other tokens of the same step and region; where a region is all masks
    it is 1 by construction. Heads are counted as equals.
    """
    from sinkscope.sinks.scan import scans
    from sinkscope.sinks.sink_statistics import prompt_digest

    if by not in ("category", "token"):
        raise InputError(f"by must be 'category' or 'token', got {by!r}")
    data = dataset_of(trace)
    parts: list[Composition] = []
    prompts, seen = [], []
    vocabulary: dict[int, int] = {}
    for scan in scans(trace, epsilon, rule, scores=scores):
        run = scan.run
        if by == "category":
            codes, size = category_codes(data, run, tokenizer, categories), len(CATEGORIES)
        else:
            ids = np.unique(run.tokens[run.real])
            for i in ids:
                vocabulary.setdefault(int(i), len(vocabulary))
            codes = np.full(run.tokens.shape, -1, dtype=np.int64)
            numbers = np.array([vocabulary[int(i)] for i in ids], dtype=np.int64)
            codes[run.real] = numbers[np.searchsorted(ids, run.tokens[run.real])]
            size = len(vocabulary)
        codes = np.where(scan.scored, codes, -1)
        drains = None if scan.drain_counts is None else scan.drain_counts.sum(axis=1, dtype=np.int64)
        parts.append(compose(run, scan.counts.sum(axis=1, dtype=np.int64), codes, size, drains))
        prompts.append(prompt_digest(run))
        seen.append(size)
    size = max(seen)
    stacked = [np.stack([_widen(p[i], size) for p in parts]) for i in range(4)]
    names = list(CATEGORIES) if by == "category" else [str(i) for i in vocabulary]
    table = composition_table(Composition(*stacked), names, np.array(prompts))
    if by == "category":
        table = table.rename(columns={"label": "category"})
        table = table[(table["base_rate"] > 0)]
    else:
        texts = token_texts(data, tokenizer, list(vocabulary))
        table.insert(1, "text", [texts.get(i, "") for i in vocabulary])
        table["label"] = list(vocabulary)
        table = table.rename(columns={"label": "token"})
    table = table.sort_values("frequency", ascending=False, kind="stable").reset_index(drop=True)
    return table if top is None else table.head(top)


def _widen(values: Array, size: int) -> Array:
    fill = np.nan if np.isnan(values).all() and values.size else 0.0
    return np.pad(values, ((0, 0), (0, size - values.shape[1])), constant_values=fill)
