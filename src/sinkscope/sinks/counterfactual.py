"""Filler tokens inserted: does the sink follow the token or the index?

Two traces of one prompt, the second with filler tokens put in, so that every later token has a new index. A sink that is
bound to its token is found at the token's new place; one bound to the index stays where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sinkscope.base.errors import InputError
from sinkscope.base.sink_rule import EPSILON
from sinkscope.sinks.dataset import Array, SampleState, check_alike, dataset_of, frame, sample_state
from sinkscope.sinks.detection import detect
from sinkscope.statistics import Estimate, ratio_interval

OUTCOMES = ("token", "index", "both", "neither")


def insertion_alignment(length: int, at: int, count: int) -> Array:
    """int [length]: the new position of each old one when `count` tokens are inserted before position `at`."""
    if not 0 <= at <= length or count < 0:
        raise InputError(f"cannot insert {count} tokens at {at} into {length}; expected 0 ≤ at ≤ length, count ≥ 0")
    old = np.arange(length)
    return np.where(old >= at, old + count, old)


class Followed(NamedTuple):
    """Sinks of the first trace on shifted tokens, by where the same head of the second has one: at the token's new place only, at
    the old index only, at both, at neither; all of them; and how many any one key would hold by chance."""

    token: int
    same_index: int
    both: int
    neither: int
    sinks: int
    chance: float


def follow(sinks: Array, other: Array, state: SampleState, other_state: SampleState, alignment: Array) -> Followed:
    """Count over (step, layer, head) what the sinks of shifted tokens follow.

    sinks bool [T, L, H, K], other [T, L, H, K2]; alignment int [positions]: new position of each old one, −1 = gone.
    """
    column = np.full(len(state.position), -1)
    index = np.full(len(state.position), -1)
    places = {int(p): k for k, p in enumerate(other_state.position) if p >= 0}
    for key, place in enumerate(state.position):
        if 0 <= place < len(alignment) and alignment[place] >= 0 and alignment[place] != place:
            column[key] = places.get(int(alignment[place]), -1)
            index[key] = places.get(int(place), -1)
    shifted = np.flatnonzero((column >= 0) & (index >= 0))
    steps = min(len(sinks), len(other))
    before, after = sinks[:steps][..., shifted], other[:steps]
    token, stayed = after[..., column[shifted]], after[..., index[shifted]]
    density = after.sum(axis=-1, keepdims=True) / max(1, int((other_state.position >= 0).sum()))
    return Followed(
        token=int((before & token & ~stayed).sum()),
        same_index=int((before & ~token & stayed).sum()),
        both=int((before & token & stayed).sum()),
        neither=int((before & ~token & ~stayed).sum()),
        sinks=int(before.sum()),
        chance=float((before * density).sum()),
    )


def counterfactual(
    original: Any,
    filled: Any,
    alignment: Array | Sequence[Any],
    *,
    epsilon: float = EPSILON,
    rule: str = "auto",
    scores: str = "auto",
) -> pd.DataFrame:
    """Does a sink follow its token or its index when filler tokens are inserted?

    original, filled: traces of the same samples, model and decoding, the second with fillers in the prompt. alignment: int
    [positions], the new position of each old one (−1 = gone), see `insertion_alignment`; or one such array per sample.

    Returns one row per outcome (token, index, both, neither): share of the original's sinks on shifted tokens, with a 95 %
    interval over prompts; `chance` is the share expected of any key. attrs["leads"]: for "token" and "index" the sinks that
    follow it, less twice those that follow the other, as a share of all: above 0 in the whole interval, and with a share above
    chance, sinks follow it. Limits: later steps also differ because other tokens get decided; compare few steps
    (`trace.dataset.isel(step=slice(0, 8))`) to stay near the first input.
    """
    a, b = dataset_of(original), dataset_of(filled)
    advices = {"sample": "pass the same samples", "layer": "use one model", "head": "use one model"}
    check_alike(a, b, advices)
    samples = a.sizes["sample"]
    aligned = list(alignment)
    each = [np.asarray(x) for x in aligned] if np.ndim(aligned[0]) else [np.asarray(aligned)] * samples
    if len(each) != samples:
        raise InputError(f"{len(each)} alignments for {samples} samples; pass one, or one for each")
    counts = []
    for i in range(samples):
        sinks = [detect(d.isel(sample=[i]), epsilon, rule, scores=scores).values[0] for d in (a, b)]
        sinks = [found if found.ndim == 4 else found[:, :, None] for found in sinks]  # head means
        counts.append(follow(sinks[0], sinks[1], sample_state(a, i), sample_state(b, i), each[i]))
    table = np.array(counts, dtype=np.float64)
    share = ratio_interval(table[:, :4], np.broadcast_to(table[:, 4:5], table[:, :4].shape), scale="share")
    total = table[:, 4].sum()
    chance = float(table[:, 5].sum() / total) if total else float("nan")

    def lead(own: int, other: int) -> Estimate:
        return ratio_interval(table[:, own] - 2 * table[:, other], table[:, 4])

    return frame(
        {
            "follows": OUTCOMES,
            "share": share.value,
            "low": share.low,
            "high": share.high,
            "sinks": table[:, :4].sum(axis=0).astype(np.int64),
            "chance": chance,
        },
        leads={"token": lead(0, 1), "index": lead(1, 0)},
        units={"share": "share of sinks on shifted tokens"},
    )
