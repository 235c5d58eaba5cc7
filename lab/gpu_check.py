"""`python -m lab.gpu_check`: on one GPU, in five minutes, whether the numbers of docs/speed.md still hold.

Networks of the real shapes are drawn on the GPU in bfloat16; nothing is downloaded. Every result is one line of JSON with `ok`,
printed as soon as it is there, so that a call that is cut off has what came before; the most wanted come first:

calls: whole `ss.generate` calls of one shape, start-up included: ms a token of the first, second and third, the time to the first
    step, and how many graphs each captured. `cold` is the first of the process, in which kernels are compiled and chosen.
ratio: ms of a median step, traced / untraced and masked / traced, all of one run, beside those of docs/speed.md.
smoke: whether replayed forwards give what the same forwards give one kernel at a time, on checkpoints of tests/golden (float32).

    python -m lab.gpu_check --out check.jsonl       # --tiny: small shapes, on a CPU with graphs played (tests.helpers.repeated)
    python -m lab.gpu_check tests --out tests.txt   # tests/gpu, in several processes at once
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.calls import PROMPT
from bench.shapes import model_of
from tests.helpers.repeated import at_once, counted, play

import sinkscope as ss
from sinkscope.decoding.base import decoding_from_options
from sinkscope.generation.timing import MASKED, Timing, decoding_for, random_tokens, synchronize, timings

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden"
ANSWER, TURNS, CALLS, PROCESSES = 64, 2, 3, 6
LIMIT, CLOSE = 6.0, 0.02
"""ms a token that a second call of Llama-8B's shape may take, traced or not; how far a ratio may be from what was told."""

TOLD: dict[tuple[str, int, int], tuple[float, float]] = {
    ("llama-8b", 1, 256): (1.07, 1.20), ("llada-8b", 1, 384): (1.06, 1.09), ("sdar-8b", 1, 384): (1.17, 1.30),
    ("llama-8b", 16, 256): (1.12, 1.34), ("llada-8b", 8, 512): (1.03, 1.05), ("llada-8b", 16, 384): (1.03, 1.04),
}  # fmt: skip
"""Traced / untraced and masked / traced as docs/speed.md and lab/speed.md have them, the most wanted first."""

WAYS: dict[str, dict[str, Any]] = {
    "cold": {}, "untraced": {"length": ANSWER // 2}, "traced": {"capture": ss.Capture()},
    "masked": {"capture": ss.Capture(), "policy": MASKED},
}  # fmt: skip

SMOKE: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "llada": ("llada", ss.LladaDecoding(32, 16, 8), {"policy": "top:2"}),
    "llada, padded": ("llada", ss.LladaDecoding(32, 16, 8), {"seed": [1, 2, 3], "padded": True}),
    "llama": ("llama", ss.GreedyDecoding(24, eos=None), {"policy": "random(top:2)", "seed": [4, 5, 6]}),
    "sdar": ("sdar", ss.SdarDecoding(16, 4, 4, top_k=1, scoring="raw", threshold=1.0), {"policy": "top:2"}),
    "sdar, uncached": ("sdar", ss.SdarDecoding(24, 4, 4, top_k=1, scoring="raw", threshold=1.0), {"cache": False}),
    "nemotron": ("nemotron_diffusion", ss.NemotronDecoding(16, 8, 0.3, eos=None), {"policy": "top:2"}),
    "canvas": ("diffusion_gemma", ss.DiffusionGemmaDecoding(16, 4, eos=None), {"policy": "top:2", "seed": 4}),
    "bd3lm with cfg": ("a2d_bd3lm", ss.Bd3lmDecoding(16, 8, 16, cfg=1.0), {}),
}  # fmt: skip
LAUNCHED = ("nemotron", "canvas", "bd3lm with cfg")
"""What is never repeated: blocks that begin where a prompt ends, and forwards that read noise or a twin besides their state."""

Results = Iterator[dict[str, Any]]
network = cache(partial(model_of, device="auto", dtype="auto"))


def repeats(model: Any) -> bool:
    """Whether steps of a model are repeated here: a causal model's need the kernels of a GPU."""
    return torch.cuda.is_available() or not model.spec.causal


def calls(shape: str) -> Results:
    """Whole calls of one shape."""
    model = network(shape)
    for way, given in WAYS.items():
        options = {"length": ANSWER} | given
        length, lasted, first, captured = options.pop("length"), [], [], []
        decoding = decoding_from_options(
            model.family, {"length": length, **({"eos": None} if model.spec.causal else {})}
        )
        for number in range(CALLS):
            prompt = random_tokens(model, 1, PROMPT) + number
            steps: list[float] = []

            def stamp(done: int, *_: object, steps: list[float] = steps) -> None:
                if done == 1:
                    synchronize(model.device)
                    steps.append(time.perf_counter())

            synchronize(model.device)
            begun = time.perf_counter()
            with counted() as counts:
                ss.generate(model, prompt, decoding, progress=stamp, **options)
            synchronize(model.device)
            lasted.append(round(1000 * (time.perf_counter() - begun) / length, 2))
            first.append(round(steps[0] - begun, 3))
            captured.append(counts["captured"])
        quick = not model.spec.causal or way == "masked" or lasted[1] <= LIMIT
        ok = not repeats(model) or (quick and captured == [1, 0, 0])
        yield {"way": way, "ms a token": lasted, "first step, s": first, "captures": captured, "ok": ok}


