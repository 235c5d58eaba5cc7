"""The part of a trace that a viewer embeds: one `view` for each sample, small enough for one file.

Layer means at full resolution; of each head the 8 strongest keys of each step and the average over time; chosen heads in
full; sinks, residences and paths as `sinkscope.sinks` finds them, from the exact scores.

Scores take one byte each, and arrays are compressed text that a browser can read. A score v ≥ 0 becomes the code
round(log(1 + v) / scale), 0 … 253: small steps near uniform attention, wide ones at strong sinks, so that the error is about the
same share of 1 + v everywhere. 254 means "not embedded", 255 "no such key".
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from sinkscope.base.errors import InputError
from sinkscope.base.sink_rule import EPSILON
from sinkscope.sinks.categories import token_texts
from sinkscope.sinks.dataset import (
    decoding_options,
    head_means,
    indices_of,
    is_causal,
    labels,
    sample_state,
    scores_name,
)
from sinkscope.sinks.detection import judged_steps
from sinkscope.sinks.judging import DISTANCE, Judge
from sinkscope.sinks.kinds import KINDS
from sinkscope.sinks.residence import FATES
from sinkscope.sinks.scan import Scan, scans
from sinkscope.sinks.split import CONTROLS

Array = npt.NDArray[Any]

STRONGEST = 8
"""Keys of each head and step that are embedded."""

MOST_RESIDENCES = 60_000
"""Beyond these the shortest and weakest residences are left out, and the page says how many."""

MOST_KEYS = 2**15 - 1
"""Keys are stored in 16 bits, −1 for none."""

MAP_CELLS, BY_QUERY_CELLS = 6_000_000, 8_000_000
"""Values of attention maps, and of attention by class of query, that a page embeds at most."""

BUDGET = 16_000_000
"""Characters of packed data after which no further sample is embedded."""

TITLES = {
    "received": "all queries",
    "received_all": "all queries so far",
    "received_far": "distant queries so far",
    "received_raw": "before the policy",
    "newest": "newest query’s row",
}
REAL, MASKED, DECIDED, PROMPT = 1, 2, 4, 8
LEVELS = 253
LEFT_OUT, MISSING = 254, 255


def views(
    trace: Any,
    *,
    heads: Sequence[tuple[int, int]] = (),
    epsilon: float = EPSILON,
    rule: str = "auto",
    samples: Sequence[int] | None = None,
    name: str | None = None,
    file: str = "",
    percent: bool = False,
) -> list[dict[str, Any]]:
    """The views of a trace, one for each sample; each is JSON.

    heads: (layer, head) labels to embed in full. samples: indices; default as many as fit, at least the first.
    file: the path under which a reader opens the trace again. percent: scores as shares of a query's attention, to be set
    beside those of a model whose attention differs in kind (`mixed`).
    """
    data = Judge.of(trace, epsilon, rule).data
    if data.sizes["key"] > MOST_KEYS:
        raise InputError(f"a page can show up to {MOST_KEYS} keys, this trace has {data.sizes['key']}")
    names = _score_names(data)
    chosen = _check_heads(data, names[0], heads)
    rows = int(data.sizes["sample"])
    wanted = list(range(rows)) if samples is None else [int(s) for s in samples]
    wrong = [s for s in wanted if not 0 <= s < rows]
    if wrong or not wanted:
        raise InputError(f"sample {wrong or wanted} is not in this trace; it has samples 0 to {rows - 1}")
    made: list[dict[str, Any]] = []
    used = 0
    for sample in wanted:
        # Another view is taken to be as large as the mean of those before it.
        if samples is None and made and used + used / len(made) > BUDGET:
            break
        view = _view(data.isel(sample=[sample]), names, chosen, (epsilon, rule, percent), name) | {"file": file}
        used += len(json.dumps(view))
        made.append(view)
    for view in made:
        view["samples"] = [len(made), rows]
    return made


def mixed(traces: Sequence[Any]) -> bool:
    """Whether multiples of uniform attention cannot be compared between these traces: some are causal, some are not."""
    return len({Judge.of(trace).unit for trace in traces}) > 1


def model_name(data: xr.Dataset) -> str:
    """The model as a reader knows it: a hub id or organism as it is, of a folder on disk only its own name."""
    source = str(data.attrs.get("model") or "trace")
    return Path(source).name if Path(source).is_absolute() else source


def _score_names(data: xr.Dataset) -> list[str]:
    first = scores_name(data)
    others = [n for n in ("received", "received_raw") if n in data and n != first]
    return [first, *others]


def _check_heads(data: xr.Dataset, name: str, heads: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Labels → indices."""
    if heads and head_means(data, name):
        raise InputError(
            "this trace holds means over heads (level 'layers'), so no head can be embedded; leave out heads"
        )
    return [(indices_of(data, "layer", [layer])[0], indices_of(data, "head", [head])[0]) for layer, head in heads]


