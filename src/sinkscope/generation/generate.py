"""`ss.generate`: runs the loop of a decoding on a model, records it, and leaves the model as it was.

Groups of rows (see `decoding.groups`) advance in step, one forward each, so that a trace has one step axis.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sinkscope.base.errors import InputError
from sinkscope.base.extras import Acting, Outcome, read_extras
from sinkscope.decoding.base import Decoding, decoding_from_options, default_decoding
from sinkscope.decoding.groups import Group, Plan, check_seeds
from sinkscope.decoding.step import Twin
from sinkscope.generation.run import Run
from sinkscope.models.load import as_model
from sinkscope.models.model import Model
from sinkscope.models.prompts import PromptBatch, decode, encode
from sinkscope.policies.policy import Policy, check_policy
from sinkscope.policies.text import as_policy
from sinkscope.trace.capture import Capture, Frame, as_capture
from sinkscope.trace.recorder import Recorder, trace_writer
from sinkscope.trace.trace import Trace, provenance, token_texts

if TYPE_CHECKING:
    from sinkscope.reuse.agreement import Shadowed
    from sinkscope.reuse.rule import Reuse

Progress = Callable[[int, int, Tensor], None]
"""Called after every step with the number of steps done, the number expected, and the states Long [B, S], which lie on the
model's device: reading them makes the GPU wait."""


def generate(
    model: Model | str | os.PathLike[str],
    prompts: Any,
    decoding: Decoding | None = None,
    *,
    policy: Policy | str | None = None,
    capture: Capture | bool | str | None = None,
    seed: int | list[int] | None = None,
    attention_mask: Any = None,
    out: str | os.PathLike[str] | None = None,
    unconditional: Any = None,
    progress: Progress | None = None,
    reuse: Reuse | Shadowed | str | None = None,
    cache: bool | None = None,
    overwrite: bool = False,
    **options: Any,
) -> Run:
    """Generate step by step, exactly as the official loop of the decoding does, unless `reuse` allows approximate steps.

    Args:
        model: from `ss.load`, or what `ss.load` takes.
        prompts: a text, messages ([{"role": …, "content": …}, …]), or a list of either (the chat template is applied), or token
            ids [B, P] used as they are. For image decoding the ids hold the whole sequence, image slots masked.
        decoding: None: the default of the model's family, with `options` such as length=64.
        policy: which keys the heads may not use; a policy or its text.
        capture: what to record; True: the usual, `Capture()`, also as text such as "maps" or "heads,every=4"; None: nothing.
        seed: a number for the official single random stream over the batch, or one per row; each row then has its own
            stream and equals its run alone.
        attention_mask: [B, P], 0 in padding: on the left; of block diffusion and A2D models on the right.
        out: a path ending in .zarr.zip; the trace streams there instead of staying in memory.
        unconditional: (ids, attention_mask) of the unconditional prompt, for image guidance.
        progress: called after every step.
        reuse: what of earlier forwards is used again; a rule or its text. None: nothing, every step is exact.
        cache: whether a block loop keeps finished blocks in a KV cache; None: as officially.
        overwrite: replace a trace that is at `out`, or an unfinished recording.
        options: of the family's default decoding, where none is given; and further extras by name (`sinkscope.base.extras`).

    >>> done = ss.generate(model, prompts, decoding, policy=ss.MaskTop(1), capture=ss.Capture())
    >>> done.sequences.shape, done.hidden_share.shape    # Long [B, S]; Float [B]
    (torch.Size([1, 55]), torch.Size([1]))
    >>> dict(done.trace.dataset["received"].sizes)
    {'sample': 1, 'step': 16, 'layer': 8, 'head': 8, 'key': 55}
    """
    model = model if isinstance(model, Model) else as_model(model)
    extras = read_extras({"reuse": reuse}, options) if options or reuse is not None else {}
    decoding = _decoding(model, decoding, options)
    model = model.mode(decoding.causal)
    policy = None if policy is None else as_policy(policy)
    recorded = as_capture(capture)
    for extra in extras.values():
        extra.check(decoding, model, policy, recorded)
    acting = {name: extra.begin() for name, extra in extras.items()}
    batch = encode(model, decoding.prompted(model, prompts), attention_mask)
    layout = decoding.laid_out(model, batch.ids, batch.real)
    batch = batch if layout is None else PromptBatch(*layout)
    plan = _plan(model, batch, decoding, policy, seed, unconditional, cache, acting.values())
    texts = {name: extra.identity() for name, extra in extras.items()}
    traced = recorded is not None or out is not None
    recorder = _recorder(plan, policy, recorded or Capture(), out, overwrite, texts) if traced else None
    groups: list[Group] = []
    try:
        with recorder.hooks(model.network, model.gates) if recorder is not None else nullcontext():
            for rows in plan.groups():
                rows_recorder = None if recorder is None else recorder.for_rows(rows.rows, rows.offset)
                groups.append(plan.start(rows, rows_recorder, [extra.wrap for extra in acting.values()]))
            driven = _drive(plan, groups, recorder, progress)
    except BaseException:
        if recorder is not None:
            recorder.abandon()
        raise
    finally:
        for group in groups:
            group.engine.release()
    outcomes = {name: extra.outcome(partial(_by_row, groups), len(driven.ties)) for name, extra in acting.items()}
    trace, total = None, {"ties_total": int(driven.ties.sum())}
    if recorder is not None:
        trace = recorder.finish(lambda ids: {**token_texts(model, ids), **total})
    return _run(plan, groups, driven, policy, trace, outcomes)


