"""Small traces for the tests of viewer and figures, with known texts and planted sinks."""

from __future__ import annotations

import json

import numpy as np
import xarray as xr
from tests.sinks import synthetic

HOSTILE = {
    12: "</script><img src=x onerror=window.hacked=1>", 13: "<!--<script>", 14: "\u202eright to left\u200f",
    15: "long " * 2000, 16: "&lt;b&gt;&amp;", 17: "\u2028\u2029\x00\x1b", 18: "');window.hacked=2;//",
    19: "${window.hacked=3}", 20: "\udc80 half a pair", 21: "שלום", 22: '"><svg/onload=window.hacked=4>',
}  # fmt: skip


def diffusion(**options: object) -> xr.Dataset:
    """One prompt; in every head the sink stands on the first key of the block being decoded."""
    settings: dict[str, object] = {"lengths": (17, 23), "answer": 24, "layers": 3, "heads": 4, "seed": 1}
    return synthetic.trace(synthetic.moving_right(), **{**settings, **options})  # type: ignore[arg-type]


def maps(**options: object) -> xr.Dataset:
    """A small trace with whole maps in which every query looks elsewhere: a sink, and its own neighbour."""
    settings: dict[str, object] = {
        "lengths": (9, 7), "answer": 8, "block": 4, "layers": 2, "heads": 3, "maps": True,
    }  # fmt: skip
    data = synthetic.trace("none", **{**settings, **options})  # type: ignore[arg-type]
    rng = np.random.default_rng(11)
    attention = data["attention"].values * rng.lognormal(0, 0.4, data["attention"].shape)
    queries = np.arange(attention.shape[-1])
    attention[..., queries, (queries * 5 + 3) % len(queries)] *= 8
    attention = attention / np.maximum(attention.sum(axis=-1, keepdims=True), 1e-9)
    return data.assign(attention=(data["attention"].dims, attention.astype(np.float32)))


def ended() -> xr.Dataset:
    """An answer whose last tokens are all the end token once they are written."""
    data = diffusion()
    tokens, masked = data["tokens"].values.copy(), data["masked"].values
    tokens[..., -9:] = np.where(masked[..., -9:], tokens[..., -9:], synthetic.EOS)
    tokens[:, -1, -9:] = synthetic.EOS
    return data.assign(
        tokens=(data["tokens"].dims, tokens), masked=(data["masked"].dims, masked & (tokens == synthetic.MASK))
    )


def hostile(data: xr.Dataset | None = None) -> xr.Dataset:
    """Ordinary words replaced by texts that would do harm as markup."""
    data = diffusion() if data is None else data
    texts = json.loads(data.attrs["token_texts"]) | {str(i): text for i, text in HOSTILE.items()}
    data.attrs |= {"token_texts": json.dumps(texts), "model": "</title><script>window.hacked=9</script>"}
    tokens = data["tokens"].values.copy()
    first = int(np.flatnonzero(data["region"].values[0] == "prompt")[0])
    room = min(len(HOSTILE), int((data["region"].values[0] == "prompt").sum()))
    tokens[0, :, first : first + room] = list(HOSTILE)[:room]
    return data.assign(tokens=(data["tokens"].dims, tokens))


def causal(steps: int = 12, prompt: int = 20, seed: int = 3) -> xr.Dataset:
    """A causal trace: one more key in each step, a static sink at the start, the last row and all queries apart."""
    rng = np.random.default_rng(seed)
    K, L, H = prompt + steps - 1, 2, 2
    last, every = np.full((2, 1, steps, L, H, K), np.nan, dtype=np.float32)
    tokens = np.full((1, steps, K), -1, dtype=np.int64)
    decided = np.zeros((1, steps, K), dtype=bool)
    words = rng.choice(synthetic.ORDINARY, K)
    for t in range(steps):
        n = prompt + t
        tokens[0, t, :n] = words[:n]
        if n < K:
            decided[0, t, n] = True
        for array, sigma, seen in ((last, 0.9, n), (every, 0.1, n - 15)):
            rows = rng.lognormal(0, sigma, (L, H, n))
            rows[..., 0] += 8
            rows *= n / rows.sum(-1, keepdims=True)
            array[0, t, ..., :seen] = rows[..., :seen]
    scored = ("sample", "step", "layer", "head", "key")
    keyed = ("sample", "step", "key")
    region = np.array([["prompt"] * prompt + ["answer"] * (K - prompt)])
    variables = {
        "received": (scored, last),
        "received_all": (scored, every),
        "tokens": (keyed, tokens),
        "masked": (keyed, np.zeros_like(decided)),
        "decided": (keyed, decided),
        "region": (("sample", "key"), region),
        "position": (("sample", "key"), np.arange(K)[None]),
    }
    data = synthetic.dataset(variables, steps, K, family="causal")
    data.attrs["model"] = "causal"
    return data
