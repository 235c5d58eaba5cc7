"""How often a row that shares its forwards with rows of other lengths takes another token than alone: `python3 -m lab.near_ties`.

On a GPU rows of different lengths run together, padded. In float32 a row equals its run alone; in bfloat16 a matrix product may
add in another order when the batch is larger, and where two candidates nearly tie the choice may fall the other way.
The script answers word problems alone and together, in both dtypes, and prints how many rows and tokens differ.
"""

from __future__ import annotations

import argparse
import json

import torch

import sinkscope as ss
from sinkscope.models.prompts import pad
from sinkscope.tasks import registry
from sinkscope.tasks.prompting import encode_prompt


def compare(source: str, dtype: str, device: str, count: int, length: int) -> dict[str, object]:
    """Answers to `count` word problems of different lengths, together and alone."""
    model = ss.load(source, device=device, dtype=dtype)
    task = registry.get("word_problems", model.family)
    prompts = [list(encode_prompt(model, task.prompt(one), task.scheme).ids) for one in task.documents(count)]
    decoding: ss.Decoding = (
        ss.GreedyDecoding(length, eos=None) if model.spec.causal else ss.LladaDecoding(length, block=length)
    )
    if model.family == "dream":
        decoding = ss.DreamDecoding(length)
    padded = pad(model, prompts)
    seeds = list(range(count))
    together = ss.generate(model, padded.ids, decoding, seed=seeds, attention_mask=padded.real)
    rows = tokens = 0
    for row, prompt in enumerate(prompts):
        alone = ss.generate(model, torch.tensor([prompt]), decoding, seed=[row])
        differs = alone.sequences[0, alone.prompt :] != together.sequences[row, together.prompt :]
        rows, tokens = rows + bool(differs.any()), tokens + int(differs.sum())
    return {
        "model": source, "dtype": dtype, "device": device, "rows": count, "lengths": len({len(one) for one in prompts}),
        "new_tokens": count * length, "rows_that_differ": rows, "tokens_that_differ": tokens,
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=64)
    options = parser.parse_args()
    for name in ("organism/scratch", "organism/causal"):
        for dtype in ("float32", "bfloat16"):
            print(
                json.dumps(compare(name, dtype, options.device, options.rows, options.length)),
                flush=True,
            )
