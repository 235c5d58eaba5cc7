"""The section on training: the pictures of emerging sinks that ship with the organisms."""

from __future__ import annotations

import json
from pathlib import Path

from sinkscope.report.study.exemplars import embedded_svg
from sinkscope.report.study.markup import Safe, panels, section, tag
from sinkscope.report.study.source import Source
from sinkscope.report.study.words import captioned
from sinkscope.study.shipped import SHELF


def emergence(source: Source, shelf: Path = SHELF) -> Safe | None:
    """The section; only for models whose shipped curves belong to the weights that were studied."""
    pictures: list[tuple[str, Safe]] = []
    left_out: list[str] = []
    for model in source.study.models:
        folder = shelf / model.source.removeprefix("organism/")
        if not model.source.startswith("organism/") or not (folder / "emergence.svg").is_file():
            continue
        weights = source.manifest.get("models", {}).get(model.name, {}).get("weights")
        if _digest(folder) not in (None, weights):
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
    return section("emergence", "When they appear", picture)


def _digest(folder: Path) -> str | None:
    """The digest of the weights that the shelf's numbers belong to; None: not known."""
    path = folder / "accuracy.json"
    if not path.is_file():
        return None
    digest = json.loads(path.read_text(encoding="utf-8")).get("digest")
    return None if digest is None else str(digest)
