"""The cost of cells (forward passes, storage, time, GPU-hours), and the number of documents that a budget of time allows.

GPU-hours of named GPUs, also of models that are not on this machine, and of the cells that decide each claim: measured once on an
H200 (`gpus.toml`), for networks of 8B parameters. Denoising steps and prompts scale with parameters × tokens and with a GPU's
bfloat16 rate; a causal model's new tokens with parameters and memory bandwidth, because its weights are read for each. Networks
much smaller than 1B are bound by launching kernels, and mixtures of experts by their routing: they get no estimate.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sinkscope.errors import InputError
from sinkscope.files import read_json, write_atomically
from sinkscope.study import draw
from sinkscope.study.cells import Cell, outline
from sinkscope.study.documents import prompt_lengths
from sinkscope.study.facts import Facts, facts_of
from sinkscope.study.names import pooled
from sinkscope.study.spec import Study, has_auto

if TYPE_CHECKING:
    from sinkscope.study.executors import Executor, Place

UNKNOWN_PROMPT = 64
"""Tokens of a prompt, where nothing is known about it yet."""

SMALLEST = 500_000_000
"""Parameters of the smallest network whose speed follows from its size."""

SAMPLED = 64
"""Documents whose prompts are counted where a model's tokenizer is here."""


def forwards(cell: Cell) -> int:
    """Forward passes of a cell, at most."""
    each = cell.parsed_decoding().passes
    if cell.kind == "inspect":  # two generations, and what is looked at and patched
        return cell.answers * (2 * each + 20 * int(json.loads(cell.capture)["looks"]))
    # A replay: with and without, and what compares them.
    times = 1 if cell.kind != "replay" else 3 if cell.reuse == "none" else 5
    return cell.answers * each * times