def _decoding(model: Model, decoding: Decoding | None, options: Mapping[str, Any]) -> Decoding:
    """The decoding as given, or the family's default one with these options; checked."""
    if decoding is not None and options:
        raise InputError(f"{', '.join(options)}: options are given to {type(decoding).__name__} itself, or without one")
    decoding = decoding_from_options(model.family, options, model=model) if decoding is None else decoding
    check_decoding(model, decoding)
    return decoding.suited(model)


def _plan(
    model: Model,
    batch: PromptBatch,
    decoding: Decoding,
    policy: Policy | None,
    seed: int | list[int] | None,
    unconditional: Any,
    cache: bool | None,
    acting: Iterable[Acting],
) -> Plan:
    """How the rows run, with everything checked that the user gave."""
    twin = _twin(model, batch, decoding, unconditional)
    seed = check_seeds(seed, len(batch.ids))
    # Drawn here and kept with the run, so that it can be repeated.
    if seed is None and decoding.draws:
        seed = int(torch.randint(0, 2**31, (1,)))
    if cache is not None and decoding.cached is None:
        raise InputError(f"{type(decoding).__name__} has no blocks to keep in a cache; leave out cache")
    # A policy must leave keys in every row, so it is checked against the shortest.
    shape, shortest = model.shape, min(batch.lengths) + decoding.new_tokens
    kind, learned = decoding.attention_kind(model), model.has_learned_sinks
    checked = None if policy is None else check_policy(policy, shape.layers, shortest, kind, shape.heads, learned)
    _check_length(model, batch, decoding)
    return Plan(
        model=model, batch=batch, decoding=decoding, seed=seed, twin=twin, policy=checked,
        cached=bool(decoding.cached) if cache is None else cache, apart=any(extra.apart(decoding) for extra in acting),
    )  # fmt: skip


@dataclass(frozen=True)
class _Driven:
    """What the loops gave, put together.

    Attributes:
        states: Long [steps + 1, B, S]. ties: Long [steps, B]. taken: steps of each row.
    """

    states: Tensor
    ties: Tensor
    taken: list[int]


def _run(
    plan: Plan,
    groups: list[Group],
    driven: _Driven,
    policy: Policy | None,
    trace: Trace | None,
    extras: Mapping[str, Outcome],
) -> Run:
    """The result."""
    model, decoding, batch, states = plan.model, plan.decoding, plan.batch, driven.states
    codes = _by_row(groups, [group.codes for group in groups])
    starts = batch.starts
    answers = [decoding.answer(model, row, start) for row, start in zip(states[-1], starts, strict=True)]
    if decoding.causal:  # what follows the end of a row is padding, whose amount depends on the batch
        answers = [answer[:steps] for answer, steps in zip(answers, driven.taken, strict=True)]
    output = decoding.output(model, states, starts, plan.alone)
    forwards = [torch.as_tensor(group.engine.forwards).expand(len(group.rows.rows)) for group in groups]
    shares = [{} if group.engine.policy is None else group.engine.policy.shares() for group in groups]
    return Run(
        sequences=states[-1],
        states=states,
        output=torch.nn.utils.rnn.pad_sequence(output, batch_first=True, padding_value=-1),
        answers=[answer.tolist() for answer in answers],
        texts=[decode(model, answer) if codes is None else "" for answer in answers],
        taken=driven.taken,
        ties=driven.ties,
        forwards=_by_row(groups, forwards).tolist(),  # type: ignore[arg-type, union-attr]
        decoding=decoding,
        policy=policy,
        seed=plan.seed,
        prompt=batch.ids.shape[1],
        real=batch.real,
        codes=codes,
        trace=trace,
        **{name: _by_row(groups, [share[name] for share in shares]) for name in shares[0]},
        extras=extras,
    )


