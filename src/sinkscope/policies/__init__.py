"""Rules that decide which keys each head may use: one small frozen dataclass per file."""

from sinkscope.policies.policy import POLICIES, Policy
from sinkscope.policies.text import as_policy, parse_policy

__all__ = ["POLICIES", "Policy", "as_policy", "parse_policy"]
