"""The recorder: puts what groups of rows recorded, and what their loops decided, into the frame of one trace, step by step."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from sinkscope.attention.context import current
from sinkscope.decoding.engine import Step
from sinkscope.errors import CheckpointError
from sinkscope.trace.capture import Capture
from sinkscope.trace.frame import Array, Frame, Variable, variables
from sinkscope.trace.outbox import Outbox, Parcel
from sinkscope.trace.step_recorder import StepRecorder

WITHOUT_KEYS = ("median_activation", "hidden_share", "sinks_hit", "masked_keys")
"""Variables of a step that have no key axis, or hold all keys of the frame already."""

NORMS = ("value_norm", "key_norm", "hidden_norm", "largest_activation", "hidden_cosine")
"""Variables that the network computes for padding too; there they mean nothing and are NaN."""


class TraceWriter(Protocol):
    """Where recorded steps are written: memory or disk."""

    def write(self, index: int, step: int, arrays: dict[str, Array]) -> None:
        """Take the arrays [B, …] of one recorded step; `index` counts recorded steps, `step` all of them."""

    def close(self, static: dict[str, Array], attributes: dict[str, Any]) -> Any:
        """End the recording; the finished trace."""

    def abandon(self) -> None:
        """Leave what was recorded so far as it is, after an error or Ctrl-C."""


class Recorder:
    """Assembles one trace.

    Args:
        writer: takes the finished steps.
        prompts: Int64 [B, P], padding included: rows that run without theirs have it in the trace all the same.
    """

    def __init__(self, frame: Frame, capture: Capture, writer: TraceWriter, prompts: Array) -> None:
        self.frame, self.capture, self.writer, self.prompts = frame, capture, writer, prompts
        self.variables = variables(frame, capture)
        self.groups: list[tuple[StepRecorder, int]] = []
        self.recorded = 0
        self._decided_step = np.full((frame.rows, frame.columns), -1, dtype=np.int64)
        self._edited = np.zeros((frame.rows, frame.columns), dtype=np.int16)
        self._prefill: Array | None = None
        self._ids: set[int] = set()
        self._outbox = Outbox(self._deliver)

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
        parcels = [
            None
            if result is None or result.idle
            else Parcel(
                recorder.rows, offset, _fields(result, self.frame), recorder.arrays if recorded else {}
            )
            for (recorder, offset), result in zip(self.groups, results, strict=True)
        ]
        if any(parcel is not None for parcel in parcels):
            self._outbox.send(step, parcels)

    def _deliver(self, step: int, parcels: list[Parcel | None]) -> None:
        """Take one step whose tensors have arrived on the CPU."""
        for parcel in parcels:
            if parcel is not None:
                self._note_decisions(step, parcel)
        if step % self.capture.every:
            return
        whole = (
            parcels[0] if len(parcels) == 1 and parcels[0] is not None and self._fills(parcels[0]) else None
        )
        names = [name for name, variable in self.variables.items() if variable.stepwise]
        if whole is not None:  # nothing to put together: what arrived is the step
            arrays = {name: _own(whole.arrays[name]) for name in names if name in whole.arrays}
            names = [name for name in names if name not in arrays]
            parcels = [
                replace(
                    whole, arrays={name: whole.arrays[name] for name in whole.arrays if name not in arrays}
                )
            ]
        else:
            arrays = {}
        arrays |= {name: self._blank(self.variables[name]) for name in names}
        for parcel in parcels:
            if parcel is not None:
                self._place(arrays, parcel)
        self.writer.write(self.recorded, step, arrays)
        self.recorded += 1

    def _fills(self, parcel: Parcel) -> bool:
        """Whether a parcel holds every row and column of the frame, so that its arrays can be taken as they are."""
        received = parcel.arrays.get("received")
        return (
            len(parcel.rows) == self.frame.rows
            and parcel.offset == 0
            and received is not None
            and received.shape[-1] == self.frame.columns
            and bool(parcel.step["alive"].all())
            and parcel.rows == sorted(parcel.rows)
            and not any(name in NORMS or name == "attention" for name in parcel.arrays)
        )

    def _note_decisions(self, step: int, parcel: Parcel) -> None:
        decided = parcel.step["decided"].numpy()
        for index, row in enumerate(parcel.rows):
            columns = np.flatnonzero(decided[index]) + parcel.offset
            self._decided_step[row, columns] = step
            if "edited" in parcel.step:
                columns = np.flatnonzero(parcel.step["edited"][index]) + parcel.offset
                self._edited[row, columns] += 1

    def _blank(self, variable: Variable) -> Array:
        sizes = self.frame.sizes
        shape = [sizes[dim] for dim in variable.dims if dim != "step"]
        return np.full(shape, variable.empty, dtype=variable.dtype)

    def _place(self, arrays: dict[str, Array], parcel: Parcel) -> None:
        """Copies a group's rows into the frame; rows that had ended stay empty."""
        offset, given = parcel.offset, {name: value.numpy() for name, value in parcel.step.items()}
        alive = given.pop("alive").astype(bool)
        given.pop("edited", None)
        rows = np.asarray(parcel.rows)[alive]
        for name in ("ties", "forward_kind"):
            if name in given:
                arrays[name][rows] = given.pop(name)[alive]
        for name, values in given.items():
            arrays[name][rows, offset : offset + values.shape[1]] = values[alive]
        arrays["tokens"][rows, :offset] = self.prompts[rows, :offset]
        for name, values in ((name, tensor.numpy()) for name, tensor in parcel.arrays.items()):
            if name == "prefill_received":
                self._keep_prefill(name, values, parcel.rows, offset)
            elif name in WITHOUT_KEYS:
                arrays[name][rows] = values[alive]
            elif name == "attention":
                queries, keys = values.shape[-2:]
                first = offset + keys - queries
                arrays[name][rows, ..., first : first + queries, offset : offset + keys] = values[alive]
            else:
                arrays[name][rows, ..., offset : offset + values.shape[-1]] = values[alive]
            if name in NORMS:
                np.moveaxis(arrays[name], -1, 1)[np.logical_not(self.frame.real)] = np.nan
        self._ids.update(np.unique(arrays["tokens"]).tolist(), np.unique(arrays["candidate"]).tolist())

    def _keep_prefill(self, name: str, values: Array, rows: list[int], offset: int) -> None:
        if self._prefill is None:
            self._prefill = self._blank(self.variables[name])
        self._prefill[rows, ..., offset : offset + values.shape[-1]] = values

    def abandon(self) -> None:
        """Leave what was recorded so far as it is, after an error or Ctrl-C."""
        with suppress(Exception):  # what stopped the generation is the error to see
            self._outbox.close()
        self.writer.abandon()

    def finish(self, attributes: Callable[[list[int]], dict[str, Any]]) -> Any:
        """The finished trace, once all steps have arrived.

        Args:
            attributes: from every token id that occurs in the trace to its attributes.
        """
        self._outbox.close()
        static = {
            "region": self.frame.region(),
            "position": self.frame.position(),
            "decided_step": self._decided_step,
        }
        if self._prefill is not None:
            static["prefill_received"] = self._prefill
        if self.frame.edits:
            static["edited"] = self._edited
        for name in ("prefill_received", "store_received"):
            if any(name == kind for recorder, _ in self.groups for kind, _, _ in recorder.between):
                static[name] = self._blank(self.variables[name])
        for recorder, offset in self.groups:
            for name, start, received in recorder.between:
                block = (offset + start) // (self.frame.block or 1)
                here = static[name][:, block] if name == "store_received" else static[name]
                here[recorder.rows, ..., offset : offset + received.shape[-1]] = received.numpy()
        return self.writer.close(static, attributes(sorted(number for number in self._ids if number >= 0)))

    @contextmanager
    def hooks(self, network: nn.Module) -> Iterator[None]:
        """Record the residual stream while inside, when anatomy is asked for; the network is left as it was."""
        handles = []
        try:
            if self.capture.anatomy:
                for layer, block in enumerate(decoder_layers(network, self.frame)):
                    handles.append(block.register_forward_pre_hook(_residual_hook(layer), with_kwargs=True))
            yield
        finally:
            for handle in handles:
                handle.remove()