def check_decoding(model: Model, decoding: Decoding) -> None:
    """A decoding must belong to the model's family, and its ids to the vocabulary."""
    if not isinstance(decoding, Decoding):
        raise InputError(f"decoding should be one such as ss.LladaDecoding(), got {type(decoding).__name__}")
    if not decoding.fits(model.family):
        fitting = type(default_decoding(model.family)).__name__
        raise InputError(
            f"{type(decoding).__name__} is for {' and '.join(decoding.families)} models, but {model.source} is a "
            f"{model.family} model; use {fitting}"
        )
    if decoding.mask_tokens and decoding.generates and not decoding.causal and model.ids.mask is None:
        raise InputError(
            f"{model.source} names no mask token; give ss.load(…, mask_token_id=…), or add mask_token_id to its config.json"
        )
    decoding.check_ids(model.shape.vocabulary)


def _check_length(model: Model, batch: PromptBatch, decoding: Decoding) -> None:
    context, longest, new = model.shape.context, max(batch.lengths), decoding.new_tokens
    if context is not None and longest > context:
        raise InputError(f"the prompt has {longest} tokens, but the context of {model.source} is {context}; shorten it")
    if context is not None and longest + new > context:
        raise InputError(
            f"prompt ({longest} tokens) and answer ({new}) pass the context of {context}; "
            f"use length={context - longest} or less"
        )


def _twin(model: Model, batch: PromptBatch, decoding: Decoding, unconditional: Any) -> Twin | None:
    """The unconditional twin of an image prompt, checked; text loops make theirs from the prompt."""
    if not decoding.guided or decoding.new_tokens:
        return None
    if unconditional is None:
        raise InputError("guidance above 0 needs unconditional=(ids, attention_mask), the prompt without its text")
    pair = isinstance(unconditional, (tuple, list)) and len(unconditional) == 2 and _is_matrix(unconditional[0])
    ids, mask = unconditional if pair else (unconditional, None)
    checked, real = model.real_tokens(ids, mask)
    if checked.shape != batch.ids.shape:
        raise InputError(
            f"unconditional ids have shape {list(checked.shape)}, but the prompt has {list(batch.ids.shape)}"
        )
    return checked, real


def _is_matrix(ids: Any) -> bool:
    return bool(torch.as_tensor(ids).dim() == 2)


def _recorder(
    plan: Plan, policy: Policy | None, capture: Capture, out: Any, overwrite: bool, extras: Mapping[str, str]
) -> Recorder:
    """What records the generation; with extras, which columns were computed in a step is recorded too."""
    about = provenance(plan.model, plan.decoding, policy, capture, plan.seed, extras)
    frame = _frame(plan, capture, bool(extras))
    writer = trace_writer(out, frame, capture, about, overwrite)
    return Recorder(frame, capture, writer, plan.batch.ids.cpu().numpy(), about)


