"""`ss.generate`: runs the loop of a decoding on a model, records it, and leaves the model as it was.

Groups of rows (see `groups`) advance in step, one forward each, so that a trace has one step axis.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from sinkscope.decoding import causal as causal_loop
from sinkscope.decoding import mmada
from sinkscope.decoding.engine import Step
from sinkscope.decoding.groups import Group, build_group, draws, grouped
from sinkscope.decoding.options import Decoding, GreedyDecoding, MmadaImageDecoding, default_decoding
from sinkscope.decoding.streams import check_seeds
from sinkscope.errors import InputError
from sinkscope.generation.run import Run
from sinkscope.models.model import Model
from sinkscope.models.prompts import Batch, decode, encode
from sinkscope.policies.policy import Policy, check_policy
from sinkscope.trace.capture import Capture
from sinkscope.trace.frame import Frame
from sinkscope.trace.provenance import provenance, token_texts
from sinkscope.trace.recorder import Recorder, TraceWriter

Progress = Callable[[int, int, Tensor], None]
"""Called after every step with the number of steps done, the number expected, and the states Long [B, S]."""


def generate(
    model: Model,
    prompts: Any,
    decoding: Decoding | None = None,
    policy: Policy | None = None,
    capture: Capture | None = None,
    seed: int | list[int] | None = None,
    attention_mask: Any = None,
    out: str | os.PathLike[str] | None = None,
    unconditional: Any = None,
    progress: Progress | None = None,
) -> Run:
    """Generates step by step, exactly as the official loop of the decoding does.

    Args:
        prompts: a text, a list of texts (the chat template is applied), or token ids [B, P] used as they are. For image
            decoding the ids hold the whole sequence, image slots masked.
        decoding: None: the default of the model's family.
        policy: which keys the heads may not use.
        capture: what to record; None: nothing.
        seed: a number for the official single random stream over the batch, or one per row; each row then has its own
            stream and equals its run alone.
        attention_mask: [B, P], 0 in left padding.
        out: a path ending in .zarr.zip; the trace streams there instead of staying in memory.
        unconditional: (ids, attention_mask) of the unconditional twin, for image guidance.
        progress: called after every step.
    """
    decoding = default_decoding(model.family) if decoding is None else decoding
    check_decoding(model, decoding)
    batch = encode(model, prompts, attention_mask)
    _check_length(model, batch, decoding)
    twin = _twin(model, batch, decoding, unconditional)
    seed = check_seeds(seed, len(batch.ids))
    if seed is None and draws(decoding):
        seed = int(torch.randint(0, 2**31, (1,)))
    if out is not None and capture is None:
        capture = Capture()
    new = 0 if isinstance(decoding, MmadaImageDecoding) else decoding.length  # type: ignore[attr-defined]
    columns = batch.ids.shape[1] + new
    acting = check_policy(policy, model.shape.layers, columns)
    groups = [
        build_group(model, batch, rows, decoding, seed, twin, acting, capture is not None)
        for rows in grouped(len(batch.ids), batch.lengths, isinstance(seed, list))
    ]
    recorder = None
    if capture is not None:
        about = provenance(model, decoding, policy, capture, seed)
        recorder = _recorder(model, batch, groups, decoding, capture, columns, out, about)
    try:
        with recorder.hooks(model.network) if recorder is not None else nullcontext():
            states, ties = _drive(groups, batch, columns, decoding, recorder, progress, model)
    except BaseException:
        if recorder is not None:
            recorder.abandon()
        raise
    finally:
        for group in groups:
            group.engine.release()
    trace = None
    if recorder is not None:
        trace = recorder.finish(
            {**about, **token_texts(model, recorder.token_ids()), "ties_total": int(ties.sum())}
        )
    return _run(model, batch, groups, decoding, policy, seed, states, ties, trace)


def check_decoding(model: Model, decoding: Decoding) -> None:
    """A decoding must belong to the model's family, and its ids to the vocabulary."""
    if not isinstance(decoding, Decoding):
        raise InputError(f"decoding should be one such as ss.LladaDecoding(), got {type(decoding).__name__}")
    if model.family not in decoding.families:
        fitting = type(default_decoding(model.family)).__name__
        raise InputError(
            f"{type(decoding).__name__} is for {' and '.join(decoding.families)} models, but {model.source} is a "
            f"{model.family} model; use {fitting}"
        )
    if model.family != "causal" and model.ids.mask is None:
        raise InputError(f"{model.source} names no mask token; add mask_token_id to its config.json")
    decoding.check_ids(model.shape.vocabulary)


