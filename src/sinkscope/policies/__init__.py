"""Rules that decide which keys each head may use: one small frozen dataclass per file."""

from sinkscope.policies.mask_keys import MaskKeys
from sinkscope.policies.policy import Policy

__all__ = ["MaskKeys", "Policy"]
