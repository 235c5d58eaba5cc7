"""`sinkscope view`: one trace, or two side by side, as one HTML file."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from sinkscope.errors import InputError
from sinkscope.trace.trace import Trace


def view(path: Path, other: Path | None, out: Path | None, heads: str, samples: str) -> None:
    """Writes the page and says where it is and what it holds."""
    from sinkscope.report.html import write_viewer

    chosen = parse_heads(heads)
    target = out if out is not None else beside(path, other)
    console = Console()
    traces = [Trace.open(one) for one in (path, other) if one is not None]
    names = trace_names(path, other, traces)
    with console.status("reading and packing"):
        write_viewer(target, *traces, heads=chosen, samples=parse_samples(samples), names=names)
    console.print(Text(f"{target} ({target.stat().st_size / 1e6:.1f} MB)"), soft_wrap=True)
    console.print("open it in a browser; it needs no network")


def parse_heads(text: str) -> tuple[tuple[int, int], ...]:
    """`3:1,5:0` → layer 3, head 1 and layer 5, head 0."""
    found = []
    for word in text.replace(" ", "").split(","):
        if not word:
            continue
        layer, mark, head = word.partition(":")
        if not (mark and layer.isdecimal() and head.isdecimal()):
            raise InputError(f"--heads should be layer:head, such as 3:1,5:0, got {word!r}")
        found.append((int(layer), int(head)))
    return tuple(dict.fromkeys(found))


def parse_samples(text: str) -> list[int] | None:
    """`0,2` → [0, 2]; empty: as many as fit."""
    words = [word for word in text.replace(" ", "").split(",") if word]
    if not all(word.isdecimal() for word in words):
        raise InputError(f"--samples should be numbers, such as 0,2, got {text!r}")
    return [int(word) for word in words] or None


def beside(path: Path, other: Path | None) -> Path:
    """The page's path when none is given: here, named after the traces."""
    names = [stem(one) for one in (path, other) if one is not None]
    return Path("-and-".join(names) + ".html")


def stem(path: Path) -> str:
    """The name of a trace without its endings."""
    return path.name.removesuffix(".partial").removesuffix(".zip").removesuffix(".zarr")


def trace_names(path: Path, other: Path | None, traces: list[Trace]) -> tuple[str | None, str | None]:
    """Two traces of one model are told apart by their files."""
    if other is None or len({trace.attributes.get("model") for trace in traces}) > 1:
        return None, None
    return stem(path), stem(other)
