"""The self-check: is what we record really the model's own attention, and does recording leave the output alone?

It needs no reference files, so it runs on any checkpoint: a short random input, a few forward passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sinkscope.attention.context import ALL, AttentionCall, CallRecorder
from sinkscope.attention.received import dense_received
from sinkscope.attention.visibility import per_head, query_weights
from sinkscope.base.errors import CheckpointError, InputError
from sinkscope.base.text import html_table
from sinkscope.models.probe import distance, eager_logits

if TYPE_CHECKING:
    from sinkscope.models.model import Model

ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}
"""Relative differences that the dtype alone explains when two kernels compute the same thing."""


DEPTH = 5
"""How much larger the difference may be at the logits, where the rounding of all layers has come together."""


@dataclass(frozen=True)
class CheckedBound:
    """One thing that was checked: the measured difference and the bound it must not pass."""

    what: str
    measured: float
    bound: float

    @property
    def passed(self) -> bool:
        """Within the bound (a NaN is not)."""
        return self.measured <= self.bound


@dataclass(frozen=True)
class SelfCheck:
    """All findings for one model."""

    source: str
    findings: tuple[CheckedBound, ...]

    @property
    def passed(self) -> bool:
        """Whether every finding holds."""
        return all(finding.passed for finding in self.findings)

    def require(self) -> None:
        """Raises an error that names what failed."""
        failed = [f"{found.what} (off by {found.measured:.3g})" for found in self.findings if not found.passed]
        if failed:
            raise CheckpointError(
                f"{self.source} failed the self-check: {'; '.join(failed)}. Its architecture does something to attention that "
                "sinkscope does not know; please report the model's name"
            )

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """What was checked, what was measured, and whether it passed: as people read it."""
        return [
            (finding.what, f"off by {finding.measured:.3g}, at most {finding.bound:.3g}", _said(finding.passed))
            for finding in self.findings
        ]

    def __str__(self) -> str:
        return "\n".join([f"{self.source}: {_said(self.passed)}", *("  " + "  ".join(row) for row in self.rows)])

    def _repr_html_(self) -> str:
        title = f"self-check of {self.source}: {_said(self.passed)}"
        return html_table(title, ("checked", "measured", ""), self.rows)


def _said(passed: bool) -> str:
    return "passed" if passed else "FAILED"


def check(model: Model, length: int = 24, seed: int = 0) -> SelfCheck:
    """Runs the self-check on `length` random tokens.

    1. Every layer calls the attention function exactly once (DiffusionGemma's: once in the encoder, once over the canvas).
    2. Recording does not change one bit of the logits.
    3. The recorded map times the values is the attention output that the model went on with.
    4. Received attention as it is recorded is that of the map.
    5. A padded row gives the logits of the row alone.
    6. Causal models: transformers' own attention gives the same logits.
    """
    if length < 8:
        raise InputError(f"the self-check needs at least 8 tokens, got length {length}")
    generator = torch.Generator().manual_seed(seed)
    length += getattr(model.network.config, "canvas_length", 0)
    ids = torch.randint(0, model.shape.vocabulary, (2, length), generator=generator).to(model.device)
    examiner = _Examiner()
    silent = model.forward(ids)
    recorded = model.forward(ids, model.context(recorder=examiner))
    layers, outputs, received = zip(*(examiner.calls or [(-1, 1.0, 1.0)]), strict=True)
    unseen = float(sorted(layers) != sorted(model.spec.passes * list(model.layers)))
    changed = float((silent - recorded).abs().max())
    bound = ROUNDING[model.dtype]
    findings = [
        CheckedBound("layers whose attention was not seen exactly once", unseen, 0),
        CheckedBound("logits with and without recording, largest difference", changed, 0),
        CheckedBound("recorded map times values against the model's output", max(outputs), bound),
        CheckedBound("received attention, tiles against the map", max(received), bound),
    ]
    if not (model.spec.causal and model.spec.modes):  # Nemotron scales queries by positions, which count padding
        error = _padding_error(model, ids)
        findings.append(CheckedBound("a padded row against the row alone", error, DEPTH * bound))
    if model.spec.causal:
        error = distance(silent, eager_logits(model, ids))
        findings.append(CheckedBound("logits against transformers' own attention", error, DEPTH * bound))
    return SelfCheck(model.source, tuple(findings))


class _Examiner(CallRecorder):
    """Records as a trace does, and checks each call against the definition.

    Attributes:
        calls: layer, error of the output, error of received attention.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[int, float, float]] = []

    def reads(self, layer: int) -> tuple[str, ...]:
        """Received attention from all queries."""
        return (ALL,)

    def record(self, call: AttentionCall) -> None:
        self.calls.append((call.layer, _output_error(call), _received_error(call)))


def _output_error(call: AttentionCall) -> float:
    values = per_head(call.value, call.query)
    rebuilt = call.map() @ values.to(torch.promote_types(values.dtype, torch.float32))
    return _relative(rebuilt, call.output)


def _received_error(call: AttentionCall) -> float:
    weights = query_weights(call.visibility, None, call.query)
    reference = dense_received(call.map(), call.visibility, weights)
    return _relative(call.received(), reference)


def _padding_error(model: Model, ids: Tensor) -> float:
    left = model.spec.padding == "left"
    columns = slice(3, None) if left else slice(0, ids.shape[1] - 3)
    alone = model.forward(ids[:1, columns])
    real = torch.ones_like(ids, dtype=torch.bool)
    real[0] = False
    real[0, columns] = True
    padded = model.forward(ids, model.context(real))[:1]
    rows = slice(-alone.shape[1], None) if left else slice(0, alone.shape[1])
    return distance(padded[:, rows], alone)


def _relative(output: Tensor, reference: Tensor) -> float:
    """Largest difference relative to the largest entry of the reference."""
    output, reference = output.double(), reference.double()
    return float((output - reference).abs().max() / reference.abs().max().clamp(min=1e-12))
