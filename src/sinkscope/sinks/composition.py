"""What sinks are made of: how often each kind of token is one, and how much more often than chance.

A third of all positions of a generation are masks, averaged over its steps, so a third of all sinks on masks means nothing.
Frequency and enrichment over the base rate of the same step and region therefore always stand together (table 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sinkscope.base import checks
from sinkscope.base.sink_rule import EPSILON
from sinkscope.sinks.categories import CATEGORIES, category_codes, token_texts
from sinkscope.sinks.dataset import ANSWER, PROMPT, Array, SampleState, dataset_of, frame
from sinkscope.sinks.scan import scans
from sinkscope.statistics import bounded, ratio_interval

REGIONS = (PROMPT, ANSWER)


class Composition(NamedTuple):
    """Counts of one sample, float [region, label]: detections, drains among them (NaN without anatomy), expected (detections that
    chance would give), cells (keys and steps with that label)."""

    detections: Array
    drains: Array
    expected: Array
    cells: Array


def compose(state: SampleState, counts: Array, codes: Array, labels: int, drains: Array | None = None) -> Composition:
    """Observed and expected detections per region and label.

    In step t and region g let D be the detections and n the real keys. Were sinks spread over the keys of that step and
    region by chance, each key would get D/n of them: `expected_c = Σ_t Σ_{k in c} D(t, g) / n(t, g)`, and the enrichment is
    detections_c / expected_c. counts int [T, K]: heads (over all layers) that call the key a sink; codes int [T, K] in 0 …
    labels − 1, −1 = no key.
    """
    shape = (len(REGIONS), labels)
    observed, drained, expected, cells = (np.zeros(shape) for _ in range(4))
    for g, name in enumerate(REGIONS):
        here = (codes >= 0) & (state.region == name)[None, :]
        total = np.where(here, counts, 0).sum(axis=1)
        n = here.sum(axis=1)
        chance = np.divide(total, n, out=np.zeros(len(n)), where=n > 0)
        code = codes[here]
        observed[g] = np.bincount(code, weights=counts[here], minlength=labels)
        expected[g] = np.bincount(code, weights=np.repeat(chance, n), minlength=labels)
        cells[g] = np.bincount(code, minlength=labels)
        if drains is not None:
            drained[g] = np.bincount(code, weights=drains[here], minlength=labels)
    return Composition(observed, drained if drains is not None else np.full(shape, np.nan), expected, cells)


def composition_table(counts: Composition, names: list[str], prompts: Array) -> pd.DataFrame:
    """The table of `composition` from counts with [N, region, label] arrays, regions pooled. prompts [N]."""
    observed, drained, chance, cells = (
        x.sum(axis=1) for x in (counts.detections, counts.drains, counts.expected, counts.cells)
    )
    total = observed.sum(axis=1, keepdims=True)
    # Ratios of sums, not means of ratios, in which a sample with two detections would weigh as much as any other.
    frequency = ratio_interval(observed, np.broadcast_to(total, observed.shape), prompts, "share")
    enrichment = ratio_interval(observed, chance, prompts, "positive")
    base = cells.sum(axis=0) / max(1.0, cells.sum())
    with np.errstate(invalid="ignore", divide="ignore"):
        expected_share = chance.sum(axis=0) / total.sum()
    return frame(
        {
            "label": names,
            **bounded("frequency", *frequency),
            **bounded("enrichment", *enrichment),
            "expected": expected_share,
            "base_rate": base,
            "detections": observed.sum(axis=0).astype(np.int64),
            "drains": drained.sum(axis=0),
            "hubs": observed.sum(axis=0) - drained.sum(axis=0),
            "prompts": len(np.unique(prompts)),
        },
        units={
            "frequency": "share of detections (step, layer, head, key)",
            "expected": "share of detections that chance gives in the same steps and regions",
            "enrichment": "frequency / expected",
            "base_rate": "share of keys and steps",
        },
        interval="95 %, over prompts",
    )


def category_table(counts: Composition, prompts: Array) -> pd.DataFrame:
    """`composition` by category: the categories that occur, the most frequent first."""
    table = composition_table(counts, list(CATEGORIES), prompts).rename(columns={"label": "category"})
    return _sorted(table[table["base_rate"] > 0], table.attrs)


def composition(
    trace: Any,
    tokenizer: Any = None,
    *,
    by: str = "category",
    categories: Mapping[int, str] | None = None,
    epsilon: float = EPSILON,
    rule: str = "auto",
    scores: str = "auto",
    top: int | None = None,
) -> pd.DataFrame:
    """What sinks are made of (table 2): one row per token category, or per token with `by="token"`.

    Columns: category or token and text; frequency (share of all detections) and enrichment (over the base rate of the same
    step and region: 1 = as often as chance), each with a 95 % interval over prompts; expected, base_rate, detections, drains
    and hubs (NaN without anatomy), prompts. Most frequent first; top: only that many rows.

    tokenizer: anything with convert_ids_to_tokens or decode; default: the trace's own `token_texts`. categories: {id: category}
    overrides. Source: table 2 of arXiv 2510.15731, which gives frequencies alone.

    Limits: enrichment compares with other tokens of the same step and region; where a region is all masks it is 1 by
    construction. Heads are counted as equals.
    """
    checks.one_of("by", by, ("category", "token"))
    data = dataset_of(trace)
    samples: list[Composition] = []
    prompts = []
    vocabulary: dict[int, int] = {}
    for scan in scans(trace, epsilon, rule, scores=scores):
        state = scan.state
        if by == "category":
            codes, size = category_codes(data, state, tokenizer, categories), len(CATEGORIES)
        else:
            ids = np.unique(state.tokens[state.real])
            numbers = np.array([vocabulary.setdefault(int(i), len(vocabulary)) for i in ids], dtype=np.int64)
            codes = np.full(state.tokens.shape, -1, dtype=np.int64)
            codes[state.real] = numbers[np.searchsorted(ids, state.tokens[state.real])]
            size = len(vocabulary)
        # Keys that cannot be judged are no sinks, and count in no base rate either.
        codes = np.where(scan.scored, codes, -1)
        drains = None if scan.drain_counts is None else scan.drain_counts.sum(axis=1, dtype=np.int64)
        samples.append(compose(state, scan.counts.sum(axis=1, dtype=np.int64), codes, size, drains))
        prompts.append(state.prompt_digest)
    size = max(sample.cells.shape[1] for sample in samples)
    counts = Composition(*(np.stack([_widen(sample[i], size) for sample in samples]) for i in range(4)))
    if by == "category":
        table = category_table(counts, np.array(prompts))
    else:
        table = composition_table(counts, [str(i) for i in vocabulary], np.array(prompts))
        texts = token_texts(data, tokenizer, list(vocabulary))
        table["label"] = list(vocabulary)
        table.insert(1, "text", [texts.get(i, "") for i in vocabulary])
        table = _sorted(table.rename(columns={"label": "token"}), table.attrs)
    return table if top is None else table.head(top)


def _sorted(table: pd.DataFrame, attrs: dict[Any, Any]) -> pd.DataFrame:
    ordered = table.sort_values("frequency", ascending=False, kind="stable").reset_index(drop=True)
    ordered.attrs = attrs
    return ordered


def _widen(values: Array, size: int) -> Array:
    fill = np.nan if np.isnan(values).all() and values.size else 0.0
    return np.pad(values, ((0, 0), (0, size - values.shape[1])), constant_values=fill)
