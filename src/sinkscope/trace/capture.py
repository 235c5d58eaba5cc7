"""Capture: what to record of a generation; and the frame of its trace: rows, columns, layers, heads, the shape of every variable.

All rows of a batch share one frame. Prompts stand right-aligned before the answers, so a shorter prompt has padding on its
left; groups of rows that were run apart are placed into it by their offset.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from sinkscope.checks import indices, one_of, whole
from sinkscope.errors import InputError

Array = npt.NDArray[np.generic]

LEVELS = ("heads", "layers", "maps")
QUERY_KINDS = ("masked", "decided", "prompt", "control a", "control b")
"""Classes of queries under `by_query`: mask tokens, written answer tokens, prompt tokens; and the answer's queries split at
random into two classes as large as the first two, for what differs between classes by chance."""


@dataclass(frozen=True)
class Capture:
    """What a trace holds.

    Attributes:
        level: "heads": received attention of every head. "layers": its mean over heads, and in how many heads each key is
            a sink (ε = 3); 1/heads of the size. "maps": also the full attention matrices, for small inputs only.
        by_query: received attention from masked, decided and prompt queries separately, and from two random classes of queries.
        anatomy: norms of values, keys and hidden states, and the largest activations.
        layers, heads: record only these; None: all.
        every: record every n-th step.

    >>> small = ss.generate(model, prompts, decoding, capture=ss.Capture(level="layers", every=4)).trace
    >>> dict(small.dataset["received"].sizes)
    {'sample': 1, 'step': 4, 'layer': 8, 'key': 55}
    """

    level: Literal["heads", "layers", "maps"] = "heads"
    by_query: bool = False
    anatomy: bool = False
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    every: int = 1

    def __post_init__(self) -> None:
        one_of("capture level", self.level, LEVELS)
        for name in ("layers", "heads"):
            object.__setattr__(self, name, indices(f"capture {name}", getattr(self, name)))
        if self.level == "layers" and self.heads is not None:
            raise InputError("level 'layers' averages over all heads; leave out heads, or use level 'heads'")
        whole("every", self.every, 1)

    def check(self, layers: int, heads: int) -> None:
        """Raises InputError when a chosen layer or head does not exist."""
        for name, chosen, many in (("layer", self.layers, layers), ("head", self.heads, heads)):
            if chosen and chosen[-1] >= many:
                raise InputError(
                    f"capture names {name} {chosen[-1]}, but the model has {name}s 0 to {many - 1}"
                )

    def to_json(self) -> str:
        """The settings as one line of JSON."""
        return json.dumps(dataclasses.asdict(self))


# ---- the frame ------------------------------------------------------------------------------------

REGIONS = ("padding", "prompt", "answer")
"""Region codes 0, 1, 2."""


@dataclass(frozen=True)
class Variable:
    """A recorded variable: its dimensions, its dtype in memory, what stands where nothing is recorded, and its unit."""

    dims: tuple[str, ...]
    dtype: str
    empty: float
    unit: str

    @property
    def stepwise(self) -> bool:
        """Whether it grows with the steps."""
        return "step" in self.dims


@dataclass(frozen=True)
class Frame:
    """The sizes of a trace.

    Attributes:
        rows: B. columns: S, prompt and answer. prompt: P, the padded prompt.
        real: Bool [B, S], False in padding.
        steps: recorded steps at most.
        starts: the first column of each row's answer; empty: P for all.
        block: columns of a block of block diffusion; None: no blocks. cached: finished blocks are kept in a KV cache.
        edits: tokens may change after they were written.
    """

    rows: int
    columns: int
    prompt: int
    real: Array
    steps: int
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    kv_heads: int
    causal: bool
    guided: bool = False
    policy: bool = False
    image: tuple[int, int] | None = None
    starts: tuple[int, ...] = ()
    block: int | None = None
    cached: bool = False
    edits: bool = False
    reuse: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        """Dimension → length."""
        return {
            "sample": self.rows,
            "step": self.steps,
            "layer": len(self.layers),
            "head": len(self.heads),
            "kv_head": self.kv_heads,
            "key": self.columns,
            "query": self.columns,
            "query_kind": len(QUERY_KINDS),
            "byte": -(-self.columns // 8),
            "block": -(-self.columns // (self.block or self.columns)),
        }

    def region(self) -> Array:
        """Int8 [B, S]: codes of REGIONS."""
        starts = np.array(self.starts or (self.prompt,) * self.rows)
        codes = np.where(np.arange(self.columns) < starts[:, None], 1, 2)
        if self.image is not None:
            codes = np.ones(self.columns, dtype=int)
            codes[self.image[0] : self.image[1]] = 2
        return np.where(self.real, codes, 0).astype(np.int8)

    def position(self) -> Array:
        """Int64 [B, S]: index from the first real token; −1 in padding."""
        return np.where(self.real, np.cumsum(self.real, 1) - 1, -1).astype(np.int64)


def variables(frame: Frame, capture: Capture) -> dict[str, Variable]:
    """Every variable that a trace with this frame and capture holds."""
    relative = "attention received, uniform attention = 1"
    per_head = ("sample", "step", "layer", "head", "key")
    per_layer = ("sample", "step", "layer", "key")
    scored = per_layer if capture.level == "layers" else per_head
    per_key = ("sample", "step", "key")
    nan = float("nan")
    known = {
        "received": Variable(scored, "float32", nan, relative),
        "tokens": Variable(per_key, "int64", -1, "token id"),
        "masked": Variable(per_key, "bool", 0, "is a mask token"),
        "confidence": Variable(per_key, "float32", nan, "as the decoding defines it"),
        "candidate": Variable(per_key, "int64", -1, "token id"),
        "decided": Variable(per_key, "bool", 0, "written in this step"),
        "ties": Variable(("sample", "step"), "int64", 0, "selections with an equal rival"),
    }
    if frame.causal:
        known["received_all"] = Variable(scored, "float32", nan, relative + ", over all queries so far")
        known["received_far"] = Variable(scored, "float32", nan, relative + ", over distant queries so far")
        known["window"] = Variable(("layer",), "int64", 0, "keys that a query sees at most; 0: all")
        static = tuple(dim for dim in scored if dim != "step")
        known["prefill_received"] = Variable(static, "float32", nan, relative + ", over all prompt queries")
    if frame.edits:
        known["edited"] = Variable(
            ("sample", "key"), "int16", 0, "how often a token was changed after it was written"
        )
    if frame.block is not None:
        known["received"] = Variable(scored, "float32", nan, relative + ", from the active block")
        known["received_all"] = Variable(scored, "float32", nan, relative + ", from all blocks so far")
        known["forward_kind"] = Variable(("sample", "step"), "int8", 0, "0: denoising, 1: storing a block")
        if frame.cached:
            static = tuple(dim for dim in scored if dim != "step")
            known["prefill_received"] = Variable(
                static, "float32", nan, relative + ", over all prompt queries"
            )
            known["store_received"] = Variable(
                ("sample", "block", *static[1:]), "float32", nan, relative + ", from a block as it was stored"
            )
    if frame.reuse:
        known["fresh"] = Variable(
            per_key, "bool", 0, "key and value were computed in this step, in all layers"
        )
    if frame.guided:
        known["received_uncond"] = Variable(scored, "float32", nan, relative + ", unconditional branch")
    if frame.policy:
        known["received_raw"] = Variable(
            scored, "float32", nan, relative + ", as if the policy had masked nothing"
        )
        known["hidden_share"] = Variable(
            scored[:-1], "float32", nan, "share of attention that the policy masked"
        )
        known["sinks_hit"] = Variable(
            scored[:-1], "float32", nan, "share of the sinks that the policy masked"
        )
        known["strongest_hit"] = Variable(
            scored[:-1], "float32", nan, "1 where the policy masked the strongest sink, 0 where it did not"
        )
        known["sink_removed"] = Variable(
            scored[:-1], "float32", nan, "share of the attention on sinks that the policy masked"
        )
        if capture.level != "layers":
            dims = (*scored[:-1], "byte")
            known["masked_keys"] = Variable(
                dims, "uint8", 0, "masked keys, one bit each, first key in the highest bit"
            )
    if capture.level == "layers":
        known["sink_heads"] = Variable(per_layer, "int16", 0, "heads that call the key a sink at epsilon 3")
    if capture.level == "maps":
        dims = ("sample", "step", "layer", "head", "query", "key")
        known["attention"] = Variable(dims, "float32", nan, "probability")
    if capture.by_query:
        dims = (*scored[:-1], "query_kind", "key")
        known["received_by"] = Variable(dims, "float32", nan, relative + ", by kind of query")
    if capture.anatomy:
        per_kv = ("sample", "step", "layer", "kv_head", "key")
        known["value_norm"] = Variable(per_kv, "float32", nan, "L2 norm of the value")
        known["key_norm"] = Variable(per_kv, "float32", nan, "L2 norm of the key")
        known["hidden_norm"] = Variable(
            per_layer, "float32", nan, "L2 norm of the residual stream entering the layer"
        )
        known["largest_activation"] = Variable(
            per_layer, "float32", nan, "largest |x| of the residual stream"
        )
        known["hidden_cosine"] = Variable(
            per_layer,
            "float32",
            nan,
            "cosine of the residual stream entering the layer with that of the first token",
        )
        known["median_activation"] = Variable(
            ("sample", "step", "layer"), "float32", nan, "median |x| of the residual stream"
        )
    return known
