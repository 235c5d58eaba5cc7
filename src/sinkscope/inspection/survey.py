"""All measures of a run at once, kept for each prompt, and the table that many prompts give.

A part is what one prompt gave: numbers by layer, and in the sections "vectors" and "label" what probes read.
Parts of a study come from many workers; `survey_table` is a function of the parts alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sinkscope.base.checks import whole
from sinkscope.base.errors import InputError
from sinkscope.generation.run import Run
from sinkscope.inspection.lens import Lens, read
from sinkscope.inspection.maps import DESTINATIONS, TOP, destinations, over_depth, over_time, union
from sinkscope.inspection.observation import (
    MASK,
    Observation,
    above_zero,
    check_read_out,
    chosen_steps,
    matched,
    observe,
)
from sinkscope.inspection.patch import (
    What,
    all_donors,
    donors_of,
    effects,
    mean_known,
    patched_logits,
    places,
    same_share,
)
from sinkscope.inspection.probes import probe, shuffled
from sinkscope.inspection.tuned_lens import TunedLens
from sinkscope.inspection.vectors import channels, movement, scores
from sinkscope.models.model import Model
from sinkscope.statistics import mean_interval, ratio_interval

if TYPE_CHECKING:
    import pandas

Array = np.ndarray[Any, Any]


class Name(NamedTuple):
    """What an array of a part is; vectors and labels have no place."""

    section: str
    measure: str
    place: str = ""


Part = dict[Name, Array]
VECTOR, LABEL, TUNED = "vectors", "label", "tuned lens"
"""Sections: the first two are read by probes."""

PATCHES: tuple[tuple[str, What, str, int | None], ...] = (
    ("value of another run", "value", "other", None),
    ("value of another run, at masks", "value", "other", MASK),
    ("no value", "value", "nothing", None),
    ("no value, at masks", "value", "nothing", MASK),
    ("key of an ordinary place", "key", "ordinary", None),
)
"""Name of a patch, what is replaced, what comes in its place, and the kind of place; None: all."""

SHOWN = ("kl", "flipped", "answer_lost")
VECTORS = ("residual", "key", "value")
LABELS = ("masks left", "step", "block", "answer length", "next decided", "task", "right")
WHERE = {"sinks": "at sinks", "others": "elsewhere"}
"""Place in the table → its words in the measures' names."""
PLACES = tuple(WHERE)
GAP, BY_ANGLE = Name("scores", "gap", "all"), Name("scores", "gap by angle", "all")
ALL = -1
"""The layer of a row that is the mean over layers, or does not go by layer."""


def survey(
    model: Model,
    run: Run,
    other: Run | None = None,
    steps: int = 2,
    labels: Mapping[str, Sequence[Any]] | None = None,
    tuned: TunedLens | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Part]:
    """Every measure of every row of a run.

    Args:
        other: gives vectors for patches, row by row; None: the next row of the same run.
        steps: how many steps are looked at, evenly spread; a causal run has one observation.
        labels: "task", "right": a value for each row, for probes.
        progress: called with rows done, counted over all steps that are looked at, and in all.
    """
    rows = run.states.shape[1]
    if other is None and rows < 2:
        raise InputError("a survey of one row needs another run, whose vectors are put in place of its own")
    whole("steps", steps, 1)
    check_read_out(model, run)
    source, turn = (run, 1) if other is None else (other, 0)
    numbers = chosen_steps(run, steps)
    by_row: list[dict[Name, list[Array]]] = [{} for _ in range(rows)]
    done = 0
    for nth, number in enumerate(numbers):
        strongest = all_donors(model, source, same_share(run, source, number))
        donors = [donor.roll(-turn, 1) for donor in strongest]
        first = _first_of_block(run, number)
        later = observe(model, run, number + 1) if not model.spec.causal and number + 1 < len(run) else None
        begin = observe(model, run, first) if not model.spec.causal and first < number else None
        # Three streams side by side: the next step and the block's first are read for the same rows as this one.
        for seen in observe(model, run, number):
            after, start = (None if stream is None else next(stream) for stream in (later, begin))
            row_donors = [donor[:, seen.rows] for donor in donors]
            values = _step(seen, after, start, row_donors, tuned, nth, len(numbers)) | _labels(run, seen)
            done += len(seen.rows)
            if progress is not None:
                progress(done, rows * len(numbers))
            for index, row in enumerate(seen.rows):
                for name, value in values.items():
                    by_row[row].setdefault(name, []).append(value[index])
    parts = []
    for row, lists in enumerate(by_row):
        part = {name: np.stack(v) if name.section in (VECTOR, LABEL) else mean_known(v) for name, v in lists.items()}
        for label, column in (labels or {}).items():
            part[Name(LABEL, label)] = np.array([column[row]] * len(numbers))
        parts.append(part)
    return parts


