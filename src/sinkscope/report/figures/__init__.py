"""Figures for papers: the paper's figures 1, 3–10 and tables 1–2, from traces.

One file per figure, each with three functions: `table` (traces → the data behind it), `draw` (that table → a matplotlib
figure) and `caption` (what is seen, how it was computed, what it does not show). `make` does all three, `save` writes SVG,
PDF, CSV and the caption, `save_all` every figure that the traces allow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.errors import InputError, nearest

if TYPE_CHECKING:
    import pandas as pd
    import xarray
    from matplotlib.figure import Figure

FIGURES = {
    "figure_1": "heat_map",
    "figure_3": "score_histogram",
    "figure_4": "moving_sink",
    "figure_5": "layer_head",
    "figure_6": "split_sinks",
    "figure_7": "sink_path",
    "figure_8": "fixed_sink",
    "figure_9": "score_histograms",
    "figure_10": "filtered_share",
    "table_1": "masking_table",
    "table_2": "composition_table",
}
"""Number in the paper → file. Figure 2 is a drawing of decoding orders and shows no data."""

TOGETHER = ("figure_1", "figure_7", "figure_9", "figure_10", "table_2")
"""Those that show several traces at once; the others are drawn for each trace."""

MAPS = ("figure_4", "figure_6", "figure_8")
"""Those that need traces at level "maps"."""


IN_MEMORY = 2**29
"""Bytes up to which a trace is read as a whole."""


@dataclass(frozen=True)
class Drawing:
    """A finished figure: its number, title, the matplotlib figure, the data behind it, and its caption."""

    name: str
    title: str
    figure: Figure
    table: pd.DataFrame
    caption: str


def make(name: str, source: Any, **options: Any) -> Drawing:
    """One figure. source: a trace, {name: trace}, or for table_1 a table of accuracies; options: those of its `table`."""
    if name not in FIGURES:
        raise InputError(f"unknown figure {name!r}: {nearest(name, FIGURES)}")
    module = import_module(f"sinkscope.report.figures.{FIGURES[name]}")
    table = module.table(source, **options)
    caption = module.caption(table) if name == "table_1" else module.caption(source, table)
    return Drawing(name, module.TITLE, module.draw(table), table, caption)


def save(drawing: Drawing, folder: Path, suffix: str = "") -> list[Path]:
    """Writes NAME.svg, NAME.pdf, NAME.csv and NAME.txt (the caption); existing files of that name are replaced."""
    from sinkscope.report.figures.look import style

    folder.mkdir(parents=True, exist_ok=True)
    stem = drawing.name + (f"_{suffix}" if suffix else "")
    made = [folder / f"{stem}.{ending}" for ending in ("svg", "pdf", "csv", "txt")]
    with style():
        # No date, so that the same data give the same file.
        drawing.figure.savefig(made[0], metadata={"Date": None, "Title": drawing.title})
        drawing.figure.set_layout_engine("none")  # it is laid out now, and need not be again
        drawing.figure.savefig(made[1], metadata={"CreationDate": None, "Title": drawing.title})
    drawing.table.to_csv(made[2], index=False)
    made[3].write_text(f"{drawing.title}. {drawing.caption}\n", encoding="utf-8")
    return made


@dataclass(frozen=True)
class Saved:
    """What `save_all` did: files by figure, and why the others could not be drawn."""

    files: dict[str, list[Path]]
    left_out: dict[str, str]


def save_all(
    traces: Mapping[str, Any],
    folder: Path,
    *,
    only: Sequence[str] = (),
    accuracies: pd.DataFrame | None = None,
) -> Saved:
    """Every figure that the traces allow, into a folder. traces: name → trace, none for table 1 alone; accuracies: for it."""
    from sinkscope.report.figures.sources import named

    for name in only:
        if name not in FIGURES:
            raise InputError(f"unknown figure {name!r}: {nearest(name, FIGURES)}")
    found = {label: in_memory(data) for label, data in named(dict(traces)).items()} if traces else {}
    files: dict[str, list[Path]] = {}
    left_out: dict[str, str] = {}

    def draw(name: str, source: Any, suffix: str = "") -> None:
        try:
            files.setdefault(name, []).extend(save(make(name, source), folder, suffix))
        except InputError as error:
            left_out[name + (f" of {suffix}" if suffix else "")] = str(error)

    for name in only or FIGURES:
        if name == "table_1":
            if accuracies is None:
                left_out[name] = "it needs a table of accuracies"
            else:
                draw(name, accuracies)
        elif name in TOGETHER:
            draw(name, found)
        elif not found:
            left_out[name] = "it needs a trace"
        else:
            for label, data in found.items():
                draw(name, {label: data}, "" if len(found) == 1 else file_name(label))
    return Saved({name: made for name, made in files.items() if made}, left_out)


def in_memory(data: xarray.Dataset) -> xarray.Dataset:
    """A small trace read once: eleven figures would otherwise each read it again."""
    return data.load() if data.nbytes <= IN_MEMORY else data


def file_name(label: str) -> str:
    """A trace's name as part of a file's name."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in label).strip("-.") or "trace"
