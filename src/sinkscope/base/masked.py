"""What a mask took from a model, by name: counted while it runs, kept in records and tables, judged and shown."""

from __future__ import annotations

from enum import StrEnum


class Masked(StrEnum):
    """What a mask took, by the names of runs, records and tables; `heading` for people. The `Measure` has the member's name."""

    heading: str

    def __new__(cls, name: str, heading: str) -> Masked:
        member = str.__new__(cls, name)
        member._value_, member.heading = name, heading
        return member

    REMOVED = "hidden_share", "attention removed"
    HITS = "sinks_hit", "sinks masked"
    KEYS = "key_share", "keys"
    STRONGEST = "strongest_hit", "strongest sink masked"
    SINKS_REMOVED = "sink_removed", "attention on sinks removed"


MASK: tuple[Masked, ...] = tuple(share for share in Masked if share != Masked.KEYS)
"""What is counted step by step; the share of the keys follows from the policy."""
