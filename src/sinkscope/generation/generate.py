"""`ss.generate`: runs the loop of a decoding on a model, records it, and leaves the model as it was.

Groups of rows (see `decoding.groups`) advance in step, one forward each, so that a trace has one step axis.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sinkscope.decoding.base import Decoding, Twin, default_decoding
from sinkscope.decoding.groups import Group, Rows, check_seeds, grouped, grouped_right, start_group
from sinkscope.errors import InputError
from sinkscope.generation.run import ACCOUNT, Run
from sinkscope.models.load import as_model
from sinkscope.models.model import Model
from sinkscope.models.prompts import PromptBatch, decode, encode
from sinkscope.models.variant import variant_of
from sinkscope.policies.policy import Policy, check_policy
from sinkscope.policies.text import as_policy
from sinkscope.reuse.rule import Reuse
from sinkscope.reuse.text import as_reuse
from sinkscope.reuse.work import Work
from sinkscope.trace.capture import Capture, Frame
from sinkscope.trace.recorder import Recorder, trace_writer
from sinkscope.trace.trace import provenance, token_texts

Progress = Callable[[int, int, Tensor], None]
"""Called after every step with the number of steps done, the number expected, and the states Long [B, S], which lie on the
model's device: reading them makes the GPU wait."""


def generate(
    model: Model | str | os.PathLike[str],
    prompts: Any,
    decoding: Decoding | None = None,
    policy: Policy | str | None = None,
    capture: Capture | None = None,
    seed: int | list[int] | None = None,
    attention_mask: Any = None,
    out: str | os.PathLike[str] | None = None,
    unconditional: Any = None,
    progress: Progress | None = None,
    reuse: Reuse | str | None = None,
    cache: bool | None = None,
    shadow: bool = False,
    overwrite: bool = False,
) -> Run:
    """Generate step by step, exactly as the official loop of the decoding does, unless `reuse` allows approximate steps.

    Args:
        model: from `ss.load`, or what `ss.load` takes.
        prompts: a text, a list of texts (the chat template is applied), or token ids [B, P] used as they are. For image
            decoding the ids hold the whole sequence, image slots masked.
        decoding: None: the default of the model's family.
        policy: which keys the heads may not use; a policy or its text.
        capture: what to record; None: nothing.
        seed: a number for the official single random stream over the batch, or one per row; each row then has its own
            stream and equals its run alone.
        attention_mask: [B, P], 0 in padding: on the left; of block diffusion and A2D models on the right.
        out: a path ending in .zarr.zip; the trace streams there instead of staying in memory.
        unconditional: (ids, attention_mask) of the unconditional twin, for image guidance.
        progress: called after every step.
        reuse: what of earlier forwards is used again; a rule or its text. None: nothing, every step is exact.
        cache: whether a block loop keeps finished blocks in a KV cache; None: as officially.
        shadow: under a reuse rule, run an exact forward beside each approximate one; `run.error` then has the divergence.
        overwrite: replace a trace that is at `out`, or an unfinished recording.

    >>> done = ss.generate(model, prompts, decoding, policy=ss.MaskTop(1), capture=ss.Capture())
    >>> done.sequences.shape, done.hidden_share.shape    # Long [B, S]; Float [B]
    (torch.Size([1, 55]), torch.Size([1]))
    >>> dict(done.trace.dataset["received"].sizes)
    {'sample': 1, 'step': 16, 'layer': 8, 'head': 8, 'key': 55}
    """
    model = model if isinstance(model, Model) else as_model(model)
    policy = None if policy is None else as_policy(policy)
    decoding = default_decoding(model.family) if decoding is None else decoding
    check_decoding(model, decoding)
    reuse = None if reuse is None else as_reuse(reuse)
    acting = check_reuse(model, decoding, policy, capture, reuse)
    if shadow and reuse is None:
        raise InputError("shadow measures the error of approximate steps; without reuse every step is exact")
    batch = encode(model, prompts, attention_mask)
    _check_length(model, batch, decoding)
    twin = _twin(model, batch, decoding, unconditional)
    seed = check_seeds(seed, len(batch.ids))
    if seed is None and decoding.draws:
        seed = int(torch.randint(0, 2**31, (1,)))
    if cache is not None and decoding.cached is None:
        raise InputError(f"{type(decoding).__name__} has no blocks to keep in a cache; leave out cache")
    cached = bool(decoding.cached) if cache is None else cache
    alone = decoding.alone(len(batch.ids), isinstance(seed, list))
    shortest = min(batch.lengths) + decoding.new_tokens
    kind, shape = model.attention_kind, model.shape
    checked = None if policy is None else check_policy(policy, shape.layers, shortest, kind, shape.heads)
    recorder = None
    if capture is not None or out is not None:
        capture = capture or Capture()
        about = provenance(model, decoding, policy, capture, seed, reuse)
        frame = _frame(model, batch, decoding, capture, checked is not None, cached, alone)
        frame = replace(frame, reuse=reuse is not None)
        writer = trace_writer(out, frame, capture, about, overwrite)
        recorder = Recorder(frame, capture, writer, batch.ids.cpu().numpy())
    groups: list[Group] = []
    try:
        with recorder.hooks(model.network) if recorder is not None else nullcontext():
            apart = acting is not None and (acting.alone or decoding.own_pace)
            for rows in _rows(model, batch, decoding, checked, isinstance(seed, list), alone, apart):
                own = None if recorder is None else recorder.for_rows(rows.rows, rows.offset)
                groups.append(
                    start_group(
                        model, batch, rows, decoding, seed, twin, checked, own, alone, cached, acting,
                        shadow and acting is not None,
                    )
                )  # fmt: skip
            states, ties, error = _drive(model, groups, batch, decoding, recorder, progress)
    except BaseException:
        if recorder is not None:
            recorder.abandon()
        raise
    finally:
        for group in groups:
            group.engine.release()
    trace = None
    if recorder is not None:
        total = {"ties_total": int(ties.sum())}
        trace = recorder.finish(lambda ids: {**about, **token_texts(model, ids), **total})
    sequences, prompt = states[-1], batch.ids.shape[1]
    codes = _by_row(groups, [group.codes for group in groups])
    starts = batch.starts
    answers = [decoding.answer(model, row, start) for row, start in zip(sequences, starts, strict=True)]
    output = decoding.output(model, states, starts, alone)
    return Run(
        sequences=sequences,
        states=states,
        output=torch.nn.utils.rnn.pad_sequence(output, batch_first=True, padding_value=-1),
        answers=[answer.tolist() for answer in answers],
        texts=[decode(model, answer) if codes is None else "" for answer in answers],
        ties=ties,
        forwards=_by_row(groups, [_forwards(group) for group in groups]).tolist(),  # type: ignore[union-attr]
        decoding=decoding,
        policy=policy,
        seed=seed,
        prompt=prompt,
        real=batch.real,
        codes=codes,
        trace=trace,
        **{name: _by_row(groups, [_of_policy(group, name) for group in groups]) for name in ACCOUNT},
        reuse=reuse,
        work=_work(groups),
        error=error if shadow else None,
    )


