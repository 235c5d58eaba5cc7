"""When and where sinks appear while a model learns: the same probe, with the same masks, at log-spaced steps.

The probe is held-out text. For diffusion models its targets are masked at t = .25, .5, .75 and 1 with masks that never
change; causal models see it whole. Every number is over the real keys of one head in one sequence, then averaged; where
queries see only keys up to themselves, or to the end of their block, received attention and sinks are those of distant queries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention.context import AttentionCall
from sinkscope.attention.distant import whole
from sinkscope.attention.visibility import Visibility, query_weights, relative
from sinkscope.base.sink_rule import torch_sinks_of
from sinkscope.sinks.categories import CATEGORIES, category_of
from sinkscope.sinks.strength import GU_EPSILON
from sinkscope.tasks import registry
from sinkscope_train.documents import held_out_prose
from sinkscope_train.network import hidden_states, masked_at, rotation
from sinkscope_train.recipe import BLOCK, LENGTH, Recipe
from sinkscope_train.rows import Batch, RowMaker
from sinkscope_train.vocabulary import Vocabulary

TIMES = (0.25, 0.5, 0.75, 1.0)
SEEN_BY = 16
"""A key of a causal model that fewer queries see says nothing."""
EACH = 16
"""Sequences of each kind in the probe."""


def log_spaced(steps: int, per_doubling: int = 2) -> tuple[int, ...]:
    """Steps 0, 1, 2, 3, 4, 6, 8, 11, 16, … and the last.

    >>> log_spaced(10)
    (0, 1, 2, 3, 4, 6, 8, 10)
    """
    chosen, power = {0, steps}, 0
    while (step := round(2 ** (power / per_doubling))) < steps:
        chosen.add(step)
        power += 1
    return tuple(sorted(chosen))


@dataclass(frozen=True)
class Probe:
    """Held-out rows and, for each time, what a model sees of them.

    Attributes:
        levels: t → Long [B, S] with fixed masks (causal models: one level, 0).
        categories: t → Long [B, S], index into CATEGORIES, −1 in padding.
        block: columns of the blocks that attention stands in; None: no blocks.
    """

    batch: Batch
    levels: dict[float, Tensor]
    categories: dict[float, Tensor]
    causal: bool
    block: int | None = None


def probe(recipe: Recipe, vocabulary: Vocabulary, device: torch.device, each: int = EACH) -> Probe:
    """The probe of a recipe: the same texts for all, and masks drawn from one seed (where they fall depends on where the
    answer begins, which is a matter of the chat template)."""
    rows = RowMaker(vocabulary)
    tasks = [registry.get(name, "causal") for name in ("word_problems", "small_code")]
    asked = [(document.question, document.answer) for task in tasks for document in task.documents(each)]
    asked += [("", text) for text in held_out_prose(each)]
    questions, answers = (vocabulary.encode(texts) for texts in zip(*asked, strict=True))
    encoded = [
        rows.text(question, answer[: LENGTH - 1], bool(question))
        for question, answer in zip(questions, answers, strict=True)
    ]
    table = torch.from_numpy(rows.table(encoded).astype("int64")).to(device)
    probed = probe_of(Batch.of(table), vocabulary, recipe.causal)
    return replace(probed, block=BLOCK) if recipe.objective == "block" else probed


def probe_of(batch: Batch, vocabulary: Vocabulary, causal: bool) -> Probe:
    """The probe of given rows: for diffusion models with masks drawn from one seed."""
    device, levels = batch.ids.device, {}
    if causal:
        levels[0.0] = batch.ids
    else:
        random = torch.Generator().manual_seed(20_25)
        drawn = torch.rand(batch.ids.shape, generator=random).to(device)
        for time in TIMES:
            share = torch.full((len(batch.ids), 1), time, device=device)
            levels[time] = masked_at(batch, int(vocabulary.mask or 0), drawn < share, share)[0]
    table = torch.tensor(token_categories(vocabulary), device=device)
    categories = {time: torch.where(batch.real, table[ids], -1) for time, ids in levels.items()}
    return Probe(batch, levels, categories, causal)


def token_categories(vocabulary: Vocabulary) -> list[int]:
    """For every token id, its index in the instrument's kinds of tokens."""
    special = {vocabulary.mask: "mask", vocabulary.eos: "end", vocabulary.eot: "end", vocabulary.bos: "control"}
    names = [category_of(str(vocabulary.backend.id_to_token(number))) for number in range(len(vocabulary))]
    return [CATEGORIES.index(special.get(number, name)) for number, name in enumerate(names)]


@torch.no_grad()
def measure(network: Any, held_out: Probe) -> dict[str, dict[str, Any]]:
    """Everything about the network's sinks on the probe, by time."""
    return {f"{time:g}": _level(network, held_out, time) for time in held_out.levels}


