"""The tuned lens: an affine map for each layer from its residual stream to what the head is given, fitted once and cached.

Belrose et al. 2023 (arXiv 2303.08112) train the maps by gradient descent on the KL to the final prediction. Here they are the
least squares solution with a ridge, from the stream divided by its root mean square to the normed stream behind the last layer:
no learning rate, the same bits every time, seconds on a CPU.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sinkscope.base.files import cache_folder, write_atomically
from sinkscope.generation.run import Run
from sinkscope.inspection.observation import Observation, chosen_steps, last_norm, observe, read_out
from sinkscope.models.model import Model

TOKENS = 4096
"""Vectors that a lens is fitted on, at most."""

RIDGE = 1e-2
"""Of the mean square of the inputs, which is 1."""


@dataclass(frozen=True)
class TunedLens:
    """Maps [L, width + 1, width]: rows 0..width−1 are the matrix, the last is the constant. tokens: what they were fitted on."""

    maps: Tensor
    tokens: int

    def logits(self, model: Model, layer: int, residual: Tensor) -> Tensor:
        """Float32 [..., V] from the stream [..., width] after `layer` layers; the last one needs no map."""
        if layer == len(self.maps):
            return read_out(model, residual)
        weights = self.maps[layer].to(residual.device)
        return model.head((_scaled(residual) @ weights[:-1] + weights[-1]).to(model.dtype)).float()


def tuned_lens(model: Model, run: Run, cache: Path | None = None) -> TunedLens:
    """A lens fitted on the steps of a run, or the cached one of the same weights and run.

    Args:
        cache: the folder; None: sinkscope's.
    """
    from safetensors.torch import load_file, save

    run_hash = hashlib.sha256(run.states.numpy().tobytes()).hexdigest()[:16]
    path = (
        (cache or cache_folder())
        / "lenses"
        / f"{model.digest[:16]}-{str(model.dtype).removeprefix('torch.')}-{run_hash}.safetensors"
    )
    if path.is_file():
        stored = load_file(path)
        return TunedLens(stored["maps"], int(stored["tokens"]))
    lens = fit(model, [seen for step in chosen_steps(run, 4) for seen in observe(model, run, step)])
    write_atomically(path, save({"maps": lens.maps, "tokens": torch.tensor(lens.tokens)}))
    return lens


def fit(model: Model, observations: list[Observation], tokens: int = TOKENS) -> TunedLens:
    """Fit on at most `tokens` real positions of the observations, evenly taken."""
    streams = [seen.residual[:, seen.kind >= 0] for seen in observations]  # [L + 1, n, width]
    inside = torch.cat(streams, 1)
    every_nth = torch.linspace(0, inside.shape[1] - 1, min(tokens, inside.shape[1])).long()
    inside = inside[:, every_nth]
    with torch.no_grad():
        target = last_norm(model)(inside[-1].to(model.dtype)).double()
    maps = []
    for layer in inside[:-1]:
        x = torch.nn.functional.pad(_scaled(layer).double(), (0, 1), value=1.0)
        ridge = RIDGE * len(x) * torch.eye(x.shape[1], device=x.device, dtype=torch.float64)
        ridge[-1, -1] = 0.0
        maps.append(torch.linalg.solve(x.T @ x + ridge, x.T @ target))
    return TunedLens(torch.stack(maps).float().cpu(), inside.shape[1])


def _scaled(residual: Tensor) -> Tensor:
    return residual / residual.pow(2).mean(-1, keepdim=True).sqrt().clamp(min=1e-12)