def _rows(
    model: Model,
    batch: PromptBatch,
    decoding: Decoding,
    policy: Policy | None,
    per_row: bool,
    alone: bool,
    apart: bool,
) -> list[Rows]:
    """The groups of rows that run together; apart: rows with streams of their own run one by one."""
    if not batch.right:
        together = runs_together(model, decoding, policy)
        return grouped(batch.ids.shape[1], batch.lengths, per_row, together, apart)
    if not alone:
        return grouped_right(batch.lengths, per_row, model.spec.padding, decoding.unseen(min(batch.lengths)))
    # In a block loop rows wait for each other, so that a step of the batch is not each row's own.
    counted = policy is not None and any(
        getattr(rule, "like", rule).steps is not None for rule in policy.parts()
    )
    apart = counted and decoding.cached is not None
    groups = grouped_right(batch.lengths, per_row, model.spec.padding, alone=apart)
    return [replace(rows, offset=decoding.unseen(batch.lengths[rows.rows[0]])) for rows in groups]


def runs_together(model: Model, decoding: Decoding, policy: Policy | None) -> bool:
    """Whether rows of different lengths share a forward: on a GPU, unless a policy or decoding counts columns."""
    counted = policy is not None and any(rule.by_column for rule in policy.parts())
    return model.device.type == "cuda" and decoding.new_tokens > 0 and not counted


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
    if not decoding.causal and model.ids.mask is None:
        raise InputError(
            f"{model.source} names no mask token; give ss.load(…, mask_token_id=…), or add mask_token_id to its config.json"
        )
    decoding.check_ids(model.shape.vocabulary)


