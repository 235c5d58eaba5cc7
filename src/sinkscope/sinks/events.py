"""Moves of sinks against decoding events, on arrays, tested on shifted event times.

A move between the input of step t and that of step t+1 is *aligned* with an event that changed the input in between. Events:
`left` (the token that the sink leaves was decided), `reached` (the token that it moves to was decided), `block` (a block was
completed). The null hypothesis keeps the moves and shifts the times of the events by a few steps, by the same for all heads of a
sample, because heads move together. A few steps only, because a move rate that rises and falls over a generation would
otherwise coincide with whatever happens where it is high.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

import numpy as np
import pandas as pd

from sinkscope.sinks.dataset import ANSWER, Array, SampleState, frame
from sinkscope.sinks.kinds import moves_of

EVENTS = ("left", "reached", "block")
PERMUTATIONS = 200
WINDOW = 4
"""Event times are shifted by at most about so many steps to either side."""
LEAST_LIFT = 1.25
"""Moves have to coincide with events so many times as often as with shifted ones: within the window their rate may change too."""


class Alignment(NamedTuple):
    """moves: how many; observed int [3]: aligned with each of EVENTS; null int [3, PERMUTATIONS]: the same under shifted times;
    applies bool [3]: whether such events exist in this run."""

    moves: int
    observed: Array
    null: Array
    applies: Array


def block_ends(state: SampleState, block: int | None) -> Array:
    """bool [T]: between this step's input and the next one's, the last masked position of a block was decided.

    block: tokens per block; None, or one block for the whole answer, has no block ends inside the generation.
    """
    out = np.zeros(len(state.masked), dtype=bool)
    answer = np.flatnonzero(state.region == ANSWER)
    if not block or block >= len(answer):
        return out
    decisions = state.decisions()
    for first in range(0, len(answer), block):
        keys = answer[first : first + block]
        open_now = np.asarray(state.masked[:, keys].any(axis=1))
        open_next = np.append(open_now[1:], (state.masked[-1, keys] & ~decisions[-1, keys]).any())
        out |= open_now & ~open_next
    return out


def align(
    state: SampleState, path: Array, block: int | None, *, permutations: int = PERMUTATIONS, seed: int = 0
) -> Alignment:
    """Count aligned moves, and the same under shifted event times. path int [T, L, H], −1 = no sink."""
    T, K = state.tokens.shape
    step, layer, head = moves_of(path)
    ends = block_ends(state, block)[: T - 1]
    decisions = state.decisions()[: T - 1].astype(np.float32)
    applies = np.array([decisions.any(), decisions.any(), ends.any()])
    # How often each (step, key) was left or reached; then "aligned under shifted times" is a sum over a T×T table.
    left = np.zeros((max(T - 1, 0), K), dtype=np.float32)
    reached = np.zeros_like(left)
    np.add.at(left, (step, path[step, layer, head]), 1)
    np.add.at(reached, (step, path[step + 1, layer, head]), 1)
    at_ends = np.outer(left.sum(axis=1), ends.astype(np.float32))
    tables = [left @ decisions.T, reached @ decisions.T, at_ends]
    here = np.arange(max(T - 1, 0))
    observed = np.array([table[here, here].sum() for table in tables], dtype=np.int64)
    null = np.zeros((len(EVENTS), permutations), dtype=np.int64)
    # Keyed by the run itself, so that a shard gives the same draws as the whole.
    rng = np.random.default_rng([seed, zlib.crc32(np.ascontiguousarray(state.tokens).tobytes())])
    for draw in range(permutations):
        order = np.argsort(here + rng.uniform(-WINDOW, WINDOW, len(here)))
        null[:, draw] = [table[here, order].sum() for table in tables]
    return Alignment(len(step), observed, null, applies)


def alignment_table(moves: Array, observed: Array, null: Array, applies: Array) -> pd.DataFrame:
    """How many moves of the strongest sinks fall together with decoding events, against shifted event times.

    moves [N], observed [N, 3], null [N, 3, P], applies bool [N, 3]: of `align`, by sample. One row per event: moves, aligned,
    share, expected (mean share under shifted times), lift (share / expected), p (one-sided: (1 + draws that are at least as
    aligned / 1.25) / (1 + draws)), prompts. NaN where the run has no such event. Limits: with one decision in almost every step,
    "some token decided" is always true, which is why only the sink's own token counts; p cannot go below 1/201.
    """
    rows = []
    for i, event in enumerate(EVENTS):
        use = applies[:, i].astype(bool)
        total, aligned = int(moves[use].sum()), int(observed[use, i].sum())
        drawn = null[use, i].sum(axis=0)
        row = {"event": event, "moves": total, "aligned": aligned, "prompts": int(use.sum())}
        if total:
            expected = float(drawn.mean()) / total
            row |= {
                "share": aligned / total,
                "expected": expected,
                "lift": aligned / total / expected if expected > 0 else float("nan"),
                "p": float((1 + (LEAST_LIFT * drawn >= aligned).sum()) / (1 + len(drawn))),
            }
        rows.append(row)
    columns = ["event", "moves", "aligned", "share", "expected", "lift", "p", "prompts"]
    return frame(
        pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[3:7], float)),
        units={"share": "share of moves", "expected": "share of moves"},
        permutations=null.shape[-1],
    )
