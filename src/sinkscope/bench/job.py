"""`sinkscope bench job`: a whole cell of a study beside the steady speed of its batches and the official loop.

The prompts have the lengths of GSM8K's first 64 test documents (the paper's four examples, LLaDA's tokenizer and chat template);
their tokens are random, because speed does not depend on them. Batches are cut by the function that evaluations use, and the
clock runs from the first prompt to the last answer: padding, graph capture and the last small batch are in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from sinkscope.bench import rivals
from sinkscope.bench.clock import Clock, synchronize
from sinkscope.bench.shapes import with_masks
from sinkscope.decoding import Decoding, LladaDecoding
from sinkscope.generation.generate import generate
from sinkscope.models.model import Model
from sinkscope.models.prompts import pad
from sinkscope.policies.policy import Policy
from sinkscope.policies.text import as_policy
from sinkscope.tasks.answer import batches

LENGTHS = (
    1075, 1078, 1092, 832, 1105, 780, 928, 1033, 1115, 825, 974, 1358, 1403, 1174, 838, 946, 1253, 857, 812, 940, 1171, 1280,
    1216, 990, 1120, 1096, 1030, 817, 898, 919, 928, 1147, 1077, 850, 1044, 928, 941, 1252, 833, 1022, 1091, 1110, 840, 1290,
    935, 1116, 1006, 1213, 874, 965, 1011, 850, 904, 1427, 1012, 1074, 1098, 1140, 1273, 1024, 991, 866, 1206, 881,
)  # fmt: skip
"""Prompt tokens of the documents of `gsm8k:paper-llada`."""
SMALL = 16
"""A CPU's prompts are so many times shorter."""
POLICIES = ("none", "top:5")
OFFICIAL_STEPS = 8


def cases(
    model: Model,
    decoding: LladaDecoding,
    say: Callable[[str], None],
    keep: Callable[[list[dict[str, Any]]], None],
) -> list[dict[str, Any]]:
    """Measures the cell under every policy.

    Args:
        say: called with lines about every policy. keep: called with the cases so far, after each of them.

    Returns:
        One dictionary per policy: documents, rows of each batch, steps, seconds of the job, tokens per second of the job and of a
        steady step (real tokens, answers included, times steps), seconds of a step of the official loop, one prompt at a time.
    """
    shorter = 1 if model.device.type == "cuda" else SMALL
    draw = torch.Generator().manual_seed(0)
    vocabulary = min(1000, model.shape.vocabulary // 2)
    prompts = [
        torch.randint(0, vocabulary, (length // shorter,), generator=draw).tolist() for length in LENGTHS
    ]
    columns = [len(prompt) + decoding.length for prompt in prompts]
    parts = list(batches(model, decoding, [len(prompt) for prompt in prompts], "auto"))
    typical = torch.zeros(1, sum(columns) // len(columns) - decoding.length, dtype=torch.long)
    x = with_masks(model, typical, decoding.length)
    official = rivals.official(model, x, typical.shape[1], decoding.block, OFFICIAL_STEPS).seconds
    measured: list[dict[str, Any]] = []
    for text in POLICIES:
        policy = as_policy(text)
        # Before the job: kernels are compiled once on a machine, not per job.
        steady = _steady(model, decoding, prompts, parts, policy)
        say(f"{text}: {steady:,.0f} tokens/s in a steady step; the cell of {len(prompts)} documents runs")
        seconds = _job(model, decoding, prompts, parts, policy)
        work = sum(columns) * decoding.steps
        measured.append(
            {
                "policy": text, "documents": len(prompts), "batches": [len(part) for part in parts],
                "steps": decoding.steps, "seconds": seconds, "tokens_per_second": work / seconds,
                "steady_tokens_per_second": steady, "official_seconds": official,
            }
        )  # fmt: skip
        say(f"{text}: {seconds:.1f} s")
        keep(measured)
    return measured


def _job(
    model: Model, decoding: Decoding, prompts: Sequence[list[int]], parts: Sequence[list[int]], policy: Policy | None
) -> float:  # fmt: skip
    """Seconds from the first prompt to the last answer."""
    synchronize(model.device)
    begun = time.perf_counter()
    for part in parts:
        padded = pad(model, [prompts[index] for index in part])
        generate(model, padded.ids, decoding, policy, seed=list(part), attention_mask=padded.real)
    synchronize(model.device)
    return time.perf_counter() - begun


def _steady(
    model: Model, decoding: Decoding, prompts: Sequence[list[int]], parts: Sequence[list[int]], policy: Policy | None
) -> float:  # fmt: skip
    """Tokens per second of the median step of the middle batch, with its prompts cut to its shortest: nothing is padded."""
    part = parts[len(parts) // 2]
    shortest = min(len(prompts[index]) for index in part)
    ids = torch.tensor([prompts[index][:shortest] for index in part])
    clock = Clock(model.device)
    generate(model, ids, decoding, policy, seed=list(part), progress=clock.tick)
    return len(part) * (shortest + decoding.new_tokens) / clock.timing().seconds
