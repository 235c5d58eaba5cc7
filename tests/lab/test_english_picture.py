"""The picture of docs/english.md: its lines go through the numbers of the page's table, and its file is small."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from lab.english_picture import PANELS, WAYS
from tests.helpers.pages import tables

from lab import english_picture

ROWS = {
    "first_received": "attention on the first token, × uniform",
    "value_ratio": "value norm of a head's main sink, × median",
    "sinks_per_head": "sinks per head",
    "sink_heads": "heads with a sink, all tokens masked",
}
NAMES = {"lora": "LoRA", "full": "all weights", "random": "random weights"}


def test_lines_go_through_the_table() -> None:
    shown = {
        (name, int(step)): text.partition(" ")[0]
        for head, name, step, text in tables("docs/english.md")
        if head.endswith("by training step")
    }
    axes, checked = english_picture.draw(english_picture.curves()).axes, 0
    for axis, panel in zip(axes, PANELS, strict=True):
        lines = [line for line in axis.lines if len(line.get_xdata()) > 2]  # not the grey one
        assert len(lines) == len(WAYS) * len(panel.shares)
        middle = lines[panel.shares.index(0.5 if 0.5 in panel.shares else 1.0) :: len(panel.shares)]
        for (way, colour), line in zip(WAYS.items(), middle, strict=True):
            assert line.get_color() == colour
            drawn = dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
            for step in (0, 16, 64, 181, 420):
                text = shown[f"{ROWS[panel.measure]}: {NAMES[way]}", step]
                digits = len(text.partition(".")[2])
                assert float(text or "nan") == pytest.approx(
                    drawn.get(step, float("nan")), abs=0.51 * 10.0**-digits, nan_ok=True
                )
                checked += 1
    assert checked == len(shown)


def test_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["english_picture", str(tmp_path)])
    english_picture.main()
    assert 10_000 < (tmp_path / "english-training.png").stat().st_size < 150_000