def check_reuse(
    model: Model, decoding: Decoding, policy: Policy | None, capture: Capture | None, reuse: Reuse | None
) -> Reuse | None:
    """The rule, which must suit what it is used with; None when there is none or every step is exact under it."""
    if reuse is None or reuse.exact:
        return None
    if policy is not None:
        raise InputError(
            f"reuse {reuse} and policy {policy} cannot act together: a policy asks for every key; leave one out"
        )
    check_rule(decoding, reuse)
    variant = variant_of(model.network)
    if variant.plain_first or variant.first_alone:
        raise InputError(
            f"{model.source} treats its first token unlike the others ({variant}), which reuse {reuse} cannot follow"
        )
    if not model.spec.divisible:
        raise InputError(
            f"reuse {reuse}: the network of {model.family} models makes its own positions, so that single columns cannot go "
            "through it; leave out reuse"
        )
    config = model.network.config.get_text_config()
    if model.spec.causal and "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        raise InputError(f"{model.source} has sliding windows, in which reuse {reuse} cannot choose keys")
    if capture is not None and (capture.level == "maps" or capture.anatomy or model.spec.causal):
        what = "a causal model" if model.spec.causal else "maps and anatomy"
        raise InputError(f"reuse {reuse}: {what} cannot be recorded while steps are approximate")
    return reuse


def check_rule(decoding: Decoding, reuse: Reuse | None) -> None:
    """A rule with approximate steps must suit the loop."""
    if reuse is None or reuse.exact:
        return
    if not decoding.reusable or decoding.guided:
        what = "guidance" if decoding.guided else f"{type(decoding).__name__}'s loop"
        raise InputError(f"reuse {reuse} cannot act under {what}; leave it out, or use refresh 1")
    if decoding.causal and not reuse.causal:
        raise InputError(
            f"reuse {reuse} is for diffusion models: a causal model's cache never goes stale; use sparse:…"
        )


def _work(groups: list[Group]) -> Work | None:
    """Multiply-adds of every row of the batch under a reuse rule."""
    counts = [group.engine.reuse.work for group in groups if group.engine.reuse is not None]
    if not counts:
        return None
    done, exact = (_by_row(groups, [getattr(count, name) for count in counts]) for name in ("done", "exact"))
    return Work(*([int(number) for number in part.tolist()] for part in (done, exact) if part is not None))


def _check_length(model: Model, batch: PromptBatch, decoding: Decoding) -> None:
    context, longest, new = model.shape.context, max(batch.lengths), decoding.new_tokens
    if context is not None and longest > context:
        raise InputError(
            f"the prompt has {longest} tokens, but the context of {model.source} is {context}; shorten it"
        )
    if context is not None and (decoding.causal or model.spec.bounded) and longest + new > context:
        raise InputError(
            f"prompt ({longest} tokens) and answer ({new}) pass the context of {context}; "
            f"use length={context - longest} or less"
        )


def _twin(model: Model, batch: PromptBatch, decoding: Decoding, unconditional: Any) -> Twin | None:
    """The unconditional twin of an image prompt, checked; text loops make theirs from the prompt."""
    if not decoding.guided or decoding.new_tokens:
        return None
    if unconditional is None:
        raise InputError(
            "guidance above 0 needs unconditional=(ids, attention_mask), the prompt without its text"
        )
    pair = (
        isinstance(unconditional, (tuple, list)) and len(unconditional) == 2 and _is_matrix(unconditional[0])
    )
    ids, mask = unconditional if pair else (unconditional, None)
    checked, real = model.real_tokens(ids, mask)
    if checked.shape != batch.ids.shape:
        raise InputError(
            f"unconditional ids have shape {list(checked.shape)}, but the prompt has {list(batch.ids.shape)}"
        )
    return checked, real


