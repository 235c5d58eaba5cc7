"""The recorder: puts what groups of rows recorded, and what their loops decided, into the frame of one trace, step by step.

On a GPU a step's tensors are copied without waiting, and delivered in order by a thread (`gpu.outbox.Outbox`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from sinkscope.attention.context import current
from sinkscope.base.fast import fast
from sinkscope.decoding.step import Step
from sinkscope.models.layers import layer_lists, streams
from sinkscope.trace.capture import Array, Capture, Frame, Variable, variables
from sinkscope.trace.step_recorder import StepRecorder
from sinkscope.trace.trace import Trace, TraceParts, coordinates

if TYPE_CHECKING:
    from sinkscope.gpu.outbox import Outbox
    from sinkscope.trace.storage import Folder

NORMS = ("value_norm", "key_norm", "hidden_norm", "largest_activation", "hidden_cosine")
"""Variables that the network computes for padding too; there they mean nothing and are NaN."""


class Recorder:
    """Assembles one trace.

    Args:
        writer: takes the finished steps.
        prompts: Int64 [B, P], padding included: rows that run without theirs have it in the trace all the same.
        about: attributes of the trace that are known before it begins.
    """

    def __init__(
        self, frame: Frame, capture: Capture, writer: TraceParts | Folder, prompts: Array, about: dict[str, Any]
    ) -> None:
        self.frame, self.capture, self.writer, self.prompts = frame, capture, writer, prompts
        self.about = about
        self.variables = variables(frame, capture)
        self.groups: list[tuple[StepRecorder, int]] = []
        self.recorded = 0
        self._decided_step = np.full((frame.rows, frame.columns), -1, dtype=np.int64)
        self._edited = np.zeros((frame.rows, frame.columns), dtype=np.int16)
        self._between: dict[str, Array] = {}  # what forwards that are no steps of the loop received
        self._ids = np.zeros(0, dtype=bool)  # by token id, whether it occurs
        self._outbox: Outbox | None = None

    def for_rows(self, rows: list[int], offset: int) -> StepRecorder:
        """What records a group of rows whose columns start at `offset` of the frame."""
        first, last = (self.frame.prompt, None) if self.frame.image is None else self.frame.image
        last = None if last is None else last - offset
        recorder = StepRecorder(self.frame, self.capture, rows, offset, first - offset, last)
        self.groups.append((recorder, offset))
        return recorder

    def record(self, step: int, results: list[Step | None]) -> None:
        """Take one step: what each group's loop yielded, None for groups that have ended. An idle step has nothing to record."""
        recorded = step % self.capture.every == 0
        parcels: list[Parcel] = []
        for (recorder, offset), result in zip(self.groups, results, strict=True):
            if result is not None and not result.idle:
                arrays, everywhere = (recorder.arrays, result.everywhere) if recorded else ({}, None)
                fields = _fields(result, self.frame)
                parcels.append(Parcel(recorder.rows, offset, fields, arrays, recorder.repeated, everywhere))
        devices = {field.device for parcel in parcels for field in parcel.step.values()}
        if any(device.type == "cuda" and fast(device) for device in devices):
            if self._outbox is None:
                from sinkscope.gpu.outbox import Outbox

                self._outbox = Outbox(self._deliver)
            self._outbox.send(step, parcels)
        elif parcels:
            self._deliver(step, [parcel.completed().on_host() for parcel in parcels])

    def _deliver(self, step: int, parcels: list[Parcel]) -> None:
        """Take one step whose tensors have arrived on the CPU."""
        for parcel in parcels:
            self._note_decisions(step, parcel)
        if step % self.capture.every:
            return
        arrays: dict[str, Array] = {}
        for parcel in parcels:
            self._fill(arrays, parcel)
        for name, variable in self.variables.items():
            if variable.stepwise:
                self._in_frame(arrays, name)
        for name in ("tokens", "candidate"):
            self._note_ids(arrays[name])
        self.writer.write(self.recorded, step, arrays)
        self.recorded += 1

    def _note_decisions(self, step: int, parcel: Parcel) -> None:
        for name in ("decided", "edited") if self.frame.edits else ("decided",):
            index, columns = np.nonzero(parcel.step[name].numpy())
            cells = np.asarray(parcel.rows)[index], columns + parcel.offset  # each once
            if name == "decided":
                self._decided_step[cells] = step
            else:
                self._edited[cells] += 1

    def _in_frame(self, arrays: dict[str, Array], name: str) -> Array:
        """The array of a variable (of one step) in the frame; where it is not among `arrays` yet, an empty one."""
        if name not in arrays:
            variable, sizes = self.variables[name], self.frame.sizes
            shape = [sizes[dim] for dim in variable.dims if dim != "step"]
            arrays[name] = np.full(shape, variable.empty, dtype=variable.dtype)
        return arrays[name]

    def _fill(self, arrays: dict[str, Array], parcel: Parcel) -> None:
        """Puts a group's rows into arrays of the frame; rows that had ended stay empty.

        What holds all rows is taken as it is, or copied once: an empty array, its rows and its columns, one after the other, are
        most of the time of a step of a few milliseconds.
        """
        alive = parcel.step["alive"].numpy().astype(bool)
        rows = np.asarray(parcel.rows)[alive]
        whole = np.array_equal(rows, np.arange(self.frame.rows))
        wide: list[tuple[Tensor, Variable, Array]] = []
        for name, tensor in (parcel.step | parcel.arrays).items():
            variable, values = self.variables.get(name), tensor.numpy()
            columns = slice(parcel.offset, parcel.offset + values.shape[-1])
            if name == "prefill_received":
                self._in_frame(self._between, name)[parcel.rows, ..., columns] = values
            if variable is None or not variable.stepwise:
                continue
            by_key = variable.dims[-1] == "key"
            if whole and name not in (*NORMS, "attention"):
                if not by_key or values.shape[-1] == self.frame.columns:
                    # The loop goes on with what it decided, and pinned memory is wanted for the next step.
                    shared = name in parcel.step or not by_key or tensor.is_pinned()
                    arrays[name] = values.astype(variable.dtype, copy=shared)
                else:
                    shape = (*values.shape[:-1], self.frame.columns)
                    arrays[name] = np.empty(shape, dtype=variable.dtype)
                    wide.append((tensor, variable, arrays[name]))
                continue
            array = self._in_frame(arrays, name)
            if name == "attention":
                first = parcel.offset + values.shape[-1] - values.shape[-2]
                array = array[..., first : first + values.shape[-2], :]
            if by_key:
                array = array[..., columns]
            array[rows] = values[alive]
            if name in NORMS:
                np.moveaxis(arrays[name], -1, 1)[np.logical_not(self.frame.real)] = np.nan
        _widen(wide, parcel.offset)
        if parcel.offset:
            arrays["tokens"][rows, : parcel.offset] = self.prompts[rows, : parcel.offset]

    def _note_ids(self, ids: Array) -> None:
        """Mark ids that occur; below 0 there is none. Sorting them for that would take longer than the rest of `_fill`."""
        valid = ids[np.greater_equal(ids, 0)]
        more = int(valid.max(initial=0)) + 1 - len(self._ids)
        if more > 0:
            self._ids = np.pad(self._ids, (0, more))
        self._ids[valid] = True

    def abandon(self) -> None:
        """Leave what was recorded so far as it is, after an error or Ctrl-C."""
        with suppress(Exception):  # what stopped the generation is the error to see
            self._arrived()
        self.writer.abandon()

    def _arrived(self) -> None:
        """Wait until all steps have arrived, and what was recorded between them."""
        if self._outbox is not None:
            self._outbox.close()
        if any(received.is_pinned() for recorder, _ in self.groups for *_, received in recorder.between):
            torch.cuda.synchronize()

    def finish(self, attributes: Callable[[list[int]], dict[str, Any]]) -> Trace:
        """The finished trace, once all steps have arrived.

        Args:
            attributes: from every token id that occurs in the trace to further attributes.
        """
        self._arrived()
        static = {"region": self.frame.region(), "position": self.frame.position(), "decided_step": self._decided_step}
        if self.frame.edits:
            static["edited"] = self._edited
        for recorder, offset in self.groups:
            for name, start, received in recorder.between:
                if name not in self.variables:  # a loop without a cache may read its prompt for the first token alone
                    continue
                array = self._in_frame(self._between, name)
                block = (offset + start) // (self.frame.block or 1)
                here = array[:, block] if name == "store_received" else array
                here[recorder.rows, ..., offset : offset + received.shape[-1]] = received.numpy()
        if self.frame.causal and self.groups:
            static["window"] = np.asarray(self.groups[0][0].windows, dtype=np.int64)
        return self.writer.close(static | self._between, self.about | attributes(np.flatnonzero(self._ids).tolist()))

    @contextmanager
    def hooks(self, network: nn.Module, gates: Mapping[int, nn.Module]) -> Iterator[None]:
        """Record gates while inside, and the residual stream when anatomy is asked for; the network is left as it was.

        Args:
            gates: layer → the module that takes its gated attention output.
        """
        with ExitStack() as stack:
            for layer, module in gates.items():
                if layer in self.frame.layers:
                    stack.callback(module.register_forward_pre_hook(partial(_gated, layer)).remove)
            for layers in layer_lists(network, self.frame.layers[-1]) if self.capture.anatomy else ():
                stack.enter_context(streams(layers, _record))
            yield


