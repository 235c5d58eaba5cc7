"""The table of approximate steps: each reuse rule beside the exact loop, and beside rules that keep other keys at the same cost.

One row per model, task, decoding and rule; the draws of a random rule are one row. Differences are paired by document.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from sinkscope.reuse.text import parse_reuse
from sinkscope.statistics import Estimate, bounded, compare, mean_difference, mean_interval, ratio_interval, wilson
from sinkscope.study.comparison import holm_over

CONTROLS = ("random", "recent")
"""How the rules beside which a sparse rule stands choose their keys."""

UNKNOWN = (None,) * 4
"""A difference with its interval and p, where there is none."""


class Rule:
    """The rows of one rule under one model, task and decoding.

    Attributes:
        graded: of its answers. agreed: of its comparisons with exact runs.
    """

    def __init__(self, name: str, rows: pd.DataFrame) -> None:
        self.rule = parse_reuse(name)
        compared = rows.get("tokens_equal", pd.Series(index=rows.index, dtype=float)).notna()
        self.graded, self.agreed = rows[~compared], rows[compared]

    @property
    def scores(self) -> pd.Series:
        """Right or wrong by document, the mean over draws."""
        return self.graded["passed"].astype(float).groupby(self.graded["document"]).mean()

    def of(self, name: str) -> pd.Series:
        """A number of the comparisons by document, the mean over draws that have it; documents without it are left out."""
        if name not in self.agreed:
            return pd.Series(dtype=float)
        return self.agreed[name].astype(float).groupby(self.agreed["document"]).mean().dropna()

    def time_ratio(self) -> Estimate:
        """Seconds under the rule / seconds of the exact runs; documents that ran together were timed once, and count once."""
        seconds, exact, together = (self.agreed[name] for name in ("seconds", "seconds_exact", "timed_with"))
        return ratio_interval(seconds.to_numpy(), exact.to_numpy(), together.tolist())


def build(frames: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The table `reuse`, of the records of exact answers without a policy, those under rules, and comparisons with exact runs."""
    under_rules = [frames[name] for name in ("reuse_records", "agreement") if "reuse" in frames.get(name, ())]
    if not under_rules:
        return {}
    exact = [frames["records"][frames["records"]["policy"] == "none"]] if "records" in frames else []
    filled = [frame for frame in (*exact, *(frame.dropna(subset="reuse") for frame in under_rules)) if len(frame)]
    every = pd.concat(filled, ignore_index=True)
    every["reuse"] = every["reuse"].fillna("none").map(_first_draw)
    columns = [str(column) for column in filled[0]]
    setting = columns[: columns.index("cell")]
    rows = []
    for _, group in every.groupby(["model", "task", "decoding_name"], sort=False):
        rules = {str(name): Rule(str(name), part) for name, part in group.groupby("reuse", sort=False)}
        for name, of_rule in rules.items() if set(rules) != {"none"} else ():
            mine = group[group["reuse"] == name]
            about = mine.iloc[0][setting].to_dict() | {"cell": " ".join(mine["cell"].unique()), "reuse": name}
            rows.append(about | _row(of_rule, rules))
    return {"reuse": holm_over(pd.DataFrame(rows))}


def _first_draw(text: str) -> str:
    rule = parse_reuse(text)
    return "none" if rule is None else str(rule.with_seed(0))


def _row(of_rule: Rule, rules: Mapping[str, Rule]) -> dict[str, Any]:
    """The numbers of one rule."""
    row: dict[str, Any] = {
        "series": "exact" if of_rule.rule is None else of_rule.rule.series,
        "draws": max(of_rule.graded["cell"].nunique(), of_rule.agreed["cell"].nunique()),
        **_accuracy(of_rule, rules.get("none")),
        "work_saved": _work_saved(of_rule),
        **_agreement(of_rule),
    }
    for by in CONTROLS:
        rule = None if of_rule.rule is None else of_rule.rule.choosing(by)
        beside = rules.get(str(rule)) if rule is not None and rule != of_rule.rule else None
        row |= _beside(f"over_{by}", of_rule, beside)
    return row


def _accuracy(of_rule: Rule, exact: Rule | None) -> dict[str, Any]:
    row = dict.fromkeys(("n", "accuracy", "low", "high", "same_text")) | bounded("difference", *UNKNOWN)
    if of_rule.graded.empty:
        return row
    scores = of_rule.scores
    low, high = wilson(min(float(len(scores)), scores.sum()), len(scores))
    row |= {"n": len(scores), "accuracy": scores.sum() / len(scores), "low": low, "high": high}
    if exact is None or exact is of_rule or exact.graded.empty:
        return row
    texts = exact.graded.drop_duplicates("document").set_index("document")["output"]
    same = of_rule.graded["output"] == of_rule.graded["document"].map(texts)
    return row | {"same_text": float(same.mean())} | _difference("difference", scores, exact.scores)


def _work_saved(of_rule: Rule) -> float | None:
    if of_rule.rule is None:
        return 0.0
    rows = pd.concat([of_rule.agreed, of_rule.graded]).reindex(columns=["macs", "macs_exact"]).astype(float).dropna()
    return 1 - rows["macs"].sum() / rows["macs_exact"].sum() if len(rows) else 0.0


def _agreement(of_rule: Rule) -> dict[str, Any]:
    """Tokens equal, first step that differs, divergence and time, with intervals over documents (time: over batches of them)."""
    if of_rule.agreed.empty:
        nothing: dict[str, Any] = dict.fromkeys(("agreement_n", "same_tokens", "first_step"))
        return nothing | bounded("tokens_equal") | bounded("kl") | bounded("time_saved")
    equal, divergence, parted = (of_rule.of(name) for name in ("tokens_equal", "kl", "first_step"))
    ratio = of_rule.time_ratio()
    return {
        "agreement_n": len(equal),
        "same_tokens": float((equal == 1).mean()),
        "first_step": float(parted.median()) if len(parted) else None,  # of the documents that part at all
        **bounded("tokens_equal", *mean_interval(equal, scale="share")),
        **bounded("kl", *(mean_interval(divergence) if len(divergence) else ())),
        **bounded("time_saved", 1 - ratio.value, 1 - ratio.high, 1 - ratio.low),
    }


def _beside(stem: str, of_rule: Rule, control: Rule | None) -> dict[str, Any]:
    """Paired differences to a rule that keeps as many other keys: accuracy, tokens equal, divergence (positive: more of it)."""
    row = bounded(stem, *UNKNOWN)
    if control is not None and len(of_rule.graded) and len(control.graded):
        row |= _difference(stem, of_rule.scores, control.scores)
    for name in ("tokens_equal", "kl"):
        values, other = of_rule.of(name), pd.Series(dtype=float) if control is None else control.of(name)
        both = values.index.intersection(other.index)
        apart = mean_difference(values[both], other[both]) if len(both) > 1 else ()
        row |= bounded(f"{name}_{stem}", *apart)
    return row


def _difference(stem: str, first: pd.Series, second: pd.Series) -> dict[str, Any]:
    comparison = compare(first, second[first.index])
    return bounded(stem, *comparison.difference, comparison.p)
