"""Figures for papers: the paper's figures 1 and 3–10, from traces.

One function for each, `plot_…(traces, *, …)`, that returns a `PaperFigure`: the matplotlib figure, the data
behind it and a caption. `make` finds the function by the figure's number; `save_all` saves every figure that traces allow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkscope.base.checks import one_of
from sinkscope.base.errors import InputError

if TYPE_CHECKING:
    import xarray

    from sinkscope.report.figures.look import PaperFigure

FIGURES = {
    "figure_1": ("heat_map", "plot_heat_map"), "figure_3": ("score_histogram", "plot_score_histogram"),
    "figure_4": ("map_figures", "plot_moving_sink"), "figure_5": ("layer_head", "plot_layer_head"),
    "figure_6": ("map_figures", "plot_split_sinks"), "figure_7": ("sink_path", "plot_sink_path"),
    "figure_8": ("map_figures", "plot_fixed_sink"), "figure_9": ("score_histogram", "plot_score_histograms"),
    "figure_10": ("filtered_share", "plot_filtered_share"),
}  # fmt: skip
"""Number in the paper → file and function. Figure 2 is a drawing of decoding orders and shows no data."""

TOGETHER = ("figure_1", "figure_5", "figure_7", "figure_9", "figure_10")
"""Those that show several traces at once; the others are drawn for each trace."""

MAPS = ("figure_4", "figure_6", "figure_8")
"""Those that need traces at level "maps"."""

IN_MEMORY = 2**29
"""Bytes up to which a trace is read as a whole."""


def make(name: str, source: Any, **options: Any) -> PaperFigure:
    """One figure. source: a trace, or {name: trace}; options: those of its function."""
    check_names([name])
    file, function = FIGURES[name]
    figure: PaperFigure = getattr(import_module(f"{__name__}.{file}"), function)(source, **options)
    return figure


def check_names(names: Sequence[str]) -> None:
    """Raises InputError for a figure that the paper does not have."""
    for name in names:
        one_of("figure", name, FIGURES)


@dataclass(frozen=True)
class Saved:
    """The files of each figure, and why the others could not be drawn."""

    files: dict[str, list[Path]]
    left_out: dict[str, str]


def save_all(
    traces: Mapping[str, Any],
    folder: Path,
    *,
    maps: Mapping[str, Any] | None = None,
    only: Sequence[str] = (),
    force: bool = True,
) -> Saved:
    """Saves every figure that the traces allow into a folder.

    Args:
        traces: name → trace. maps: those with whole maps, where these are others.
        force: replace files that exist already; False raises InputError before anything is drawn.
    """
    from sinkscope.report.figures.sources import named

    names = list(only or FIGURES)
    check_names(names)
    if not force:
        check_free(folder, names)
    usual, whole = (
        {label: in_memory(data) for label, data in named(dict(given)).items()} if given else {}
        for given in (traces, traces if maps is None else maps)
    )
    made = Saved({}, {})
    for name in names:
        loaded = whole if name in MAPS else usual
        if not loaded:
            made.left_out[name] = "it needs a trace"
            continue
        sources = {"": loaded} if name in TOGETHER else {label: {label: data} for label, data in loaded.items()}
        for label, source in sources.items():
            suffix = file_name(label) if len(sources) > 1 else ""
            try:
                saved = make(name, source).save(folder, suffix)
                made.files.setdefault(name, []).extend(saved)
            except InputError as error:
                made.left_out[name + (f" of {suffix}" if suffix else "")] = str(error)
    return made


def check_free(folder: Path, names: Sequence[str]) -> None:
    """Raises InputError when a folder already holds one of these figures."""
    for name in names:
        taken = sorted([*folder.glob(f"{name}.*"), *folder.glob(f"{name}_*")])
        if taken:
            raise InputError(f"{taken[0]} exists already; give another --out, or --force to replace figures")


def in_memory(data: xarray.Dataset) -> xarray.Dataset:
    """A small trace read once: nine figures would otherwise each read it again."""
    return data.load() if data.nbytes <= IN_MEMORY else data


def file_name(label: str) -> str:
    """A trace's name as part of a file's name."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in label).strip("-.") or "trace"
