"""GPU-hours of cells for named GPUs, also of models that are not on this machine; and of the cells that decide each claim.

Measured once on an H200 (`gpus.toml`), for networks of 8B parameters. Denoising steps and prompts scale with parameters × tokens
and with a GPU's bfloat16 rate; a causal model's new tokens with parameters and memory bandwidth, because its weights are read
for each. Networks much smaller than 1B are bound by launching kernels, and mixtures of experts by their routing: they get no
estimate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import tomllib

from sinkscope.study.cells import Cell
from sinkscope.study.documents import prompt_lengths
from sinkscope.study.estimate import UNKNOWN_PROMPT, forwards
from sinkscope.study.facts import Facts
from sinkscope.study.names import pooled

SMALLEST = 500_000_000
"""Parameters of the smallest network whose speed follows from its size."""

SAMPLED = 64
"""Documents whose prompts are counted where a model's tokenizer is here."""


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "gpus.toml").read_text(encoding="utf-8"))


def gpu_names() -> list[str]:
    """The GPUs that hours are known for."""
    return list(_data()["gpus"])


def prompt_tokens(cell: Cell) -> float:
    """Mean tokens of a cell's prompts: counted where the tokenizer is here, else as measured once, else a guess."""
    count = min(SAMPLED, len(cell.documents))
    lengths = prompt_lengths(cell.model, cell.task, cell.family, count, cell.data) if cell.data else ()
    if lengths:
        return sum(lengths) / len(lengths)
    known: dict[str, float] = _data()["prompts"]
    return known.get(cell.task, known.get(cell.task.partition(":")[0], UNKNOWN_PROMPT))


def gpu_hours(cells: Sequence[Cell], facts: Mapping[str, Facts], gpu: str) -> float | None:
    """Hours of one GPU for cells; None where a model does not fit into its memory, is too small, or is a mixture of experts."""
    total = 0.0
    for cell in cells:
        size, mixture = facts[cell.model.name].parameters, facts[cell.model.name].mixture
        # Weights in two bytes, and a tenth of them for states and caches.
        if mixture or size < SMALLEST or 2.2e-9 * size > _data()["gpus"][gpu]["memory"]:
            return None
        total += _seconds(cell, size, gpu)
    return total / 3600


def _seconds(cell: Cell, parameters: int, gpu: str) -> float:
    measured, gpus = _data()["measured"], _data()["gpus"]
    size = parameters / measured["parameters"]
    compute, memory = (gpus[measured["gpu"]][name] / gpus[gpu][name] for name in ("tflops", "bandwidth"))
    kind = "traced" if cell.capture else "plain" if cell.policy == "none" else "masked"
    token = size * compute * measured["seconds"] / measured["tokens"]
    prompt, decoding = prompt_tokens(cell), cell.parsed_decoding()
    if not decoding.causal and not decoding.cached:
        return float(forwards(cell) * (prompt + decoding.new_tokens) * token * measured.get(kind, 1.0))
    step = size * memory * measured["new_seconds"] / measured["new_rows"] * measured.get(f"new_{kind}", 1.0)
    # Behind a cache a block's few queries cost what one new token does: the weights are read for each forward.
    passes = decoding.passes if decoding.cached else decoding.new_tokens
    return float(cell.answers * (prompt * token + passes * step))


def source() -> str:
    """A sentence about where the numbers come from."""
    measured = _data()["measured"]
    return (
        f"GPU-hours follow from steps of 8B networks in bfloat16 on an {measured['gpu']} ({measured['when']}, docs/speed.md), by "
        "parameters and tokens; other GPUs are scaled by their rate, or by their memory's where tokens come one by one. "
        "Loading, grading and waiting are not in them."
    )


# ---- the cheapest subset -------------------------------------------------------------------------


DIFFUSION = ("llada", "dream", "mmada")
"""The paper's families of diffusion models; a claim on all of them is one on every other such family, too."""


def concerns(families: Sequence[str], family: str) -> bool:
    """Whether a claim on these families is about models of a family."""
    return family in families or (family != "causal" and set(DIFFUSION) <= set(families))


class Power(NamedTuple):
    """The cells that decide on a claim: policies, families, and the documents that its rule needs for an effect at 80 % power."""

    claim: str
    policies: tuple[str, ...]
    families: tuple[str, ...]
    documents: int
    effect: str


@dataclass(frozen=True)
class Subset:
    """The cheapest cells that decide on a claim; none: the study does not have them, for the reason `missing`."""

    power: Power
    cells: tuple[Cell, ...]
    missing: str = ""


def cheapest(cells: Sequence[Cell], needs: Sequence[Power]) -> list[Subset]:
    """For each claim on accuracies the cheapest cells of a study that decide on it; each task is judged by itself.

    The task with the least work that has enough documents is taken; controls keep all their draws, documents are cut.
    """
    subsets = []
    for power in needs:
        mine = [cell for cell in cells if cell.kind == "evaluate" and concerns(power.families, cell.family)]
        choices, missing = [], "no model of this kind"
        for task in dict.fromkeys(cell.task.partition(":")[0] for cell in mine):
            here = [cell for cell in mine if cell.task.partition(":")[0] == task]
            used = [cell for cell in here if pooled(cell.policy) in power.policies]
            absent = set(power.policies) - {pooled(cell.policy) for cell in here}
            short = min(len(cell.documents) for cell in here) < power.documents
            if absent:
                missing = f"without {', '.join(sorted(absent))}"
            elif short:
                missing = f"{task} has too few documents here"
            else:
                choices.append([replace(cell, documents=cell.documents[: power.documents]) for cell in used])
        best = min(choices, key=lambda part: sum(map(forwards, part)), default=[])
        subsets.append(Subset(power, tuple(best), "" if best else missing))
    return subsets


def together(subsets: Sequence[Subset]) -> list[Cell]:
    """The cells of all subsets, each once, with the most documents that any of them asks for."""
    union: dict[tuple[Any, ...], Cell] = {}
    for subset in subsets:
        for cell in subset.cells:
            key = (cell.model, cell.task, cell.decoding, cell.policy)
            if key not in union or len(cell.documents) > len(union[key].documents):
                union[key] = cell
    return list(union.values())
