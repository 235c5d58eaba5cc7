"""Work: multiply-adds of the layers, done and as the exact loop would have done them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sinkscope.reuse.rule import Reuse


@dataclass(frozen=True)
class Work:
    """Multiply-adds of each row's forwards through the layers (embedding and head aside, which cost the same either way).

    Attributes:
        done: what was computed. exact: what full forwards in the same steps would have been.
    """

    done: list[int]
    exact: list[int]

    @property
    def saved(self) -> float:
        """The share of the exact work that was not done, over all rows."""
        return 1 - sum(self.done) / max(1, sum(self.exact))


@dataclass(frozen=True)
class Reused:
    """What a rule adds to a run: `run.extras["reuse"]`; or to an evaluation.

    Attributes:
        rule: of an evaluation: its text. work: None where every step was exact.
        error: Float64 [steps, B]: with an exact forward beside each approximate one (see `Shadowed`), KL(exact ‖ approximate)
            of each step's predictions in nats, mean over the positions that were read; NaN where no forward ran.
    """

    rule: Reuse | str
    work: Work | None = None
    error: Tensor | None = None

    @property
    def exact(self) -> bool:
        return self.work is None

    def facts(self) -> dict[str, Any]:
        """The rule, and the share of the work that it saved."""
        return {"reuse": str(self.rule), "work_saved": None if self.work is None else self.work.saved}

    def row(self, row: int) -> dict[str, Any]:
        """The rule, and multiply-adds done and in full."""
        work = {} if self.work is None else {"macs": self.work.done[row], "macs_exact": self.work.exact[row]}
        return {"reuse": str(self.rule), **work}

    def __str__(self) -> str:
        saved = f"approximate steps: {self.work.saved:.1%} of the multiply-adds saved" if self.work else "exact"
        return f"{self.rule}, {saved}"


class WorkCount:
    """Adds up the work of one group of rows.

    Attributes:
        done, exact: Float64 [B] (whole numbers up to 2⁵³), on a GPU where the rows are, so that counting never waits for it.
    """

    def __init__(self, model: Any, rows: int) -> None:
        network, shape = model.network, model.shape
        outer = {id(network.get_input_embeddings().weight)}
        head = network.get_output_embeddings()
        if head is not None:
            outer.add(id(head.weight))
        inner = (weight for weight in network.parameters() if weight.dim() > 1 and id(weight) not in outer)
        self._per_query = sum(weight.numel() for weight in inner)
        self._layers = shape.layers
        self._per_pair = 2 * shape.layers * shape.heads * shape.head_dim  # q·k and its product with the value
        device = model.device if model.device.type == "cuda" else "cpu"
        self.done = torch.zeros(rows, dtype=torch.float64, device=device)
        self.exact = torch.zeros_like(self.done)

    def add(self, done: Tensor, exact: Tensor, alive: Tensor | None) -> None:
        """Count a forward, and the one that the exact loop would have done: `cost` of each, Float64 [B]."""
        for total, cost in ((self.done, done), (self.exact, exact)):
            total += cost if alive is None else cost * alive.to(cost.device)

    def cost(self, queries: Tensor, keys: Tensor, layers: int | None = None) -> Tensor:
        """Float64 [B]: multiply-adds of a forward of so many queries over so many keys, Long [B] each.

        Args:
            layers: how many of the layers, which are alike, it goes through; None: all.
        """
        queries, keys = queries.to(self.done.device).double(), keys.to(self.done.device).double()
        cost: Tensor = queries * self._per_query + queries * keys * self._per_pair
        return cost if layers is None else cost * layers / self._layers
