"""Tables printed as figures: rules above and below, columns aligned, no boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sinkscope.report.figures import look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINE = 0.19
"""Height of a row in inches."""


def draw_table(head: Sequence[str], rows: Sequence[Sequence[str]], width: float) -> Figure:
    """Text columns with widths by their longest entry; equal entries of the first column are written once."""
    sizes = [max(len(str(row[i])) for row in [head, *rows]) + 2 for i in range(len(head))]
    starts = [sum(sizes[:i]) / sum(sizes) for i in range(len(sizes))]
    figure, axes = look.sheet(1, 1, width, LINE * (len(rows) + 2))
    place = axes[0][0]
    place.set(xlim=(0, 1), ylim=(len(rows) + 0.6, -1.1))
    place.axis("off")
    for level, weight in ((-1.0, 1.0), (-0.1, 0.6), (len(rows) + 0.1, 1.0)):
        place.axhline(level, color="black", linewidth=weight)
    before = None
    for x, name in zip(starts, head, strict=True):
        place.text(x, -0.5, name, va="center", weight="bold", parse_math=False)
    for y, row in enumerate(rows):
        if before not in (None, row[0]):
            place.axhline(y, color="#999999", linewidth=0.4)
        for i, (x, text) in enumerate(zip(starts, row, strict=True)):
            if i or text != before:
                place.text(x, y + 0.5, text, va="center", parse_math=False)
        before = row[0]
    return figure