def _record(layer: int, stream: Tensor) -> None:
    """Hands the residual stream entering a layer to what records the forward that is running."""
    recorder = current().recorder
    if recorder is not None:
        recorder.residual(layer, stream)


def _gated(layer: int, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Hands the gated output of a layer's attention to what records the forward that is running."""
    recorder = current().recorder
    if isinstance(recorder, StepRecorder):
        recorder.gated(layer, inputs[0])


def trace_writer(
    out: str | os.PathLike[str] | None,
    frame: Frame,
    capture: Capture,
    attributes: dict[str, Any],
    overwrite: bool = False,
) -> TraceParts | Folder:
    """A writer to a file, or to memory without a path."""
    if out is None:
        return TraceParts(frame, capture)
    from sinkscope.trace.storage import Folder

    named = variables(frame, capture)
    static = {"region": frame.region(), "position": frame.position()}
    return Folder(out, named, frame.sizes, coordinates(frame, [], named), static, attributes, overwrite)


def _fields(result: Step, frame: Frame) -> dict[str, Tensor]:
    """Variable → tensor of what the loop decided; `alive`, `ties` and `edited` besides."""
    more: dict[str, Tensor] = {}
    if frame.edits:
        more["edited"] = (result.before >= 0) & ~result.masked & (result.after != result.before)
    if frame.block is not None:
        more["forward_kind"] = torch.full_like(result.ties, int(result.kind == "store"))
    if frame.fresh:
        more["fresh"] = torch.ones_like(result.masked) if result.fresh is None else result.fresh
    return more | {
        "tokens": result.before,
        "masked": result.masked,
        "confidence": result.confidence.float(),
        "candidate": result.candidate,
        "decided": result.decided,
        "ties": result.ties,
        "alive": result.alive,
    }


# ---- into the frame -------------------------------------------------------------------------------

PIECE, COPIERS = 1 << 23, 4
"""Bytes that one thread copies at a time, and how many threads there are: one core takes longer for the arrays of a step, most of
the time for fresh pages, than a GPU for the step. In many small pieces they would keep the generation from Python's lock."""


@cache
def _copiers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(COPIERS, "sinkscope-copier")


os.register_at_fork(after_in_child=_copiers.cache_clear)  # a forked process has none of the threads


def _widen(arrays: list[tuple[Tensor, Variable, Array]], first: int) -> None:
    """Copy values [B, …, keys] to the columns from `first` on of arrays [B, …, columns], and say "empty" elsewhere.

    By numpy, which asks for large pages: the threads of torch wait for one another beside those of the generation.
    """
    pieces = []
    for values, variable, array in arrays:
        source, target = values.numpy().reshape(-1, values.shape[-1]), array.reshape(-1, array.shape[-1])
        edges = np.linspace(0, len(target), -(-array.nbytes // PIECE) + 1).astype(int).tolist()
        pieces += [(source, target, variable.empty, rows) for rows in map(slice, edges, edges[1:])]

    def copy(piece: tuple[Array, Array, Any, slice]) -> None:
        source, target, empty, rows = piece
        last = first + source.shape[-1]
        target[rows, :first], target[rows, last:] = empty, empty
        target[rows, first:last] = source[rows]

    few = sum(array.nbytes for *_, array in arrays) <= PIECE
    mine = len(pieces) if few else 1
    others = [_copiers().submit(copy, piece) for piece in pieces[mine:]]
    for piece in pieces[:mine]:
        copy(piece)
    for other in others:
        other.result()


@dataclass(frozen=True)
class Parcel:
    """What one group of rows sends in one step.

    Attributes:
        rows: their places in the batch. offset: their first column in the frame.
        step: fields of the loop's Step → tensor. arrays: variable → [B, layer, …].
        repeated: the arrays are overwritten by the next step (see `StepRecorder.adopt`).
        everywhere: candidates and confidence of all masked positions, where they are not among the fields yet (see `Step`).
    """

    rows: list[int]
    offset: int
    step: dict[str, Tensor]
    arrays: dict[str, Tensor]
    repeated: bool = False
    everywhere: Callable[[], tuple[Tensor, Tensor]] | None = None

    def completed(self) -> Parcel:
        """The parcel with all fields."""
        if self.everywhere is None:
            return self
        candidate, confidence = self.everywhere()
        fields = self.step | {"candidate": candidate, "confidence": confidence.float()}
        return replace(self, step=fields, everywhere=None)

    def on_host(self, copy: Callable[[Tensor], Tensor] = Tensor.cpu) -> Parcel:
        """The parcel in the host's memory; copy: takes a tensor there."""
        step, arrays = ({name: copy(value) for name, value in tensors.items()} for tensors in (self.step, self.arrays))
        return replace(self, step=step, arrays=arrays)