def _frame(plan: Plan, capture: Capture, approximate: bool) -> Frame:
    """The sizes of the trace; approximate: which columns were computed in a step is recorded too."""
    model, batch, decoding = plan.model, plan.batch, plan.decoding
    shape, prompt = model.shape, batch.ids.shape[1]
    capture.check(model.layers, shape.heads)
    real = torch.ones(len(batch.ids), decoding.columns(prompt), dtype=torch.bool)
    # Rows that run apart end behind their own answers; those of one batch have their padding before the prompt, or behind it.
    if batch.right and (plan.alone or not model.spec.blocks):
        for row, length in enumerate(batch.lengths):
            real[row, decoding.columns(length) :] = False
    elif batch.real is not None and not batch.right:
        real[:, :prompt] = batch.real.cpu()
    first, last = decoding.answer_columns(model, batch.ids)
    return Frame(
        rows=len(batch.ids),
        columns=real.shape[1],
        prompt=prompt,
        real=real.numpy(),
        steps=-(-decoding.max_steps // capture.every),
        layers=capture.layers or model.layers,
        heads=capture.heads or tuple(range(shape.heads)),
        kv_heads=shape.kv_heads,
        causal=model.spec.causal,
        policy=plan.policy is not None,
        guided=decoding.guided,
        image=None if last is None else (first, last),
        starts=tuple(batch.starts),
        block=None if decoding.cached is None else int(getattr(decoding, "block", 1)),
        cached=plan.cached,
        edits=decoding.edits,
        fresh=approximate,
        learned=model.has_learned_sinks,
        gated=bool(model.gates),
    )


def _drive(plan: Plan, groups: list[Group], recorder: Recorder | None, progress: Progress | None) -> _Driven:
    """Advance all groups in step until each has ended."""
    batch, decoding, prompt = plan.batch, plan.decoding, plan.batch.ids.shape[1]
    rows, filler = len(batch.ids), decoding.filler(plan.model)
    frame = _first_frame(plan, groups)
    # On the device, once: a list as an index is copied there in every step, and the host waits for it.
    places = [_places(group.rows.rows, frame) for group in groups]
    # States stay on the device until the end: copying them after every step would make a GPU wait.
    states, ties = [frame], []
    taken = torch.zeros(rows, dtype=torch.long, device=frame.device)
    while True:
        steps = [group.advance() for group in groups]
        if all(step is None for step in steps):
            break
        frame = frame.clone()
        tied = torch.zeros(rows, dtype=torch.long, device=frame.device)
        for group, here, step in zip(groups, places, steps, strict=True):
            if step is not None:
                offset = group.rows.offset
                frame[here, offset : offset + step.after.shape[1]] = step.after
                tied[here] = step.ties.to(tied.device)
                taken[here] += 0 if step.idle else step.alive.to(taken.device)
            elif filler is not None:  # its rows have all ended: padding, as for rows that end inside a group
                frame[here, prompt + len(states) - 1] = filler
        if recorder is not None:
            recorder.record(len(states) - 1, steps)
        states.append(frame)
        ties.append(tied)
        if progress is not None:
            progress(len(states) - 1, decoding.max_steps, frame)
    stacked = torch.stack(states).cpu()
    if decoding.causal:
        stacked = stacked[..., : prompt + len(states) - 1]
    elif decoding.cached is not None:  # a sequence that grows may have ended before its last column
        stacked = stacked[..., : int((stacked >= 0).flatten(0, 1).any(0).nonzero()[-1]) + 1]
    tied = torch.stack(ties).cpu() if ties else torch.zeros(0, rows, dtype=torch.long)
    return _Driven(stacked, tied, taken.tolist())


def _first_frame(plan: Plan, groups: list[Group]) -> Tensor:
    """Long [B, S]: the first states of all groups; −1 where a row has no column."""
    ids, prompt = plan.batch.ids, plan.batch.ids.shape[1]
    frame = torch.full((len(ids), plan.decoding.columns(prompt)), -1, device=ids.device)
    if not plan.batch.right:
        frame[:, :prompt] = ids
    for group in groups:
        rows, offset = group.rows.rows, group.rows.offset
        frame[rows, :offset] = ids[rows, :offset]
        frame[rows, offset : offset + group.state.shape[1]] = group.state
    return frame


def _places(rows: list[int], frame: Tensor) -> slice | Tensor:
    """The rows of a group as an index of the frame [B, S], where that lies."""
    return slice(None) if rows == list(range(len(frame))) else torch.tensor(rows, device=frame.device)


def _by_row(groups: list[Group], parts: list[Tensor | None]) -> Tensor | None:
    """What the groups' rows have, [b, …] each, in the order of the batch; None where they have nothing."""
    if parts[0] is None:
        return None
    rows = [row for group in groups for row in group.rows.rows]
    order = sorted(range(len(rows)), key=rows.__getitem__)
    return torch.cat([part.cpu() for part in parts if part is not None])[order]
