"""The page: what each section shows, in their order, rendered from the templates of this folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

from jinja2 import Environment
from markupsafe import Markup

from sinkscope.base.text import listed
from sinkscope.base.version import __version__
from sinkscope.report import html
from sinkscope.report.figures import look
from sinkscope.report.figures.look import short
from sinkscope.report.html import asset, page, viewer_script
from sinkscope.report.study import matrix, scores, tables, traced
from sinkscope.report.study.drawing import shown, study_figures, traces
from sinkscope.report.study.overview import overview
from sinkscope.report.study.source import StudySource
from sinkscope.study.documents import sentences
from sinkscope.study.names import label
from sinkscope.study.plugged import PLUGINS
from sinkscope.study.spec import to_toml
from sinkscope.tasks.evaluation import confined_by
from sinkscope.verdicts import wording
from sinkscope.verdicts.verdict import Question

Shown = Mapping[str, Any] | None


class Section(NamedTuple):
    """A part of the page. make: what its template shows; None leaves it out. template: "": NAME.jinja."""

    name: str
    title: str
    make: Callable[[StudySource], Shown]
    template: str = ""


def sections() -> list[Section]:
    """All of them, in their order."""
    return [
        Section("summary", "Summary", overview),
        Section("claims", "The paper’s claims", matrix.claims),
        Section("findings", "What kind of sinks", matrix.findings),
        Section("masking", "What breaks without them", scores.masking),
        Section("skills", "Which skills", tables.skills),
        Section("likelihood", "Likelihood of text", scores.likelihood),
        Section("maps", "Where attention goes", traced.maps),
        Section("composition", "What they are made of", traced.composition),
        Section("dynamics", "Do they move?", traced.dynamics),
        Section("anatomy", "Anatomy", traced.anatomy),
        Section("mechanisms", "Single steps and pairs", tables.mechanisms),
        Section("inspection", "What they hold", tables.inspection),
        *(Section(one.name, one.title, partial(tables.plugged, plugin=one), "plugged.jinja") for one in PLUGINS.values()),
        Section("far", "The paper’s claims, on other models than its own", partial(matrix.claims, near=False), "claims.jinja"),
        Section("traces", "The traces", traces),
        Section("answers", "Every answer", tables.answers),
        Section("settings", "Settings and provenance", provenance),
    ]  # fmt: skip


def report_page(source: StudySource) -> str:
    """The whole report as one HTML document."""
    made = {section: part for section in sections() if (part := section.make(source)) is not None}
    figures = {figure.name: shown(figure) for figure in study_figures(source)}
    known = {"source": source, "figures": figures, "version": __version__}

    def rendered(section: Section) -> Markup:
        template = environment().get_template(section.template or f"{section.name}.jinja")
        return Markup(template.render(made[section], section=section, **known))  # noqa: S704 – templates escape

    parts = {section: rendered(section) for section in made}
    body = environment().get_template("report.jinja").render(sections=parts, **known)
    columns = "".join(f".of-{n} {{ --models: {n}; }} " for n in range(1, len(source.models) + 1))
    styles = [asset("viewer/viewer.css"), asset("study/style.css"), columns]
    scripts = [asset("study/report.js"), *(viewer_script() for section in made if section.make is traces)]
    return page(f"{source.study.name} · sinkscope study", body, scripts=scripts, styles=styles, kind="report")


def provenance(source: StudySource) -> Shown:
    """Everything that a number of the page depends on, and where the data are."""
    rows = [row for table in scores.MEASURES for _, row in source.rows(table)]
    decodings = {(row["model"], row["task"], row["decoding_name"]): row for row in rows}
    policies = [row["policy"] for row in rows]
    return {
        "documents": sentences(source.study), "sandbox": sandbox_of(source), "decodings": decodings.values(),
        "policies": dict.fromkeys(policies), "toml": to_toml(source.study),
    }  # fmt: skip


def sandbox_of(source: StudySource) -> str:
    """The rungs of the sandbox that model-written programs ran on, as their records say; empty when no code was run."""
    records = source.frames.get("records")
    return "" if records is None or "sandbox" not in records else confined_by(records["sandbox"].dropna())


@cache
def environment() -> Environment:
    """The templates of pages, with what those of this folder use."""
    made = html.environment()
    made.filters["listed"] = partial(listed, most=look.NAMED)
    made.globals |= {
        "wording": wording, "bare": matrix.bare, "short": short, "label": label, "answers_of": answers_of,
        "Question": Question,
    }  # fmt: skip
    return made


def answers_of(source: StudySource, question: str) -> dict[str | None, list[str]]:
    """Answer to a question of the diagnosis → the models that have it."""
    return matrix.by_answer({model: told[question] for model, told in source.diagnoses.items() if question in told})
