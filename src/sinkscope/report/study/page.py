"""The page: sections in their order, contents, and one file around them."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files

from sinkscope.report.html import page, viewer_style
from sinkscope.report.study.claims_table import claims_table
from sinkscope.report.study.exemplars import emergence, maps, traces
from sinkscope.report.study.holdings import what_they_hold
from sinkscope.report.study.markup import Safe, join, tag
from sinkscope.report.study.masking import masking
from sinkscope.report.study.provenance import provenance
from sinkscope.report.study.source import StudySource
from sinkscope.report.study.summary import summary, verdicts
from sinkscope.report.study.tables import approximate_steps, likelihood, mechanisms, skills, training_runs
from sinkscope.report.study.traced import anatomy, composition, dynamics
from sinkscope.report.study.words import CONTENTS, note
from sinkscope.version import __version__

SECTIONS: dict[str, Callable[[StudySource], Safe | None]] = {
    "summary": summary,
    "verdict": verdicts,
    "claims": claims_table,
    "masking": masking,
    "skills": skills,
    "maps": maps,
    "composition": composition,
    "dynamics": dynamics,
    "anatomy": anatomy,
    "mechanisms": mechanisms,
    "likelihood": likelihood,
    "inspection": what_they_hold,
    "reuse": approximate_steps,
    "ladder": training_runs,
    "emergence": emergence,
    "settings": provenance,
}
"""Anchor → what makes the section; the traces, which bring a script of their own, are not among them."""


def report_page(source: StudySource) -> str:
    """The whole report as one HTML document."""
    embedded = traces(source)
    made = {anchor: make(source) for anchor, make in SECTIONS.items()}
    made["traces"] = None if embedded is None else embedded.section
    present = {name: part for name in CONTENTS if (part := made[name]) is not None}
    title = f"{source.study.name} · sinkscope study"
    entries = [tag("li", tag("a", CONTENTS[name], href=f"#{name}")) for name in present]
    contents = tag(
        "nav", tag("p", "sinkscope"), tag("ol", *entries), class_="contents", aria_label="contents"
    )
    main = tag("main", _head(source), *present.values(), tag("footer", tag("p", note("foot"))), id="top")
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
