"""Rules that decide which keys each head may use: one small frozen dataclass per file."""

from sinkscope.policies.both import Both
from sinkscope.policies.keep_top import KeepTop
from sinkscope.policies.mask_above import MaskAbove
from sinkscope.policies.mask_first import MaskFirst
from sinkscope.policies.mask_keys import MaskKeys
from sinkscope.policies.mask_random import MaskRandom
from sinkscope.policies.mask_tokens import MaskKind, MaskToken
from sinkscope.policies.mask_top import MaskTop
from sinkscope.policies.policy import POLICIES, Control, FixedRule, Policy, ScoredRule
from sinkscope.policies.text import as_policy, parse_policy
from sinkscope.policies.window import Window

__all__ = [
    "POLICIES",
    "Both",
    "Control",
    "FixedRule",
    "KeepTop",
    "MaskAbove",
    "MaskFirst",
    "MaskKeys",
    "MaskKind",
    "MaskRandom",
    "MaskToken",
    "MaskTop",
    "Policy",
    "ScoredRule",
    "Window",
    "as_policy",
    "parse_policy",
]
