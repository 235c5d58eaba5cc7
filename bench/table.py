"""The benchmark's table, from the JSON of a run: for the terminal and, the same, for the docs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def rows(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """Heading → cell for every case; ratios are of medians of the same run."""
    if result["shape"] == "job":
        return [_job_row(case) for case in result["cases"]]
    if result["shape"] == "reuse":
        return [_reuse_row(case) for case in result["cases"]]
    return [_row(case, result["family"]) for case in result["cases"]]


def _job_row(case: Mapping[str, Any]) -> dict[str, str]:
    each = case["seconds"] / case["steps"] / case["documents"]
    return {
        "policy": case["policy"],
        "documents": f"{case['documents']}",
        "batches": f"{len(case['batches'])} of at most {max(case['batches'])} rows",
        "seconds": f"{case['seconds']:.1f}",
        "tokens per second": f"{case['tokens_per_second']:,.0f}",
        "of the steady throughput": f"{case['tokens_per_second'] / case['steady_tokens_per_second']:.0%}",
        "per document and step": f"{each * 1e3:.1f} ms",
        "official, one prompt": f"{case['official_seconds'] * 1e3:.1f} ms",
        "official / ours": _ratio(case["official_seconds"], each),
    }


def _reuse_row(case: Mapping[str, Any]) -> dict[str, str]:
    each, exact, work = (case.get(name) for name in ("seconds", "exact_seconds", "work_saved"))
    saved = None if each is None else 1 - each / exact
    return {
        "batch × length": f"{case['batch']} × {case['length']}",
        "rule": case["rule"],
        "exact step": _milliseconds(exact),
        "step, mean of whole blocks": "out of memory" if each is None else _milliseconds(each),
        "exact / rule": _ratio(exact, each),
        "full step": _milliseconds(case.get("full_seconds")),
        "partial step": _milliseconds(case.get("partial_seconds")),
        "work saved": "–" if work is None else f"{work:.1%}",
        "time saved": "–" if saved is None else f"{saved:.1%}",
        "time saved / work saved": "–" if saved is None else f"{saved / work:.2f}",
    }


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.1f} ms"


def _row(case: Mapping[str, Any], family: str) -> dict[str, str]:
    """A case of steps; of block diffusion the official code is another loop each, and is not timed."""
    timings = case["timings"]
    times = {name: each for name, each in timings.items() if isinstance(each, Mapping)}

    def ms(name: str) -> str:
        return _milliseconds(times[name]["seconds"]) if name in times else timings.get(name, "–")

    def over(name: str, other: str, rows: int = 1) -> str:
        known = name in times and other in times
        return _ratio(rows * times[name]["seconds"], times[other]["seconds"]) if known else ""

    def peak(name: str) -> str:
        most = times.get(name, {}).get("peak")
        return "–" if most is None else f"{most / 2**30:.1f} GiB"

    row = {
        "batch × length": f"{case['batch']} × {case['length']}",
        "untraced, per token" if family == "causal" else "untraced": ms("untraced"),
        "traced": ms("traced"),
        "traced / untraced": over("traced", "untraced"),
        "masked / traced": over("masked", "traced"),
    }
    if family == "causal":
        return row | {
            "transformers generate": ms("transformers"),
            "transformers / untraced": over("transformers", "untraced"),
            "transformers, static and compiled": ms("transformers, compiled"),
            "bandwidth limit": _milliseconds(case["bandwidth_limit"]),
        }
    if "compute_limit" not in case:  # block diffusion
        return row | {"peak: traced": peak("traced")}
    return row | {
        "official, one prompt": ms("official"),
        "official / traced, per prompt": over("official", "traced", case["batch"]),
        "eager maps / traced": over("eager", "traced") or timings.get("eager", "–"),
        "peak: traced, eager": f"{peak('traced')}, {peak('eager')}",
        "compute limit": _milliseconds(case["compute_limit"]),
        "bandwidth limit": _milliseconds(case["bandwidth_limit"]),
    }


def _ratio(first: float | None, second: float | None) -> str:
    return "" if first is None or second is None else f"{first / second:.2f}×"


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
    if result["shape"] == "reuse":
        timed = max(case.get("steps", 0) for case in result["cases"])
        what = (
            f"LLaDA's loop, one token per step, answer {answer} or at most half the length. Means of {timed // block} whole "
            f"blocks of {block} steps in the middle of the answer; medians of exact, full and partial steps. Work: "
            "multiply-adds of the layers in the same blocks."
        )
    return (
        f"{result['shape']} ({result['parameters'] / 1e6:,.0f}M parameters), {result['dtype']}, {result['device']}, "
        f"{result['date']}; {versions}. {what} The device reached "
        f"{result['flops'] / 1e12:.4g} TFLOP/s and {result['bandwidth'] / 1e9:.4g} GB/s on plain work in the same run."
    )


def line(result: Mapping[str, Any]) -> str:
    """The latest case."""
    return ", ".join(f"{name}: {cell}" for name, cell in rows(result)[-1].items() if cell)


def text(result: Mapping[str, Any]) -> str:
    """For the terminal."""
    cells = rows(result)
    lines = [list(cells[0]), *(list(row.values()) for row in cells)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = ("  ".join(map(str.rjust, line, widths)) for line in lines)
    return "\n".join([title(result), "", *aligned])
