"""What the rest of the package knows of reuse rules: `base.extras.Kind`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from sinkscope.base.extras import EXTRAS, Extra, Kind

if TYPE_CHECKING:
    from sinkscope.reuse.work import Reused


class Recorded(TypedDict, total=False):
    """What a rule adds to a record.

    Attributes:
        reuse: its text. macs: multiply-adds that were done; macs_exact: of the same steps in full. Without them steps were exact.
    """

    reuse: str | None
    macs: int | None
    macs_exact: int | None


class ReuseKind(Kind):
    """Rules of approximate steps."""

    name = "reuse"
    recorded = Recorded

    def read(self, given: Any) -> Extra | None:
        from sinkscope.reuse.text import parse_reuse

        return given if isinstance(given, Extra) else parse_reuse(given)

    def add(self, thing: type) -> bool:
        from sinkscope.reuse.rule import REUSES, Reuse

        if issubclass(thing, Reuse):
            REUSES.add(thing)
            return True
        return False

    def summed(self, text: str, rows: Sequence[Mapping[str, Any]]) -> Reused:
        from sinkscope.reuse.work import Reused, Work

        approximate = [row for row in rows if row["macs"] is not None]
        done, exact = ([int(row[name]) for row in approximate] for name in ("macs", "macs_exact"))
        return Reused(text, Work(done, exact) if approximate else None)


EXTRAS.add(ReuseKind())
