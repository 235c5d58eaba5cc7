"""Do sinks move when something is decoded? Moves against decoding events, tested on permuted event times.

A move between the input of step t and that of step t+1 is *aligned* with an event that changed the input in
between. Events: `left` (the token that the sink leaves was decided), `reached` (the token that it moves to
was decided), `block` (a block was completed). The null hypothesis keeps the moves and permutes the times of
the events, the same permutation for all heads of a sample, because heads move together.
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sinkscope.sink_rule import EPSILON
from sinkscope.sinks.dataset import ANSWER, Array, Run, dataset_of, decoding_options
from sinkscope.sinks.paths import moves_of

EVENTS = ("left", "reached", "block")
PERMUTATIONS = 200


class Alignment(NamedTuple):
    """moves: how many; observed int [3]: aligned with each of EVENTS; null int [3, PERMUTATIONS]: under
    permuted times; applies bool [3]: whether such events exist in this run."""

    moves: int
    observed: Array
    null: Array
    applies: Array


def block_ends(run: Run, block: int | None) -> Array:
    """bool [T]: between this step's input and the next one's, the last masked position of a block was
    decided.

    block: tokens per block; None, or one block for the whole answer, has no block ends inside the generation.
    """
    out = np.zeros(len(run.masked), dtype=bool)
    answer = np.flatnonzero(run.region == ANSWER)
    if not block or block >= len(answer):
        return out
    decisions = run.decisions()
    for first in range(0, len(answer), block):
        keys = answer[first : first + block]
        open_now = np.asarray(run.masked[:, keys].any(axis=1))
        open_next = np.append(open_now[1:], (run.masked[-1, keys] & ~decisions[-1, keys]).any())
        out |= open_now & ~open_next
    return out


def align(
    run: Run, path: Array, block: int | None, *, permutations: int = PERMUTATIONS, seed: int = 0
) -> Alignment:
    """Count aligned moves, and the same under permuted event times. path int [T, L, H], −1 = no sink."""
    T, K = run.tokens.shape
    step, layer, head = moves_of(path)
    ends = block_ends(run, block)[: T - 1]
    decisions = run.decisions()[: T - 1].astype(np.float32)
    applies = np.array([decisions.any(), decisions.any(), ends.any()])
    # How often each (step, key) was left or reached; then "aligned under a permutation" is one row of a T×T
    # table.
    left = np.zeros((max(T - 1, 0), K), dtype=np.float32)
    reached = np.zeros_like(left)
    np.add.at(left, (step, path[step, layer, head]), 1)
    np.add.at(reached, (step, path[step + 1, layer, head]), 1)
    tables = [
        left @ decisions.T,
        reached @ decisions.T,
        np.outer(left.sum(axis=1), ends.astype(np.float32)),
    ]
    here = np.arange(max(T - 1, 0))
    observed = np.array([table[here, here].sum() for table in tables], dtype=np.int64)
    null = np.zeros((len(EVENTS), permutations), dtype=np.int64)
    # Keyed by the run itself, so that a shard gives the same draws as the whole.
    rng = np.random.default_rng([seed, zlib.crc32(np.ascontiguousarray(run.tokens).tobytes())])
    for draw in range(permutations):
        order = rng.permutation(here)
        null[:, draw] = [table[here, order].sum() for table in tables]
    return Alignment(len(step), observed, null, applies)


def event_alignment(
    trace: Any, epsilon: float = EPSILON, rule: str = "sum", *, scores: str = "auto", seed: int = 0
) -> pd.DataFrame:
    """How many moves of the strongest sinks fall together with decoding events, against permuted event times.

    One row per event ("left", "reached", "block"): moves, aligned, share, expected (mean share under
    permutation), lift (share / expected), p (one-sided: (1 + draws at least as aligned) / (1 + draws)),
    prompts. NaN where the run has no such event (no blocks, say). Limits: with one decision in almost every
    step, "some token decided" is always true, which is why only the sink's own token counts; p cannot go
    below 1/201.
    """
    from sinkscope.sinks.scan import scans

    block = decoding_options(dataset_of(trace)).get("block")
    found = [
        align(scan.run, scan.path, block, seed=seed) for scan in scans(trace, epsilon, rule, scores=scores)
    ]
    return alignment_table(
        np.array([a.moves for a in found]),
        np.stack([a.observed for a in found]),
        np.stack([a.null for a in found]),
        np.stack([a.applies for a in found]),
    )


def alignment_table(moves: Array, observed: Array, null: Array, applies: Array) -> pd.DataFrame:
    """The table of `event_alignment` from moves [N], observed [N, 3], null [N, 3, P], applies bool [N, 3]."""
    rows = []
    for i, event in enumerate(EVENTS):
        use = applies[:, i].astype(bool)
        total, aligned = int(moves[use].sum()), int(observed[use, i].sum())
        drawn = null[use, i].sum(axis=0)
        usable = bool(use.any()) and total > 0
        expected = float(drawn.mean()) / total if usable else float("nan")
        share = aligned / total if usable else float("nan")
        rows.append(
            {
                "event": event,
                "moves": total,
                "aligned": aligned,
                "share": share,
                "expected": expected,
                "lift": share / expected if usable and expected > 0 else float("nan"),
                "p": float((1 + (drawn >= aligned).sum()) / (1 + len(drawn))) if usable else float("nan"),
                "prompts": int(use.sum()),
            }
        )
    table = pd.DataFrame(rows)
    table.attrs = {
        "units": {"share": "share of moves", "expected": "share of moves"},
        "permutations": null.shape[-1],
    }
    return table
