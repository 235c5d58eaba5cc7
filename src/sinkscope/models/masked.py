"""Masked language models: every encoder of transformers with a masked-LM head and its attention interface (BERT, RoBERTa, …).

They predict all masks from one forward, so LLaDA's loop decodes them; one step is what they were trained for. transformers builds
the network; its heads differ, so what `states` gives are the logits. Positions may be learned and count from the first column:
prompts of other lengths run by themselves. Tested against transformers' eager attention.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.models.causal import architecture, pretrained
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import FAMILIES, Family

UNUSED = ("pooler", "seq_relationship", "position_ids")
"""Parts of the names of weights that other heads use; they are often stored beside."""


class Masked(Family):
    """Encoders whose architecture is …ForMaskedLM."""

    def claims(self, checkpoint: Checkpoint) -> bool:
        named = checkpoint.config.get("architectures")
        return isinstance(named, list) and any(str(name).endswith("ForMaskedLM") for name in named)

    def config(self, checkpoint: Checkpoint) -> Any:
        return architecture(checkpoint, "MASKED")[1]

    def build(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> nn.Module:
        network_class, config = architecture(checkpoint, "MASKED")
        network = pretrained(checkpoint, network_class, config, device, dtype, UNUSED)
        self.adopt(network)
        return network

    def states(self, network: Any, ids: Tensor, real: Tensor | None, positions: Tensor, cache: Any = None) -> Tensor:
        """Logits [B, S, V]: the network makes its own positions, and its head belongs to it."""
        logits: Tensor = network(input_ids=ids, attention_mask=None if real is None else real.long()).logits
        return logits

    def head(self, network: Any, hidden: Tensor) -> Tensor:
        """What `states` gave."""
        return hidden


FAMILY = FAMILIES.add(
    Masked(
        name="masked",
        about="any masked language model of transformers (BERT, RoBERTa, ModernBERT, ESM, …), decoded by LLaDA's loop",
        label="masked language model",
        padded="keys",
        padding="apart",
        bounded=True,
        probed=True,
        texts={"mask": ("[MASK]", "<mask>")},
    )
)
