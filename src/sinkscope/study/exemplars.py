"""Which documents get full attention maps in the second pass: chosen by a rule that is printed, never by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sinkscope.study.cell import Cell
from sinkscope.study.spec import Study
from sinkscope.study.store import Store

RULE = (
    "full maps are recorded of the traced documents whose number of sinks per head and step is nearest to the median over the "
    "traced documents of the same model and policy (ties: the lower number of the document)"
)


def choose(sinks: Mapping[int, float], many: int) -> tuple[int, ...]:
    """The places of `many` documents nearest to the median.

    >>> choose({3: 1.0, 5: 2.0, 9: 4.0}, 1)
    (5,)
    """
    values = sorted(sinks.values())
    if not values:
        return ()
    middle = values[(len(values) - 1) // 2]
    order = sorted(sinks, key=lambda place: (abs(sinks[place] - middle), place))
    return tuple(sorted(order[:many]))


def cells_of(study: Study, store: Store, cells: Sequence[Cell]) -> list[Cell]:
    """The cells of the second pass, without identities; the cells of the first must be done."""
    from sinkscope.trace.capture import Capture

    found = []
    for grid in study.trace:
        for cell in cells:
            if cell.kind != "trace" or cell.group != grid.name or not grid.maps:
                continue
            rows = [row for row, _ in store.answers(cell, graded=False).values() if row.seed == cell.seeds[0]]
            places = choose({row.index: float(row.more["sinks_per_head"]) for row in rows}, grid.maps)
            options = {**json.loads(cell.capture), "level": "maps", "every": grid.maps_every}
            capture = Capture(**options).to_json()
            found.append(
                replace(
                    cell, kind="maps", documents=places, seeds=cell.seeds[:1], capture=capture, identity={}
                )
            )
    return found
