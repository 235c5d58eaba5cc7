"""One step of a finished run, computed again with the inside of the network in view.

A diffusion step is a forward pass over its recorded state. A causal model's keys and values never change once written, so one
forward over the whole sequence is all of its steps: such a run has one observation, whatever step is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention.context import ALL, AttentionCall, CallEditor, CallRecorder
from sinkscope.attention.distant import whole
from sinkscope.base.errors import CheckpointError, InputError
from sinkscope.base.sink_rule import torch_sinks_of
from sinkscope.decoding.groups import grouped, row_keys, runs_together
from sinkscope.generation.generate import check_decoding
from sinkscope.generation.run import Run
from sinkscope.models.layers import decoder_layers, streams
from sinkscope.models.model import Model

PROMPT, MASK, WRITTEN, PADDING = 0, 1, 2, -1
"""Kinds of positions: given, mask token, written answer token; padding is none of them."""

KINDS = ("prompt", "mask", "written")
BYTES = 256 << 20
"""Upper bound on the attention maps of one chunk of rows, were all layers kept at once."""

StreamHook = Callable[[int, Tensor], Tensor]
"""From the layer and the residual stream entering it, [B, S, width], to the stream that is to enter it."""


@dataclass(frozen=True)
class Observation:
    """The inside of one forward pass.

    Attributes:
        rows: numbers of its rows in the run. step: its number. offset: first column of its rows in the run's frame.
        tokens, final: Long [B, S]: the state, and what the run wrote in the end.
        kind: Long [B, S]: PROMPT, MASK, WRITTEN or PADDING.
        predicted: Bool [B, S]: columns whose token is predicted here: all masks; a causal model's whole answer.
        decided: Bool [B, S]: columns that this step wrote. reachable: Bool [1, S]: the block that it could write in.
        shift: the vector at column j predicts the token at column j + shift.
        residual: Float [L + 1, B, S, width]: the stream entering each layer, and the one that leaves the last.
        calls: the attention of each layer: q, k, v, output, map.
        received: Float32 [L, B, H, S], uniform = 1, of a causal model from distant queries; NaN in padding and where it is not
            known whether the key is a sink. sinks: Bool, likewise: sinks (ε = 3) of each head.
        keys: a number for each row, by which its controls are drawn: no row's draw depends on the others.
    """

    model: Model
    rows: list[int]
    step: int
    offset: int
    tokens: Tensor
    final: Tensor
    kind: Tensor
    predicted: Tensor
    decided: Tensor
    reachable: Tensor
    shift: int
    real: Tensor | None
    residual: Tensor
    calls: list[AttentionCall]
    received: Tensor
    sinks: Tensor
    keys: list[int]

    @cached_property
    def judged(self) -> Tensor:
        """Long [L, B, S]: the kind of each position that can be judged in the layer; PADDING elsewhere."""
        return torch.where(self.received.isnan().all(2), PADDING, self.kind)

    @cached_property
    def layer_sinks(self) -> Tensor:
        """Bool [L, B, S]: sinks of at least one head of the layer."""
        return self.sinks.any(2)

    @cached_property
    def kv_sinks(self) -> Tensor:
        """Bool [L, B, G, S]: sinks of at least one query head that reads the KV head."""
        layers, rows, heads, keys = self.sinks.shape
        groups = self.calls[0].key.shape[1]
        return self.sinks.view(layers, rows, groups, heads // groups, keys).any(3)

    @cached_property
    def strength(self) -> Tensor:
        """Float32 [L, B, S]: received attention, mean over heads; 0 where it is not known."""
        return self.received.nan_to_num(0.0).mean(2)

    @cached_property
    def logits(self) -> Tensor:
        """Float [N, V]: predictions at the `predicted` columns."""
        return read_predictions(self.model, self.residual[-1], self.predicted, self.shift)

    def attention(self, layer: int) -> Tensor:
        """Float32 [B, H, Q, K]: the map of a layer, computed when asked for."""
        return self.calls[layer].map()


class _Calls(CallRecorder):
    """Keeps the calls of one forward."""

    def __init__(self) -> None:
        self.calls: list[AttentionCall] = []

    def reads(self, layer: int) -> tuple[str, ...]:
        return (ALL,)

    def record(self, call: AttentionCall) -> None:
        self.calls.append(call)


def forward_inside(
    model: Model,
    tokens: Tensor,
    real: Tensor | None,
    editor: CallEditor | None = None,
    stream: StreamHook | None = None,
    record: bool = True,
) -> tuple[Tensor, list[AttentionCall]]:
    """One forward pass with its inside recorded, and changed on the way.

    Args:
        tokens: Long [B, S] on the model's device. real: Bool [B, S] or None. editor: changes keys, values, head outputs.
        stream: changes the residual stream before each layer; it may add rows behind the B rows, which are not returned.
        record: keep attention calls; without it only the stream that leaves the last layer is kept.

    Returns:
        Float32 [L + 1, B, S, width], or [1, …] without `record`, and the calls.
    """
    recorder, inside, count = _Calls(), list[Tensor](), model.shape.layers

    def enter(layer: int, hidden: Tensor) -> Tensor | None:
        changed = stream(layer, hidden) if stream is not None and layer < count else None
        if record or layer == count:  # which is behind the last one
            inside.append((hidden if changed is None else changed)[: len(tokens)].float())
        return changed

    # With both, rows are there twice: the stream keeps plain ones in front and changed ones behind them, whose keys and values
    # the editor takes over; what is returned are the first.
    doubled = editor is not None and stream is not None
    wide = torch.cat([real, real]) if doubled and real is not None else real
    context = replace(model.context(wide, recorder=recorder if record else None), editor=editor)
    layers = decoder_layers(model.network, count - 1)[:count]
    with streams(layers, enter, behind=True), torch.no_grad():
        ids = torch.cat([tokens, tokens]) if doubled else tokens
        if model.spec.causal:
            model.forward(ids, context, keep=1)
        else:
            model.hidden(ids, context)
    return torch.stack(inside), recorder.calls


def read_out(model: Model, residual: Tensor) -> Tensor:
    """The output head on residual vectors [..., width]: Float32 [..., V], the last norm included."""
    return model.head(last_norm(model)(residual.to(model.dtype))).float()


def last_norm(model: Model) -> Any:
    """The norm between the last layer and the head."""
    body = getattr(model.network, "model", model.network)
    for name in ("norm", "final_layernorm", "ln_f", "norm_f"):
        if hasattr(body, name):
            return getattr(body, name)
    raise CheckpointError(f"{type(model.network).__name__} has no last norm that is known; its stream cannot be read")


def predictions_under(seen: Observation, editor: CallEditor | None = None, stream: StreamHook | None = None) -> Tensor:
    """Float [N, V]: predictions at the `predicted` columns of an observation, with its inside changed (see `forward_inside`)."""
    last, _ = forward_inside(seen.model, seen.tokens.clamp(min=0), seen.real, editor, stream, record=False)
    return read_predictions(seen.model, last[-1], seen.predicted, seen.shift)


def read_predictions(model: Model, last: Tensor, predicted: Tensor, shift: int) -> Tensor:
    """Float32 [N, V] at the marked columns Bool [B, S], from the stream that leaves the last layer [B, S, width]."""
    row, column = predicted.nonzero(as_tuple=True)
    return read_out(model, last[row, (column - shift).clamp(min=0)])


def check_run(model: Model, run: Run) -> None:
    """Refuse a run whose steps are more than a forward of the whole sequence."""
    decoding = run.decoding
    check_decoding(model, decoding)
    if not decoding.replayable or decoding.guided or model.mode(decoding.causal).spec.blocks:
        raise InputError(
            f"{decoding.kind} runs of {model.family} models cannot be inspected: with images, guidance or stored blocks (a "
            "canvas is one) a step is not one forward of the whole sequence; use a text decoding without them"
        )


def observe(model: Model, run: Run, step: int) -> Iterator[Observation]:
    """The observations of one step, a chunk of rows of equal layout at a time.

    Args:
        run: from `ss.generate` with this model, without guidance; a run of text.
    """
    model, decoding = model.mode(run.decoding.causal), run.decoding
    check_run(model, run)
    if run.policy is not None or not run.exact:
        raise InputError(
            "inspection computes steps anew, exactly: it needs a run without a policy whose steps were exact"
        )
    if not 0 <= step < len(run):
        raise InputError(f"step {step} is not in this run, which has the steps 0 to {len(run) - 1}")
    lengths = [run.prompt] * run.states.shape[1] if run.real is None else run.real.sum(1).tolist()
    together = runs_together(model, decoding, run.policy)
    for group in grouped(run.prompt, lengths, isinstance(run.seed, list), together):
        keys = run.states.shape[-1] - group.offset
        size = max(1, BYTES // (4 * model.shape.layers * model.shape.heads * keys * keys))
        for start in range(0, len(group.rows), size):
            rows = group.rows[start : start + size]
            real = run.real[rows] if group.padded and run.real is not None else None
            yield _observation(model, run, step, rows, group.offset, real)


def _observation(
    model: Model, run: Run, step: int, rows: list[int], offset: int, prompt_real: Tensor | None
) -> Observation:
    causal = model.spec.causal
    states = run.states[:, rows, offset:].to(model.device)
    final, prompt = states[-1], run.prompt - offset
    tokens = final if causal else states[step]
    columns = torch.arange(tokens.shape[1], device=model.device)
    answer = (columns >= prompt)[None].expand_as(tokens)
    real = torch.ones_like(answer)
    if prompt_real is not None:
        real = torch.cat([prompt_real.to(model.device), real[:, prompt:]], 1)
    if causal:
        steps = range(final.shape[1] - prompt)
        alive = [run.decoding.alive(model, final, prompt, i, True) for i in steps]
        real = torch.cat([real[:, :prompt], torch.stack(alive, 1)], 1)  # behind its end a row holds filler
        masked, predicted = torch.zeros_like(answer), answer & real
        decided, reachable = predicted, torch.ones_like(answer[:1])
    else:
        masked = torch.eq(tokens, -1 if model.ids.mask is None else model.ids.mask)
        predicted = masked & answer
        decided = masked & (states[step + 1] != tokens)
        reachable = run.decoding.reachable(tokens, prompt, step) & answer[:1]
    kind = torch.where(masked, MASK, torch.where(answer, WRITTEN, PROMPT)).masked_fill(~real, PADDING)
    padding = None if bool(real.all()) else real
    residual, calls = forward_inside(model, tokens.clamp(min=0), padding)
    if causal:
        distant = whole(calls)
        far, could = distant.far()
        relative = torch.where(could.known, far / could.uniform.clamp(min=1e-9), float("nan"))
        received = relative.float().transpose(0, 1)
        sinks = distant.sinks().transpose(0, 1)
    else:
        received = torch.stack([call.received()[:, :, 0] for call in calls])
        received = received.masked_fill((kind == PADDING)[None, :, None], float("nan"))
        sinks = torch_sinks_of(received)
    shift = int(causal or model.spec.shifted)
    keys = [(key * 1_000_003 + step) % 2**62 for key in row_keys(run.seed, rows)]
    return Observation(
        model, rows, step, offset, tokens, final, kind, predicted, decided, reachable, shift, padding, residual, calls,
        received, sinks, keys,
    )  # fmt: skip


def check_read_out(model: Model, run: Run) -> None:
    """Refuse runs that cannot be inspected, and a network whose logits are not the head on the last norm of the stream."""
    check_run(model, run)
    ids = torch.arange(8, device=model.device)[None] % model.shape.vocabulary
    stream, _ = forward_inside(model, ids, None, record=False)
    logits = model.forward(ids).float()
    if not torch.allclose(read_out(model, stream[-1]), logits, atol=1e-3 + 0.02 * float(logits.abs().max())):
        raise CheckpointError(
            f"the logits of {model.source} are not its head on its last norm; inspection cannot read it"
        )


def matched(sinks: Tensor, kind: Tensor, keys: list[int]) -> Tensor:
    """Bool like `sinks` [L, B, …, S]: as many random non-sinks of each kind, where there are so many.

    Args:
        kind: Long of the same shape. keys: a number for each row, which decides its draw.
    """
    draws = drawn(keys, sinks[:, 0].shape).to(sinks.device)
    chosen = torch.zeros_like(sinks)
    for each in (PROMPT, MASK, WRITTEN):
        candidates = (kind == each) & ~sinks
        count = (sinks & (kind == each)).sum(-1, keepdim=True)
        rank = draws.masked_fill(~candidates, 2.0).argsort(-1).argsort(-1)
        chosen |= candidates & (rank < count)
    return chosen


def drawn(keys: list[int], shape: Sequence[int]) -> Tensor:
    """Float [shape[0], B, …]: random numbers between 0 and 1 for each row, by its key alone."""
    rows = [torch.rand(shape, generator=torch.Generator().manual_seed(key)) for key in keys]
    return torch.stack(rows, 1)


def chosen_steps(run: Run, count: int) -> list[int]:
    """`count` steps, evenly spread over the run; a causal run has one observation."""
    if run.decoding.causal:
        return [len(run) - 1]
    return sorted({int((i + 0.5) * len(run) / count) for i in range(count)})


def row_mean(values: Tensor, where: Tensor) -> Tensor:
    """Float64 [..., B]: mean of values [..., B, S] over the marked places; NaN where there is none."""
    return torch.where(where, values.double(), 0.0).sum(-1) / above_zero(where.sum(-1))


def above_zero(count: Tensor) -> Tensor:
    """Float64: counts to divide by; NaN in place of 0."""
    return count.double().masked_fill(count == 0, float("nan"))