def _residual_hook(layer: int) -> Any:
    """Hands the residual stream entering a layer to what records the forward that is running."""

    def hook(_: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        recorder = current().recorder
        if recorder is not None:
            recorder.residual(layer, positional[0] if positional else named["hidden_states"])

    return hook


def trace_writer(
    out: str | os.PathLike[str] | None, frame: Frame, capture: Capture, attributes: dict[str, Any]
) -> TraceWriter:
    """A writer to a file, or to memory without a path."""
    if out is None:
        from sinkscope.trace.trace import Parts

        return Parts(frame, capture)
    from sinkscope.trace.storage import Folder

    return Folder(out, frame, capture, attributes)


def decoder_layers(network: nn.Module, frame: Frame) -> nn.ModuleList:
    """The list of decoder layers of a network: its one ModuleList whose members hold the attention modules."""
    for module in network.modules():
        if isinstance(module, nn.ModuleList) and len(module) > frame.layers[-1]:
            holds = any(getattr(inner, "layer_idx", None) is not None for inner in module[0].modules())
            if holds:
                return module
    raise CheckpointError(
        f"{type(network).__name__} has no list of decoder layers; anatomy cannot be recorded for it"
    )


def _own(values: Tensor) -> Array:
    """An array of its own: pinned memory is scarce, and wanted for the next step."""
    array: Array = values.numpy()
    return array.copy() if values.is_pinned() else array


def _fields(result: Step, frame: Frame) -> dict[str, Tensor]:
    """Variable → tensor of what the loop decided; `alive`, `ties` and `edited` besides."""
    more: dict[str, Tensor] = {}
    if frame.edits:
        more["edited"] = (result.before >= 0) & ~result.masked & (result.after != result.before)
    if frame.block is not None:
        more["forward_kind"] = torch.full_like(result.ties, int(result.kind == "store"))
    return more | {
        "tokens": result.before,
        "masked": result.masked,
        "confidence": result.confidence.float(),
        "candidate": result.candidate,
        "decided": result.decided,
        "ties": result.ties,
        "alive": result.alive,
    }
