"""What the probe would refuse, told of a checkpoint whose weights are not read: from its network without weights."""

from __future__ import annotations

import torch

from sinkscope.attention.interface import NAME, register
from sinkscope.base.errors import CheckpointError, SinkscopeError
from sinkscope.models.causal import Causal, architecture, refuse_own_attention
from sinkscope.models.checkpoint import Checkpoint
from sinkscope.models.family import Family
from sinkscope.models.model import Model
from sinkscope.models.probe import probe
from sinkscope.models.variant import PLAIN, read_variant


def dry_probe(checkpoint: Checkpoint, family: Family) -> None:
    """Refuse an architecture of transformers that cannot be measured, with the reason that `ss.load` would give.

    Says nothing where a network without weights cannot be run to its end: most look at numbers on the way.
    """
    if not isinstance(family, Causal) or read_variant(checkpoint.config, checkpoint.source) != PLAIN:
        return
    network_class, config = architecture(checkpoint)
    register()
    try:
        with torch.device("meta"):
            network = network_class._from_config(config, attn_implementation=NAME).eval()
        family.adopt(network)
        probe(Model(checkpoint, family, network, None, torch.device("meta")))
    except CheckpointError as error:
        # What a network without numbers raised is no reason; what sinkscope says of its attention is.
        if error.__cause__ is None or isinstance(error.__cause__, SinkscopeError):
            raise
    except Exception as error:  # a network may raise anything where it has no numbers
        refuse_own_attention(error, checkpoint, network_class)
