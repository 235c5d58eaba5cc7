"""`sinkscope view`: one trace, or two side by side, as one HTML file."""

from __future__ import annotations

import webbrowser
from pathlib import Path

from sinkscope.commands.output import numbers, refuse_existing, say, show_json, working
from sinkscope.errors import InputError
from sinkscope.trace.trace import Trace


def view(
    path: Path,
    other: Path | None,
    out: Path | None,
    heads: str,
    samples: str,
    open_it: bool = False,
    force: bool = False,
    json: bool = False,
) -> None:
    """Writes the page, says where it is and how large, and opens it when asked to."""
    from sinkscope.report.html import write_viewer

    chosen, wanted = parse_heads(heads), parse_samples(samples)
    target = out if out is not None else beside(path, other)
    if not force:
        refuse_existing(target, "--out")
    traces = [Trace.open(trace) for trace in (path, other) if trace is not None]
    names = trace_names(path, other, traces)
    with working("reading and packing"):
        write_viewer(
            target, *traces, heads=chosen, samples=wanted, names=names, files=(str(path), str(other or ""))
        )
    opened = open_it and webbrowser.open(target.resolve().as_uri())
    if json:
        show_json({"page": target, "bytes": target.stat().st_size, "opened": opened})
        return
    say(f"{target} ({target.stat().st_size / 1e6:.1f} MB, needs no network)")
    if open_it and not opened:
        say("no browser was found here; open the file in one")
    elif not opened:
        say("open it in a browser, or add --open")


def parse_heads(text: str) -> tuple[tuple[int, int], ...]:
    """`3:1,5:0` → layer 3, head 1 and layer 5, head 0."""
    pairs = []
    for word in filter(None, text.replace(" ", "").split(",")):
        layer, mark, head = word.partition(":")
        if not (mark and layer.isdecimal() and head.isdecimal()):
            raise InputError(f"--heads should be layer:head, such as 3:1,5:0, got {word!r}")
        pairs.append((int(layer), int(head)))
    return tuple(dict.fromkeys(pairs))


def parse_samples(text: str) -> list[int] | None:
    """`0,2` → [0, 2]; empty: as many as fit."""
    return numbers(text, "--samples", "numbers, such as 0,2") or None


def beside(path: Path, other: Path | None) -> Path:
    """The page's path when none is given: here, named after the traces."""
    return Path("-and-".join(stem(trace) for trace in (path, other) if trace is not None) + ".html")


def stem(path: Path) -> str:
    """The name of a trace without its endings."""
    return path.name.removesuffix(".partial").removesuffix(".zip").removesuffix(".zarr")


def trace_names(path: Path, other: Path | None, traces: list[Trace]) -> tuple[str | None, str | None]:
    """Two traces of one model are told apart by their files."""
    if other is None or len({trace.attributes.get("model") for trace in traces}) > 1:
        return None, None
    return stem(path), stem(other)
