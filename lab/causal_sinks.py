"""How well sinks of causal models are told, the tables of docs/attention.md: `python -m lab.causal_sinks`.

Planted heads from 8 to 4,096 tokens (tests/sinks/heads.py), then real models by the length of the text: SmolLM2
(`sinkscope fetch smollm2`) on this repository's licence, and the causal organism on a word problem.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from tests.sinks import heads

import sinkscope as ss
from lab.verdict_simulation import table
from sinkscope.base.sink_rule import distant
from sinkscope.sinks import detect
from sinkscope.tasks import registry
from sinkscope.tasks.prompting import encode_prompt

SHARES = (0.06, 0.07, 0.08, 0.1, 0.12, 0.14, 0.16, 0.18, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8)
WORDS = (
    "tokens",
    "sinks per head",
    "heads without a sink",
    "heads whose first token is one",
    "first token > .3 (Gu et al.)",
    "unknown keys",
)
TEXTS = (5, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


def planted_row(length: int) -> tuple[str, ...]:
    """False alarms, and the smallest share that a sink needs to be found in 95 of 100 heads, by where it stands."""
    rng = np.random.default_rng(length)
    called: dict[str, list[bool]] = defaultdict(list)
    for name, weights in heads.without_sinks(length, rng, 100 if length <= 64 else 8 if length <= 512 else 1):
        called[name.partition(",")[0]].append(bool(detect(heads.causal_trace([weights])).any()))
    chance = [np.mean(sinks) for name, sinks in called.items() if name.startswith("random")]
    by_distance = [np.mean(sinks) for name, sinks in called.items() if not name.startswith("random")]
    least = []
    for column in (0, length // 4, length // 2):
        could = distant(np.array([length]), np.arange(length))
        far = slice(column + int(could.gap[0]), None)
        found: dict[float, list[bool]] = defaultdict(list)
        for background in heads.BACKGROUNDS:
            rest = heads.planted(length, 0.0, [column], background, rng)[far, column]
            for share in SHARES:
                for _ in range(25):
                    sink = np.minimum(share * np.exp(0.3 * rng.standard_normal(len(rest))), 0.95)
                    found[share].append(float((rest * (1 - sink) + sink).sum()) > could.limit()[column])
        enough = [share for share, sinks in found.items() if np.mean(sinks) >= 0.95]
        least.append(f"{min(enough):g}" if could.known[column] else "unknown")
    return (f"{length:,}", f"{np.mean(by_distance):.1%}", f"{np.mean(chance):.1%}", *least)


def text_row(model: ss.Model, ids: torch.Tensor) -> tuple[str, ...]:
    """Sinks after reading a text, from a trace of its prefill."""
    trace = ss.generate(model, ids, ss.GreedyDecoding(length=1), capture=ss.Capture()).trace
    rows = ss.summary(trace).set_index("measure")["value"]
    first = float(detect(trace).isel(step=0, key=0).mean())
    gu = rows["heads with mean attention > 0.3 on the first token"]
    numbers = rows["sinks per head"], rows["heads without a sink"], first, gu
    return (f"{ids.shape[1]:,}", *(f"{number:.2f}" for number in numbers), f"{rows['unknown keys']:.0%}")


def main() -> None:
    """Print the tables."""
    names = (
        "tokens",
        "called a sink by distance",
        "by chance",
        "needed at the first token",
        "at a quarter",
        "in the middle",
    )
    table(names, map(planted_row, heads.LENGTHS))
    smol = ss.load("smollm2", device="cpu", dtype="float32")
    licence = smol.tokenizer((Path(__file__).parents[1] / "LICENSE").read_text(), return_tensors="pt")["input_ids"]
    print("\nSmolLM2\n")
    table(WORDS, (text_row(smol, licence[:, :n]) for n in TEXTS))
    organism = ss.load("organism/causal", device="cpu", dtype="float32")
    task = registry.get("word_problems", "causal")
    prompt = encode_prompt(organism, task.prompt(task.documents(1)[0]), task.scheme).ids
    run = ss.generate(organism, torch.tensor([prompt]), ss.GreedyDecoding(length=64, eos=None))
    print("\norganism/causal\n")
    table(WORDS, (text_row(organism, run.sequences[:1, :n]) for n in TEXTS[:5]))


if __name__ == "__main__":
    main()