def storage(cell: Cell, facts: Facts) -> int:
    """Bytes that a cell leaves on disk, roughly: 2 kB per record, and the arrays of a trace in half precision."""
    records = 2048 * cell.answers
    if not cell.capture:
        return records
    if cell.kind == "inspect" or not cell.keep:  # statistics alone
        return records + (64 << 10) * cell.answers
    capture = json.loads(cell.capture)
    steps = -(-(forwards(cell) // max(1, cell.answers)) // int(capture["every"]))
    keys = UNKNOWN_PROMPT + cell.parsed_decoding().new_tokens
    heads = 1 if capture["level"] == "layers" else facts.heads
    recorded = {"by_query": 3, "anatomy": 2}
    arrays = 1 + sum(count for name, count in recorded.items() if capture[name]) + 2 * (cell.policy != "none")
    each = 2 * steps * facts.layers * heads * keys * arrays + 24 * steps * keys
    if capture["level"] == "maps":
        each += 2 * steps * facts.layers * facts.heads * keys * keys
    return records + each * cell.answers


# ---- speed ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Speed:
    """Seconds for one forward pass of one answer, measured with all workers busy: without and with a policy, recorded."""

    plain: float
    masked: float
    traced: float

    def of(self, cell: Cell) -> float:
        """Seconds for one forward pass of a cell."""
        if cell.kind in ("trace", "maps"):
            return self.traced
        return self.plain if cell.policy == "none" else self.masked


Speeds = Mapping[str, Speed]
"""By the model's name; empty when nothing was measured."""


def measure(executor: Executor, cells: Sequence[Cell]) -> dict[str, Speed]:
    """The speed of each model of the cells, with all workers busy."""
    from sinkscope.study.worker import Measurement

    first: dict[str, Cell] = {}
    for cell in cells:
        first.setdefault(cell.model.name, cell)
    speeds: dict[str, Speed] = {}
    executor.run(
        [Measurement(cell) for cell in first.values()],
        lambda job, result: speeds.update({job.cell.model.name: result}),
    )
    return speeds


def work(cell: Cell, speeds: Speeds) -> float:
    """The work in one answer of a cell: seconds where they were measured, else forward passes, traces counted three times."""
    passes = forwards(cell) / max(1, cell.answers)
    if cell.model.name in speeds:
        return passes * speeds[cell.model.name].of(cell)
    return passes * (3.0 if cell.capture else 1.0 if cell.policy == "none" else 2.0)


def seconds(cells: Iterable[Cell], speeds: Speeds, workers: int) -> float:
    """Wall seconds for cells, spread over workers."""
    return sum(forwards(cell) * speeds[cell.model.name].of(cell) for cell in cells) / max(1, workers)


def choose_samples(study: Study, facts: Mapping[str, Facts], speeds: Speeds, workers: int) -> int:
    """The documents per cell for "auto": as many as the budget's seconds allow, within its bounds.

    Rounded down to a multiple of 8, so that two measurements of nearly the same speed agree more often.
    """
    least = study.budget.least
    once, twice = (
        seconds(outline(study, facts, count, exact=False), speeds, workers) for count in (least, 2 * least)
    )
    each = (twice - once) / least
    fixed = once - each * least
    count = int((study.budget.seconds - fixed) / each) if each > 0 else study.budget.most
    return max(study.budget.least, min(study.budget.most, count - count % 8))


def save_speeds(path: Path, speeds: Speeds) -> None:
    """Keep a measurement, so that a study that goes on says the same."""
    data = {name: dataclasses.asdict(speed) for name, speed in speeds.items()}
    write_atomically(path, json.dumps(data, indent=1) + "\n")


def load_speeds(path: Path) -> dict[str, Speed]:
    """Read a measurement; empty where there is none, or the file cannot be read: it only decides on an estimate."""
    with suppress(InputError):
        speeds: dict[str, Speed] = read_json(path, "remove it", kind=Mapping[str, Speed])
        return speeds
    return {}


def sentences(asked: Study, resolved: Study, speeds: Speeds) -> list[str]:
    """The number of documents, the rule that chose them and the smallest effect they detect, for people.

    `asked`: the study as it was given; `resolved`: with "auto" replaced by a number.
    """
    counts = sorted({grid.samples for grid in resolved.evaluate if isinstance(grid.samples, int)})
    lines = []
    if counts and has_auto(asked) and speeds:
        measured = ", ".join(
            f"{name} {1000 * speed.plain:.0f}/{1000 * speed.masked:.0f} ms" for name, speed in speeds.items()
        )
        budget = asked.budget
        lines.append(
            f"{' or '.join(map(str, counts))} documents per cell: as many as {budget.seconds:g} s of computing on all workers "
            f"allow, between {budget.least} and {budget.most}. Measured for one forward pass of one answer, without/with a "
            f"policy: {measured}."
        )
    elif counts:
        lines.append(f"{' or '.join(map(str, counts))} documents per cell, as the study says.")
    if any(grid.batches or grid.drawn for grid in resolved.evaluate):
        lines.append(" ".join(draw.sentences(resolved)))
    return [*lines, *map(smallest_effect, counts)]


def smallest_effect(documents: int) -> str:
    """A sentence about the smallest difference that so many documents detect.

    >>> smallest_effect(16)[:68]
    'The smallest difference of two accuracies that 16 documents detect w'
    """
    from sinkscope.statistics import minimal_detectable_effect

    if documents < 2:
        return "One document detects no difference."
    worst, best = (minimal_detectable_effect(documents, accuracy) for accuracy in (0.5, 0.95))
    return (
        f"The smallest difference of two accuracies that {documents} documents detect with 80 % power: {worst:.2f} at an "
        f"accuracy of 0.5, {best:.2f} at 0.95, if the two runs are unrelated; less if they agree."
    )


# ---- a study before it runs ----------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """The cost of one model. `seconds` is None when it could not be measured here."""

    model: str
    cells: int
    answers: int
    forwards: int
    storage: int
    seconds: float | None


@dataclass(frozen=True)
class StudyEstimate:
    """The cost of a study.

    Attributes:
        samples: the number for "auto"; None: nothing is "auto", or not all models could be measured and the least was taken.
        missing: models that are not on this machine.
        gpu: True when the times are of a GPU.
    """

    study: Study
    cells: tuple[Cell, ...]
    lines: tuple[Line, ...]
    samples: int | None
    workers: int
    missing: tuple[str, ...]
    speeds: Speeds
    facts: Mapping[str, Facts]
    gpu: bool


def estimate(study: Study, place: Place) -> StudyEstimate:
    """The cost of a study. Models that are here are measured for some seconds each; nothing is downloaded or written."""
    import torch

    facts = {model.name: facts_of(model, place.device, fetch=False) for model in study.models}
    local = [name for name, known in facts.items() if known.here]
    speeds: Speeds = {}
    workers = 1
    if local:
        from sinkscope.study.executors import LocalExecutor

        executor = LocalExecutor(replace(place, modules=study.modules))
        try:
            here = [cell for cell in outline(study, facts, exact=False) if cell.model.name in local]
            speeds = measure(executor, here)
        finally:
            executor.close()
        workers = executor.workers
    samples = None
    if has_auto(study) and len(speeds) == len(study.models):
        samples = choose_samples(study, facts, speeds, workers)
    cells = outline(study, facts, samples, exact=False)

    def line(name: str) -> Line:
        mine = [cell for cell in cells if cell.model.name == name]
        return Line(
            model=name,
            cells=len(mine),
            answers=sum(cell.answers for cell in mine),
            forwards=sum(map(forwards, mine)),
            storage=sum(storage(cell, facts[name]) for cell in mine),
            seconds=seconds(mine, speeds, workers) if name in speeds else None,
        )

    return StudyEstimate(
        study=study,
        cells=tuple(cells),
        lines=tuple(line(model.name) for model in study.models),
        samples=samples,
        workers=workers,
        missing=tuple(name for name in facts if name not in local),
        speeds=speeds,
        facts=facts,
        gpu=torch.cuda.is_available(),
    )


# ---- GPU-hours -------------------------------------------------------------------------------------


@cache
def _gpus() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "gpus.toml").read_text(encoding="utf-8"))


def gpu_names() -> list[str]:
    """The GPUs that hours are known for."""
    return list(_gpus()["gpus"])


def prompt_tokens(cell: Cell) -> float:
    """Mean tokens of a cell's prompts: counted where the tokenizer is here, else as measured once, else a guess."""
    count = min(SAMPLED, len(cell.documents))
    lengths = prompt_lengths(cell.model, cell.task, cell.family, count, cell.data) if cell.data else ()
    if lengths:
        return sum(lengths) / len(lengths)
    known: dict[str, float] = _gpus()["prompts"]
    return known.get(cell.task, known.get(cell.task.partition(":")[0], UNKNOWN_PROMPT))


def gpu_hours(cells: Sequence[Cell], facts: Mapping[str, Facts], gpu: str) -> float | None:
    """Hours of one GPU for cells; None where a model does not fit into its memory, is too small, or is a mixture of experts."""
    total = 0.0
    for cell in cells:
        size, mixture = facts[cell.model.name].parameters, facts[cell.model.name].mixture
        # Weights in two bytes, and a tenth of them for states and caches.
        if mixture or size < SMALLEST or 2.2e-9 * size > _gpus()["gpus"][gpu]["memory"]:
            return None
        total += _gpu_seconds(cell, size, gpu)
    return total / 3600


def _gpu_seconds(cell: Cell, parameters: int, gpu: str) -> float:
    measured, gpus = _gpus()["measured"], _gpus()["gpus"]
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


def gpu_source() -> str:
    """A sentence about where the numbers come from."""
    measured = _gpus()["measured"]
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