def _is_matrix(ids: Any) -> bool:
    return bool(torch.as_tensor(ids).dim() == 2)


def _frame(
    model: Model,
    batch: PromptBatch,
    decoding: Decoding,
    capture: Capture,
    policy: bool,
    cached: bool,
    alone: bool,
) -> Frame:
    """The sizes of the trace."""
    shape, prompt = model.shape, batch.ids.shape[1]
    capture.check(shape.layers, shape.heads)
    real = torch.ones(len(batch.ids), decoding.columns(prompt), dtype=torch.bool)
    if batch.right and (alone or not model.spec.blocks):
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
        layers=capture.layers or tuple(range(shape.layers)),
        heads=capture.heads or tuple(range(shape.heads)),
        kv_heads=shape.kv_heads,
        causal=model.spec.causal,
        policy=policy,
        guided=decoding.guided,
        image=None if last is None else (first, last),
        starts=tuple(batch.starts),
        block=None if decoding.cached is None else int(getattr(decoding, "block", 1)),
        cached=cached,
        edits=decoding.edits,
    )


def _drive(
    model: Model,
    groups: list[Group],
    batch: PromptBatch,
    decoding: Decoding,
    recorder: Recorder | None,
    progress: Progress | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Advance all groups in step until each has ended; states [steps + 1, B, S], ties [steps, B] and errors [steps, B]."""
    prompt, filler = batch.ids.shape[1], decoding.filler(model)
    # States stay on the device until the end: copying them after every step would make a GPU wait.
    frame = torch.full((len(batch.ids), decoding.columns(prompt)), -1, device=batch.ids.device)
    if not batch.right:
        frame[:, :prompt] = batch.ids
    for group in groups:
        rows, offset = group.rows.rows, group.rows.offset
        frame[rows, :offset] = batch.ids[rows, :offset]
        frame[rows, offset : offset + group.state.shape[1]] = group.state
    # On the device, once: a list as an index is copied there in every step, and the host waits for it.
    places = [_places(group.rows.rows, frame) for group in groups]
    states, ties, errors = [frame], [], []
    while True:
        steps = [group.advance() for group in groups]
        if all(step is None for step in steps):
            break
        frame = frame.clone()
        tied = torch.zeros(len(batch.ids), dtype=torch.long, device=frame.device)
        errors.append(torch.full((len(batch.ids),), float("nan"), dtype=torch.float64))
        for group, here, step in zip(groups, places, steps, strict=True):
            if step is not None:
                offset = group.rows.offset
                frame[here, offset : offset + step.after.shape[1]] = step.after
                tied[here] = step.ties.to(tied.device)
                if step.error is not None:
                    errors[-1][group.rows.rows] = step.error
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
    nothing = torch.zeros(0, len(batch.ids), dtype=torch.long)
    return stacked, torch.stack(ties).cpu() if ties else nothing, torch.stack(errors) if errors else nothing


def _places(rows: list[int], frame: Tensor) -> slice | Tensor:
    """The rows of a group as an index of the frame [B, S], where that lies."""
    return slice(None) if rows == list(range(len(frame))) else torch.tensor(rows, device=frame.device)


def _forwards(group: Group) -> Tensor:
    return torch.as_tensor(group.engine.forwards).expand(len(group.rows.rows))


def _of_policy(group: Group, name: str) -> Tensor | None:
    return None if group.engine.policy is None else getattr(group.engine.policy, name)


def _by_row(groups: list[Group], parts: list[Tensor | None]) -> Tensor | None:
    """What the groups' rows have, [b, …] each, in the order of the batch; None where they have nothing."""
    if parts[0] is None:
        return None
    rows = [row for group in groups for row in group.rows.rows]
    order = sorted(range(len(rows)), key=rows.__getitem__)
    return torch.cat([part.cpu() for part in parts if part is not None])[order]
