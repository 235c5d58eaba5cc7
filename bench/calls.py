"""`python -m bench.calls [SHAPE] [TOKENS]`: how long whole calls of `ss.generate` take, start-up included.

The first call of a shape compiles and chooses kernels and captures graphs; later ones of the same shape, with other prompts, use
them again. Untraced, traced and masked calls are timed, each three times.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from bench.shapes import model_of
from sinkscope.decoding.base import decoding_from_options
from sinkscope.generation.generate import generate
from sinkscope.generation.timing import MASKED, random_tokens, synchronize
from sinkscope.models.load import resolve_device
from sinkscope.models.model import Model
from sinkscope.trace.capture import Capture

PROMPT, CALLS = 192, 3
WAYS: dict[str, dict[str, Any]] = {
    "untraced": {}, "traced": {"capture": Capture()}, "masked": {"capture": Capture(), "policy": MASKED},
}  # fmt: skip


def seconds(model: Model, length: int, **options: Any) -> list[float]:
    """Of one call after the other."""
    ends = {"eos": None} if model.spec.causal else {}
    decoding = decoding_from_options(model.family, {"length": length, **ends})
    times = []
    for number in range(CALLS):
        prompt = random_tokens(model, 1, PROMPT) + number
        synchronize(model.device)
        begun = time.perf_counter()
        generate(model, prompt, decoding, **options)
        synchronize(model.device)
        times.append(time.perf_counter() - begun)
    return times


if __name__ == "__main__":
    usual = "llama-8b" if resolve_device("auto").type == "cuda" else "llama-small"
    shape, length = (sys.argv[1:] + [usual, "64"][len(sys.argv) - 1 :])[:2]
    network = model_of(shape, "auto", "auto")
    for way, options in WAYS.items():
        each = ", ".join(f"{1000 * call / int(length):.2f}" for call in seconds(network, int(length), **options))
        print(f"{shape}, {PROMPT} + {length} tokens, {way}: {each} ms a token in calls 1 to {CALLS}", flush=True)
