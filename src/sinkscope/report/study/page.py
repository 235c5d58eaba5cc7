"""The page: sections in their order, contents, and one file around them."""

from __future__ import annotations

from importlib.resources import files

from sinkscope.report.html import page, viewer_style
from sinkscope.report.study.anatomy import anatomy
from sinkscope.report.study.claims_table import claims_table
from sinkscope.report.study.composition import composition
from sinkscope.report.study.dynamics import dynamics
from sinkscope.report.study.emergence import emergence
from sinkscope.report.study.exemplars import maps, traces
from sinkscope.report.study.holdings import what_they_hold
from sinkscope.report.study.likelihood import likelihood
from sinkscope.report.study.markup import Safe, join, tag
from sinkscope.report.study.masking import masking
from sinkscope.report.study.mechanisms import mechanisms
from sinkscope.report.study.provenance import provenance
from sinkscope.report.study.reuse import approximate_steps
from sinkscope.report.study.source import Source
from sinkscope.report.study.summary import summary
from sinkscope.report.study.verdicts import verdicts
from sinkscope.version import __version__

CONTENTS = {
    "summary": "In five sentences",
    "verdict": "Verdict",
    "claims": "The paper’s claims",
    "masking": "What breaks without them",
    "maps": "Where attention goes",
    "composition": "What they are made of",
    "dynamics": "Do they move?",
    "anatomy": "Anatomy",
    "mechanisms": "Single steps and pairs",
    "likelihood": "Likelihood of text",
    "inspection": "What they hold",
    "reuse": "Approximate steps",
    "emergence": "When they appear",
    "traces": "The traces",
    "settings": "Settings and provenance",
}


def report_page(source: Source) -> str:
    """The whole report as one HTML document."""
    embedded = traces(source)
    made: dict[str, Safe | None] = {
        "summary": summary(source),
        "verdict": verdicts(source),
        "claims": claims_table(source),
        "masking": masking(source),
        "maps": maps(source),
        "composition": composition(source),
        "dynamics": dynamics(source),
        "anatomy": anatomy(source),
        "mechanisms": mechanisms(source),
        "likelihood": likelihood(source),
        "inspection": what_they_hold(source),
        "reuse": approximate_steps(source),
        "emergence": emergence(source),
        "traces": None if embedded is None else embedded.section,
        "settings": provenance(source),
    }
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


def _head(source: Source) -> Safe:
    calls = source.manifest.get("calls", [])
    when = str(calls[-1].get("when", ""))[:10] if calls else ""
    models, cells = len(source.models), len(source.manifest.get("cells", {}))
    facts = f"{models} model{'s' if models > 1 else ''} · {cells} cells · {when} · sinkscope {__version__}"
    return tag(
        "header", tag("h1", f"Attention sinks: study {source.study.name}"),
        tag("p", source.study.about, class_="lead") if source.study.about else "", tag("p", facts, class_="meta"),
    )  # fmt: skip


def _foot() -> Safe:
    return tag(
        "footer",
        tag(
            "p",
            "Received attention is relative to uniform attention: 1 everywhere if every query looked at all its keys alike. A "
            "sink is a key that gets more than the mean of the others plus 3, in one head and step. Hover a mark for its "
            "numbers. This page is one file and asks nothing of any network.",
        ),
    )