def _check_length(model: Model, batch: Batch, decoding: Decoding) -> None:
    context, longest = model.shape.context, max(batch.lengths)
    if context is not None and longest > context:
        raise InputError(
            f"the prompt has {longest} tokens, but the context of {model.source} is {context}; shorten it"
        )
    if isinstance(decoding, MmadaImageDecoding) or model.family != "causal":
        return
    if context is not None and longest + decoding.length > context:  # type: ignore[attr-defined]
        raise InputError(
            f"prompt ({longest} tokens) and answer ({decoding.length}) pass the context of {context}; "  # type: ignore[attr-defined]
            f"use length={context - longest} or less"
        )


def _twin(
    model: Model, batch: Batch, decoding: Decoding, unconditional: Any
) -> tuple[Tensor, Tensor | None] | None:
    """The unconditional twin of an image prompt, checked."""
    guided = isinstance(decoding, MmadaImageDecoding) and decoding.guidance > 0
    if not guided:
        return None
    if unconditional is None:
        raise InputError(
            "guidance above 0 needs unconditional=(ids, attention_mask), the prompt without its text"
        )
    pair = (
        isinstance(unconditional, (tuple, list)) and len(unconditional) == 2 and _is_matrix(unconditional[0])
    )
    ids, mask = unconditional if pair else (unconditional, None)
    found, real = model.real_tokens(ids, mask)
    if found.shape != batch.ids.shape:
        raise InputError(
            f"unconditional ids have shape {list(found.shape)}, but the prompt has {list(batch.ids.shape)}"
        )
    return found, real


def _is_matrix(ids: Any) -> bool:
    return bool(torch.as_tensor(ids).dim() == 2)


def expected_steps(decoding: Decoding) -> int:
    """How many steps a decoding takes at most."""
    if isinstance(decoding, MmadaImageDecoding):
        return decoding.timesteps
    if isinstance(decoding, GreedyDecoding):
        return decoding.length
    return int(decoding.steps)  # type: ignore[attr-defined]


