"""Semantic or positional? What predicts that a key is a sink, scored on held-out prompts.

Three groups of features compete: the decoding *state* (prompt, masked, decided), the token *category* given the state, and
the *position* (from the start, from the end, from the prompt's end, from the decoding frontier). A logistic regression is
fitted on some prompts and scored on others; a group's unique part is what the full model loses without it. What several
groups could explain equally well is the shared part, and it is reported, not handed to one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sinkscope.base.sink_rule import EPSILON
from sinkscope.sinks import logistic
from sinkscope.sinks.categories import CATEGORIES, category_codes
from sinkscope.sinks.dataset import ANSWER, PROMPT, Array, dataset_of, frame
from sinkscope.sinks.measures import Measure
from sinkscope.sinks.scan import Scan, scans
from sinkscope.statistics import mean_interval

GROUPS = ("state", "category", "position")
LEADS = {"semantic": Measure.SEMANTIC, "positional": Measure.POSITIONAL}
"""Lead → its measure: where it lies above 0, that group holds two thirds of what the two explain uniquely."""

PARTS = (*GROUPS, "shared", "total", *LEADS)
STATES = ("prompt", "masked", "decided")
DISTANCES = ("from start", "from end", "from prompt end", "from first mask", "from last mask")

ROWS_PER_SAMPLE = 8192
"""Key-steps kept of each sample: whole steps, evenly spaced."""

ROWS_IN_ALL = 30_000
FOLDS = 5
FEWEST_PROMPTS = 4

COLUMNS = ("share", "state", "category", "distances")
BINS = 19
NO_FRONTIER = 10_000
"""Distance code where nothing is masked and there is no frontier."""


class Observations(NamedTuple):
    """Rows of one sample: share float [R] of heads that call the key a sink; state, category int [R]; distances int [R, 5];
    length of prompt and of the whole sequence, which identifiability needs."""

    share: Array
    state: Array
    category: Array
    distances: Array
    prompt_length: int
    length: int

    def rows(self, use: Array) -> Observations:
        """Some of the rows."""
        return self._replace(**{name: getattr(self, name)[use] for name in COLUMNS})

    @classmethod
    def pooled(cls, samples: list[Observations]) -> Observations:
        """The rows of several samples; their lengths are given up."""
        joined = {name: np.concatenate([getattr(rows, name) for rows in samples]) for name in COLUMNS}
        return samples[0]._replace(prompt_length=0, length=0, **joined)


class Attribution(NamedTuple):
    """table: one row per part (state, category, position, shared, total, and the leads "semantic" and "positional") with gain in
    nats per key and step, its interval over prompts and its share of the total; note: why there are no numbers."""

    table: pd.DataFrame
    note: str = ""


def observe(scan: Scan, codes: Array, most: int = ROWS_PER_SAMPLE) -> Observations:
    """Rows for the regression. codes int [T, K]: category of each key, −1 = none."""
    state, counts = scan.state, scan.counts.sum(axis=1, dtype=np.int64)
    scored = state.real & (codes >= 0)
    per_step = max(1, int(scored.sum(axis=1).max(initial=1)))
    wanted = max(1, min(len(scored), most // per_step))
    steps = np.unique(np.linspace(0, len(scored) - 1, wanted).round().astype(int))
    step, key = np.nonzero(scored[steps])
    if len(step) > most:
        # Seeded by the number of rows, so that the same trace gives the same ones.
        keep = np.sort(np.random.default_rng(len(step)).choice(len(step), most, replace=False))
        step, key = step[keep], key[keep]
    step = steps[step]
    place = state.position[key]
    n = state.real.sum(axis=1)[step]
    # The frontier is where masks begin and end; without any there is none, and its distance has a code of its own.
    masked = state.masked & state.real
    any_mask = masked.any(axis=1)
    first = np.where(any_mask, state.position[masked.argmax(axis=1)], -1)
    last = np.where(any_mask, state.position[masked.shape[1] - 1 - masked[:, ::-1].argmax(axis=1)], -1)
    frontier = [np.where(edge[step] >= 0, place - edge[step], NO_FRONTIER) for edge in (first, last)]
    distances = np.stack([place, n - 1 - place, place - state.prompt_length, *frontier], axis=1)
    kind = np.where(state.region[key] == PROMPT, 0, np.where(state.masked[step, key], 1, 2))
    kind = np.where((state.region[key] != ANSWER) & (kind != 0), 2, kind)
    heads = scan.sinks.shape[1] * scan.sinks.shape[2]
    return Observations(
        share=(counts[step, key] / max(1, heads)).astype(np.float32),
        state=kind.astype(np.int8),
        category=codes[step, key].astype(np.int8),
        distances=distances.astype(np.int16),
        prompt_length=state.prompt_length,
        length=state.length,
    )


def distance_bins(distance: Array) -> Array:
    """Bins of a signed distance: 0, ±1, ±2, ±3, ±4–7, ±8–15, … ±64 and more; 18 = no frontier. int in 0 … 18."""
    size = np.abs(distance.astype(np.int64))
    level = np.where(size < 4, size, np.minimum(2 + np.log2(np.maximum(size, 1)).astype(np.int64), 8))
    return np.where(distance == NO_FRONTIER, 18, np.where(distance >= 0, level, 8 + level)).astype(np.int64)


def design(rows: Observations, groups: tuple[str, ...]) -> logistic.Codes:
    """The rows as codes, with the features of the chosen groups.

    State and category are one code. Categories are centred within each state, so that they say nothing about the state
    itself: all masks are masks.
    """
    kinds = len(CATEGORIES)
    joint = rows.state.astype(np.int64) * kinds + np.clip(rows.category, 0, kinds - 1)
    count = np.bincount(joint, minlength=len(STATES) * kinds).reshape(len(STATES), kinds).astype(np.float64)
    mean = count / np.maximum(1.0, count.sum(axis=1, keepdims=True))
    category = np.tile(np.eye(kinds), (len(STATES), 1)) - np.repeat(mean, kinds, axis=0)
    state = np.repeat(np.eye(len(STATES)), kinds, axis=0)
    first = [np.ones((len(state), 1))]
    first += [state] if "state" in groups else []
    first += [category] if "category" in groups else []
    codes = joint[:, None]
    sizes: tuple[int, ...] = (len(state),)
    if "position" in groups:
        bins = [distance_bins(rows.distances[:, i]) for i in range(rows.distances.shape[1])]
        codes = np.concatenate([codes, np.stack(bins, axis=1)], axis=1)
        sizes += (BINS,) * len(bins)
    return logistic.Codes(codes, sizes, np.concatenate(first, axis=1))


def attribute(samples: list[Observations], prompts: Array, *, seed: int = 0) -> Attribution:
    """Unique and shared held-out gains over prompts. prompts [N]: samples of one prompt stay in one fold."""
    scored = [i for i, rows in enumerate(samples) if len(rows.share)]
    samples = [samples[i] for i in scored]
    groups, index = np.unique(np.asarray(prompts)[scored], return_inverse=True)
    reason = _unidentifiable(samples, len(groups))
    if reason:
        parts = pd.DataFrame({"part": PARTS}).assign(gain=np.nan, low=np.nan, high=np.nan, share=np.nan)
        return Attribution(_labelled(parts), reason)
    thin = max(1, int(np.ceil(sum(len(rows.share) for rows in samples) / ROWS_IN_ALL)))
    thinned = [_thinned(rows, thin) for rows in samples]
    rows = Observations.pooled(thinned)
    owner = np.concatenate([np.full(len(r.share), index[i]) for i, r in enumerate(thinned)])
    # Folds hold whole prompts: keys of one text are alike, and would give each other away.
    order = np.random.default_rng(seed).permutation(len(groups))
    fold = np.empty(len(groups), dtype=int)
    fold[order] = np.arange(len(groups)) % min(FOLDS, len(groups))
    models = {"null": (), "full": GROUPS} | {f"without {g}": tuple(o for o in GROUPS if o != g) for g in GROUPS}
    share = rows.share.astype(np.float64)
    score = {}
    for name, used in models.items():
        data = design(rows, used)
        held = np.zeros(len(share))
        for f in range(fold.max() + 1):
            test = fold[owner] == f
            beta = logistic.fit(data.rows(~test), share[~test])
            held[test] = logistic.log_likelihood(data.rows(test), share[test], beta)
        # A prompt counts once, however many rows it has: intervals are over prompts.
        score[name] = np.array([held[owner == g].mean() for g in range(len(groups))])
    gains = {g: score["full"] - score[f"without {g}"] for g in GROUPS}
    total = score["full"] - score["null"]
    gains |= {"shared": total - sum(gains[g] for g in GROUPS), "total": total}
    semantic, positional = gains["category"], gains["position"]
    gains |= {"semantic": semantic - 2 * positional, "positional": positional - 2 * semantic}
    estimates = [(part, *mean_interval(gain)) for part, gain in gains.items()]
    parts = pd.DataFrame(estimates, columns=["part", "gain", "low", "high"])
    whole = float(total.mean())
    parts["share"] = parts["gain"] / whole if whole > 0 else float("nan")
    return Attribution(_labelled(parts))


def _unidentifiable(samples: list[Observations], prompts: int) -> str:
    """Why nothing can be said; "" when something can."""
    if sum(float(rows.share.sum()) for rows in samples) == 0:
        return "no sink was detected"
    if len({rows.prompt_length for rows in samples}) < 2:
        return "all prompts have one length, so token and position go together; use prompts of varied length"
    if prompts < FEWEST_PROMPTS:
        return f"{prompts} prompts, at least {FEWEST_PROMPTS} are needed to hold some out"
    return ""


def attribution(
    trace: Any,
    tokenizer: Any = None,
    *,
    categories: Mapping[int, str] | None = None,
    epsilon: float = EPSILON,
    rule: str = "auto",
    scores: str = "auto",
    seed: int = 0,
) -> Attribution:
    """Are sinks bound to tokens or to positions?

    Formula: held-out log-likelihood of "is a sink" (share of heads, nats per key and step), cross-validated over prompts;
    `unique(g) = LL(all groups) − LL(all but g)`, `shared = LL(all) − LL(none) − Σ unique`. Groups: decoding state, token category
    given state, position (binned distance from start, end, prompt's end, first and last mask).

    Returns an `Attribution`; `ss.diagnose` has the answer that follows from it. A single prompt length gives no numbers, because
    then every template token has one fixed position. Limits: correlation over natural prompts, not intervention (see
    `counterfactual`); a token that always stands first (a begin-of-text token) goes to the shared part; heads are pooled.
    """
    data = dataset_of(trace)
    samples, prompts = [], []
    for scan in scans(trace, epsilon, rule, scores=scores):
        codes = np.where(scan.scored, category_codes(data, scan.state, tokenizer, categories), -1)
        samples.append(observe(scan, codes))
        prompts.append(scan.state.prompt_digest)
    return attribute(samples, np.array(prompts), seed=seed)


def _labelled(table: pd.DataFrame) -> pd.DataFrame:
    return frame(table, units={"gain": "nats per key and step, held out", "share": "share of the total gain"})


def _thinned(rows: Observations, every: int) -> Observations:
    if every == 1:
        return rows
    # Drawn, not every n-th: a stride that divides the length would always take the same positions.
    return rows.rows(np.random.default_rng(len(rows.share)).random(len(rows.share)) < 1.0 / every)
