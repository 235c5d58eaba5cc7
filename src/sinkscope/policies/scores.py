"""What a policy remembers of scores: those of this step, and those of the step before it, by which it decides."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from sinkscope.attention.distant import DistantSums, block_sinks, in_blocks, settled
from sinkscope.base.sink_rule import Distant, torch_sinks_of
from sinkscope.policies.account import LayerState

Scores = dict[str, dict[int, Tensor]]
"""Kind of score ("raw", "masked", and of causal models "received", "sum", "distant") → layer → Float [B, H, K]."""

NAN = float("nan")


class ScoreMemory:
    """The scores of all layers.

    Attributes:
        previous: of the step before. current: of this one, as far as it has come.
    """

    PASSING = ("previous", "_before")

    def __init__(self) -> None:
        self.previous: Scores = {}
        self.current: Scores = {}
        self._carried: Scores = {}
        self._before: dict[tuple[str, str, int], Tensor] = {}

    def begin(self, step: bool) -> None:
        """Start a forward; one that is no step of the loop has no scores itself."""
        self.previous, self._before = self.current, {}
        if step:
            self.current = {}

    def keep(self, kind: str, layer: int, scores: Tensor, taking: Tensor | None = None) -> None:
        """Keep Float [B, H, K] of a layer; taking: Bool [B], the rows that took this step, None: all."""
        if taking is not None:  # the others wait, with the scores of the last step that they took
            before = self.previous.get(kind, {}).get(layer, scores[..., :0])
            scores = torch.where(taking[:, None, None], scores, _grown(before, scores.shape[-1]))
        self.current.setdefault(kind, {})[layer] = scores

    def carry(self) -> None:
        """Put this step's scores into memory that stays, where every captured step looks for those of the previous one."""
        for kind, scores in self.current.items():
            carried = self._carried.setdefault(kind, {})
            for layer, now in scores.items():
                carried[layer] = settled(carried.get(layer), now)
        self.current = self._carried

    def layers(self, kind: str) -> list[int]:
        """The layers that had scores in the previous step."""
        return list(self.previous.get(kind, ()))

    def before(self, kind: str, scope: str, keys: int) -> Tensor:
        """Float [layer, B, h, K]: those of the previous step over the present keys, of which new ones have none.

        There is one layer at scope "model".
        """
        case = kind, scope, keys
        if case not in self._before:
            layers = self.previous[kind].values()
            scores = torch.stack([one if scope == "head" else one.mean(1, keepdim=True) for one in layers])
            scores = scores.mean(0, keepdim=True) if scope == "model" else scores
            self._before[case] = _grown(scores, keys)
        return self._before[case]


class SinkTeller:
    """Tells the sinks of a step, by what its kind of attention has seen so far.

    Args:
        causal: sinks are told by all queries so far. width: keys that a causal model's text will have at the end.

    Attributes:
        judged: the sums by which sinks of the previous step of a causal model are told; None: there was no step yet.
    """

    PASSING = ("_block_sums",)

    def __init__(self, causal: bool, width: int) -> None:
        self.causal, self.width = causal, width
        self.sums = DistantSums(width, raw=True) if causal else None
        self.judged: DistantSums | None = None
        self._in_blocks: Distant | None = None  # see `distant.in_blocks`, of the last step of a block loop
        self._block_sums: Tensor | None = None  # [layer, B, H, K]: of a text that is read whole, no key ahead seen

    def restart(self) -> None:
        """Forget all queries so far: the same ones come again."""
        if self.causal:
            self.sums = DistantSums(self.width, raw=True)

    def tell(
        self, layers: list[LayerState], raw: Tensor, telling: int | None, step: bool, one_sided: bool
    ) -> tuple[Tensor, Tensor]:
        """Bool [layer, B, H, K]: this forward's sinks; Float, like it: their strength, −inf for all other keys.

        Args:
            raw: Float [layer, B, H, K]: received attention, by which bidirectional sinks are told; those of causal models by all
                queries so far, to which this step's are added here.
            telling: how many of the last queries tell them where attention stands in blocks; None: it does not.
            one_sided: no query sees a key ahead.
        """
        strength = raw
        if self.sums is not None:
            added = [layer.added for layer in layers if layer.added is not None]
            self.sums.add(added, [layer.visibility for layer in layers])
            self.judged = self.sums
            mass, expected = self.sums.far()
            sinks = ((mass > expected.limit()) & expected.known).transpose(0, 1)
            strength = (mass / expected.count.clip(1)).transpose(0, 1)
        elif telling is not None:
            expected = in_blocks(layers[0].visibility.of_rows(raw.shape[1]), telling, raw.device)
            if step:
                before = {} if self._in_blocks is None else vars(self._in_blocks)
                memory = {name: settled(before.get(name), now) for name, now in vars(expected).items()}
                self._in_blocks = Distant(**memory)
            sinks = block_sinks(raw.flatten(0, 1), expected).view(raw.shape)
            if one_sided:
                self._block_sums = raw * expected.uniform[:, None].float()
                strength = self._block_sums / expected.count[:, None].clip(1)
        else:
            sinks = torch_sinks_of(raw)
        return sinks, torch.where(sinks, strength, float("-inf"))

    def scores(self, kind: str) -> Tensor:
        """Float32 [layer, B, H, K]: scores by all queries so far, NaN where a key has none."""
        if self.sums is None and self._block_sums is not None:
            return self._block_sums
        if self.sums is None:
            raise RuntimeError("only what sees no key ahead has sums")
        mass, expected = self.sums.far(None if kind == "distant" else 0)
        known, unit = expected.count > 0, expected.uniform
        if kind == "distant":
            known, unit = expected.known, expected.count
        elif kind == "sum":
            unit = torch.ones_like(unit)
        return torch.where(known, mass / torch.where(known, unit, 1), NAN).float().transpose(0, 1)

    def in_blocks(self, scores: Tensor, epsilon: float, sums: bool) -> Tensor:
        """Bool [N, h, K]: of the previous step where attention stands in blocks, by its scores, which may be plain sums."""
        expected = self._in_blocks
        if expected is None:
            raise RuntimeError("there was no step yet")
        if sums:
            expected = replace(expected, uniform=torch.ones_like(expected.uniform))
        return block_sinks(scores[..., : expected.local.shape[-1]], expected, epsilon)


def _grown(scores: Tensor, keys: int) -> Tensor:
    """Scores [..., k] over so many keys; the new ones have none."""
    return pad(scores, (0, keys - scores.shape[-1]), value=NAN)
