"""LLaDA's loop (generate.py), block by block; MMaDA's text loop is the same with two differences.

Selectable in a step are all masks up to the end of the current block: masks left in earlier blocks, or mask tokens in the
prompt, compete too. A candidate may be the mask token itself; then the position stays masked. There is no early stop at
end tokens. Confidence is in the logits' dtype (bf16 in production: equal confidences are common, so ties are counted).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sinkscope.decoding.engine import Engine, Step, select
from sinkscope.decoding.options import LladaDecoding, MmadaDecoding
from sinkscope.decoding.streams import Streams
from sinkscope.errors import InputError
from sinkscope.models.llada import EOT


@dataclass(frozen=True)
class Rules:
    """What differs between LLaDA's loop and MMaDA's copy of an older one.

    Attributes:
        exact: confidence in float64 instead of the logits' dtype.
        eos, eot: ids that logits_eos_inf and confidence_eos_eot_inf act on.
        stop_at: end after a block that ends in this id.
        each_stops: every row stops by itself; else all rows must agree.
    """

    exact: bool = False
    eos: int | None = None
    eot: int | None = None
    stop_at: int | None = None
    each_stops: bool = False


def llada_rules(engine: Engine, decoding: LladaDecoding) -> Rules:
    """The ids that the switches of a LLaDA decoding act on; they must exist when a switch is on."""
    ids, vocabulary = engine.model.ids, engine.model.shape.vocabulary
    eos = ids.eos[0] if ids.eos else None
    eot = decoding.eot_id if decoding.eot_id is not None else ids.eot
    if eot is None and vocabulary > EOT:
        eot = EOT
    if decoding.logits_eos_inf and eos is None:
        raise InputError(
            "logits_eos_inf needs an end-of-text id, and this checkpoint names none in config.json"
        )
    if decoding.confidence_eos_eot_inf and (eos is None or eot is None):
        raise InputError(
            f"confidence_eos_eot_inf needs an end-of-turn id; the official {EOT} is not in this vocabulary of {vocabulary}: "
            "give eot_id"
        )
    return Rules(eos=eos, eot=eot)


def steps(
    engine: Engine,
    x: Tensor,
    prompt: int,
    decoding: LladaDecoding | MmadaDecoding,
    streams: Streams | None,
    rules: Rules,
) -> Iterator[Step]:
    """Yields one Step per forward.

    Args:
        x: Long [B, S]: prompt and masks; not changed.
        prompt: length of the (padded) prompt.
        streams: None when the decoding draws nothing.
    """
    given = x != engine.mask_id
    alive = torch.ones(len(x), dtype=torch.bool, device=x.device)
    per_block = decoding.steps // (decoding.length // decoding.block)
    for block in range(decoding.length // decoding.block):
        start, end = prompt + block * decoding.block, prompt + (block + 1) * decoding.block
        counts = transfer_counts((x[:, start:end] == engine.mask_id).sum(1), per_block).T.tolist()
        engine.alive = alive
        for i in range(per_block):
            step = _step(engine, x, given, end, counts[i], decoding, streams, rules, alive)
            x = step.after
            yield step
        if rules.stop_at is not None:
            ended = x[:, end - 1] == rules.stop_at
            alive = alive & ~ended if rules.each_stops else alive & ~ended.all()
            if not bool(alive.any()):
                return


def transfer_counts(masks: Tensor, steps: int) -> Tensor:
    """How many masks each step of a block decides: as even as possible, the first steps taking the remainder.

    Args:
        masks: Long [B]: masks in the block at its start.

    Returns:
        Long [B, steps].
    """
    share, rest = masks // steps, masks % steps
    return share[:, None] + (torch.arange(steps, device=masks.device) < rest[:, None]).long()


def _step(
    engine: Engine,
    x: Tensor,
    given: Tensor,
    end: int,
    counts: list[int],
    decoding: LladaDecoding | MmadaDecoding,
    streams: Streams | None,
    rules: Rules,
    alive: Tensor,
) -> Step:
    masked = x == engine.mask_id
    selectable = masked.clone()
    selectable[:, end:] = False
    # To learn how many positions there are the host waits for the GPU: once, before the forward, and never behind it.
    here = selectable.nonzero(as_tuple=True)
    rest = (masked & ~selectable).nonzero(as_tuple=True) if engine.everything else None
    if decoding.cfg > 0:
        hidden, twin = engine.guided(x, torch.where(given, engine.mask_id, x), engine.real)
    else:
        hidden, twin = engine.hidden(x), None
    noise = None
    if decoding.temperature > 0 and streams is not None:
        noise = streams.uniform((*x.shape, engine.model.shape.vocabulary), torch.float64)
    chance = None
    if decoding.remasking == "random" and streams is not None:
        chance = streams.uniform((x.shape[0], x.shape[1]), torch.float32)

    def look(where: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Candidates and confidence of the positions with these indices."""
        logits = engine.model.head(hidden[where])
        if twin is not None:
            other = engine.model.head(twin[where])
            logits = other + (decoding.cfg + 1) * (logits - other)
        candidate, confidence = candidates(logits, None if noise is None else noise[where], decoding, rules)
        return candidate, confidence if chance is None else chance[where]

    candidate, confidence = look(here)
    tokens = torch.full_like(x, -1)
    tokens[here] = candidate
    scores = torch.full(x.shape, float("-inf"), dtype=confidence.dtype, device=x.device)
    scores[here] = confidence
    chosen, ties = select(scores, counts)
    chosen, ties = chosen & alive[:, None], ties * alive
    after = torch.where(chosen, tokens, x)
    decided = chosen & (tokens != engine.mask_id)
    seen = scores.masked_fill(~selectable, float("nan"))
    if rest is not None and len(rest[0]):
        tokens[rest], seen[rest] = look(rest)
    return Step(x, after, masked, seen, tokens, decided, ties, alive)


def candidates(
    logits: Tensor, noise: Tensor | None, decoding: LladaDecoding | MmadaDecoding, rules: Rules
) -> tuple[Tensor, Tensor]:
    """The token each position would take, and the probability the model gives it.

    Args:
        logits: Float [N, V]; changed in place where a switch says so, as the official code does.
        noise: Float64 [N, V] in [0, 1), or None at temperature 0.

    Returns:
        Long [N] and Float [N].
    """
    if isinstance(decoding, LladaDecoding) and decoding.logits_eos_inf:
        logits[:, rules.eos] = float("-inf")
    if noise is None:
        candidate = logits.argmax(-1)
    else:
        candidate = (logits.double().exp() / (-noise.log()) ** decoding.temperature).argmax(-1)
    if isinstance(decoding, LladaDecoding) and decoding.confidence_eos_eot_inf:
        # Officially the end-of-text column is cleared in the noisy copy, which at temperature 0 is the logits themselves.
        if noise is None:
            logits[:, rules.eos] = float("-inf")
        logits[:, rules.eot] = float("-inf")
    if decoding.remasking == "random":
        return candidate, torch.zeros(len(candidate), device=logits.device)
    probabilities = (logits.double() if rules.exact else logits).softmax(-1)
    return candidate, probabilities.gather(-1, candidate[:, None])[:, 0]