def _view(
    data: xr.Dataset, names: list[str], chosen: list[tuple[int, int]], how: tuple[float, str, bool], name: str | None
) -> dict[str, Any]:
    run = sample_state(data, 0)
    ids, index = np.unique(run.tokens, return_inverse=True)
    texts = token_texts(data)
    flags = run.real * REAL + run.masked * MASKED + run.decided * DECIDED + (run.region == "prompt") * PROMPT
    causal = is_causal(data)
    means = head_means(data, names[0])
    scores = []
    for score in names:
        # `received` of a causal trace is the newest query's row, which no sink can be told from, so it has a name of its own.
        title = TITLES["newest"] if causal and score == "received" else TITLES[score]
        scores.append({"name": score, "title": title, **_scores(data, score, chosen, how)})
    wide = "u16" if len(ids) < 2**16 else "f32"
    view = {
        "name": name or model_name(data),
        "sample": int(labels(data, "sample")[0]),
        "facts": _facts(data, run.prompt_length, run.length),
        "causal": causal,
        "policy": str(data.attrs.get("policy") or ""),
        "steps": [int(s) for s in run.steps],
        "layers": [int(i) for i in labels(data, "layer")],
        "heads": [] if means else [int(i) for i in labels(data, "head")],
        "keys": int(data.sizes["key"]),
        "position": [int(p) for p in run.position],
        "texts": ["" if i < 0 else texts.get(int(i), f"⟨{int(i)}⟩") for i in ids],
        "tokens": pack(index.reshape(run.tokens.shape), wide),
        "flags": pack(flags, "u8"),
        "epsilon": float(how[0]),
        "strongest": STRONGEST,
        "scores": scores,
        "kinds": list(KINDS),
        "fates": list(FATES),
        "block": int(decoding_options(data).get("block") or 0),
        "shares": _shares(data),
        **_maps(data, run, chosen),
        **_by_query(data),
    }
    if "masked_keys" in data and not means:
        packed = data["masked_keys"].isel(sample=0).transpose("layer", "step", "head", "byte").values
        bits = np.unpackbits(packed, axis=-1)[..., : data.sizes["key"]]
        view["masked_keys"] = pack(np.minimum(bits.sum(axis=2, dtype=np.int64), 255), "u8")
    return view


