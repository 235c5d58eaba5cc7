"""The page: sections in their order, contents, and one file around them."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files

from sinkscope.report.html import page, viewer_style
from sinkscope.report.study.anatomy import anatomy
from sinkscope.report.study.claims_table import claims_table
from sinkscope.report.study.composition import composition
from sinkscope.report.study.dynamics import dynamics
from sinkscope.report.study.emergence import emergence
from sinkscope.report.study.exemplars import maps, traces
from sinkscope.report.study.holdings import what_they_hold
from sinkscope.report.study.ladder import training_runs
from sinkscope.report.study.likelihood import likelihood
from sinkscope.report.study.markup import Safe, join, tag
from sinkscope.report.study.masking import masking
from sinkscope.report.study.mechanisms import mechanisms
from sinkscope.report.study.provenance import provenance
from sinkscope.report.study.reuse import approximate_steps
from sinkscope.report.study.skills import skills
from sinkscope.report.study.source import StudySource
from sinkscope.report.study.summary import summary
from sinkscope.report.study.verdicts import verdicts
from sinkscope.report.study.words import note
from sinkscope.version import __version__

SECTIONS: dict[str, tuple[str, Callable[[StudySource], Safe | None]]] = {
    "summary": ("In five sentences", summary),
    "verdict": ("Verdict", verdicts),
    "claims": ("The paper’s claims", claims_table),
    "masking": ("What breaks without them", masking),
    "skills": ("Which skills", skills),
    "maps": ("Where attention goes", maps),
    "composition": ("What they are made of", composition),
    "dynamics": ("Do they move?", dynamics),
    "anatomy": ("Anatomy", anatomy),
    "mechanisms": ("Single steps and pairs", mechanisms),
    "likelihood": ("Likelihood of text", likelihood),
    "inspection": ("What they hold", what_they_hold),
    "reuse": ("Approximate steps", approximate_steps),
    "ladder": ("Training runs", training_runs),
    "emergence": ("When they appear", emergence),
    "traces": ("The traces", lambda source: None),
    "settings": ("Settings and provenance", provenance),
}
"""Anchor → title in the contents, and what makes the section; the traces bring a script of their own."""

CONTENTS = {anchor: title for anchor, (title, _) in SECTIONS.items()}


def report_page(source: StudySource) -> str:
    """The whole report as one HTML document."""
    embedded = traces(source)
    made = {anchor: section(source) for anchor, (_, section) in SECTIONS.items()}
    made["traces"] = None if embedded is None else embedded.section
    present = {name: part for name, part in made.items() if part is not None}
    title = f"{source.study.name} · sinkscope study"
    entries = [tag("li", tag("a", CONTENTS[name], href=f"#{name}")) for name in present]
    contents = tag(
        "nav", tag("p", "sinkscope"), tag("ol", *entries), class_="contents", aria_label="contents"
    )
    main = tag("main", _head(source), *present.values(), _foot(), id="top")
    body = join(
        [
            tag("a", "Skip to the report", href="#top", class_="skip"),
            tag("div", contents, main, class_="layout"),
        ]
    )
    style = (files("sinkscope.report") / "study" / "style.css").read_text(encoding="utf-8")
    styles = [viewer_style() if embedded is None else embedded.parts.style, style]
    scripts = [] if embedded is None else [embedded.parts.script]
    return page(title, body, scripts=scripts, styles=styles, kind="report")


def _head(source: StudySource) -> Safe:
    calls = source.manifest.get("calls", [])
    when = str(calls[-1].get("when", ""))[:10] if calls else ""
    models, cells = len(source.models), len(source.manifest.get("cells", {}))
    facts = f"{models} model{'s' if models > 1 else ''} · {cells} cells · {when} · sinkscope {__version__}"
    return tag(
        "header", tag("h1", f"Attention sinks: study {source.study.name}"),
        tag("p", source.study.about, class_="lead") if source.study.about else "", tag("p", facts, class_="meta"),
    )  # fmt: skip


def _foot() -> Safe:
    return tag("footer", tag("p", note("foot")))