def _first_of_block(run: Run, step: int) -> int:
    """The first step that could write in the same columns as this one."""
    same = [run.decoding.reachable(run.states[0], run.prompt, number) for number in range(step + 1)]
    return next(number for number, reach in enumerate(same) if torch.equal(reach, same[step]))


def _step(
    seen: Observation, after: Observation | None, start: Observation | None, donors: list[Tensor], tuned: TunedLens | None,
    nth: int, count: int,
) -> Part:  # fmt: skip
    """Arrays [B, …] for one step."""
    measured: dict[Name, Tensor] = {}  # [L, B] or [B]
    if after is not None:
        drift = movement(seen, after)
        for name, (to, where) in product(("key", "value"), WHERE.items()):
            measured[Name("movement", f"drift of the {name}", to)] = drift[f"{name} {where}"]
    for name, value in union(seen).items():
        measured[Name("union", f"keys for a block, per k = {TOP}", name)] = value
    if start is not None:
        for name, value in over_time(start, seen).items():
            measured[Name("foresight", "from the block's first step", name)] = value
    for name, value in over_depth(seen).items():
        measured[Name("foresight", "of the sinks behind", name)] = value
    shares = destinations(seen)
    for name in (*DESTINATIONS, "sinks"):
        measured[Name("attention", "share to", name)] = shares[name].mean(2)
    beyond = torch.stack([shares[name] - shares[f"even: {name}"] for name in DESTINATIONS])  # [4, L, B, H]
    score = scores(seen)
    for name, (to, where) in product(("key length", "cosine"), WHERE.items()):
        measured[Name("scores", name, to)] = score[f"{name} {where}"]
    for name in ("query length", "gap", "gap by angle"):
        measured[Name("scores", name, "all")] = score[name]
    large = channels(seen)
    when = f", at {(nth + 0.5) / count:.0%} of the run" if count > 1 else ""
    for to, where in WHERE.items():
        measured[Name("channels", f"largest entry{when}", to)] = large[where]
    measured[Name("channels", "in the largest channel", "sinks")] = large["same channel"]
    measured[Name("channels", "massive", "all")] = large["massive"]
    measured |= _patches(seen, donors)
    values = {name: value.movedim(-1, 0).cpu().numpy() for name, value in measured.items()}
    values[Name("heads", "beyond even", "all")] = beyond.movedim(2, 0).cpu().numpy()
    values |= _lens(seen, "lens", None)
    if tuned is not None:
        values |= _lens(seen, TUNED, tuned)
    return values | _vectors(seen)


def patched(patch: str, measure: str) -> str:
    """What a patch changes, as it is called in the table."""
    return f"{patch}: {measure}"


def _patches(seen: Observation, donors: list[Tensor]) -> dict[Name, Tensor]:
    strongest, ordinary = donors
    measured = {}
    ordinary_vectors = donors_of(seen, ordinary=True)
    for name, what, source, kind in PATCHES:
        for to, where in zip(PLACES, places(seen), strict=True):
            if kind is not None:
                where = where & (seen.kind[:, None] == kind)
            other = strongest if to == "sinks" else ordinary
            vectors = {"nothing": None, "ordinary": ordinary_vectors, "other": other}[source]
            empty = ~where.flatten(2).any(-1).any(0)
            changed = dict.fromkeys(SHOWN, torch.zeros_like(empty, dtype=torch.float64))
            if not bool(empty.all()):
                changed = effects(seen, patched_logits(seen, where, vectors, what), where)
            for measure in SHOWN:
                measured[Name("patch", patched(name, measure), to)] = changed[measure].masked_fill(empty, float("nan"))
    return measured


def _lens(seen: Observation, section: str, tuned: TunedLens | None) -> Part:
    layers = tuple(range(len(seen.calls) + 1))
    arrays: dict[str, Any] = read(seen, layers, "sinks", tuned)
    lens = Lens(layers=layers, tuned=tuned is not None, **arrays)
    rows, values = max(seen.rows) + 1, {}
    measures = {"own": "its own token", "elsewhere": "a token due elsewhere", "probability": "probability"}
    for measure, words in measures.items():
        for to, chosen in zip(PLACES, (True, False), strict=True):
            values[Name(section, words, to)] = lens.by_row(measure, chosen, rows)[seen.rows]
    return values


