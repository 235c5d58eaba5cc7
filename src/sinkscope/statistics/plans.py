"""How large a difference a number of documents can show."""

from __future__ import annotations

import math

from sinkscope.errors import InputError
from sinkscope.statistics.interval import CONFIDENCE, checked_share, quantile


def minimal_detectable_effect(
    n: int,
    accuracy: float = 0.5,
    correlation: float = 0.0,
    deviation: float | None = None,
    confidence: float = CONFIDENCE,
    power: float = 0.8,
) -> float:
    """The smallest difference of two runs' accuracies that n paired documents detect with this power (normal theory).

    `deviation`: standard deviation of the per-document differences, where it was measured. Else it follows from the accuracy and
    from how strongly the two runs agree document by document: √(2·p·(1−p)·(1−correlation)). The default is the worst case of two
    unrelated runs; real pairs do better.
    """
    if n < 2:
        raise InputError(f"n is {n}: at least 2 documents are needed")
    if deviation is None:
        if not (0 <= accuracy <= 1 and -1 <= correlation <= 1):
            raise InputError(
                f"accuracy {accuracy} and correlation {correlation}: expected [0, 1] and [−1, 1]"
            )
        deviation = math.sqrt(2 * accuracy * (1 - accuracy) * (1 - correlation))
    z = quantile(0.5 + checked_share("confidence", confidence) / 2) + quantile(checked_share("power", power))
    return min(1.0, z * deviation / math.sqrt(n))
