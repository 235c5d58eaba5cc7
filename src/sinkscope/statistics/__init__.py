"""Every interval and every test, once: pure functions of arrays.

Graded answers: one score per document, 1 (right) or 0 (wrong), or a share between them where seeds were averaged. Comparisons
are paired: both runs answered the same documents. Measures of traces: one value per prompt, because detections within a
generation are copies of each other. All functions are deterministic; the random ones take a seed. Quantiles are scipy's,
imported where they are used: a machine that only generates does not need it.
"""

from sinkscope.statistics.interval import (
    CLEARANCE,
    CONFIDENCE,
    Estimate,
    Interval,
    Scale,
    Scores,
    accuracy,
    bounded,
    mean_interval,
    minimal_detectable_effect,
    ratio_interval,
    share_interval,
    slope_interval,
    standard_error,
    wilson,
)
from sinkscope.statistics.paired import (
    LEAST_SEEDS,
    SKEW_RAISED,
    Comparison,
    align,
    compare,
    difference,
    effect_over_control,
    kept_share,
    mcnemar,
    mean_difference,
    over_seeds,
    paired_interval,
    sign_flip,
)
from sinkscope.statistics.several import SHRUNK, equal_means, equal_ratios, equal_shifts, holm

__all__ = [
    "CLEARANCE", "CONFIDENCE", "LEAST_SEEDS", "SHRUNK", "SKEW_RAISED", "Comparison", "Estimate", "Interval", "Scale",
    "Scores", "accuracy", "align", "bounded", "compare", "difference", "effect_over_control", "equal_means",
    "equal_ratios", "equal_shifts",
    "holm", "kept_share", "mcnemar", "mean_difference", "mean_interval", "minimal_detectable_effect", "over_seeds",
    "paired_interval", "ratio_interval", "share_interval", "sign_flip", "slope_interval", "standard_error", "wilson",
]  # fmt: skip
