"""With a seed per row, a row of a ragged batch equals its run alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tests.helpers import golden

import sinkscope as ss

SEEDS = [5, 6, 7, 5]
LENGTHS = [13, 13, 8, 13]
ALL = (0, 1, 2, 3)


def prompts() -> list[list[int]]:
    """Two rows of one length and seed are different rows all the same."""
    draw = torch.Generator().manual_seed(2)
    return [torch.randint(3, 180, (length,), generator=draw).tolist() for length in LENGTHS]


def check(family: str, decoding: Any, which: Sequence[int] = ALL, close: float = 1e-5, **options: Any) -> None:
    """These rows' states, answers and accounts of their policy are those of their runs alone."""
    model, rows = golden.model(family), prompts()
    given: dict[str, Any] = {"prompts": rows}
    if model.mode(causal=decoding.causal).spec.padding == "left":
        widest = max(LENGTHS)
        given["prompts"] = torch.tensor([[0] * (widest - len(row)) + row for row in rows])
        given["attention_mask"] = torch.arange(widest) >= widest - torch.tensor(LENGTHS)[:, None]
    batch = ss.generate(model, decoding=decoding, seed=SEEDS, **given, **options)
    for row in which:
        prompt, seed = rows[row], SEEDS[row]
        alone = ss.generate(model, [prompt], decoding, seed=[seed], **options)
        assert batch.answers[row] == alone.answers[0], f"row {row}"
        assert batch.forwards[row] == alone.forwards[0], f"row {row}"
        for name in ("hidden_share", "sinks_hit"):
            if options.get("policy") is not None:
                together, single = getattr(batch, name)[row], getattr(alone, name)[0]
                torch.testing.assert_close(together, single, atol=1e-6, rtol=1e-5, equal_nan=True)
        if options.get("capture") is not None:
            compare(batch.trace.dataset.isel(sample=row), alone.trace.dataset.isel(sample=0), decoding, close)


def compare(batch: Any, alone: Any, decoding: Any, close: float) -> None:
    """What was recorded in the steps that a row took part in, in their order, and what became of its tokens."""
    for name in ("tokens", "received", "received_all", "confidence", "decided"):
        if name in alone:
            ours, theirs = _own(batch, name), _own(alone, name)
            width = min(ours.shape[-1], theirs.shape[-1])  # a canvas is as wide as the longest row needs
            ours, theirs = ours[..., :width], theirs[..., :width]
            np.testing.assert_allclose(ours, theirs, atol=close, rtol=close, err_msg=name)
    if decoding.edits:
        ours = batch["edited"].values[batch["position"].values >= 0]
        np.testing.assert_array_equal(ours, alone["edited"].values[: len(ours)])


def _own(data: Any, name: str) -> np.ndarray:
    """An array [step, …, key] of a row, in its own steps and columns."""
    real = data["position"].values >= 0
    taken = (data["tokens"].values[:, real] >= 0).any(-1)
    return data[name].values[taken][..., real]
