"""CONTRIBUTING names the files that a traced LLaDA prompt walks through: those whose functions are entered, and no other."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import sinkscope as ss

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(ss.__file__).parent


def entered() -> list[str]:
    """Files of the package in the order in which a function of theirs is first called."""
    model = ss.load("organism/scratch", device="cpu")
    decoding, capture = ss.LladaDecoding(length=8, block=8), ss.Capture()

    def generate() -> None:
        ss.generate(model, "Mia has 3 apples.", decoding, capture=capture, seed=0)

    generate()  # what is done once in a process (imports, trials of kernels) is not part of the walk
    files: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            files[str(path.relative_to(PACKAGE))] = None

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        generate()
    finally:
        sys.setprofile(before)
    return list(files)


def test_the_walk_in_contributing() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split("## The walk of a traced prompt")[1].split("\n## ")[0]
    told = set(re.findall(r"`([\w/]+\.py)`", section))
    walked = set(entered())
    assert len(walked) <= 20, f"a newcomer reads {len(walked)} files: {sorted(walked)}"
    assert told >= walked, f"not in CONTRIBUTING: {sorted(walked - told)}"
    assert told <= walked, f"no longer on the walk: {sorted(told - walked)}"