def _maps(data: xr.Dataset, run: Any, chosen: list[tuple[int, int]]) -> dict[str, Any]:
    """Attention of every query to every key, relative to uniform attention, as far as it was recorded and fits.

    Means over all heads first, then of each layer, then single heads: all of them, or else the chosen ones.
    """
    name, dim = ("attention", "step") if "attention" in data else ("attention_at", "map_step")
    if name not in data:
        return {}
    labelled = labels(data, dim).tolist()
    where = {int(step): i for i, step in enumerate(run.steps)}
    K, L, H = (int(data.sizes[size]) for size in ("key", "layer", "head"))
    # Every n-th step, so that the means over all heads fit the page; layers and heads only where they fit too.
    every = max(1, -(-len(labelled) * K * K // MAP_CELLS))
    steps = [step for step in labelled[::every] if step in where]
    maps = np.empty((L, H, len(steps), K, K), dtype=np.float32)
    causal = is_causal(data)
    for slot, step in enumerate(steps):
        cell = data[name].isel(sample=0).sel({dim: step}).transpose("layer", "head", "query", "key").values
        real = run.real[where[step]]
        seen = np.cumsum(real) if causal else np.full(K, real.sum())
        visible = real[:, None] & real[None, :] & (np.tri(K, dtype=bool) if causal else True)
        # Times the keys that a query sees: 1 is uniform attention in every row.
        maps[:, :, slot] = np.where(visible, cell * seen[:, None], np.nan)
    cells = len(steps) * K * K
    embedded: dict[str, Any] = {"steps": [where[step] for step in steps], "mean": pack_coded(maps.mean(axis=(0, 1)))}
    if cells * L <= MAP_CELLS:
        embedded["layers"] = pack_coded(maps.mean(axis=1))
    if cells * L * H <= MAP_CELLS:
        embedded["heads"] = pack_coded(maps)
    embedded["full"] = {f"{layer}:{head}": pack_coded(maps[layer, head]) for layer, head in chosen}
    return {"maps": embedded}


def _shares(data: xr.Dataset) -> dict[str, Any]:
    """What was recorded of every head and step without keys, coded [L, H, T]: attention to learned sinks, gates behind it."""
    names = {"learned_sink": "to the learned sink", "gate": "gate"}
    shares = {shown: data[name].isel(sample=0) for name, shown in names.items() if name in data}
    dims = ("layer", "head", "step")
    return {
        shown: pack_coded((one if "head" in one.dims else one.expand_dims("head")).transpose(*dims).values)
        for shown, one in shares.items()
    }


def _by_query(data: xr.Dataset) -> dict[str, Any]:
    """Received attention by class of query, where it was recorded: mean over all heads, and of each layer if it fits.

    The random classes beside them are for statistics, not to look at.
    """
    if "received_by" not in data:
        return {}
    kinds = [str(kind) for kind in labels(data, "query_kind") if kind not in CONTROLS]
    scores = data["received_by"].isel(sample=0, query_kind=slice(0, len(kinds)))
    if "head" in scores.dims:
        scores = scores.mean("head")
    by_layer = scores.transpose("layer", "query_kind", "step", "key").values
    found = {"kinds": kinds, "mean": pack_coded(_mean_over_layers(by_layer))}
    if by_layer.size <= BY_QUERY_CELLS:
        found["layers"] = pack_coded(by_layer)
    return {"by": found}


def _facts(data: xr.Dataset, prompt: int, length: int) -> list[list[str]]:
    attributes = data.attrs
    decoding = json.loads(attributes.get("decoding") or "{}")
    options = ", ".join(f"{k} {v}" for k, v in decoding.items() if v not in (None, False) and k != "kind")
    learned = None
    if "learned_sink" in data:
        learned = f"{float(data['learned_sink'].mean()):.1%} of attention goes to them, and to no token"
    facts = [
        ("family", attributes.get("family")),
        ("learned sinks", learned),
        ("decoding", options),
        ("policy", attributes.get("policy") or "none"),
        ("tokens", f"{prompt} prompt + {length - prompt} answer"),
        ("seed", attributes.get("seed") if attributes.get("seed") != "null" else None),
        ("dtype", attributes.get("dtype")),
        ("revision", attributes.get("revision")),
        ("weights", str(attributes.get("weights_digest") or "")[:16]),
        ("recorded", attributes.get("recorded")),
    ]
    return [[key, str(value)] for key, value in facts if value not in (None, "")]


def _scores(data: xr.Dataset, name: str, chosen: list[tuple[int, int]], how: tuple[float, str, bool]) -> dict[str, Any]:
    """Everything embedded of one score variable of one sample. how: ε, the rule, and whether scores are in percent."""
    epsilon, rule, percent = how
    judge = Judge.of(data, epsilon, rule, name, percent)
    means = head_means(data, name)
    T, L, K = (int(data.sizes[dim]) for dim in ("step", "layer", "key"))
    H = 1 if means else int(data.sizes["head"])
    layers = np.full((L, T, K), np.nan, dtype=np.float32)
    keep = min(STRONGEST, K)
    keys = np.zeros((L, H, T, keep), dtype=np.uint16)
    values = np.full((L, H, T, keep), np.nan, dtype=np.float32)
    total, seen = np.zeros((L, H, K)), np.zeros((L, H, K), dtype=np.int32)
    full = {cell: np.full((T, K), np.nan, dtype=np.float32) for cell in chosen}
    least, unknown = np.inf, False
    for _, t, rows, state, judged, _ in judged_steps(judge):
        score = judged.score.astype(np.float32, copy=False)
        if np.isinf(score).any():
            raise InputError(
                f"this trace holds infinite scores in {name!r}, so it is damaged or was recorded with an overflow; record it "
                "again, with --dtype float32 or bfloat16"
            )
        real = ~np.isnan(score)
        filled = np.where(real, score, np.float32(0))
        count = real.sum(axis=1)
        layers[rows, t] = filled.sum(axis=1, dtype=np.float64) / np.where(count > 0, count, np.nan)
        total[rows] += filled
        seen[rows] += real
        top = _strongest(np.where(real, score, np.float32(-1)), keep)
        keys[rows, :, t], values[rows, :, t] = top, np.take_along_axis(score, top, axis=-1)
        limit = np.broadcast_to(judged.base + epsilon * judged.slope, score.shape)
        least = min(least, float(np.min(limit, where=judged.known, initial=np.inf)))
        unknown |= bool((state.real[t] & ~judged.known).any())
        for (layer, head), array in full.items():
            if rows.start <= layer < rows.stop:
                array[t] = score[layer - rows.start, head]
    with np.errstate(invalid="ignore"):
        average = np.where(seen > 0, total / np.maximum(seen, 1), np.nan)
    # A mean over all layers and heads weighs every head alike, and every layer has as many.
    embedded = {
        "mean": pack_coded(_mean_over_layers(layers)),
        "layers": pack_coded(layers),
        "unit": "% of a query’s attention" if judge.percent else "× uniform",
        "distance": judge.rule == DISTANCE,
        "above": None if np.isinf(least) else round(least if judge.percent else 1 + epsilon, 4),
        "unknown": unknown,
        **_sinks(judge, epsilon, means),
    }
    if not means:
        embedded |= {
            "top_keys": pack(keys, "u16"),
            "top_values": pack_coded(values),
            "average": pack_coded(average),
            "full": {f"{layer}:{head}": pack_coded(array) for (layer, head), array in full.items()},
        }
    return embedded


def _strongest(filled: Array, keep: int) -> Array:
    """int [..., keep]: the strongest keys, strongest first, ties to the lower index."""
    part = np.argpartition(-filled, keep - 1, axis=-1)[..., :keep]
    part.sort(axis=-1)
    order = np.argsort(-np.take_along_axis(filled, part, axis=-1), axis=-1, kind="stable")
    return np.asarray(np.take_along_axis(part, order, axis=-1))


def _mean_over_layers(layers: Array) -> Array:
    count = (~np.isnan(layers)).sum(axis=0)
    return np.asarray(np.nansum(layers, axis=0, dtype=np.float64) / np.where(count > 0, count, np.nan))


def _sinks(judge: Judge, epsilon: float, means: bool) -> dict[str, Any]:
    """Counts of heads that call each key a sink, residences, paths, kinds and strength of every head."""
    data, name = judge.data, judge.name
    made = scans(data, epsilon, judge.rule, scores=name, percent=judge.percent, keep_residences=True)
    scan: Scan = next(iter(made))
    steps = labels(data, "step")
    counts = scan.on(steps, scan.counts).astype(np.int64)
    # Head means hide which heads have a sink; the recorder counted them beside, so its counts are used.
    counted_heads = means and name == scores_name(data) and "sink_heads" in data
    if counted_heads:
        counts = data["sink_heads"].isel(sample=0).transpose("step", "layer", "key").values.astype(np.int64)
    rows = scan.residences
    order = np.lexsort((rows.start, rows.key, rows.head, rows.layer))
    dropped = max(0, len(order) - MOST_RESIDENCES)
    if dropped:
        weight = (rows.length * rows.strength)[order]
        order = order[np.sort(np.argsort(-weight, kind="stable")[:MOST_RESIDENCES])]
    observed = np.isfinite(scan.strongest)
    strength = np.where(observed, scan.strongest, 0).sum(axis=0, dtype=np.float64) / np.maximum(1, observed.sum(axis=0))
    start, stop = (np.searchsorted(steps, scan.state.steps[end]) for end in (rows.start, rows.stop))
    columns = np.stack([rows.layer, rows.head, rows.key, start, stop, rows.fate])[:, order]
    return {
        "sinks": pack(np.minimum(counts, 255).swapaxes(0, 1), "u8"),
        "sinks_total": pack(np.minimum(counts.sum(axis=1), 2**16 - 1), "u16"),
        "sinks_of": "heads" if not means or counted_heads else "layers, on head means",
        "head_count": int(data.attrs.get("n_heads") or (0 if means else data.sizes["head"])),
        "strength": pack(strength, "f32"),
        "path": pack(scan.on(steps, scan.path, -1).transpose(1, 2, 0), "i16"),
        "head_kinds": pack(scan.kinds, "u8"),
        "residences": pack(columns, "u16"),
        "residence_strength": pack(rows.strength[order], "f32"),
        "residences_left_out": dropped,
    }


# ---- one byte for a score, text for an array -------------------------------------------------------


def quantise(values: Array) -> tuple[Array, float, float]:
    """Codes uint8 of the array's shape, the scale, and the largest |decoded − v| / (1 + v) met; decoded = exp(code · scale) − 1.

    values: float, any shape, ≥ 0, NaN where there is no key.
    """
    top = float(np.nanmax(values)) if np.isfinite(values).any() else 0.0
    scale = float(np.log1p(max(top, 1e-3)) / LEVELS)
    missing = np.isnan(values)
    logs = np.log1p(np.where(missing, 0.0, np.maximum(values, 0.0)), dtype=np.float64)
    codes = np.rint(logs / scale)
    error = float(np.abs(np.expm1(np.abs(codes * scale - logs))).max(initial=0.0))
    return np.where(missing, MISSING, codes).astype(np.uint8), scale, error


def pack_coded(values: Array) -> dict[str, Any]:
    """Quantised and packed, with the scale and the error."""
    codes, scale, error = quantise(values)
    return {**pack(codes, "coded"), "scale": scale, "error": error}


def pack(values: Array, kind: str) -> dict[str, Any]:
    """An array as {kind, shape, data}: little endian, zlib, base64.

    kind: "u8", "u16", "i16", "f32" or "coded" (uint8). Sixteen-bit numbers are stored as all low bytes, then all high
    bytes: the high bytes hardly vary and compress to almost nothing.
    """
    dtype = {"u8": "u1", "coded": "u1", "u16": "<u2", "i16": "<i2", "f32": "<f4"}[kind]
    raw = np.ascontiguousarray(values, dtype=dtype)
    content = raw.tobytes()
    if raw.dtype.itemsize == 2:
        content = raw.reshape(-1).view(np.uint8).reshape(-1, 2).T.tobytes()
    return {"kind": kind, "shape": list(raw.shape), "data": base64.b64encode(zlib.compress(content, 6)).decode("ascii")}
