"""The benchmark's table, from the JSON of a run: for the terminal and, the same, for the docs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    row = {"batch × length": f"{case['batch']} × {case['length']}", "rule": case["rule"]}
    if case["seconds"] is None:
        case = dict.fromkeys(("exact_seconds", "full_seconds", "partial_seconds", "work_saved")) | dict(case)
    each, exact, work = case["seconds"], case["exact_seconds"], case["work_saved"]
    saved = None if each is None else 1 - each / exact
    return row | {
        "exact step": _milliseconds(exact),
        "step, mean of whole blocks": "out of memory" if each is None else _milliseconds(each),
        "exact / rule": _ratio(exact, each),
        "full step": _milliseconds(case["full_seconds"]),
        "partial step": _milliseconds(case["partial_seconds"]),
        "work saved": "–" if work is None else f"{work:.1%}",
        "time saved": "–" if saved is None else f"{saved:.1%}",
        "time saved / work saved": "–" if saved is None else f"{saved / work:.2f}",
    }


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.1f} ms"


def _row(case: Mapping[str, Any], family: str) -> dict[str, str]:
    """A case of steps; of block diffusion the official code is another loop each, and is not timed."""
    timings = case["timings"].items()
    time: dict[str, float] = {name: one["seconds"] for name, one in timings if isinstance(one, Mapping)}

    def ms(name: str) -> str:
        return _milliseconds(time[name]) if name in time else _why(case, name)

    def over(name: str, other: str) -> str:
        return _ratio(time.get(name), time.get(other))

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
    if family in ("llada2", "sdar"):
        return row | {"peak: traced": _gib(case, "traced")}
    per_prompt = time["official"] * case["batch"] if "official" in time else None
    return row | {
        "official, one prompt": ms("official"),
        "official / traced, per prompt": _ratio(per_prompt, time.get("traced")),
        "eager maps / traced": over("eager", "traced") or _why(case, "eager"),
        "peak: traced, eager": ", ".join(_gib(case, name) for name in ("traced", "eager")),
        "compute limit": _milliseconds(case["compute_limit"]),
        "bandwidth limit": _milliseconds(case["bandwidth_limit"]),
    }


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


def text(result: Mapping[str, Any]) -> str:
    """For the terminal."""
    cells = rows(result)
    lines = [list(cells[0]), *(list(row.values()) for row in cells)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
    ]
    return "\n".join([title(result), "", *aligned])


def markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """For the docs."""
    parts = []
    for result in results:
        cells = rows(result)
        parts += [title(result), "", "| " + " | ".join(cells[0]) + " |", "|" + "---|" * len(cells[0])]
        parts += ["| " + " | ".join(row.values()) + " |" for row in cells]
        parts.append("")
    return "\n".join(parts)
