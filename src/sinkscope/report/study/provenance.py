"""Settings and provenance: everything that a number of this page depends on, and where the data are."""

from __future__ import annotations

import json
from typing import Any

from sinkscope.report.study.markup import Safe, details, join, link, listing, table, tag
from sinkscope.report.study.source import StudySource
from sinkscope.report.study.words import note, policy_words, reading, section
from sinkscope.study.draw import sentences
from sinkscope.study.evidence_check import CHECKED
from sinkscope.study.spec import to_toml
from sinkscope.tasks.evaluation import confined_by


def provenance(source: StudySource) -> Safe:
    """The section."""
    manifest = source.manifest
    facts = [
        ("study", source.study.name),
        ("documents", f"{_documents(source)}. {' '.join(sentences(source.study))}"),
        ("traced documents", manifest.get("traced_documents", "")),
        ("exemplars", manifest.get("exemplars", "")),
        ("intervals", note("intervals")),
        ("earlier evidence", _evidence(source)),
        ("programs graded by", _sandbox(source)),
        ("policies", note("policies")),
        ("how all of it is measured", reading()),
        ("versions", ", ".join(f"{name} {version}" for name, version in manifest.get("versions", {}).items())),
        ("science", f"{manifest.get('science', '')}; inputs {manifest.get('inputs', '')}"),
    ]  # fmt: skip
    listed = tag(
        "dl", *(join([tag("dt", name), tag("dd", value)]) for name, value in facts if value), class_="facts"
    )
    return section(
        "settings", listed, _models(source), *_settings(source), *_calls(source),
        details("study.toml", listing(to_toml(source.study))),
        details("cells", listing(json.dumps(manifest.get("cells", {}), indent=1, ensure_ascii=False))),
        tag("h3", "Data files"), _files(source),
    )  # fmt: skip


def _sandbox(source: StudySource) -> str:
    """The rungs of the sandbox that model-written programs ran on, as their records say; empty when no code was run."""
    records = source.frames.get("records")
    return "" if records is None or "sandbox" not in records else confined_by(records["sandbox"].dropna())


def _evidence(source: StudySource) -> str:
    """How the evidence of earlier studies compares with what was computed here; empty without any."""
    checked = [remark for remark in source.notes if remark.startswith(CHECKED)]
    rest = "The claims, and the measures of traces, rest on all that is used."
    return f"{'; '.join(checked)}. {rest}" if checked else ""


def _documents(source: StudySource) -> str:
    frame = source.frames.get("results")
    if frame is None:
        return "no accuracies"
    return "; ".join(
        f"{task}: n = {' or '.join(map(str, sorted(set(part['n']))))} a cell"
        for task, part in frame.groupby("task", sort=False)
    )


def _models(source: StudySource) -> Safe:
    rows = []
    for model in source.study.models:
        about = source.manifest.get("models", {}).get(model.name, {})
        rows.append(
            [model.name, model.source, model.revision or "–", about.get("family"), about.get("dtype"),
             f"{about.get('parameters', 0):,}", f"{about.get('layers', '?')} × {about.get('heads', '?')}",
             tag("code", str(about.get("weights") or "–")[:16])]
        )  # fmt: skip
    head = "model, source, revision, family, dtype, parameters, layers × heads, weights (digest or commit)"
    return table("Models", head.split(", "), rows)


def _settings(source: StudySource) -> list[Safe]:
    frame = source.frames.get("results")
    if frame is None:
        return []
    seen = frame.drop_duplicates(["model", "task", "decoding_name"])
    rows = [
        [row["model"], f"{row['task']} ({row['task_version']}, scheme {row['scheme']})", tag("code", row["decoding"]),
         row["seeds"]]
        for row in seen.to_dict("records")
    ]  # fmt: skip
    policies = [
        [policy, policy_words(policy) or "as its name says (sinkscope.parse_policy)"]
        for policy in dict.fromkeys(frame["policy"])
    ]
    return [
        table("Decodings", ("model", "task", "decoding", "seeds"), rows),
        details("policies", table("Policies and their scope", ("policy", "what it does"), policies)),
    ]


def _calls(source: StudySource) -> list[Safe]:
    calls: list[dict[str, Any]] = list(source.manifest.get("calls", []))
    rows = [
        [call.get("when", ""), call.get("on", ""), str(call.get("workers", "")), f"{call.get('answers_computed', 0):,}",
         ", ".join(f"{name} {seconds:g} s" for name, seconds in call.get("seconds", {}).items())]
        for call in calls
    ]  # fmt: skip
    if not rows:
        return []
    return [
        table("Every call that worked on this study", ("when", "on", "workers", "answers", "timings"), rows)
    ]


def _files(source: StudySource) -> Safe:
    """Links to what is beside the page."""
    tables = [f"tables/{name}.{ending}" for name in source.frames for ending in ("csv", "parquet")]
    figures = [f"figures/{path.name}" for path in sorted((source.root / "figures").glob("*.svg"))]
    paths = [*tables, *figures, "study.toml", "manifest.json"]
    parts = [tag("ul", *(tag("li", link(path)) for path in paths), class_="files")]
    left_out = [tag("li", f"{name}: {why}") for name, why in source.figures_left_out.items()]
    if left_out:
        parts += [tag("p", "Figures that could not be drawn:"), tag("ul", *left_out, class_="quiet")]
    return tag("div", *parts)