def ratio(shape: str, batch: int, length: int, told: tuple[float, float]) -> Results:
    """A step untraced, traced and masked."""
    model = network(shape)
    decoding = decoding_for(model, length, 40 if batch == 1 else 24)
    prompt = random_tokens(model, batch, length - decoding.new_tokens)
    measured = timings(model, prompt, decoding, TURNS)
    step = {name: timing.seconds for name, timing in measured.items() if isinstance(timing, Timing)}
    ratios = step["traced"] / step["untraced"], step["masked"] / step["traced"]
    yield {
        "milliseconds": {name: round(1000 * one, 3) for name, one in step.items()},
        "traced / untraced, masked / traced": [round(one, 3) for one in ratios],
        "told": told,
        "ok": all(abs(one - other) <= CLOSE for one, other in zip(ratios, told, strict=True)),
    }


def smoke(name: str) -> Results:
    """Two prompts, plain and replayed; the second replayed run uses graphs of the first."""
    family, decoding, options = SMOKE[name]
    facts = json.loads((GOLDEN / family / "manifest.json").read_text()).get("special_ids", {})
    torch.backends.cuda.matmul.allow_tf32 = False
    model = ss.load(GOLDEN / family / "checkpoint", dtype="float32", mask_token_id=facts.get("mask"))
    options = dict(options)
    if options.pop("padded", False):
        options["attention_mask"] = (torch.arange(13)[None] >= torch.tensor([[0], [4], [2]])).long()
    for number in (0, 1):
        ids, runs = random_tokens(model, 3, 13) % 150 + number, []
        for on in (False, True):
            with pytest.MonkeyPatch.context() as patch, counted() as counts:
                at_once(patch, on)
                runs.append(ss.generate(model, ids, decoding, capture=ss.Capture(), **options))
        plain, replayed = runs
        arrays: list[Any] = [getattr(run.trace, "_parts").arrays["received"] for run in runs]  # noqa: B009
        pairs = [[torch.as_tensor(array) for array in pair] for pair in zip(*arrays, strict=True)]
        apart = max(float((a - b).nan_to_num().abs().max()) for a, b in pairs)
        equal, expected = torch.equal(plain.states, replayed.states), name not in LAUNCHED and repeats(model)
        ok = equal and apart <= 1e-3 and bool(counts["replayed"]) == expected and not (number and counts["captured"])
        yield {"prompt": number, "equal": equal, "apart": apart, **counts, "ok": ok}


def parts(tiny: bool) -> Iterator[tuple[str, Callable[[], Results]]]:
    """What is measured, the most wanted first."""
    llama, llada = ("llama-small", "llada-small") if tiny else ("llama-8b", "llada-8b")
    ratios = []
    for (shape, batch, length), told in TOLD.items():
        case = (shape.replace("8b", "small"), 1, length // 4, told) if tiny else (shape, batch, length, told)
        ratios.append((f"ratio {shape} {batch}x{length}", partial(ratio, *case)))
    yield f"calls {llama}", partial(calls, llama)
    yield ratios[0]
    yield from ((f"smoke {name}", partial(smoke, name)) for name in SMOKE)
    yield f"calls {llada}", partial(calls, llada)
    yield from ratios[1:]


def check(tiny: bool, seconds: float, out: Path | None) -> None:
    """Runs the parts until the time is over; one that fails says so, and the next one begins."""
    begun, results = time.perf_counter(), []

    def tell(line: dict[str, Any]) -> None:
        results.append(line)
        text = json.dumps(line | {"at": round(time.perf_counter() - begun, 1)})
        print(text, flush=True)
        if out is not None:
            with out.open("a", encoding="utf-8") as file:
                file.write(text + "\n")

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu, graphs played"
    tell({"part": "about", "device": device, "torch": torch.__version__, "sinkscope": ss.__version__})
    if not torch.cuda.is_available():
        play(pytest.MonkeyPatch())
    for name, measure in parts(tiny):
        if time.perf_counter() - begun > seconds - 15:
            tell({"part": name, "left out": "no time"})
            continue
        try:
            for result in measure():
                tell({"part": name, **result})
        except Exception as error:
            tell({"part": name, "error": f"{type(error).__name__}: {error}"[:2000], "ok": False})
        gc.collect()
        with suppress(RuntimeError):
            torch.cuda.empty_cache()
    tell({"part": "end", "not ok": [line["part"] for line in results if line.get("ok") is False]})


def tests(seconds: float, out: Path | None) -> None:
    """Runs tests/gpu in several processes, because most of their time goes into compiling kernels, and prints what each says."""
    begun = time.perf_counter()
    # Its own interpreter on its own tests.
    pytest_here = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    listed = subprocess.run([*pytest_here, "--collect-only", "tests/gpu"], cwd=ROOT, capture_output=True, text=True)  # noqa: S603
    names = [line for line in listed.stdout.splitlines() if "::" in line]

    def some(number: int) -> str:
        command = [*pytest_here, "--durations=5", *names[number::PROCESSES]]
        left = seconds - (time.perf_counter() - begun)
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=left)  # noqa: S603
            return done.stdout
        except subprocess.TimeoutExpired as error:
            return f"no time left\n{(error.stdout or b'').decode()}"

    print(f"{len(names)} tests in {PROCESSES} processes", flush=True)
    with ThreadPoolExecutor(PROCESSES) as pool:
        for printed in pool.map(some, range(PROCESSES)):
            print(printed, flush=True)
            if out is not None:
                with out.open("a", encoding="utf-8") as file:
                    file.write(printed)
    print(f"{time.perf_counter() - begun:.0f} s", flush=True)


def main() -> None:
    """The checks, or the tests."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("check", "tests"), default="check")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    if given.what == "tests":
        tests(given.seconds, given.out)
    else:
        check(given.tiny, given.seconds, given.out)


if __name__ == "__main__":
    main()
