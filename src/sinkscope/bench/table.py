"""The benchmark's table, from the JSON of a run: for the terminal and, the same, for the docs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

BLOCKS = ("llada2", "sdar", "fast_dllm_v2")
"""Families whose loops go from block to block."""

HEADINGS = (
    "batch × length",
    "untraced",
    "traced",
    "traced / untraced",
    "masked / traced",
    "official, one prompt",
    "official / traced, per prompt",
    "eager maps / traced",
    "peak: traced, eager",
    "compute limit",
    "bandwidth limit",
)


BLOCK_HEADINGS = (*HEADINGS[:5], "peak: traced")
"""Block diffusion: the official code is another loop each, and is not timed."""


CAUSAL_HEADINGS = (
    "batch × length",
    "untraced, per token",
    "traced",
    "traced / untraced",
    "masked / traced",
    "transformers generate",
    "transformers / untraced",
    "transformers, static and compiled",
    "bandwidth limit",
)


JOB_HEADINGS = (
    "policy",
    "documents",
    "batches",
    "seconds",
    "tokens per second",
    "of the steady throughput",
    "per document and step",
    "official, one prompt",
    "official / ours",
)


def headings(result: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns of a result."""
    if result["shape"] == "job":
        return JOB_HEADINGS
    if result["family"] == "causal":
        return CAUSAL_HEADINGS
    return BLOCK_HEADINGS if result["family"] in BLOCKS else HEADINGS


def rows(result: Mapping[str, Any]) -> list[list[str]]:
    """One row of cells per case; ratios are of medians of the same run."""
    if result["shape"] == "job":
        return [_job_row(case) for case in result["cases"]]
    if result["family"] in BLOCKS:
        return [_block_row(case) for case in result["cases"]]
    row = _causal_row if result["family"] == "causal" else _row
    return [row(case) for case in result["cases"]]


def _job_row(case: Mapping[str, Any]) -> list[str]:
    each = case["seconds"] / case["steps"] / case["documents"]
    return [
        case["policy"],
        f"{case['documents']}",
        f"{len(case['batches'])} of at most {max(case['batches'])} rows",
        f"{case['seconds']:.1f}",
        f"{case['tokens_per_second']:,.0f}",
        f"{case['tokens_per_second'] / case['steady_tokens_per_second']:.0%}",
        f"{each * 1e3:.1f} ms",
        f"{case['official_seconds'] * 1e3:.1f} ms",
        _ratio(case["official_seconds"], each),
    ]


def _causal_row(case: Mapping[str, Any]) -> list[str]:
    timings = case["timings"].items()
    time = {name: timing["seconds"] for name, timing in timings if isinstance(timing, Mapping)}
    untraced, traced, theirs = time.get("untraced"), time.get("traced"), time.get("transformers")
    return [
        f"{case['batch']} × {case['length']}",
        _ms(untraced, case, "untraced"),
        _ms(traced, case, "traced"),
        _ratio(traced, untraced),
        _ratio(time.get("masked"), traced),
        _ms(theirs, case, "transformers"),
        _ratio(theirs, untraced),
        _ms(time.get("transformers, compiled"), case, "transformers, compiled"),
        _ms(case["bandwidth_limit"], case, ""),
    ]


def _row(case: Mapping[str, Any]) -> list[str]:
    timings = case["timings"].items()
    time = {name: timing["seconds"] for name, timing in timings if isinstance(timing, Mapping)}
    traced, official = time.get("traced"), time.get("official")
    per_prompt = None if official is None else official * case["batch"]
    return [
        f"{case['batch']} × {case['length']}",
        _ms(time.get("untraced"), case, "untraced"),
        _ms(traced, case, "traced"),
        _ratio(traced, time.get("untraced")),
        _ratio(time.get("masked"), traced),
        _ms(official, case, "official"),
        _ratio(per_prompt, traced),
        _ratio(time.get("eager"), traced) or _why(case, "eager"),
        ", ".join(_gib(case, name) for name in ("traced", "eager")),
        _ms(case["compute_limit"], case, ""),
        _ms(case["bandwidth_limit"], case, ""),
    ]


def _block_row(case: Mapping[str, Any]) -> list[str]:
    timings = case["timings"].items()
    time = {name: timing["seconds"] for name, timing in timings if isinstance(timing, Mapping)}
    traced = time.get("traced")
    return [
        f"{case['batch']} × {case['length']}",
        _ms(time.get("untraced"), case, "untraced"),
        _ms(traced, case, "traced"),
        _ratio(traced, time.get("untraced")),
        _ratio(time.get("masked"), traced),
        _gib(case, "traced"),
    ]


def _ms(seconds: float | None, case: Mapping[str, Any], name: str) -> str:
    return _why(case, name) if seconds is None else f"{seconds * 1e3:.1f} ms"


def _why(case: Mapping[str, Any], name: str) -> str:
    reason = case["timings"].get(name)
    return reason if isinstance(reason, str) else "–"


def _ratio(first: float | None, second: float | None) -> str:
    return "" if first is None or second is None else f"{first / second:.2f}×"


def _gib(case: Mapping[str, Any], name: str) -> str:
    timing = case["timings"].get(name)
    peak = timing.get("peak") if isinstance(timing, Mapping) else None
    return "–" if peak is None else f"{peak / 2**30:.1f} GiB"


def title(result: Mapping[str, Any]) -> str:
    """The title: shape, device, date, versions and settings."""
    settings = result["settings"]
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    turns = settings.get("turns", 1)
    steps = f"{settings['steps']} steps" + (f" in each of {turns} turns" if turns > 1 else "")
    answer, block, level, policy = (settings[name] for name in ("answer", "block", "capture", "policy"))
    blocks = "" if result["family"] == "causal" else f"block {block}, "
    what = (
        f"Medians of the steps of one run ({steps}, answer {answer} or at most half the length, {blocks}level {level}, masked: "
        f"{policy} at head scope, raw scores)."
    )
    if result["shape"] == "job":
        what = (
            f"GSM8K's first {result['cases'][0]['documents']} documents by the lengths of their prompts, answer {answer}, "
            f"{settings['steps']} steps, block {block}, untraced; the official loop at their mean length."
        )
    return (
        f"{result['shape']} ({result['parameters'] / 1e6:,.0f}M parameters), {result['dtype']}, {result['device']}, "
        f"{result['date']}; {versions}. {what} The device reached "
        f"{result['flops'] / 1e12:.4g} TFLOP/s and {result['bandwidth'] / 1e9:.4g} GB/s on plain work in the same run."
    )


def text(result: Mapping[str, Any]) -> str:
    """For the terminal."""
    lines = [list(headings(result)), *rows(result)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    aligned = [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
    ]
    return "\n".join([title(result), "", *aligned])


def markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """For the docs."""
    parts = []
    for result in results:
        names = headings(result)
        parts += [title(result), "", "| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
        parts += ["| " + " | ".join(row) + " |" for row in rows(result)]
        parts.append("")
    return "\n".join(parts)
