"""`sinkscope show`: what is in a trace, in sentences and as a table; the viewer's page; the paper's figures."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import sinkscope as ss
from sinkscope.base.errors import InputError
from sinkscope.cli import options
from sinkscope.cli.inputs import numbers
from sinkscope.cli.options import argument, option, refuse, switch
from sinkscope.cli.output import check_target, show_result, table, working

if TYPE_CHECKING:
    from sinkscope.report.figures import Saved

_SOURCE = "a .zarr.zip, or a .partial folder; for --figures a folder with several, or a study's"
_PAGE, _FIGURES = "The viewer's page", "The paper's figures"
WORDS = {
    "absorbed": "attention that goes to sinks",
    "drains": "sinks with a value norm under half the median of their head: they take attention and give little back",
    "hubs": "all other sinks, which may carry content; a trace with --anatomy tells the two apart",
    "residences": "a residence is a run of steps in which one key is a sink of one head",
    "Jaccard index": "of two sets of sinks, those in both as a share of those in either",
    "spatial variance": "how much positions differ in received attention, as means over steps",
    "temporal variance": "how far the centre of the strongest positions wanders from step to step",
    "tied selections": "tokens written while another was as confident, so that their order means little",
    "enrichment": "how many times as often as by chance this kind of token is a sink",
    "gain": "how much better sinks of prompts held out are predicted with this group of features than without it",
    "category − 2 × position": "above 0: of what kind and position of a token explain alone, its kind has two thirds or more",
    "position − 2 × category": "above 0: likewise its position",
}
"""Words of the diagnosis and the table that a reader may not know → what they mean, beneath it."""


def show(
    context: typer.Context,
    source: Annotated[Path, argument("TRACE", _SOURCE)],
    other: Annotated[Path | None, argument("OTHER", "with --view: a second trace, beside the first")] = None,
    everything: Annotated[bool, switch("--all", "the whole table")] = False,
    epsilon: options.Epsilon = None,
    rule: options.Rule = "auto",
    page: Annotated[Path | None, option("FILE", "write one HTML file to look at it", "--view", _PAGE)] = None,
    heads: Annotated[str, option("LAYER:HEAD,…", "heads to embed in full, as 3:1,5:0", panel=_PAGE)] = "",
    samples: Annotated[str, option("N,…", "such as 0,2; default: as many as fit", panel=_PAGE)] = "",
    open_it: Annotated[bool, switch("--open", "open the page in the browser", _PAGE)] = False,
    figures: Annotated[Path | None, option("FOLDER", "write SVG, PDF, CSV, captions", panel=_FIGURES)] = None,
    only: Annotated[str, option("NAME,…", "such as figure_1,figure_5; default: all", panel=_FIGURES)] = "",
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Say what is in a trace: where the sinks are, how strong, whether they move; or write the viewer or figures of it."""
    if page is None:
        refuse(context, "is of the viewer: with --view FILE.html", "other", "heads", "samples", "open_it")
    else:
        check_target(page, "--view", force)
    if figures is None:
        refuse(context, "is of the figures: with --figures FOLDER", "only")
    else:
        check_target(figures, "--figures", folder=True)
    if page is not None or figures is not None:
        refuse(context, "is of the table: without --view and --figures", "everything", "epsilon", "rule")
    # Files that were asked for are all that is wanted: the table is for those who ask for nothing else.
    data: dict[str, Any] = {}
    lines: list[str] = []
    if page is not None:
        with working("reading and packing"):
            write_page(page, [source, *([other] if other else [])], heads, samples)
        opened, megabytes = open_it and webbrowser.open(page.resolve().as_uri()), page.stat().st_size / 1e6
        hint = "no browser was found here; open the file in one" if open_it else "open it in a browser, or add --open"
        lines += [f"{page} ({megabytes:.1f} MB, needs no network)", *([] if opened else [hint])]
        data |= {"page": page, "bytes": page.stat().st_size, "opened": opened}
    if figures is not None:
        with working("drawing"):
            saved = draw(source, figures, [word for word in only.replace(" ", "").split(",") if word], force)
        data |= {"folder": figures, "files": saved.files, "left_out": saved.left_out}
        lines += [f"{name}: {', '.join(path.name for path in files)}" for name, files in saved.files.items()]
        lines += [*(f"{name} left out: {reason}" for name, reason in saved.left_out.items()), f"in {figures}"]
    if data:
        show_result(json, data, lines)
        return
    if source.is_dir() and not source.name.endswith(".partial"):
        raise InputError(
            f"{source} is a folder; give a trace (.zarr.zip), or --figures FOLDER, or sinkscope study --status"
        )
    tell(ss.Trace.open(source), epsilon, rule, everything, json)