def _recorder(
    model: Model,
    batch: Batch,
    groups: list[Group],
    decoding: Decoding,
    capture: Capture,
    columns: int,
    out: str | os.PathLike[str] | None,
    about: dict[str, Any],
) -> Recorder:
    shape = model.shape
    capture.check(shape.layers, shape.heads)
    real = torch.ones(len(batch.ids), columns, dtype=torch.bool)
    if batch.real is not None:
        real[:, : batch.ids.shape[1]] = batch.real.cpu()
    image = None
    if isinstance(decoding, MmadaImageDecoding):
        slots = mmada.find_slots(groups[0].engine, groups[0].state, decoding)
        image = (slots.first + groups[0].offset, slots.last + groups[0].offset)
    steps = -(-expected_steps(decoding) // capture.every)
    frame = Frame(
        rows=len(batch.ids),
        columns=columns,
        prompt=batch.ids.shape[1],
        real=real.numpy(),
        steps=steps,
        layers=capture.layers or tuple(range(shape.layers)),
        heads=capture.heads or tuple(range(shape.heads)),
        kv_heads=shape.kv_heads,
        causal=model.kind.causal,
        policy=groups[0].engine.acting is not None,
        guided=getattr(decoding, "cfg", 0) > 0 or getattr(decoding, "guidance", 0) > 0,
        image=image,
    )
    sink: TraceWriter
    if out is None:
        from sinkscope.trace.trace import Parts

        sink = Parts(frame, capture)
    else:
        from sinkscope.trace.storage import Folder

        sink = Folder(out, frame, capture, about)
    recorder = Recorder(frame, capture, sink, batch.ids.cpu().numpy())
    for group in groups:
        group.engine.recorder = recorder.watcher(group.rows, group.offset, group.engine.acting)
    return recorder


def _drive(
    groups: list[Group],
    batch: Batch,
    columns: int,
    decoding: Decoding,
    recorder: Recorder | None,
    progress: Progress | None,
    model: Model,
) -> tuple[Tensor, Tensor]:
    """Advances all groups in step until each has ended; gives states [steps + 1, B, S] and ties [steps, B]."""
    causal = isinstance(decoding, GreedyDecoding)
    # States stay on the device until the end: copying them after every step would make a GPU wait.
    frame = torch.full((len(batch.ids), columns), -1, dtype=torch.long, device=batch.ids.device)
    frame[:, : batch.ids.shape[1]] = batch.ids
    for group in groups:
        frame[group.rows, group.offset :] = group.state
    states, ties = [frame], []
    expected = expected_steps(decoding)
    while True:
        results: list[Step | None] = []
        frame = frame.clone()
        tied = torch.zeros(len(batch.ids), dtype=torch.long, device=frame.device)
        for group in groups:
            step = None if group.ended else next(group.steps, None)
            results.append(step)
            if step is None:
                group.ended = True
            else:
                group.state = step.after
                frame[group.rows, group.offset :] = step.after
                tied[group.rows] = step.ties.to(tied.device)
        if all(step is None for step in results):
            break
        if causal:
            column = batch.ids.shape[1] + len(states) - 1
            for group in groups:
                if group.ended:  # its rows have all ended: padding, as for rows that end inside a group
                    frame[group.rows, column] = causal_loop.pad_id(group.engine, decoding)  # type: ignore[arg-type]
        if recorder is not None:
            recorder.record(len(states) - 1, results)
        states.append(frame)
        ties.append(tied)
        if progress is not None:
            progress(len(states) - 1, expected, frame.cpu())
    found = torch.stack(states).cpu()
    if causal:
        found = found[..., : batch.ids.shape[1] + len(states) - 1]
    return found, torch.stack(ties).cpu() if ties else torch.zeros(0, len(batch.ids), dtype=torch.long)


def _run(
    model: Model,
    batch: Batch,
    groups: list[Group],
    decoding: Decoding,
    policy: Policy | None,
    seed: int | list[int] | None,
    states: Tensor,
    ties: Tensor,
    trace: Any,
) -> Run:
    prompt = batch.ids.shape[1]
    image = isinstance(decoding, MmadaImageDecoding)
    codes = None
    if image:
        found: dict[int, Tensor] = {}
        for group in groups:
            if group.codes is not None:
                found.update(zip(group.rows, group.codes.cpu(), strict=True))
        codes = torch.stack([found[row] for row in range(len(batch.ids))])
    forwards = [0] * len(batch.ids)
    for group in groups:
        spent = torch.as_tensor(group.engine.forwards).expand(len(group.rows))
        for row, count in zip(group.rows, spent.tolist(), strict=True):
            forwards[row] = count
    sequences = states[-1]
    hidden, hit = _policy_totals(groups, len(batch.ids))
    return Run(
        sequences=sequences,
        states=states,
        texts=["" if image else decode(model, row, prompt) for row in sequences],
        ties=ties,
        forwards=forwards,
        decoding=decoding,
        policy=policy,
        seed=seed,
        prompt=prompt,
        real=batch.real,
        codes=codes,
        trace=trace,
        hidden_share=hidden,
        sinks_hit=hit,
    )


def _policy_totals(groups: list[Group], rows: int) -> tuple[Tensor | None, Tensor | None]:
    """Mean share of attention taken, and of own sinks hit, over layers, heads and the steps in which the policy acted."""
    if groups[0].engine.acting is None:
        return None, None
    hidden, hit = torch.full((rows,), float("nan")), torch.full((rows,), float("nan"))
    for group in groups:
        if group.engine.acting is not None:
            for found, total in ((hidden, group.engine.acting.shares), (hit, group.engine.acting.hits)):
                found[group.rows] = (total[:, 0] / total[:, 1]).float().cpu()
    return hidden, hit
