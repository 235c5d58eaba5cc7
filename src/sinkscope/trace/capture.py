"""Capture: what to record of a generation; and the frame of its trace: rows, columns, layers, heads, the shape of every variable.

All rows of a batch share one frame. Prompts stand right-aligned before the answers, so a shorter prompt has padding on its
left; groups of rows that were run apart are placed into it by their offset.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from sinkscope.base.checks import declared, whole
from sinkscope.base.errors import InputError
from sinkscope.base.textform import Notation

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
        declared(self, "capture ")
        if self.level == "layers" and self.heads is not None:
            raise InputError("level 'layers' averages over all heads; leave out heads, or use level 'heads'")
        whole("every", self.every, 1)

    def check(self, layers: Sequence[int], heads: int) -> None:
        """Raises InputError when a chosen layer has no attention, or a layer or head does not exist."""
        for name, chosen, there in (("layer", self.layers, layers), ("head", self.heads, range(heads))):
            absent = [number for number in chosen or () if number not in there]
            if absent:
                every = len(there) == there[-1] + 1
                which = f"{name}s 0 to {there[-1]}" if every else f"attention in {name}s {', '.join(map(str, there))}"
                raise InputError(f"capture names {name} {absent[0]}, but the model has {which}")

    def to_json(self) -> str:
        """The settings as one line of JSON."""
        return json.dumps(dataclasses.asdict(self))


NOTATION = Notation(
    "capture", {"capture": Capture}, lambda: f"{', '.join(LEVELS)}, with ,every=N or ,anatomy=yes behind"
)


def as_capture(given: Capture | bool | str | None) -> Capture | None:
    """A capture, given as one, as True for the usual one, or as text; None and False: nothing is recorded.

    >>> as_capture("layers,every=4")
    Capture(level='layers', by_query=False, anatomy=False, layers=None, heads=None, every=4)
    """
    if isinstance(given, str):
        capture: Capture = NOTATION.read(f"capture:{given.removeprefix('capture:')}")
        return capture
    if given is None or isinstance(given, (bool, Capture)):
        return (Capture() if given else None) if isinstance(given, bool) else given
    raise InputError(f"capture should be True, ss.Capture(…) or one of {', '.join(LEVELS)}, got {given!r}")


# ---- the frame ------------------------------------------------------------------------------------

REGIONS = ("padding", "prompt", "answer")
"""Region codes 0, 1, 2."""


@dataclass(frozen=True)
class Variable:
    """A recorded variable: its dimensions, its unit, its dtype in memory, and what stands where nothing is recorded."""

    dims: tuple[str, ...]
    unit: str
    dtype: str = "float32"
    empty: float = float("nan")

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
        learned, gated: some layer has a learned sink; a gate behind its attention.
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
    fresh: bool = False
    learned: bool = False
    gated: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        """Dimension → length."""
        return {
            "sample": self.rows, "step": self.steps, "layer": len(self.layers), "head": len(self.heads),
            "kv_head": self.kv_heads, "key": self.columns, "query": self.columns, "query_kind": len(QUERY_KINDS),
            "byte": -(-self.columns // 8), "block": -(-self.columns // (self.block or self.columns)),
        }  # fmt: skip

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
    share, stream = "attention received, uniform attention = 1", "the residual stream entering the layer"
    layer = ("sample", "step", "layer")
    scored = layer if capture.level == "layers" else (*layer, "head")
    by_key, received, columns = ("sample", "step", "key"), (*scored, "key"), ("sample", "key")
    once, of_blocks = ("sample", *received[2:]), ("sample", "block", *received[2:])
    by_step, by_layer, by_kv_head = ("sample", "step"), (*layer, "key"), (*layer, "kv_head", "key")
    bits, policy, anatomy = "masked keys, one bit each, first key in the highest bit", frame.policy, capture.anatomy
    blocks, read = frame.block is not None, frame.causal or frame.cached
    # Whether it is there, its name, what it is; of two with one name the later one holds.
    every = (
        (True, "region", Variable(columns, "padding | prompt | answer", "int8", 0)),
        (True, "position", Variable(columns, "index from the first real token, -1 in padding", "int64", -1)),
        (True, "decided_step", Variable(columns, "step that wrote the token, -1 for none", "int64", -1)),
        (True, "received", Variable(received, share)),
        (True, "tokens", Variable(by_key, "token id", "int64", -1)),
        (True, "masked", Variable(by_key, "is a mask token", "bool", 0)),
        (True, "confidence", Variable(by_key, "as the decoding defines it")),
        (True, "candidate", Variable(by_key, "token id", "int64", -1)),
        (True, "decided", Variable(by_key, "written in this step", "bool", 0)),
        (True, "ties", Variable(by_step, "selections with an equal rival", "int64", 0)),
        (frame.causal, "received_all", Variable(received, f"{share}, over all queries so far")),
        (frame.causal, "received_far", Variable(received, f"{share}, over distant queries so far")),
        (frame.causal, "window", Variable(("layer",), "keys that a query sees at most; 0: all", "int64", 0)),
        (read, "prefill_received", Variable(once, f"{share}, over all prompt queries")),
        (frame.edits, "edited", Variable(columns, "how often a token was changed after it was written", "int16", 0)),
        # In a block loop only the active block's queries count.
        (blocks, "received", Variable(received, f"{share}, from the active block")),
        (blocks, "received_all", Variable(received, f"{share}, from all blocks so far")),
        (blocks, "forward_kind", Variable(by_step, "0: denoising, 1: storing a block", "int8", 0)),
        (frame.cached, "store_received", Variable(of_blocks, f"{share}, from a block as it was stored")),
        (frame.learned, "learned_sink", Variable(scored, "share of attention that goes to the learned sink")),
        (frame.gated, "gate", Variable(scored, "mean of the gate that attention's output goes through")),
        (frame.fresh, "fresh", Variable(by_key, "key and value were computed in this step, in all layers", "bool", 0)),
        (frame.guided, "received_uncond", Variable(received, f"{share}, unconditional branch")),
        (policy, "received_raw", Variable(received, f"{share}, as if the policy had masked nothing")),
        (policy, "hidden_share", Variable(scored, "share of attention that the policy masked")),
        (policy, "sinks_hit", Variable(scored, "share of the sinks that the policy masked")),
        (policy, "strongest_hit", Variable(scored, "1 where the policy masked the strongest sink, 0 where it did not")),
        (policy, "sink_removed", Variable(scored, "share of the attention on sinks that the policy masked")),
        (policy and scored != layer, "masked_keys", Variable((*scored, "byte"), bits, "uint8", 0)),
        (scored == layer, "sink_heads", Variable(by_layer, "heads that call the key a sink at epsilon 3", "int16", 0)),
        (capture.level == "maps", "attention", Variable((*scored, "query", "key"), "probability")),
        (capture.by_query, "received_by", Variable((*scored, "query_kind", "key"), f"{share}, by kind of query")),
        (anatomy, "value_norm", Variable(by_kv_head, "L2 norm of the value")),
        (anatomy, "key_norm", Variable(by_kv_head, "L2 norm of the key")),
        (anatomy, "hidden_norm", Variable(by_layer, f"L2 norm of {stream}")),
        (anatomy, "largest_activation", Variable(by_layer, "largest |x| of the residual stream")),
        (anatomy, "hidden_cosine", Variable(by_layer, f"cosine of {stream} with that of the first token")),
        (anatomy, "median_activation", Variable(layer, "median |x| of the residual stream")),
    )
    return {name: variable for there, name, variable in every if there}
