"""Rules that decide which keys each head may use: one small frozen dataclass per file."""

from sinkscope.policies.both import Both
from sinkscope.policies.keep_top import KeepTop
from sinkscope.policies.mask_above import MaskAbove
from sinkscope.policies.mask_first import MaskFirst
from sinkscope.policies.mask_keys import MaskKeys
from sinkscope.policies.mask_random import MaskRandom
from sinkscope.policies.mask_top import MaskTop
from sinkscope.policies.parse import parse_policy
from sinkscope.policies.policy import Policy
from sinkscope.policies.window import Window

__all__ = [
    "Both",
    "KeepTop",
    "MaskAbove",
    "MaskFirst",
    "MaskKeys",
    "MaskRandom",
    "MaskTop",
    "Policy",
    "Window",
    "parse_policy",
]
