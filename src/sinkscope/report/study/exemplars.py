"""Pictures of files: the paper's figures 1 and 7 and others of the study's folder, the training curves that ship with the
organisms, and one recorded generation of each model in the trace viewer inside the page.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from sinkscope.report.html import PageParts, viewer_parts
from sinkscope.report.study.markup import Safe, figure, link, panels, spelled, tag
from sinkscope.report.study.source import StudySource
from sinkscope.report.study.words import captioned, note, section
from sinkscope.study.shipped import SHELF

PIXELS_PER_POINT, COLUMN = 1.75, 560
"""Size of a paper's figure on the page, and the width in pixels under which it needs no more than a phone has."""

BUDGET = 4_000_000
"""Characters of traces that a report embeds; the whole file stays under 5 MB."""


def maps(source: StudySource) -> Safe | None:
    """The section "Where attention goes"; None where figure 1 was not drawn."""
    pictures = [drawn(source, name) for name in ("figure_1", "figure_7")]
    if pictures[0] is None:
        return None
    return section("maps", *pictures)


def drawn(source: StudySource, stem: str) -> Safe | None:
    """A figure of the study's folder with its caption and a link to its data; None where it was not drawn."""
    picture, words = source.figure(f"{stem}.svg"), source.figure(f"{stem}.txt")
    if picture is None or words is None:
        return None
    seen, _, rest = words.read_text(encoding="utf-8").strip().partition(" Computed: ")
    computed, _, not_shown = rest.partition(" Not shown: ")
    drawing = picture.read_bytes()
    size = re.search(rb'width="([0-9.]+)pt"', drawing)
    wide = round(float(size[1]) * PIXELS_PER_POINT) if size else None
    kind = "paper column" if wide and wide < COLUMN else "paper"
    image = tag("img", src=embedded_svg(drawing), alt=seen, width=wide, class_=kind)
    # Focusable, so that a keyboard can scroll a wide picture on a narrow screen.
    frame = tag("div", image, class_="wide", tabindex="0", role="region", aria_label=seen.partition(".")[0])
    return figure(frame, seen, computed, not_shown[:1].upper() + not_shown[1:], link(f"figures/{stem}.csv"))


def embedded_svg(drawing: bytes) -> Safe:
    """The address of a picture that is part of the page; shown as an image, nothing in it can run."""
    return Safe("data:image/svg+xml;base64," + base64.b64encode(drawing).decode())


def tinted(source: StudySource, stem: str, alt: str, lacking: str, name: str = "", **words: Any) -> Safe:
    """figures/STEM.svg as wide as the page, with a caption and a link to its data.

    Args:
        alt: what it shows. lacking: what is said where it was not drawn.
        name: of the caption in prose.toml, whose braces `words` fill; "": stem.
    """
    path = source.figure(f"{stem}.svg")
    if path is None:
        return tag("p", lacking, class_="quiet")
    picture = tag("img", src=embedded_svg(path.read_bytes()), alt=alt, class_="tinted")
    return captioned(picture, name or stem, link(f"figures/{stem}.csv"), **words)


def emergence(source: StudySource, shelf: Path = SHELF) -> Safe | None:
    """The section "When they appear"; only for models whose shipped curves belong to the weights that were studied."""
    pictures: list[tuple[str, Safe]] = []
    left_out: list[str] = []
    for model in source.study.models:
        folder = shelf / model.source.removeprefix("organism/")
        if not model.source.startswith("organism/") or not (folder / "emergence.svg").is_file():
            continue
        weights = source.manifest.get("models", {}).get(model.name, {}).get("weights")
        if json.loads((folder / "accuracy.json").read_text(encoding="utf-8"))["digest"] != weights:
            left_out.append(model.name)
            continue
        drawing = (folder / "emergence.svg").read_bytes()
        picture = tag(
            "img", src=embedded_svg(drawing), alt=f"{model.name}: sinks by training step", class_="tinted"
        )
        pictures.append((model.name, picture))
    if not pictures:
        return None
    others = f" Left out, because other weights were studied than are shipped: {', '.join(left_out)}."
    picture = captioned(panels(pictures), "emergence", gone=others if left_out else "")
    return section("emergence", picture)


class Embedded(NamedTuple):
    """The section with the viewer, and its style and script for the page."""

    section: Safe
    parts: PageParts


def traces(source: StudySource, budget: int = BUDGET) -> Embedded | None:
    """The section "The traces"; None without traces, or when not even one fits."""
    from sinkscope.report.payload import mixed, views
    from sinkscope.trace.trace import Trace

    embedded: list[dict[str, Any]] = []
    left_out: list[str] = []
    used = 0
    recorded = {model: Trace.open(path) for model, path in source.exemplars.items()}
    percent = mixed(list(recorded.values()))
    for model, trace in recorded.items():
        made = views(trace, name=spelled(model), samples=[0], percent=percent)
        size = len(json.dumps(made))
        if used + size > budget:
            left_out.append(model)
            continue
        used += size
        embedded += made
    if not embedded:
        return None
    # A diffusion model beside a causal one: the paper in one look.
    other = next((view for view in embedded if view["causal"] != embedded[0]["causal"]), None)
    if other is not None:
        other["other"] = True
    parts = viewer_parts(embedded, name="exemplars", compare=other is not None, address=False, inside=True)
    about = (
        f"One recorded generation of each model, chosen by rule: {str(source.manifest.get('exemplars', '')).rstrip('.')}. "
        "Choose trace, layer and head, drag through the steps, put two side by side. "
    )
    if left_out:
        about += f"Left out because the page would grow too large: {', '.join(left_out)}; sinkscope view shows them. "
    return Embedded(section("traces", tag("p", about, note("exemplars")), Safe(parts.body)), parts)