def tell(trace: ss.Trace, epsilon: float | None, rule: str, everything: bool, json: bool) -> None:
    """Print the diagnosis and the table, with intervals over prompts where there are several."""
    from sinkscope.base.sink_rule import EPSILON
    from sinkscope.sinks.summary_table import SHORT
    from sinkscope.verdicts.diagnosis import statistics_of
    from sinkscope.verdicts.wording import number, titled

    statistics = statistics_of(trace, epsilon=EPSILON if epsilon is None else epsilon, rule=rule)
    summary, diagnosis = ss.summary(statistics), ss.diagnose(statistics)
    shown = summary if everything else summary[summary["section"].isin(SHORT)]
    rows = [
        (
            "" if repeated else row["section"], titled(row["measure"]), number(row["value"], ".3g") or "unknown",
            " … ".join(filter(None, (number(row[bound], ".3g") for bound in ("low", "high")))),
            row["unit"] + (f" ({row['note']})" if row["note"] else ""),
        )
        for row, repeated in zip(shown.to_dict("records"), shown["section"].eq(shown["section"].shift()), strict=True)
    ]  # fmt: skip
    named = [verdict.question for verdict in diagnosis.verdicts] + [text for row in rows for text in (row[1], row[4])]
    more = "more rows: --all; step by step: --view FILE.html --open; figures: --figures FOLDER"
    lines = [
        repr(trace), diagnosis, "", table(("", "measure", "value", "95 % over prompts", "unit"), rows),
        *(f"{word}: {means}" for word, means in WORDS.items() if any(word in name for name in named)),
        *([] if everything else [f"{len(summary) - len(rows)} {more}"]),
    ]  # fmt: skip
    verdicts = [verdict.data() for verdict in diagnosis.verdicts]
    data = {"trace": repr(trace), "diagnosis": verdicts, "setting": diagnosis.setting, "table": summary}
    show_result(json, data, lines)


def write_page(page: Path, paths: list[Path], heads: str, samples: str) -> None:
    """Write the viewer, of one trace or of two side by side."""
    from sinkscope.report.html import write_viewer

    chosen = list(dict.fromkeys(numbers(heads, "--heads", "layer:head, such as 3:1,5:0", r"\d+:\d+")))
    rows = [sample for (sample,) in numbers(samples, "--samples", "numbers, such as 0,2")] or None
    traces = [ss.Trace.open(path) for path in paths]
    alike = len(traces) > 1 and len({trace.attributes.get("model") for trace in traces}) == 1
    # Two traces of one model are told apart by their files.
    names = (stem(paths[0]), stem(paths[1])) if alike else (None, None)
    files = (str(paths[0]), str(paths[1]) if len(paths) > 1 else "")
    write_viewer(page, *traces, heads=chosen, samples=rows, names=names, files=files)


def draw(source: Path, out: Path, only: list[str], force: bool) -> Saved:
    """Draw what the traces, or the study, allow."""
    from sinkscope.report.figures import save_all
    from sinkscope.report.study.drawing import save_study

    if (source / "study.toml").is_file():
        return save_study(source, out, only, force=force)
    traces = {name: ss.Trace.open(path) for name, path in find_traces(source).items()}
    return save_all(traces, out, only=only, force=force)


def stem(path: Path) -> str:
    """The name of a trace without its endings."""
    return path.name.removesuffix(".partial").removesuffix(".zip").removesuffix(".zarr")


def find_traces(source: Path) -> dict[str, Path]:
    """Name in the figures → path: one trace, or every `.zarr.zip` under a folder."""
    if source.name.endswith((".zip", ".partial", ".zarr")):
        return {stem(source): source}
    if not source.is_dir():
        raise InputError(f"{source} is neither a trace (.zarr.zip) nor a folder with traces")
    paths = sorted(source.rglob("*.zarr.zip"))
    if not paths:
        raise InputError(f"{source} holds no trace (.zarr.zip); make one with sinkscope trace")
    alone = len({stem(path) for path in paths}) == len(paths)
    return {stem(path) if alone else str(path.relative_to(source).parent / stem(path)): path for path in paths}