def _level(network: Any, held_out: Probe, time: float) -> dict[str, Any]:
    ids, real = held_out.levels[time], held_out.batch.real
    layers: list[dict[str, Tensor]] = []

    def observe(call: AttentionCall, output: Tensor) -> None:
        layers.append(_layer(call, output, real, held_out.categories[time]))

    S = ids.shape[1]
    blocks = Visibility(S, S, block=held_out.block).rows(
        0, S, ids.device
    )  # given in full: far is far behind, not ahead
    visibility = Visibility(S, S, real, held_out.causal, dense=blocks)
    hidden_states(network, ids, rotation(network, S, ids.device), visibility, observe)
    per_layer = {name: torch.stack([layer[name] for layer in layers]) for name in layers[0]}
    sinks, keys = per_layer.pop("sinks_by_category").sum(0), per_layer.pop("keys_by_category").sum(0)
    summary: dict[str, Any] = {name: _number(values.nanmean()) for name, values in per_layer.items()}
    summary["largest_received"] = _number(per_layer["max_received"].max())
    summary["by_layer"] = {
        name: [_number(value) for value in per_layer[name]]
        for name in ("sink_heads", "gu_first", "gu_any", "max_received", "value_ratio", "hidden_ratio")
    }
    shares, base = sinks / sinks.sum().clamp(min=1), keys / keys.sum()
    summary["enrichment"] = {}
    for name, share, rate in zip(CATEGORIES, shares, base, strict=True):
        ratio = _number(share / rate) if rate > 0 else None
        summary["enrichment"][name] = {"share": _number(share), "base": _number(rate), "ratio": ratio}
    return summary


def _layer(call: AttentionCall, output: Tensor, real: Tensor, categories: Tensor) -> dict[str, Tensor]:
    """Numbers of one layer, averaged over sequences and heads."""
    weights = query_weights(call.visibility, None, call.query)
    mass = call.mass()
    received = relative(mass, call.visibility.uniform(weights))[:, :, 0]  # [B, H, K]
    seen_by = call.visibility.seen_by(weights)[:, 0].float()
    mean_attention = mass[:, :, 0] / seen_by.clamp(min=1)[:, None]
    usable = mean_attention * (real & (seen_by >= (SEEN_BY if call.visibility.causal else 0)))[:, None]
    if call.visibility.causal or call.visibility.block or call.visibility.dense is not None:
        distant = whole([call])
        far, could = (distant.far()[0][:, 0], distant.far()[1])
        known, uniform = (part[:, 0].expand_as(far) for part in (could.known, could.uniform))
        received = torch.where(known, far / uniform.clamp(min=1e-9), float("nan")).float()
        sink, score = distant.sinks()[:, 0], far / could.count[:, 0].clamp(min=1)
    else:
        sink, score = torch_sinks_of(received), received.nan_to_num(-1.0)
    counted = ~received.isnan()
    strongest = score.masked_fill(~sink, -1.0).argmax(-1)  # [B, H]
    groups = call.query.shape[1] // call.value.shape[1]
    values = call.value.norm(dim=-1).repeat_interleave(groups, 1)
    value_ratio = values / _median(values, real[:, None].expand_as(values))
    hidden = output.norm(dim=-1)
    hidden_ratio = hidden / _median(hidden, real)
    has_sink = sink.any(-1)
    at = torch.where(has_sink, value_ratio.gather(-1, strongest[..., None])[..., 0], float("nan"))
    hidden_at = torch.where(has_sink, hidden_ratio.gather(1, strongest), float("nan"))
    one_hot = torch.nn.functional.one_hot(categories.clamp(min=0), len(CATEGORIES)).float()
    kinds = one_hot[:, None] * counted[..., None]
    return {
        "sink_heads": has_sink.float().mean(),
        "sinks_per_head": sink.sum(-1).float().mean(),
        "gu_first": (usable[..., 0] > GU_EPSILON).float().mean(),
        "gu_any": (usable > GU_EPSILON).any(-1).float().mean(),
        "max_received": received.nan_to_num(0.0).amax(-1).mean(),
        "value_ratio": at.nanmean(),
        "hidden_ratio": hidden_at.nanmean(),
        "first_value_ratio": value_ratio[..., 0].mean(),
        "first_hidden_ratio": hidden_ratio[..., 0].mean(),
        "first_received": received[..., 0].nanmean(),
        "sinks_by_category": (kinds * sink[..., None]).sum((0, 1, 2)),
        "keys_by_category": kinds.sum((0, 1, 2)),
    }


def _median(values: Tensor, real: Tensor) -> Tensor:
    return values.masked_fill(~real, float("nan")).nanmedian(-1, keepdim=True).values


def _number(value: Tensor) -> float | None:
    number = float(value)
    return round(number, 5) if number == number else None
