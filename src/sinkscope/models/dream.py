"""Dream: a Qwen2 block with bidirectional attention; its raw logits at position j predict token j + 1.

Checked against the official modelling code at float32 (tests/golden/dream). The forward returns the raw logits; the shift
belongs to the generation loop (`decoding/dream.py`), as in the official code.
"""

from __future__ import annotations

from typing import Any

from sinkscope.models.backbone import BackboneFamily
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import FAMILIES, SpecialIds, all_ids, first_id, id_reader

MASK, EOS, BOS = 151666, 151643, 151665
"""Ids of the official tokenizer, for checkpoints whose files do not say."""


class Dream(BackboneFamily):
    """The Dream family (Dream-org/Dream-v0-Base-7B, -Instruct-7B)."""

    def special_ids(self, checkpoint: Checkpoint, tokenizer: Any) -> SpecialIds:
        """Ids from config.json and the tokenizer, else the official ones; config.json says least of bos."""
        read = id_reader(checkpoint, tokenizer, checkpoint.size("vocab_size"))
        eos = all_ids(*read("eos", "ct", EOS))
        return SpecialIds(
            mask=first_id(*read("mask", "ct", MASK)),
            eos=eos,
            bos=first_id(*read("bos", "t", BOS), *read("bos", "c")),
            pad=first_id(*read("pad", "ct"), eos),
            eot=first_id(*read("eot", "t", text="<|im_end|>")),
        )


FAMILY = FAMILIES.add(
    Dream(
        name="dream",
        about="masked diffusion adapted from Qwen2.5; shifted logits, any position may be decided",
        label="masked diffusion, from an autoregressive model (as Dream)",
        model_types=("Dream",),
        shifted=True,
        backbone="Qwen2",
    )
)