def _vectors(seen: Observation) -> Part:
    """What probes read: Float32 [B, layers, 3, features]: at a layer's strongest sink, at a random non-sink of its kind, and at
    the first non-sink of its kind: one place, as a sink that is always the same token is."""
    layers = len(seen.calls)
    probed = sorted({layers // 4, layers // 2, 3 * layers // 4})
    sinks = seen.layer_sinks[probed]
    best = seen.strength[probed].masked_fill(~sinks, -1.0).argmax(-1, keepdim=True)
    strongest = torch.zeros_like(sinks).scatter(-1, best, True) & sinks
    judged = seen.judged[probed].masked_fill(sinks & ~strongest, -1)
    other = matched(strongest, judged, [key + 5 for key in seen.keys])
    kind = torch.where(strongest, seen.judged[probed], -2).amax(-1, keepdim=True)
    candidates = (judged == kind) & ~strongest
    fixed = candidates & (candidates.cumsum(-1) == 1)
    read_vectors = {}
    rows = torch.arange(len(seen.rows), device=best.device)
    for name in VECTORS:
        stacked = []
        for index, layer in enumerate(probed):
            inside = seen.calls[layer]
            vectors = seen.residual[layer]
            if name != "residual":
                vectors = getattr(inside, name).transpose(1, 2).flatten(2)
            each = []
            for where in (strongest[index], other[index], fixed[index]):
                vector = vectors[rows, where.long().argmax(-1)].float()
                each.append(vector.masked_fill(~where.any(-1)[:, None], float("nan")))
            stacked.append(torch.stack(each, 1))
        read_vectors[Name("vectors", name)] = torch.stack(stacked, 1).cpu().numpy()
    return read_vectors


def _labels(run: Run, seen: Observation) -> Part:
    """Labels that the run itself gives, Float [B]; NaN where they mean nothing."""
    prompt, model = run.prompt - seen.offset, seen.model
    answer = seen.final[:, prompt:]
    length = answer.shape[1]
    ends = torch.tensor([*model.ids.eos, -1, -1 if model.ids.pad is None else model.ids.pad], device=answer.device)
    written = (~torch.isin(answer, ends)).cumprod(1).sum(1).double()
    nothing = torch.full_like(written, float("nan"))
    causal = model.spec.causal
    columns = torch.arange(answer.shape[1], device=answer.device)
    decided = seen.decided[:, prompt:]
    mean_column = (decided * columns).sum(1) / above_zero(decided.sum(1))
    block = seen.reachable.sum().double().expand_as(written) / length
    values = {
        "masks left": nothing if causal else seen.predicted.sum(1).double() / length,
        "step": nothing if causal else torch.full_like(written, seen.step / len(run)),
        "block": nothing if causal else block,
        "answer length": written,
        "next decided": nothing if causal else mean_column / length,
    }
    return {Name(LABEL, name): value.cpu().numpy() for name, value in values.items()}


def void_flags(model: Model, run: Run) -> dict[str, str]:
    """Measure → why it is void for this model (see `void`), from a step in the middle of the run."""
    return void(next(observe(model, run, len(run) // 2)))


def void(seen: Observation) -> dict[str, str]:
    """Measure → why it is void here; seen from one observation."""
    reasons: dict[str, str] = {}
    if seen.model.spec.causal:
        reasons["movement"] = "a causal model computes the keys and values of a position once; they cannot move"
        reasons["masks"] = "a causal model has no mask tokens"
        reasons["foresight over time"] = "a causal model has no block that is all masks in its first step"
    norms = torch.stack([call.value.float().norm(dim=-1) for call in seen.calls])[
        :, seen.kind[:, None].expand_as(seen.calls[0].value[..., 0]) >= 0
    ]
    if bool((norms.std(-1) < 1e-3 * norms.mean(-1).clamp(min=1e-30)).all()):
        reasons["value norms"] = "values are normalised: all have one length, so a small value cannot mark a drain"
    if any(call.sink is not None for call in seen.calls):
        reasons["drain"] = "the model has learned sinks without a value, which take attention in place of a position"
    if not bool(seen.layer_sinks.any()):
        reasons["sinks"] = "there is no sink (ε = 3) in this step"
    return reasons


# ---- many prompts ---------------------------------------------------------------------------------


def survey_table(parts: Sequence[Part]) -> pandas.DataFrame:
    """One row for each section, measure, place and layer: value, low, high (95 % over prompts), n.

    Layer −1: mean over layers. "difference" is sinks less others, paired by prompt. Sections and their measures are those of
    docs/inside.md.
    """
    import pandas

    rows: list[dict[str, Any]] = []

    def layers(values: Array) -> list[tuple[int, Array]]:
        layered = values if values.ndim == 2 else values[:, None]
        every = [(ALL, mean_known(list(layered.T)))] if layered.shape[1] else []
        return every + (list(enumerate(values.T)) if values.ndim == 2 else [])

    def add(section: str, measure: str, place: str, values: Array, whole: Array | None = None) -> None:
        """values: Float [P] or [P, layers]; whole: what they are a part of, in sums."""
        of = layers(np.ones(values.shape) if whole is None else whole)
        for (layer, column), (_, total) in zip(layers(values), of, strict=True):
            n = int(np.isfinite(column).sum())
            interval = ratio_interval(column, total) if n else (np.nan,) * 3
            rows.append(dict(zip(
                ("section", "measure", "place", "layer", "value", "low", "high", "n"),
                (section, measure, place, layer, *interval, n), strict=True,
            )))  # fmt: skip

    pairs: dict[tuple[str, str], dict[str, Array]] = {}
    for name in dict.fromkeys(name for of_prompt in parts for name in of_prompt):
        section, measure, place = name
        if section in (VECTOR, LABEL):
            continue
        shape = next(of_prompt[name].shape for of_prompt in parts if name in of_prompt)
        values = np.stack([of_prompt.get(name, np.full(shape, np.nan)) for of_prompt in parts]).astype(np.float64)
        if section == "heads":
            kinds = mean_known(list(values)).argmax(0)  # [L, H]
            for number, kind in enumerate(DESTINATIONS):
                share = np.tile((kinds == number).mean(1), (len(parts), 1))
                add("heads", "share of heads that look most beyond even at", kind, share)
            continue
        add(section, measure, place, values)
        if name == BY_ANGLE:
            whole = np.stack([of_prompt[GAP] for of_prompt in parts]).astype(np.float64)
            add(section, "angle's part", place, values, whole)
        pairs.setdefault((section, measure), {})[place] = values
    for (section, measure), sides in pairs.items():
        if set(PLACES) <= set(sides):
            add(section, measure, "difference", sides["sinks"] - sides["others"])
    rows += probe_rows(parts)
    return pandas.DataFrame(rows)


def probe_rows(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Skill of probes for every label and vector: at sinks, at others, at a fixed place, with labels in a random order, and the
    differences.

    The residual at a quarter, half and three quarters of the layers; key and value at half.
    """
    steps = len(parts[0][Name(LABEL, "answer length")])
    prompts = np.repeat(np.arange(len(parts)), steps)
    rows = []
    for asked in probes(parts[0][Name(VECTOR, "residual")].shape[1]):
        if Name(LABEL, asked.label) not in parts[0]:
            continue
        each = [part[Name(VECTOR, asked.vector)][:, asked.layer] for part in parts]
        vectors = np.concatenate(each).astype(np.float64)
        finite = np.isfinite(vectors).all((1, 2))
        at, elsewhere, fixed = vectors[finite].swapaxes(0, 1)
        labels = np.concatenate([part[Name(LABEL, asked.label)] for part in parts])[finite]
        tried = {
            "sinks": (at, labels), "others": (elsewhere, labels), "fixed": (fixed, labels), "shuffled": (at, shuffled(labels))
        }  # fmt: skip
        losses = {place: probe(*given, prompts[finite]) for place, given in tried.items()}
        here = losses["sinks"]
        if here is None or None in losses.values():
            continue
        estimates = {place: each.skill for place, each in losses.items() if each is not None}
        for name, place in (("difference", "others"), ("fixed difference", "fixed")):
            control = losses[place]
            if control is not None:
                estimates[name] = mean_interval((control.probe - here.probe) / here.nothing.mean())
        rows += [
            {"section": "probe", "measure": asked.name, "place": place, "layer": ALL,
             "value": e.value, "low": e.low, "high": e.high, "n": len(here.probe)}
            for place, e in estimates.items()
        ]  # fmt: skip
    return rows


LAYER_WORDS = ("at a quarter", "at half", "at three quarters")


class ProbeName(NamedTuple):
    """A probe for a label: the vector, the number of the probed layer, and which layer that is."""

    label: str
    vector: str
    layer: int
    where: str

    @property
    def name(self) -> str:
        """The measure in the table."""
        return f"{self.label} from the {self.vector}, layer {self.where}"


def probes(layers: int) -> list[ProbeName]:
    """All probes of a model that is probed at so many layers."""
    each = [("residual", layer) for layer in range(layers)] + [(name, layers // 2) for name in VECTORS[1:]]
    words = LAYER_WORDS if layers == len(LAYER_WORDS) else tuple(map(str, range(layers)))
    return [ProbeName(label, name, layer, words[layer]) for name, layer in each for label in LABELS]


def probe_names() -> dict[str, tuple[str, ...]]:
    """Label → the names of all probes for it, whatever the number of layers."""
    every = [probe for layers in range(1, len(LAYER_WORDS) + 1) for probe in probes(layers)]
    names = {label: [probe.name for probe in every if probe.label == label] for label in LABELS}
    return {label: tuple(dict.fromkeys(found)) for label, found in names.items()}
