"""The claims of the paper, how each was measured here, and what this study says about it, model by model."""

from __future__ import annotations

from sinkscope.report.study.claims import CLAIMS, THEMES, Claim, tally
from sinkscope.report.study.markup import Safe, breakable, details, tag
from sinkscope.report.study.rules import CONTRADICTED, OPEN, SUPPORTED, Judgement
from sinkscope.report.study.source import StudySource
from sinkscope.report.study.words import note, section
from sinkscope.study.evidence_check import CHECKED

MARKS = {SUPPORTED: "✓", CONTRADICTED: "✗", OPEN: "?"}


def claims_table(source: StudySource) -> Safe:
    """The section."""
    judged = source.judged
    models = [model for model in source.models if model in judged[CLAIMS[0].name]]
    rows: list[Safe] = []
    theme = ""
    for claim in sorted(CLAIMS, key=lambda claim: THEMES.index(claim.theme)):
        row = judged[claim.name]
        if not any(row.values()):
            continue
        if claim.theme != theme:
            theme = claim.theme
            rows.append(
                tag("tr", tag("th", theme, colspan=len(models) + 1, scope="rowgroup"), class_="theme")
            )
        rows.append(tag("tr", _claim(claim), *(_cell(claim, model, row[model]) for model in models)))
    head = tag(
        "tr", tag("th", "claim", scope="col"), *(tag("th", breakable(model), scope="col") for model in models)
    )
    caption = tag("caption", note("claims_table"))
    grid = tag("table", caption, tag("thead", head), tag("tbody", *rows), class_="claims")
    found = tally(judged)
    shares = [(status, f" {found.claims[status]} of {found.claims.total()} claims") for status in MARKS]
    counts = tag("ul", *(tag("li", _badge(status), words) for status, words in shares), class_="tally")
    summed = [tag("p", f"{found.sentence}. {note('tally')}")] if found.sentence else []
    checked = [
        tag("p", f"{remark[:1].upper()}{remark[1:]}.", class_="quiet")
        for remark in source.notes
        if remark.startswith(CHECKED)
    ]
    return section(
        "claims", tag("p", note("claims")), counts, *summed, *checked,
        tag("div", grid, class_="scroll", tabindex="0", role="region", aria_label="claims of the paper"),
    )  # fmt: skip


def _claim(claim: Claim) -> Safe:
    how = tag("small", tag("b", "Measured: "), claim.measured, ".")
    power = f" In 80 % of simulated studies it is decided with {claim.power}." if claim.power else ""
    rule = details("rule", tag("p", claim.rule[:1].upper() + claim.rule[1:], ".", power))
    return tag("th", claim.text, tag("small", claim.where), how, rule, scope="row")


def _cell(claim: Claim, model: str, judgements: tuple[Judgement, ...]) -> Safe:
    if not judgements:
        empty = tag("span", "–", title="the claim is not about this kind of model")
        return tag("td", empty, class_="quiet", data_label=model)
    parts = (_judgement(claim, model, one, len(judgements) > 1) for one in judgements)
    return tag("td", tag("div", *parts), data_label=model)


def _judgement(claim: Claim, model: str, judgement: Judgement, several: bool) -> Safe:
    words = [tag("b", judgement.about)] if several else []
    words += [Safe(": ")] if several and judgement.rests else []
    about = [tag("small", *words, judgement.rests)] if words or judgement.rests else []
    return tag(
        "div", _badge(judgement.status), tag("small", judgement.evidence, class_="evidence"), *about, data_claim=claim.name,
        data_model=model, data_about=judgement.about, data_status=judgement.status,
    )  # fmt: skip


def _badge(status: str) -> Safe:
    kind = "open" if status == OPEN else status
    return tag("span", tag("span", MARKS[status], aria_hidden="true"), f" {status}", class_=f"badge {kind}")
