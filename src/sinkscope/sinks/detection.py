"""Which keys are sinks, and which cannot be judged.

Array layer: `sinks_of`, for rules of a whole row. Labelled layer: `detect`, `unknown`.

Source: "Attention Sinks in Diffusion Language Models" (arXiv 2510.15731), equation 3, figures 3, 9, 10. As printed the
equation compares mean attention, which lies in [0, 1], with ε = 3, and can never hold. The column sum (received attention,
uniform = 1) makes ε = 3 mean "about four times uniform" and agrees with the axes of the paper's histograms.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from sinkscope.base.errors import InputError
from sinkscope.base.sink_rule import EPSILON
from sinkscope.sinks.dataset import Array, SampleState, blocks, head_means, labelled, labels, sample_state
from sinkscope.sinks.judging import ROW_RULES, Judge, Judged, check_rule, threshold_line

SWEEP = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)
"""The ε of figure 10, 0 to 10."""

HISTOGRAM_EDGES = np.arange(0.0, 50.5, 0.5)
"""Bins of figures 3 and 9: 0 to 50 in halves; higher scores count in the last bin."""


def sinks_of(received: Array, epsilon: float = EPSILON, rule: str = "sum") -> Array:
    """bool [..., K]: the keys that are sinks by `rule`. received: float [..., K], uniform = 1, NaN = no key."""
    check_rule(rule, epsilon)
    if rule not in ROW_RULES:
        raise InputError(f"rule {rule!r} needs more than scores; use ss.detect, or one of {', '.join(ROW_RULES)}")
    base, slope = threshold_line(received, rule)
    with np.errstate(invalid="ignore"):
        return np.asarray(received > base + epsilon * slope)


def detect(trace: Any, epsilon: float = EPSILON, rule: str = "auto", *, scores: str = "auto") -> xr.DataArray:
    """Which (sample, step, layer, head, key) are sinks.

    Rules (docs/attention.md has the reasons):

    - "auto", the default: "sum" where every query sees every key, "distance" in causal and block-causal attention.
    - "sum" (arXiv 2510.15731, eq. 3): `received_j > mean_{k≠j} received_k + ε` over the real keys of one head in one step.
      ε = 3 is about four times uniform attention, and at most a quarter of the keys can be sinks.
    - "distance": distant queries give the key more than distance alone can explain, by more than ε / 64 of their attention.
    - "mean": the equation as printed; no key can exceed it at ε ≥ 1, and a warning says so.
    - "percent": in multiples of uniform, the threshold grows with sequence length.
    - "zscore": depends on the spread of the row; used by the code of "Attention Floating".

    Parameters
    ----------
    trace
        A trace or its dataset: `received` [sample, step, layer, head, key], uniform = 1, NaN = no key.
    scores
        "auto" (causal traces: the distant queries so far, `received_far`, or else `received_all`; others: `received`), or a
        variable's name, such as "received_raw" (under a policy). "received" of a causal trace is the newest query's row: no
        sink can be told from it, and "distance" finds none.

    Returns
    -------
    bool DataArray with the dims of the scores. Its attributes hold rule, epsilon, scores, formula, scope and a note. A key
    that cannot be judged is False here and True in `unknown`.

    Limits: on a trace of head means a sink of one head can vanish in the mean, and the note says so.

    >>> sinks = ss.detect(trace)
    >>> sinks.dims, str(sinks.dtype)
    (('sample', 'step', 'layer', 'head', 'key'), 'bool')
    >>> 0 < float(sinks.any("key").mean()) < 1    # the share of heads and steps that have a sink
    True
    """
    judge = Judge.of(trace, epsilon, rule, scores)
    # A threshold that says little is used all the same, as it was asked for, but not in silence.
    note = check_rule(rule, epsilon)
    if note:
        warnings.warn(note, UserWarning, stacklevel=2)
    return _marked(judge, "sink", lambda judged, _: judged.sinks(epsilon), judge.attrs(epsilon))


def unknown(trace: Any, rule: str = "auto", *, scores: str = "auto") -> xr.DataArray:
    """Which (sample, step, layer, head, key) cannot be judged: bool, False where there is no key.

    By the rule "distance" these are keys with too few distant queries behind them, and all keys of a text under 5 tokens;
    they are neither sinks nor keys that are none.
    """
    judge = Judge.of(trace, EPSILON, rule, scores)
    return _marked(judge, "unknown", lambda judged, real: real & ~judged.known, {"note": judge.note})


def _marked(judge: Judge, name: str, mark: Callable[[Judged, Array], Array], attrs: dict[str, Any]) -> xr.DataArray:
    """Bool with the dims of the scores, from a function of each judged step and of the keys that exist in it."""
    data, means = judge.data, head_means(judge.data, judge.name)
    dims = ("sample", "step", "layer", "key") if means else ("sample", "step", "layer", "head", "key")
    out = np.zeros([data.sizes[dim] for dim in dims], dtype=bool)
    for at in judged_steps(judge):
        marked = mark(at.judged, at.state.real[at.step])
        out[at.sample, at.step, at.layers] = marked[:, 0] if means else marked
    return labelled(out, name, {dim: labels(data, dim) for dim in dims}, units="1", **attrs)


class JudgedStep(NamedTuple):
    """A step of a sample (indices), of a range of layers; values: variable → [layer, head, key], the scores among them."""

    sample: int
    step: int
    layers: slice
    state: SampleState
    judged: Judged
    values: dict[str, Array]


def judged_steps(judge: Judge, *further: str) -> Iterator[JudgedStep]:
    """The steps of a whole trace, block by block; a step comes once for each range of layers. further: variables to read too."""
    states: dict[int, SampleState] = {}
    for block in blocks(judge.data, [judge.name, *further]):
        # Only states of the block's own samples are held: a trace may have many.
        states = {k: v for k, v in states.items() if k in block.samples}
        for sample, step, values in block.each_step():
            if sample not in states:
                states[sample] = sample_state(judge.data, sample)
            judged = judge.step(states[sample], step, values[judge.name], block.cut[2])
            yield JudgedStep(sample, step, block.cut[2], states[sample], judged, values)
