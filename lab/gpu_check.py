"""`python -m lab.gpu_check`: on one GPU, in two and a half minutes, whether the numbers of docs/speed.md still hold.

Networks of the real shapes are drawn on the GPU in bfloat16; nothing is downloaded. Every result is one line of JSON, printed as
soon as it is there, so that a call that is cut off has what came before. In order:

calls: ms a token of whole `ss.generate` calls, the first, second and third of a shape, start-up included; `cold` is the first of
    the process, in which kernels are compiled and chosen.
ratio: ms of a median step, traced / untraced and masked / traced, all of one run, beside those of docs/speed.md.
smoke: whether replayed forwards give what the same forwards give one kernel at a time, on checkpoints of tests/golden (float32).

    python -m lab.gpu_check --seconds 150 --out check.jsonl       # --tiny: the same on small shapes, for a trial on a CPU
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from bench.calls import seconds
from bench.shapes import model_of

import sinkscope as ss
from sinkscope.base.fast import fast
from sinkscope.decoding import engine
from sinkscope.generation.timing import Timing, decoding_for, random_tokens, timings
from sinkscope.gpu import graphs

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
ANSWER, STEPS, TURNS = 64, 40, 2
TOLD: dict[tuple[str, int, int], tuple[float, float]] = {
    ("llada-8b", 1, 384): (1.06, 1.09), ("llada-8b", 8, 512): (1.03, 1.05), ("llama-8b", 1, 256): (1.07, 1.20),
}  # fmt: skip
"""Traced / untraced and masked / traced as docs/speed.md has them."""

SMOKE: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "llada": ("llada", ss.LladaDecoding(32, 16, 8), {"policy": "top:2"}),
    "llada, padded": ("llada", ss.LladaDecoding(32, 16, 8), {"seed": [1, 2, 3], "padded": True}),
    "bd3lm with cfg": ("a2d_bd3lm", ss.Bd3lmDecoding(16, 8, 16, cfg=1.0), {}),
    "llama": ("llama", ss.GreedyDecoding(24, eos=None), {"policy": "random(top:2)", "seed": [4, 5, 6]}),
    "sdar": ("sdar", ss.SdarDecoding(16, 4, 4, top_k=1, scoring="raw", threshold=1.0), {"policy": "top:2"}),
    "sdar, longer": ("sdar", ss.SdarDecoding(24, 4, 4, top_k=1, scoring="raw", threshold=1.0), {"cache": False}),
}  # fmt: skip


def calls(shape: str) -> Callable[[], Iterator[dict[str, Any]]]:
    """Whole calls of one shape."""

    def measure() -> Iterator[dict[str, Any]]:
        model = model_of(shape, "auto", "auto")
        # After the first way the kernels are there: the first call captures, and chooses for other sizes.
        ways: dict[str, tuple[int, dict[str, Any]]] = {
            "cold": (ANSWER, {}), "another shape": (ANSWER - 8, {}), "traced": (ANSWER, {"capture": ss.Capture()}),
        }  # fmt: skip
        for way, (length, options) in ways.items():
            with mock.patch.object(graphs, "record", side_effect=graphs.record) as record:
                taken = seconds(model, length, **options)
            # One capture, in the first of the three calls, on a GPU: more or none is a mistake.
            yield {way: [round(1000 * one / length, 2) for one in taken], "captures": record.call_count}

    return measure


def ratio(shape: str, batch: int, length: int) -> Callable[[], Iterator[dict[str, Any]]]:
    """A step untraced, traced and masked."""

    def measure() -> Iterator[dict[str, Any]]:
        model = model_of(shape, "auto", "auto")
        decoding = decoding_for(model, length, STEPS)
        prompt = random_tokens(model, batch, length - decoding.new_tokens)
        found = timings(model, prompt, decoding, TURNS)
        step = {name: timing.seconds for name, timing in found.items() if isinstance(timing, Timing)}
        told = TOLD.get((shape, batch, length))
        yield {
            "milliseconds": {name: round(1000 * one, 3) for name, one in step.items()},
            "traced / untraced": round(step["traced"] / step["untraced"], 3),
            "masked / traced": round(step["masked"] / step["traced"], 3),
            "told": told,
        }

    return measure


def smoke(name: str) -> Callable[[], Iterator[dict[str, Any]]]:
    """Two prompts, plain and replayed; the second replayed run uses graphs of the first."""

    def measure() -> Iterator[dict[str, Any]]:
        family, decoding, options = SMOKE[name]
        facts = json.loads((GOLDEN / family / "manifest.json").read_text()).get("special_ids", {})
        torch.backends.cuda.matmul.allow_tf32 = False
        model = ss.load(GOLDEN / family / "checkpoint", dtype="float32", mask_token_id=facts.get("mask"))
        prompts = [random_tokens(model, 3, 13) % 150 + number for number in (0, 1)]
        options = dict(options)
        if options.pop("padded", False):
            options["attention_mask"] = (torch.arange(13)[None] >= torch.tensor([[0], [4], [2]])).long()
        for place, ids in enumerate(prompts):
            runs = []
            for on in (False, True):
                with mock.patch.object(engine, "wraps", lambda device, on=on: on and fast(device)):
                    runs.append(ss.generate(model, ids, decoding, capture=ss.Capture(), **options))
            plain, replayed = runs
            arrays: list[Any] = [getattr(run.trace, "_parts").arrays["received"] for run in runs]  # noqa: B009
            apart = max(
                float((torch.as_tensor(a) - torch.as_tensor(b)).nan_to_num().abs().max())
                for a, b in zip(*arrays, strict=True)
            )
            yield {"prompt": place, "equal": torch.equal(plain.states, replayed.states), "apart": apart}

    return measure


def parts(tiny: bool) -> Iterator[tuple[str, Callable[[], Iterator[dict[str, Any]]]]]:
    """What is measured, the most wanted first; every network once."""
    llama, llada, sdar = ("llama-8b", "llada-8b", "sdar-8b")
    if tiny:
        llama, llada, sdar = ("llama-small", "llada-small", "sdar-small")
    cases = ((llama, 1, 256), (llada, 1, 384), (sdar, 1, 384), (llada, 8, 512))
    yield f"calls {llama}", calls(llama)
    for shape, batch, length in cases:
        length, batch = (length // 4, min(batch, 2)) if tiny else (length, batch)
        yield f"ratio {shape} {batch}x{length}", ratio(shape, batch, length)
        if shape == llama:
            for name in SMOKE:
                yield f"smoke {name}", smoke(name)


def main() -> None:
    """Runs the parts until the time is over; a part that fails says so, and the next one begins."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    begun = time.perf_counter()

    def tell(line: dict[str, Any]) -> None:
        text = json.dumps(line | {"at": round(time.perf_counter() - begun, 1)})
        print(text, flush=True)
        if given.out is not None:
            with given.out.open("a", encoding="utf-8") as file:
                file.write(text + "\n")

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    tell({"part": "about", "device": device, "torch": torch.__version__, "sinkscope": ss.__version__})
    for name, measure in parts(given.tiny):
        if time.perf_counter() - begun > given.seconds - 12:
            tell({"part": name, "left out": "no time"})
            continue
        try:
            for result in measure():
                tell({"part": name, **result})
        except Exception as error:
            tell({"part": name, "error": f"{type(error).__name__}: {error}"[:2000]})
        gc.collect()
        with suppress(RuntimeError):
            torch.cuda.empty_cache()
    tell({"part": "end"})


if __name__ == "__main__":
    main()
