"""A whole cell of a study, an experiment on GSM8K, beside the steady speed of its batches and the official loop.

The prompts have the lengths of GSM8K's first 64 test documents (the paper's four examples, LLaDA's tokenizer and chat template);
their tokens are random, because speed does not depend on them. Batches are cut by the function that evaluations use, and the
clock runs from the first prompt to the last answer: padding, graph capture and the last small batch are in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from bench import rivals
from bench.shapes import with_masks
from sinkscope.decoding.llada import LladaDecoding
from sinkscope.generation.generate import generate
from sinkscope.generation.timing import Clock, random_tokens, synchronize
from sinkscope.models.model import Model
from sinkscope.models.prompts import pad
from sinkscope.policies import parse_policy
from sinkscope.tasks import registry
from sinkscope.tasks.answer import batches
from sinkscope.tasks.experiment import Experiment, ModelIdentity

LENGTHS = (
    1075, 1078, 1092, 832, 1105, 780, 928, 1033, 1115, 825, 974, 1358, 1403, 1174, 838, 946, 1253, 857, 812, 940, 1171, 1280,
    1216, 990, 1120, 1096, 1030, 817, 898, 919, 928, 1147, 1077, 850, 1044, 928, 941, 1252, 833, 1022, 1091, 1110, 840, 1290,
    935, 1116, 1006, 1213, 874, 965, 1011, 850, 904, 1427, 1012, 1074, 1098, 1140, 1273, 1024, 991, 866, 1206, 881,
)  # fmt: skip
"""Prompt tokens of the documents of TASK."""
TASK = "gsm8k:paper-llada"
SMALL = 16
"""A CPU's prompts are so many times shorter."""
POLICIES = ("none", "top:5")
OFFICIAL_STEPS = 8


def cases(model: Model, decoding: LladaDecoding) -> Iterator[dict[str, Any]]:
    """Measures the cell under every policy.

    Yields:
        The experiment's identity, documents, rows of each batch, steps, seconds of the job, tokens per second of the job and of a
        steady step (real tokens, answers included, times steps), seconds of a step of the official loop, one prompt at a time.
    """
    device = model.device
    lengths = [length // (1 if device.type == "cuda" else SMALL) for length in LENGTHS]
    tokens = random_tokens(model, len(lengths), max(lengths)).tolist()
    prompts = [row[:length] for row, length in zip(tokens, lengths, strict=True)]
    cut = list(batches(model, decoding, lengths, "auto"))
    typical = torch.zeros(1, sum(lengths) // len(lengths), dtype=torch.long)
    x = with_masks(model, typical, decoding.length)
    official = rivals.official(model, x, typical.shape[1], decoding.block, OFFICIAL_STEPS).seconds
    work = (sum(lengths) + len(lengths) * decoding.length) * decoding.steps
    middle = cut[len(cut) // 2]
    shortest = min(lengths[index] for index in middle)
    unpadded = torch.tensor([prompts[index][:shortest] for index in middle])
    task = registry.get(TASK, model.family)
    for policy in map(parse_policy, POLICIES):
        experiment = Experiment(ModelIdentity.of(model), task, decoding, policy)
        # The steady step before the job: kernels are compiled once on a machine, not per job.
        clock = Clock(device)
        _run(model, experiment, middle, unpadded, progress=clock.tick)
        steady = len(middle) * (shortest + decoding.length) / clock.timing().seconds
        synchronize(device)
        begun = time.perf_counter()
        for rows in cut:
            padded = pad(model, [prompts[index] for index in rows])
            _run(model, experiment, rows, padded.ids, attention_mask=padded.real)
        synchronize(device)
        seconds = time.perf_counter() - begun
        yield {
            "policy": str(policy or "none"), "experiment": experiment.identity, "documents": len(prompts),
            "batches": [len(rows) for rows in cut], "steps": decoding.steps, "seconds": seconds,
            "tokens_per_second": work / seconds, "steady_tokens_per_second": steady, "official_seconds": official,
        }  # fmt: skip


def _run(model: Model, experiment: Experiment, rows: Sequence[int], ids: torch.Tensor, **options: Any) -> None:
    """Answer these documents; each has its number as its seed."""
    generate(model, ids, experiment.decoding, policy=experiment.policy, seed=list(rows), **experiment.extras, **options)
